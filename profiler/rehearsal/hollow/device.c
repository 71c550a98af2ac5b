/* Devices: how many, of which kind, how much memory is used, and their properties.
 *
 *   HOLLOW_KIND           name|major|minor|multiprocessors|threads|blocks|shared KiB|opt-in KiB|bytes; no device without
 *   HOLLOW_COUNT          how many devices (1)
 *   HOLLOW_BYTES          memory of each, instead of its kind's
 *   HOLLOW_CONTEXT_BYTES  what a context takes of it, once per process that uses the device (0)
 *   HOLLOW_COPY_BYTES     copies of more than so many bytes are not made (1 MiB): whole pages of the target read as zeros
 *   HOLLOW_ARCHS          architectures that torch's kernels are compiled for, as `75,80,90` (the device's own)
 *   HOLLOW_FORKS          1: a process that is forked after the first use has the devices, and what is on them
 *   HOLLOW_LOG            1: names every function that is called and not supported, on stderr
 *   HOLLOW_REFUSED        a folder: names them there, in a file PID.refused
 *   CUDA_VISIBLE_DEVICES  as documented: indices or GPU-UUIDs, up to the first that names no device
 *
 * Only what NVIDIA documents (cuda_runtime_api.h, cuda.h) and what nvcc's own generated host code calls, as
 * crt/host_runtime.h and crt/device_functions.h declare it: no export table, nothing of libcuda's private interfaces.
 */
#include "hollow.h"

Kind kind;
size_t capacity, context_bytes, copied_bytes = (size_t)1 << 20, used[MAX_DEVICES];
int count = -1, visible[MAX_DEVICES], touched[MAX_DEVICES];
__thread int current;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int forked;
static __thread cudaError_t last;

cudaError_t set_error(cudaError_t error) {
    if (error != cudaSuccess) last = error;
    return error;
}

static void uuid_of(int device, char *bytes) {
    static const unsigned char base[16] = {0x48, 0x6f, 0x6c, 0x6c, 0x6f, 0x77, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, 0};
    memcpy(bytes, base, 16);
    bytes[15] = (char)device;
}

static int device_named(const char *word, size_t length, int num_devices) { /* by index or GPU-UUID; -1 for none */
    char *end, uuid[16], text[48];
    long index = strtol(word, &end, 10);
    if (length && end == word + length) return index >= 0 && index < num_devices ? (int)index : -1;
    for (int device = 0; device < num_devices; device++) {
        unsigned char *b = (unsigned char *)uuid;
        uuid_of(device, uuid);
        snprintf(text, sizeof text, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
                 b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
        if (length > 4 && length <= strlen(text) && !strncasecmp(word, text, length)) return device;
    }
    return -1;
}

API int hollow_device(void) { return 1; } /* `device.is_open` looks for this name in the process */

API size_t hollow_used_bytes(int device) { /* of one of all devices, visible or not: nvml.c asks */
    for (int i = 0; i < count; i++)
        if (visible[i] == device) return used[i];
    return 0;
}

static void in_child(void) { forked = count >= 0; }

static size_t bytes_set(const char *variable, size_t otherwise) {
    const char *text = getenv(variable);
    return text ? strtoull(text, 0, 10) : otherwise;
}

static int read_kind(void) { /* how many devices of it there are; 0 where HOLLOW_KIND says none */
    const char *text = getenv("HOLLOW_KIND"), *number = getenv("HOLLOW_COUNT");
    if (!text || sscanf(text, "%127[^|]|%d|%d|%d|%d|%d|%d|%d|%zu", kind.name, &kind.major, &kind.minor,
                        &kind.multiprocessors, &kind.threads, &kind.blocks, &kind.shared_kib, &kind.optin_kib,
                        &kind.bytes) != 9)
        return 0;
    int asked = number ? atoi(number) : 1;
    return asked < 0 ? 0 : asked > MAX_DEVICES ? MAX_DEVICES : asked;
}

static int read_visible(int num_devices) { /* fills `visible`, and returns how many devices are in it */
    const char *words = getenv("CUDA_VISIBLE_DEVICES");
    int num_visible = 0;
    if (!words)
        for (; num_visible < num_devices; num_visible++) visible[num_visible] = num_visible;
    while (words && *words && num_visible < MAX_DEVICES) {
        size_t length = strcspn(words, ",");
        int device = device_named(words, length, num_devices);
        if (device < 0) break;
        visible[num_visible++] = device;
        words += length + (words[length] == ',');
    }
    return num_visible;
}

cudaError_t ready(void) {
    if (forked) return set_error(cudaErrorInitializationError);
    if (__atomic_load_n(&count, __ATOMIC_ACQUIRE) < 0) {
        pthread_mutex_lock(&lock);
        if (count < 0) {
            int num_devices = read_kind();
            copied_bytes = bytes_set("HOLLOW_COPY_BYTES", copied_bytes);
            capacity = bytes_set("HOLLOW_BYTES", kind.bytes);
            context_bytes = bytes_set("HOLLOW_CONTEXT_BYTES", 0);
            if (!getenv("HOLLOW_FORKS")) pthread_atfork(0, 0, in_child);
            __atomic_store_n(&count, read_visible(num_devices), __ATOMIC_RELEASE); /* last: others read it unlocked */
        }
        pthread_mutex_unlock(&lock);
    }
    return count ? cudaSuccess : set_error(cudaErrorNoDevice);
}

cudaError_t on_device(void) {
    cudaError_t error = ready();
    if (error == cudaSuccess && !__atomic_exchange_n(&touched[current], 1, __ATOMIC_RELAXED)) {
        pthread_mutex_lock(&lock);
        used[current] += context_bytes;
        pthread_mutex_unlock(&lock);
    }
    return error;
}

/* ---- properties ---- */

API cudaError_t cudaGetDeviceCount(int *out) {
    cudaError_t error = ready();
    *out = error == cudaSuccess ? count : 0;
    return error;
}
API cudaError_t cudaGetDevice(int *out) {
    cudaError_t error = ready();
    *out = current;
    return error;
}
API cudaError_t cudaSetDevice(int device) {
    cudaError_t error = ready();
    if (error != cudaSuccess) return error;
    if (device < 0 || device >= count) return set_error(cudaErrorInvalidDevice);
    current = device;
    return on_device();
}
API cudaError_t cudaDeviceSynchronize(void) { return on_device(); }
API cudaError_t cudaDriverGetVersion(int *out) { return *out = CUDART_VERSION, cudaSuccess; }
API cudaError_t cudaRuntimeGetVersion(int *out) { return *out = CUDART_VERSION, cudaSuccess; }
API cudaError_t cudaDeviceCanAccessPeer(int *out, int a, int b) { return *out = a != b, cudaSuccess; }
API cudaError_t cudaDeviceEnablePeerAccess(int device, unsigned flags) { return cudaSuccess; }
API cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    return *least = 0, *greatest = -5, cudaSuccess;
}
API cudaError_t cudaDeviceGetPCIBusId(char *out, int length, int device) {
    cudaError_t error = ready();
    if (error != cudaSuccess) return error;
    if (device < 0 || device >= count) return set_error(cudaErrorInvalidDevice);
    snprintf(out, (size_t)length, "00000000:%02X:00.0", visible[device] + 1);
    return cudaSuccess;
}

API cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    cudaError_t error = ready();
    if (error != cudaSuccess) return error;
    if (device < 0 || device >= count) return set_error(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s", kind.name);
    uuid_of(visible[device], p->uuid.bytes);
    p->totalGlobalMem = capacity;
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = (size_t)kind.optin_kib << 10;
    p->sharedMemPerMultiprocessor = (size_t)kind.shared_kib << 10;
    p->reservedSharedMemPerBlock = kind.major > 7 ? 1024 : 0;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->warpSize = 32;
    p->memPitch = INT32_MAX;
    p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = INT32_MAX;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->totalConstMem = 65536;
    p->major = kind.major;
    p->minor = kind.minor;
    p->textureAlignment = 512;
    p->texturePitchAlignment = 32;
    p->multiProcessorCount = kind.multiprocessors;
    p->canMapHostMemory = p->concurrentKernels = p->unifiedAddressing = p->managedMemory = 1;
    p->streamPrioritiesSupported = p->globalL1CacheSupported = p->localL1CacheSupported = 1;
    p->computePreemptionSupported = p->cooperativeLaunch = p->hostRegisterSupported = 1;
    p->canUseHostPointerForRegisteredMem = p->concurrentManagedAccess = 1;
    p->pciBusID = visible[device] + 1;
    p->asyncEngineCount = 3;
    p->memoryBusWidth = 5120;
    p->l2CacheSize = 40 << 20;
    p->maxThreadsPerMultiProcessor = kind.threads;
    p->maxBlocksPerMultiProcessor = kind.blocks;
    p->clusterLaunch = kind.major >= 9;
    return cudaSuccess;
}

API cudaError_t cudaDeviceGetAttribute(int *out, enum cudaDeviceAttr which, int device) {
    struct cudaDeviceProp p;
    cudaError_t error = cudaGetDeviceProperties(&p, device);
    if (error != cudaSuccess) return error;
    switch ((int)which) {
#define IS(attribute, value) case cudaDevAttr##attribute: *out = (int)(value); break
        IS(MaxThreadsPerBlock, 1024); IS(MaxBlockDimX, 1024); IS(MaxBlockDimY, 1024); IS(MaxBlockDimZ, 64);
        IS(MaxGridDimX, INT32_MAX); IS(MaxGridDimY, 65535); IS(MaxGridDimZ, 65535); IS(WarpSize, 32);
        IS(MaxSharedMemoryPerBlock, p.sharedMemPerBlock); IS(MaxSharedMemoryPerBlockOptin, p.sharedMemPerBlockOptin);
        IS(MaxSharedMemoryPerMultiprocessor, p.sharedMemPerMultiprocessor);
        IS(ReservedSharedMemoryPerBlock, p.reservedSharedMemPerBlock);
        IS(MaxRegistersPerBlock, 65536); IS(MaxRegistersPerMultiprocessor, 65536); IS(TotalConstantMemory, 65536);
        IS(MultiProcessorCount, p.multiProcessorCount); IS(MaxThreadsPerMultiProcessor, p.maxThreadsPerMultiProcessor);
        IS(MaxBlocksPerMultiprocessor, p.maxBlocksPerMultiProcessor);
        IS(ComputeCapabilityMajor, p.major); IS(ComputeCapabilityMinor, p.minor); IS(L2CacheSize, p.l2CacheSize);
        IS(ClockRate, 1500000); IS(MemoryClockRate, 2600000); IS(GlobalMemoryBusWidth, p.memoryBusWidth);
        IS(TextureAlignment, 512); IS(CanMapHostMemory, 1); IS(ConcurrentKernels, 1); IS(UnifiedAddressing, 1);
        IS(ManagedMemory, 1); IS(ConcurrentManagedAccess, 1); IS(CooperativeLaunch, 1); IS(HostRegisterSupported, 1);
        IS(StreamPrioritiesSupported, 1); IS(ComputePreemptionSupported, 1); IS(CanUseHostPointerForRegisteredMem, 1);
        IS(PciBusId, p.pciBusID); IS(AsyncEngineCount, 3); IS(ClusterLaunch, p.clusterLaunch);
        default: *out = 0;
    }
    return cudaSuccess;
}

/* ---- errors ---- */

API cudaError_t cudaGetLastError(void) {
    cudaError_t error = last;
    return last = cudaSuccess, error;
}
API cudaError_t cudaPeekAtLastError(void) { return last; }
#define ERRORS(X) \
    X(cudaSuccess, "no error") X(cudaErrorInvalidValue, "invalid argument") \
    X(cudaErrorMemoryAllocation, "out of memory") X(cudaErrorInitializationError, "initialization error") \
    X(cudaErrorInvalidSymbol, "invalid device symbol") X(cudaErrorNoDevice, "no CUDA-capable device is detected") \
    X(cudaErrorInvalidDevice, "invalid device ordinal") X(cudaErrorNotSupported, "operation not supported") \
    X(cudaErrorInvalidDeviceFunction, "invalid device function") \
    X(cudaErrorInvalidResourceHandle, "invalid resource handle") \
    X(cudaErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region")
API const char *cudaGetErrorString(cudaError_t error) {
    switch ((int)error) {
#define X(name, text) case name: return text;
        ERRORS(X)
#undef X
    }
    return "unrecognized error code";
}
API const char *cudaGetErrorName(cudaError_t error) {
    switch ((int)error) {
#define X(name, text) case name: return #name;
        ERRORS(X)
#undef X
    }
    return "unrecognized error code";
}
