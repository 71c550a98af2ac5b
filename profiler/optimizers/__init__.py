"""The table of optimizers; their keyword-only parameters are the options: knows nothing of torch itself."""

TABLE = {
    "sgd": "profiler.optimizers.basic:sgd",
    "momentum": "profiler.optimizers.basic:momentum",
    "adam": "profiler.optimizers.basic:adam",
    "adamw": "profiler.optimizers.basic:adamw",
    "torch": "profiler.optimizers.named:build",
}
