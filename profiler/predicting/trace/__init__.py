"""A step that is followed instead of measured: every allocation, with its operator, module, phase and category.

`step.follow` traces a workload under fake tensors, which take neither memory nor compute; what comes out is plain data,
a Trace of `profiler.core.trace_data`.
"""
