"""The table of optimizers; their keyword-only parameters are the options: knows nothing of torch itself."""

TABLE = {
    "sgd": "profiler.training.optimizers.torch_optim:sgd",
    "momentum": "profiler.training.optimizers.torch_optim:momentum",
    "adam": "profiler.training.optimizers.torch_optim:adam",
    "adamw": "profiler.training.optimizers.torch_optim:adamw",
    "torch": "profiler.training.optimizers.torch_optim:build",
}
