"""The table of ways in which several ranks train one model. A way is one file with one function, and one line here.

The function takes the Workload of one rank, its strategy applied, and the mesh of all ranks (`torch.distributed`'s
DeviceMesh of one dimension); it returns the Workload to train, whose module, blocks and parameters have the names that
they have now. Its keyword-only parameters are the options. It raises Unsupported where it cannot be applied. Knows
nothing of torch.
"""

TABLE = {
    "ddp": "profiler.training.distributed.ddp:distribute",
    "fsdp2": "profiler.training.distributed.fsdp2:distribute",
}
