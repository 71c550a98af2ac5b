"""The table of optimizers, which imports no torch; their keyword-only parameters are the options."""

TABLE = {
    "sgd": "profiler.training.optimizers.torch_optim:sgd",
    "momentum": "profiler.training.optimizers.torch_optim:momentum",
    "adam": "profiler.training.optimizers.torch_optim:adam",
    "adamw": "profiler.training.optimizers.torch_optim:adamw",
    "torch": "profiler.training.optimizers.torch_optim:build",
}
