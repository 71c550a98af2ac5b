"""The table of optimizers; their keyword-only parameters are the options: knows nothing of torch itself."""

TABLE = {
    "sgd": "profiler.training.optimizers.basic:sgd",
    "momentum": "profiler.training.optimizers.basic:momentum",
    "adam": "profiler.training.optimizers.basic:adam",
    "adamw": "profiler.training.optimizers.basic:adamw",
    "torch": "profiler.training.optimizers.named:build",
}
