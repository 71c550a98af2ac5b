"""The table of strategies: a function each, and one line here, which imports no torch.

The function takes the Workload, changes its module in place, and returns what it did as Applied; its
keyword-only parameters are the options. It raises Unsupported where it cannot be applied.
"""

TABLE = {
    "none": "profiler.training.strategies.chain:none",
    "segments": "profiler.training.strategies.chain:segments",
    "sqrt": "profiler.training.strategies.chain:sqrt",
    "all": "profiler.training.strategies.chain:all_blocks",
    "every": "profiler.training.strategies.chain:every",
    "first": "profiler.training.strategies.chain:first",
    "recursive": "profiler.training.strategies.chain:recursive",
    "from-start": "profiler.training.strategies.chain:from_start",
    "selective": "profiler.training.strategies.selective:apply",
    "offload": "profiler.training.strategies.whole_model:offload",
    "own": "profiler.training.strategies.chain:own",
    "hf": "profiler.training.strategies.whole_model:hugging_face",
    "plan": "profiler.training.strategies.plan:apply",
    "compile-budget": "profiler.training.strategies.whole_model:compile_budget",
    "_planted": "profiler.training.strategies.chain:planted",
}
