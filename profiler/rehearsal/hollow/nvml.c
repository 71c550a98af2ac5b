/* NVML of the same devices: a cool, quiet board. Documented functions only, as nvidia-ml-py and torch call them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7 };
typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute; } Process;
typedef struct { unsigned pid; unsigned long long used; } OldProcess;

static unsigned number(void) { /* of devices: 0 without a kind, and MAX_DEVICES of hollow.h at most, as in device.c */
    if (!getenv("HOLLOW_KIND")) return 0;
    const char *text = getenv("HOLLOW_COUNT");
    int asked = text ? atoi(text) : 1;
    return asked < 0 ? 0 : asked > 16 ? 16 : (unsigned)asked;
}
static int handle(unsigned index, void **out) {
    if (index >= number()) return NOT_FOUND;
    return *out = (void *)(unsigned long)(index + 1), OK;
}

API int nvmlInit(void) { return OK; }
API int nvmlInit_v2(void) { return OK; }
API int nvmlInitWithFlags(unsigned flags) { return OK; }
API int nvmlShutdown(void) { return OK; }
API const char *nvmlErrorString(int error) {
    return error == NOT_SUPPORTED ? "Not Supported" : error == NOT_FOUND ? "Not Found" : error ? "Unknown Error" : "Success";
}
API int nvmlSystemGetDriverVersion(char *out, unsigned n) { return snprintf(out, n, "595.00.00"), OK; }
API int nvmlSystemGetCudaDriverVersion_v2(int *out) { return *out = 13020, OK; }
API int nvmlDeviceGetCount_v2(unsigned *out) { return *out = number(), OK; }
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) { return handle(index, out); }
API int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **out) {
    unsigned domain, bus;
    return sscanf(id, "%x:%x", &domain, &bus) == 2 && bus ? handle(bus - 1, out) : NOT_FOUND;
}
API int nvmlDeviceGetUUID(void *device, char *out, unsigned n) {
    return snprintf(out, n, "GPU-486f6c6c-6f77-4000-8000-%012lx", (unsigned long)device - 1), OK;
}
API int nvmlDeviceGetHandleByUUID(const char *uuid, void **out) {
    char own[64];
    for (unsigned i = 0; i < number(); i++) {
        nvmlDeviceGetUUID((void *)(unsigned long)(i + 1), own, sizeof own);
        if (!strcmp(own, uuid)) return handle(i, out);
    }
    return NOT_FOUND;
}
API int nvmlDeviceGetIndex(void *device, unsigned *out) { return *out = (unsigned)(unsigned long)device - 1, OK; }
API int nvmlDeviceGetCurrentClocksThrottleReasons(void *d, unsigned long long *out) { return *out = 0, OK; }
API int nvmlDeviceGetCurrentClocksEventReasons(void *d, unsigned long long *out) { return *out = 0, OK; }
API int nvmlDeviceGetClockInfo(void *d, int clock, unsigned *out) { return *out = 1500, OK; }
API int nvmlDeviceGetMaxClockInfo(void *d, int clock, unsigned *out) { return *out = 1980, OK; }
API int nvmlDeviceGetTemperature(void *d, int sensor, unsigned *out) { return *out = 40, OK; }
API int nvmlDeviceGetPowerUsage(void *d, unsigned *out) { return *out = 100000, OK; }
API int nvmlDeviceGetEnforcedPowerLimit(void *d, unsigned *out) { return *out = 700000, OK; }
API int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *count, Process *out) {
    if (!out || !*count) return *count = 1, TOO_SMALL;
    out[0] = (Process){(unsigned)getpid(), 0, ~0u, ~0u};
    return *count = 1, OK;
}
API int nvmlDeviceGetComputeRunningProcesses(void *d, unsigned *count, OldProcess *out) { /* what torch calls */
    if (!out || !*count) return *count = 1, TOO_SMALL;
    out[0] = (OldProcess){(unsigned)getpid(), 0};
    return *count = 1, OK;
}
API int nvmlDeviceGetGpuFabricInfoV(void *d, void *out) { return NOT_SUPPORTED; }
API int nvmlDeviceGetNvLinkRemoteDeviceType(void *d, unsigned link, void *out) { return NOT_SUPPORTED; }
API int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *d, unsigned link, void *out) { return NOT_SUPPORTED; }
