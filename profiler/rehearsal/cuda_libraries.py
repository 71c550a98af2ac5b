"""The CUDA libraries that torch loads, and how each is replaced: by its sources, and by stubs of other functions."""

from __future__ import annotations

from typing import NamedTuple

STUBS = """#include "refused.h"
int set_error(int error);
static long refuse(const char *name, int *called) {
    if (!*called) tell_refused(name);
    *called = 1;
    return NOT_SUPPORTED;
}
#define API __attribute__((visibility("default")))
#define UNKNOWN(name) API long name(void) { static int called; return refuse(#name, &called); }
#define KNOWN(name) API long name(void) { return 0; }
"""


class Library(NamedTuple):
    """A library that torch loads, and how its stand-in is built."""

    name: str
    not_supported: int  # returned by functions that are neither in the sources nor `known`
    sources: tuple[str, ...]
    flags: tuple[str, ...] = ()
    known: str = ""  # a pattern of functions that only compute values on the device: stubs that return success


CUDA_NOT_SUPPORTED = 801  # cudaErrorNotSupported
CUBLAS_NOT_SUPPORTED = 15
CUDNN_NOT_SUPPORTED = 3000  # since cuDNN 9, which torch has since 2.4
NCCL_INTERNAL_ERROR = 3  # NCCL has no code for "not supported"
CUFFT_NOT_SUPPORTED = 16
NVRTC_INTERNAL_ERROR = 11
CUPTI_NOT_SUPPORTED = 27
RUNTIME = ("device.c", "memory.c", "kernels.c", "streams.c", "graphs.c", "driver.c", "driver_cudnn.c")
BLAS = (  # the routines whose results are on the device, as torch calls them
    r"cublas(([SDCZ]|Cs|Zd)?([Aa]xpy|copy|[Ss]cal|swap|[Dd]ot[cu]?|[Rr]ot|gemv|ger[cu]?|hemv|her2?|symv|syr2?|tr[ms]v|"
    r"[Gg]emm|gemm3m|hemm|her2?kx?|symm|syr2?kx?|tr[ms]m|dgmm|geam|getr[fi])(Strided)?(Batched)?(Ex)?(_v2)?(_64)?|"
    r"Set(AtomicsMode|Emulation\w+|FixedPoint\w+|MathMode|PointerMode|SmCountTarget|Workspace)(_v2)?)"
)
BLAS_LT = r"cublasLt(Matmul|\w+SetAttribute)"
DNN = (
    r"cudnn(BatchNormalization\w+|PoolingForward|SpatialTf\w+|"
    r"Set(Activation|Convolution|Filter|Pooling|Spatial|Tensor)\w+)"
)
CUDA = r"cudaMem(PrefetchAsync|Advise)(_ptsz)?"  # advice on managed memory
NCCL = r"nccl(CommDeregister|CommWindowDeregister)"
FFT = r"cufft(Destroy|SetAutoAllocation|SetStream|SetWorkArea|XtExec)"
NVRTC = r"nvrtc(AddNameExpression|CompileProgram)"
LIBRARIES = (
    Library("libcudart", CUDA_NOT_SUPPORTED, RUNTIME, known=CUDA),
    Library("libcublas", CUBLAS_NOT_SUPPORTED, ("blas.c",), known=BLAS),
    Library("libcublasLt", CUBLAS_NOT_SUPPORTED, ("blas.c",), ("-DLT",), known=BLAS_LT),
    Library("libcudnn", CUDNN_NOT_SUPPORTED, ("cudnn.c", "cudnn_graph.c"), known=DNN),
    Library("libnccl", NCCL_INTERNAL_ERROR, ("nccl.c", "messages.c", "reduce.c"), known=NCCL),
    Library("libcufft", CUFFT_NOT_SUPPORTED, ("cufft.c",), known=FFT),
    Library("libnvrtc", NVRTC_INTERNAL_ERROR, ("nvrtc.c",), known=NVRTC),
    Library("libcupti", CUPTI_NOT_SUPPORTED, ("cupti.c",)),
)
