"""Traces a step instead of measuring it: every allocation, with its operator, module, phase and category.

`step.follow` traces a workload under fake tensors, which take neither memory nor compute, and returns plain data, a
Trace of `profiler.core.trace_data`.
"""
