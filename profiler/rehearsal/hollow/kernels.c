/* Kernels are never run: the memory that they would write to stays as it is. */
#include "hollow.h"

typedef struct { const void *host; size_t bytes; void *device; } Symbol;
static Symbol *symbols;
static size_t num_symbols, max_symbols;
static __thread struct { dim3 grid, block; size_t shared; cudaStream_t stream; } launch;

API cudaError_t cudaLaunchKernel(const void *f, dim3 g, dim3 b, void **args, size_t shared, cudaStream_t s) {
    return on_device();
}
API cudaError_t cudaLaunchCooperativeKernel(const void *f, dim3 g, dim3 b, void **args, size_t m, cudaStream_t s) {
    return on_device();
}
API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *f, void **args) {
    return on_device();
}
API cudaError_t __cudaLaunchKernel(cudaKernel_t k, dim3 g, dim3 b, void **args, size_t shared, cudaStream_t s) {
    return on_device();
}
API cudaError_t __cudaGetKernel(cudaKernel_t *out, const void *f) { return *out = (cudaKernel_t)f, cudaSuccess; }
API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream) {
    launch.grid = grid, launch.block = block, launch.shared = shared, launch.stream = stream;
    return 0;
}
API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    *grid = launch.grid, *block = launch.block, *shared = launch.shared, *(cudaStream_t *)stream = launch.stream;
    return cudaSuccess;
}
API void **__cudaRegisterFatBinary(void *fat) {
    static void *handle;
    return &handle;
}
API char __cudaInitModule(void **handle) { return 1; }
API void __cudaRegisterFatBinaryEnd(void **handle) {}
API void __cudaUnregisterFatBinary(void **handle) {}
API void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, uint3 *tid,
                                uint3 *bid, dim3 *b, dim3 *g, int *warp) {}
API void __cudaRegisterVar(void **handle, char *host, char *address, const char *name, int ext, size_t bytes,
                           int constant, int global) {
    if (num_symbols == max_symbols)
        symbols = realloc(symbols, (max_symbols = 2 * max_symbols + 256) * sizeof *symbols);
    symbols[num_symbols++] = (Symbol){host, bytes, 0};
}
API cudaError_t cudaGetSymbolAddress(void **out, const void *symbol) {
    READY();
    for (size_t i = 0; i < num_symbols; i++)
        if (symbols[i].host == symbol) {
            if (!symbols[i].device) symbols[i].device = reserve_pages(UP(symbols[i].bytes), PROT_READ | PROT_WRITE);
            return *out = symbols[i].device, cudaSuccess;
        }
    return set_error(cudaErrorInvalidSymbol);
}
API cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t n, size_t offset,
                                   enum cudaMemcpyKind k) {
    void *at;
    cudaError_t error = cudaGetSymbolAddress(&at, symbol);
    if (error == cudaSuccess) memcpy((char *)at + offset, from, n);
    return error;
}

static int compiled_for(int arch) { /* the newest architecture in HOLLOW_ARCHS that runs on this one, as the driver picks it */
    const char *word = getenv("HOLLOW_ARCHS"); /* what torch's kernels are compiled for, `75,80,90`: CUB goes by it */
    int best = 0, one, length;
    for (; word && sscanf(word, "%d%n", &one, &length) == 1; word += length + (word[length] == ','))
        if (one <= arch && one / 10 == arch / 10 && one > best) best = one;
    return best ? best : arch;
}

API cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *f) {
    READY();
    memset(out, 0, sizeof *out);
    out->maxThreadsPerBlock = 1024;
    out->numRegs = 32;
    out->ptxVersion = out->binaryVersion = compiled_for(10 * kind.major + kind.minor);
    out->maxDynamicSharedSizeBytes = 48 << 10;
    return cudaSuccess;
}
API cudaError_t cudaFuncSetAttribute(const void *f, enum cudaFuncAttribute which, int value) { return cudaSuccess; }
API cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t k, enum cudaFuncAttribute which, int value, int device) {
    return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *out, const void *f, int block, size_t shared,
                                                                       unsigned flags) {
    READY(); /* limited by threads and shared memory: kernels are taken to use at most 32 registers a thread */
    int by_threads = kind.threads / (block < 1 ? 1 : (block + 31) / 32 * 32);
    int by_shared = shared ? (int)(((size_t)kind.shared_kib << 10) / shared) : kind.blocks;
    *out = by_threads < by_shared ? by_threads : by_shared;
    if (*out > kind.blocks) *out = kind.blocks;
    return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *out, const void *f, int block, size_t shared) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out, f, block, shared, 0);
}
