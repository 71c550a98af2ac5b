"""gcprof: the memory-time trade-off of gradient checkpointing, measured."""

__version__ = "0.1.0"
