"""A step that is followed instead of measured: every allocation, with its operator, module, phase and category.

`step.follow` traces a workload under fake tensors, which take neither memory nor compute; `timeline` is the plain data
that comes out, and knows nothing of torch.
"""
