/* The graph API of cuDNN, which convolutions and attention take: its plans are asked of NVIDIA's own cuDNN, and never executed.
 *
 *   HOLLOW_CUDNN            path of NVIDIA's libcudnn.so.9; without it, or where it makes no plan without a device, one
 *                           engine for every graph, with HOLLOW_CUDNN_WORKSPACE bytes
 *   HOLLOW_CUDNN_WORKSPACE  bytes (0); others than 0 are taken instead of asking
 *
 * cuDNN since 9.8 makes plans without a device, for the properties of one that a descriptor holds ("deviceless
 * ahead-of-time compilation" in its documentation): here those of the hollow device. No handle reaches it.
 */
#include "hollow.h"
#include <cudnn.h>
#include <dlfcn.h>

#define OK CUDNN_STATUS_SUCCESS
#define DEVICEPROP ((cudnnBackendDescriptorType_t)38) /* numbers that headers before 9.8 have no names for */
#define DEVICEPROP_JSON ((cudnnBackendAttributeName_t)2702)
#define ENGINE_DEVICEPROP ((cudnnBackendAttributeName_t)1307)
#define ENGINEHEUR_DEVICEPROP ((cudnnBackendAttributeName_t)204)
#define EXECUTION_PLAN_DEVICEPROP ((cudnnBackendAttributeName_t)407)

static struct { /* of NVIDIA's library; `create` is null where it is not asked */
    cudnnStatus_t (*create)(cudnnBackendDescriptorType_t, cudnnBackendDescriptor_t *);
    cudnnStatus_t (*destroy)(cudnnBackendDescriptor_t);
    cudnnStatus_t (*finalize)(cudnnBackendDescriptor_t);
    cudnnStatus_t (*set)(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, int64_t,
                         const void *);
    cudnnStatus_t (*get)(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, int64_t,
                         int64_t *, void *);
} real;
static cudnnBackendDescriptor_t properties; /* of the hollow device */

static const char *properties_as_json(void) {
    static char text[2048];
    struct cudaDeviceProp p;
    int clock, memory_clock, driver;
    if (cudaGetDeviceProperties(&p, 0) != cudaSuccess) return 0;
    cudaDeviceGetAttribute(&clock, cudaDevAttrClockRate, 0);
    cudaDeviceGetAttribute(&memory_clock, cudaDevAttrMemoryClockRate, 0);
    cudaDriverGetVersion(&driver);
    snprintf(text, sizeof text,
             "{\"maxGridSize\": [%d, %d, %d], \"maxBlockSize\": [%d, %d, %d], \"cudaDeviceId\": 0, \"deviceVer\": %d, "
             "\"driverVer\": %d, \"regsPerBlock\": %d, \"multiProcessorCount\": %d, \"smClockRateKHz\": %d, "
             "\"memClockRateKHz\": %d, \"l2CacheSize\": %d, \"warpSize\": %d, \"maxSharedMemoryPerBlock\": %zu, "
             "\"maxSharedMemoryPerBlockOptin\": %zu, \"reservedSharedMemoryPerBlock\": %zu, \"maxRegistersPerSM\": %d, "
             "\"pciDeviceId\": %d, \"maxCtasPerSM\": %d, \"maxThreadsPerBlock\": %d, \"maxThreadsPerSM\": %d, "
             "\"isTccDriver\": 0, \"supportCoopLaunch\": 1, \"totalGlobalMem\": %zu, \"deviceName\": \"%s\"}",
             p.maxGridSize[0], p.maxGridSize[1], p.maxGridSize[2], p.maxThreadsDim[0], p.maxThreadsDim[1],
             p.maxThreadsDim[2], 100 * p.major + 10 * p.minor, driver, p.regsPerBlock, p.multiProcessorCount, clock,
             memory_clock, p.l2CacheSize, p.warpSize, p.sharedMemPerBlock, p.sharedMemPerBlockOptin,
             p.reservedSharedMemPerBlock, p.regsPerMultiprocessor, p.pciDeviceID, p.maxBlocksPerMultiProcessor,
             p.maxThreadsPerBlock, p.maxThreadsPerMultiProcessor, p.totalGlobalMem, p.name);
    return text;
}

static int64_t workspace(void) {
    const char *text = getenv("HOLLOW_CUDNN_WORKSPACE");
    return text ? strtoll(text, 0, 10) : 0;
}

static void *library; /* NVIDIA's; null where it is not asked */
static void open_library(void) {
    const char *path = getenv("HOLLOW_CUDNN");
    if (!path || !*path) return;
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library && getenv("HOLLOW_LOG")) fprintf(stderr, "hollow: cuDNN: %s\n", dlerror());
}
static void *function(const char *name) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_library);
    return library ? dlsym(library, name) : 0;
}

API size_t cudnnGetVersion(void) { /* callers go by it: it is that of the library which makes the plans */
    size_t (*version)(void);
    *(void **)&version = function("cudnnGetVersion");
    return version ? version() : CUDNN_VERSION;
}

static void open_real(void) {
    cudnnStatus_t (*create)(cudnnBackendDescriptorType_t, cudnnBackendDescriptor_t *);
    *(void **)&create = function("cudnnBackendCreateDescriptor");
    *(void **)&real.destroy = function("cudnnBackendDestroyDescriptor");
    *(void **)&real.finalize = function("cudnnBackendFinalize");
    *(void **)&real.set = function("cudnnBackendSetAttribute");
    *(void **)&real.get = function("cudnnBackendGetAttribute");
    const char *text = create && real.destroy && real.finalize && real.set && real.get ? properties_as_json() : 0;
    if (!text) return;
    if (create(DEVICEPROP, &properties) == OK &&
        real.set(properties, DEVICEPROP_JSON, CUDNN_TYPE_CHAR, (int64_t)strlen(text), text) == OK &&
        real.finalize(properties) == OK)
        real.create = create;
    else if (getenv("HOLLOW_LOG")) fprintf(stderr, "hollow: cuDNN does not take %s\n", text);
}

static int is_real(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (workspace()) return 0; /* a process chooses it after it was forked of one that has opened the library */
    pthread_once(&once, open_real);
    return real.create != 0;
}
API int hollow_asks_cudnn(void) { return is_real(); }

static cudnnStatus_t create_real(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out) {
    cudnnBackendAttributeName_t name;
    cudnnStatus_t status = real.create(type, out);
    switch (type) { /* which otherwise learn of the device by a handle */
        case CUDNN_BACKEND_ENGINE_DESCRIPTOR: name = ENGINE_DEVICEPROP; break;
        case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR: name = ENGINEHEUR_DEVICEPROP; break;
        case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: name = EXECUTION_PLAN_DEVICEPROP; break;
        default: return status;
    }
    return status == OK ? real.set(*out, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &properties) : status;
}

static int num_workspaces;
API int hollow_num_workspaces(void) { return num_workspaces; } /* that were asked for: `device.convolutions` */

API cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out) {
    if (is_real()) return create_real(type, out);
    return *out = calloc(1, 64), OK;
}
API cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t it) {
    if (is_real()) return real.destroy(it);
    return free(it), OK;
}
API cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t it) { return is_real() ? real.finalize(it) : OK; }
API cudnnStatus_t cudnnBackendExecute(cudnnHandle_t h, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
    return OK;
}
API cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t it, cudnnBackendAttributeName_t name,
                                           cudnnBackendAttributeType_t type, int64_t number, const void *given) {
    return is_real() && type != CUDNN_TYPE_HANDLE ? real.set(it, name, type, number, given) : OK;
}
API cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const it, cudnnBackendAttributeName_t name,
                                           cudnnBackendAttributeType_t type, int64_t asked, int64_t *number,
                                           void *out) {
    int64_t num_values = 0;
    if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && out) num_workspaces++;
    if (is_real()) return real.get(it, name, type, asked, number, out);
    switch (name) {
        case CUDNN_ATTR_ENGINEHEUR_RESULTS: /* the caller made the descriptors */
        case CUDNN_ATTR_ENGINECFG_ENGINE: num_values = 1; break;
        case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
            if (out) *(int64_t *)out = workspace();
            num_values = 1;
            break;
        case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
            if (out) *(int64_t *)out = 0;
            num_values = 1;
            break;
        default: break;
    }
    if (number) *number = num_values;
    return OK;
}
