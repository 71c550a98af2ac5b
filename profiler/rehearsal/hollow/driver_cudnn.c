/* The driver's functions that cuDNN looks up by name to make a plan, besides those of driver.c: nothing is loaded. */
#include "hollow.h"
#undef cuCtxPopCurrent /* it asks for the names without the header's version suffixes */
#undef cuCtxPushCurrent
#undef cuLinkAddData
#undef cuLinkCreate
#undef cuStreamGetCtx

static struct Nothing { char bytes[64]; } nothing;

CUresult cuCtxPopCurrent_v2(CUcontext *out);
CUresult cuCtxPushCurrent_v2(CUcontext context);
API CUresult cuCtxPopCurrent(CUcontext *out) { return cuCtxPopCurrent_v2(out); }
API CUresult cuCtxPushCurrent(CUcontext context) { return cuCtxPushCurrent_v2(context); }
API CUresult cuStreamGetCtx(CUstream s, CUcontext *out) { return cuCtxGetCurrent(out); }
API CUresult cuLinkCreate(unsigned n, CUjit_option *which, void **values, CUlinkState *out) {
    return *out = (CUlinkState)&nothing, CUDA_SUCCESS;
}
API CUresult cuLinkAddData(CUlinkState state, CUjitInputType type, void *image, size_t bytes, const char *name,
                           unsigned n, CUjit_option *which, void **values) {
    return CUDA_SUCCESS;
}
API CUresult cuLinkComplete(CUlinkState state, void **out, size_t *bytes) {
    return *out = &nothing, *bytes = sizeof nothing, CUDA_SUCCESS;
}
API CUresult cuLinkDestroy(CUlinkState state) { return CUDA_SUCCESS; }
API CUresult cuLibraryLoadData(CUlibrary *out, const void *image, CUjit_option *j, void **jv, unsigned nj,
                               CUlibraryOption *l, void **lv, unsigned nl) {
    return *out = (CUlibrary)&nothing, CUDA_SUCCESS;
}
API CUresult cuLibraryLoadFromFile(CUlibrary *out, const char *path, CUjit_option *j, void **jv, unsigned nj,
                                   CUlibraryOption *l, void **lv, unsigned nl) {
    return *out = (CUlibrary)&nothing, CUDA_SUCCESS;
}
API CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary library, const char *name) {
    return *out = (CUkernel)&nothing, CUDA_SUCCESS;
}
API CUresult cuKernelGetFunction(CUfunction *out, CUkernel kernel) { return *out = (CUfunction)kernel, CUDA_SUCCESS; }
API CUresult cuLibraryUnload(CUlibrary library) { return CUDA_SUCCESS; }
API CUresult cuKernelGetAttribute(int *out, CUfunction_attribute which, CUkernel kernel, CUdevice device) {
    return cuFuncGetAttribute(out, which, (CUfunction)kernel);
}
API CUresult cuKernelSetAttribute(CUfunction_attribute which, int value, CUkernel kernel, CUdevice device) {
    return CUDA_SUCCESS;
}
API CUresult cuOccupancyMaxPotentialClusterSize(int *out, CUfunction f, const CUlaunchConfig *config) {
    return *out = 8, CUDA_SUCCESS; /* what every device with clusters can schedule */
}
