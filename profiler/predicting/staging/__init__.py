"""Case -> a chain of stages with what each costs: what planning works on."""
