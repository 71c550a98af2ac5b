"""The table of strategies. A strategy is one file with one function, and one line here: knows nothing of torch itself.

The function takes the Workload, changes its module in place, and returns what it did as Applied; its
keyword-only parameters are the options. It raises Unsupported where it cannot be applied.
"""

TABLE = {
    "none": "profiler.strategies.none:apply",
    "segments": "profiler.strategies.segments:apply",
    "sqrt": "profiler.strategies.sqrt:apply",
    "all": "profiler.strategies.every_block:apply",
    "every": "profiler.strategies.every:apply",
    "first": "profiler.strategies.first:apply",
    "recursive": "profiler.strategies.recursive:apply",
    "from-start": "profiler.strategies.from_start:apply",
    "selective": "profiler.strategies.selective:apply",
    "offload": "profiler.strategies.offload:apply",
    "hf": "profiler.strategies.hugging_face:apply",
    "plan": "profiler.strategies.plan:apply",
    "compile-budget": "profiler.strategies.compile_budget:apply",
    "_planted": "profiler.strategies.planted:apply",
}
