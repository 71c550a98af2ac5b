"""The table of strategies. A strategy is one file with one function, and one line here: knows nothing of torch itself.

The function takes the Workload, changes its module in place, and returns what it did as Applied; its
keyword-only parameters are the options. It raises Unsupported where it cannot be applied.
"""

TABLE = {
    "none": "profiler.strategies.none:apply",
    "segments": "profiler.strategies.segments:apply",
    "_planted": "profiler.strategies.planted:apply",
}
