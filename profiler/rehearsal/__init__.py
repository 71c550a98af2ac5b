"""A CUDA device that has memory and does no arithmetic: PyTorch's own CUDA code and allocator run without a GPU.

`hollow/` has the sources, `build` compiles them for the installed torch, `device` loads the result into a process. Only
bytes mean something there: kernels never run, so values, gradients and times are meaningless.
"""
