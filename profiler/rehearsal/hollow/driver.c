/* The driver: empty contexts, virtual memory for expandable segments, modules that are never run. */
#include "hollow.h"
#include "refused.h"
#include <dlfcn.h>

typedef struct { size_t bytes; int device; } Physical; /* what cuMemCreate makes */

#define CU(error) ((CUresult)(error)) /* the runtime's numbers are the driver's, for those that are used here */

API CUresult cuInit(unsigned flags) { return CU(ready()); }
API CUresult cuDriverGetVersion(int *out) { return *out = CUDA_VERSION, CUDA_SUCCESS; }
API CUresult cuDeviceGetCount(int *out) { return CU(cudaGetDeviceCount(out)); }
API CUresult cuDeviceGet(CUdevice *out, int ordinal) { return *out = ordinal, CU(ready()); }
API CUresult cuDeviceGetAttribute(int *out, CUdevice_attribute which, CUdevice device) { /* the same numbers */
    if (which == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) return *out = 1, CUDA_SUCCESS;
    return CU(cudaDeviceGetAttribute(out, (enum cudaDeviceAttr)which, device));
}
API CUresult cuGetErrorString(CUresult error, const char **out) {
    return *out = cudaGetErrorString((cudaError_t)error), CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    return *flags = 0, *active = touched[device], CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
    return *out = (CUcontext)&touched[device], CUDA_SUCCESS;
}
API CUresult cuCtxGetCurrent(CUcontext *out) {
    return *out = touched[current] ? (CUcontext)&touched[current] : 0, CUDA_SUCCESS;
}
API CUresult cuCtxSetCurrent(CUcontext context) {
    if (context) current = (int)((int *)context - touched);
    return CUDA_SUCCESS;
}
API CUresult cuPointerGetAttribute(void *out, CUpointer_attribute which, CUdeviceptr p) {
    Block block;
    if (!holder((void *)p, &block)) return CUDA_ERROR_INVALID_VALUE;
    switch ((int)which) {
        case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)out = (CUcontext)&touched[block.device]; break;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)out = block.device; break;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)out = p; break;
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            *(unsigned *)out = block.host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
            break;
        default: return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}
API CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *bytes, CUdeviceptr p) {
    Block block;
    if (!holder((void *)p, &block)) return CUDA_ERROR_INVALID_VALUE;
    if (base) *base = block.at;
    if (bytes) *bytes = block.bytes;
    return CUDA_SUCCESS;
}
API CUresult cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *p,
                                           CUmemAllocationGranularity_flags f) {
    return *out = GRANULE, CUDA_SUCCESS;
}
API CUresult cuMemAddressReserve(CUdeviceptr *out, size_t n, size_t align, CUdeviceptr at, unsigned long long flags) {
    *out = (CUdeviceptr)reserve_pages(UP(n), PROT_NONE);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
API CUresult cuMemAddressFree(CUdeviceptr p, size_t n) { return munmap((void *)p, UP(n)), CUDA_SUCCESS; }
API CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t n, const CUmemAllocationProp *p,
                         unsigned long long flags) {
    if (!take(p->location.id, UP(n))) return CUDA_ERROR_OUT_OF_MEMORY;
    Physical *physical = malloc(sizeof *physical);
    *physical = (Physical){UP(n), p->location.id};
    return *out = (CUmemGenericAllocationHandle)(uintptr_t)physical, CUDA_SUCCESS;
}
API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    Physical *physical = (Physical *)(uintptr_t)handle;
    give_back(physical->device, physical->bytes);
    return free(physical), CUDA_SUCCESS;
}
API CUresult cuMemMap(CUdeviceptr p, size_t n, size_t offset, CUmemGenericAllocationHandle handle,
                      unsigned long long flags) {
    if (mprotect((void *)p, n, PROT_READ | PROT_WRITE)) return CUDA_ERROR_INVALID_VALUE;
    remember(p, n, 0, ((Physical *)(uintptr_t)handle)->device, 0); /* counted by cuMemCreate */
    return CUDA_SUCCESS;
}
API CUresult cuMemSetAccess(CUdeviceptr p, size_t n, const CUmemAccessDesc *d, size_t number) { return CUDA_SUCCESS; }
API CUresult cuMemUnmap(CUdeviceptr p, size_t n) { /* one or more mappings; the addresses stay reserved */
    forget_range(p, n);
    mmap((void *)p, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return CUDA_SUCCESS;
}
API CUresult cuMemsetD32Async(CUdeviceptr p, unsigned value, size_t n, CUstream s) {
    for (size_t i = 0; i < n; i++) ((unsigned *)p)[i] = value;
    return CUDA_SUCCESS;
}

/* what Triton and Inductor load and launch: one empty module and kernel for all, never run */
static struct Nothing { char bytes[64]; } nothing;
API CUresult cuModuleLoad(CUmodule *out, const char *path) { return *out = (CUmodule)&nothing, CUDA_SUCCESS; }
API CUresult cuModuleLoadData(CUmodule *out, const void *image) { return *out = (CUmodule)&nothing, CUDA_SUCCESS; }
API CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned n, CUjit_option *which, void **values) {
    return *out = (CUmodule)&nothing, CUDA_SUCCESS;
}
API CUresult cuModuleUnload(CUmodule module) { return CUDA_SUCCESS; }
API CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name) {
    return *out = (CUfunction)&nothing, CUDA_SUCCESS;
}
API CUresult cuFuncGetAttribute(int *out, CUfunction_attribute which, CUfunction f) {
    *out = which == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : which == CU_FUNC_ATTRIBUTE_NUM_REGS ? 32 : 0;
    return CUDA_SUCCESS;
}
API CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute which, int value) { return CUDA_SUCCESS; }
API CUresult cuFuncSetCacheConfig(CUfunction f, CUfunc_cache config) { return CUDA_SUCCESS; }
API CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                            unsigned shared, CUstream s, void **args, void **extra) {
    return CU(on_device());
}
API CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **args, void **extra) {
    return CU(on_device());
}
API CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                       unsigned bz, unsigned shared, CUstream s, void **args) {
    return CU(on_device());
}
API CUresult cuOccupancyMaxActiveClusters(int *out, CUfunction f, const CUlaunchConfig *config) {
    return *out = kind.multiprocessors, CUDA_SUCCESS;
}
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *out, CUfunction f, int block, size_t shared) {
    return CU(cudaOccupancyMaxActiveBlocksPerMultiprocessor(out, f, block, shared));
}
API CUresult cuTensorMapEncodeTiled(CUtensorMap *out, CUtensorMapDataType type, cuuint32_t rank, void *at,
                                    const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box,
                                    const cuuint32_t *steps, CUtensorMapInterleave i, CUtensorMapSwizzle w,
                                    CUtensorMapL2promotion l2, CUtensorMapFloatOOBfill fill) {
    return memset(out, 0, sizeof *out), CUDA_SUCCESS;
}
API CUresult cuCtxGetDevice(CUdevice *out) { return *out = current, CUDA_SUCCESS; }
API CUresult cuCtxPushCurrent(CUcontext context) { return cuCtxSetCurrent(context); }
API CUresult cuCtxPopCurrent(CUcontext *out) { return out ? cuCtxGetCurrent(out) : CUDA_SUCCESS; }
API CUresult cuCtxSynchronize(void) { return CUDA_SUCCESS; }
API CUresult cuCtxGetLimit(size_t *out, CUlimit which) { return *out = 0, CUDA_SUCCESS; }
API CUresult cuCtxSetLimit(CUlimit which, size_t value) { return CUDA_SUCCESS; }
API CUresult cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus *out) {
    return CU(cudaStreamIsCapturing(s, (enum cudaStreamCaptureStatus *)out));
}
API CUresult cuStreamSynchronize(CUstream s) { return CUDA_SUCCESS; }
API CUresult cuGetErrorName(CUresult error, const char **out) {
    return *out = cudaGetErrorName((cudaError_t)error), CUDA_SUCCESS;
}
API CUresult cuDeviceGetName(char *out, int n, CUdevice device) {
    return snprintf(out, (size_t)n, "%s", kind.name), CUDA_SUCCESS;
}
API CUresult cuDeviceTotalMem(size_t *out, CUdevice device) { return *out = capacity, CUDA_SUCCESS; }
#if CUDA_VERSION >= 12090
API CUresult cuLogsRegisterCallback(CUlogsCallback call, void *data, CUlogsCallbackHandle *out) { /* nothing is logged */
    return *out = 0, CUDA_SUCCESS;
}
API CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle handle) { return CUDA_SUCCESS; }
#endif
API CUresult cuMemHostGetDevicePointer(CUdeviceptr *out, void *p, unsigned flags) {
    return *out = (CUdeviceptr)p, CUDA_SUCCESS;
}

/* stands in for the functions that are not here: one each for the first 64 that are asked for, to name those called */
#define MAX_ABSENT 64
static char absent_names[MAX_ABSENT][96];
static int num_absent;
static CUresult absent(int number) {
    static int called[MAX_ABSENT];
    if (!called[number]++) tell_refused(absent_names[number]);
    return CUDA_ERROR_NOT_SUPPORTED;
}
#define EIGHT(X, n) X(n##0) X(n##1) X(n##2) X(n##3) X(n##4) X(n##5) X(n##6) X(n##7)
#define ALL(X) EIGHT(X, 0) EIGHT(X, 01) EIGHT(X, 02) EIGHT(X, 03) EIGHT(X, 04) EIGHT(X, 05) EIGHT(X, 06) EIGHT(X, 07)
#define FUNCTION(n) static CUresult absent_##n(void) { return absent(n); }
ALL(FUNCTION)
#define POINTER(n) absent_##n,
static CUresult (*const absent_functions[MAX_ABSENT])(void) = {ALL(POINTER)};

static void *absent_function(const char *name) {
    pthread_mutex_lock(&lock);
    int number = 0;
    while (number < num_absent && strcmp(absent_names[number], name)) number++;
    if (number == num_absent && num_absent < MAX_ABSENT - 1) num_absent++;
    else if (number == num_absent) name = "a driver function"; /* all that come after share the last */
    snprintf(absent_names[number], sizeof *absent_names, "%s", name);
    pthread_mutex_unlock(&lock);
    return (void *)absent_functions[number];
}

static cudaError_t entry(const char *name, void **out, enum cudaDriverEntryPointQueryResult *status) {
    Dl_info here;
    dladdr((void *)absent, &here);
    char newer[96];
    void *self = dlopen(here.dli_fname, RTLD_LAZY | RTLD_NOLOAD), *function = self ? dlsym(self, name) : 0;
    snprintf(newer, sizeof newer, "%s_v2", name);
    if (self && !function) function = dlsym(self, newer);
    *out = function ? function : absent_function(name);
    if (status) *status = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
API cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version,
                                                 unsigned long long flags,
                                                 enum cudaDriverEntryPointQueryResult *status) {
    return entry(name, out, status);
}
#if CUDART_VERSION < 13000
API cudaError_t cudaGetDriverEntryPoint(const char *name, void **out, unsigned long long flags,
                                        enum cudaDriverEntryPointQueryResult *status) {
    return entry(name, out, status);
}
#endif
