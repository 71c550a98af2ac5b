"""A CUDA device that has memory and does no arithmetic: PyTorch's own CUDA code and allocator run without a GPU.

`hollow/` has the sources, `build` makes libraries of them for the installed torch, `device` opens them. Only bytes mean
something there: kernels are never run, so that values, gradients and times are none.
"""
