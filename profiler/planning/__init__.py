"""What a chain of stages costs under a plan, and the best plans for every budget; without torch."""
