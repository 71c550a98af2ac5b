"""The table of ways to train one model on several ranks: a function each, and one line here.

The function takes the Workload of one rank, its strategy applied, and the mesh of all ranks (`torch.distributed`'s
one-dimensional DeviceMesh). It returns the Workload to train, whose module, blocks and parameters keep their names. Its
keyword-only parameters are the options. It raises Unsupported if it cannot be applied. The table imports no torch.
"""

TABLE = {
    "ddp": "profiler.training.distributed.torch_ranks:ddp",
    "fsdp2": "profiler.training.distributed.torch_ranks:fsdp2",
}
