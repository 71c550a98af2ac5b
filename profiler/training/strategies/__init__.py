"""The table of strategies: one file with one function each, and one line here, which imports no torch.

The function takes the Workload, changes its module in place, and returns what it did as Applied; its
keyword-only parameters are the options. It raises Unsupported where it cannot be applied.
"""

TABLE = {
    "none": "profiler.training.strategies.none:apply",
    "segments": "profiler.training.strategies.segments:apply",
    "sqrt": "profiler.training.strategies.sqrt:apply",
    "all": "profiler.training.strategies.all_blocks:apply",
    "every": "profiler.training.strategies.every:apply",
    "first": "profiler.training.strategies.first:apply",
    "recursive": "profiler.training.strategies.recursive:apply",
    "from-start": "profiler.training.strategies.from_start:apply",
    "selective": "profiler.training.strategies.selective:apply",
    "offload": "profiler.training.strategies.offload:apply",
    "own": "profiler.training.strategies.own:apply",
    "hf": "profiler.training.strategies.hugging_face:apply",
    "plan": "profiler.training.strategies.plan:apply",
    "compile-budget": "profiler.training.strategies.compile_budget:apply",
    "_planted": "profiler.training.strategies.planted:apply",
}
