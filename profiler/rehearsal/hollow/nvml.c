/* NVML of the same devices: a cool, quiet board. Documented functions only, as nvidia-ml-py and torch call them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7 };
typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute; } Process;
typedef struct { unsigned pid; unsigned long long used; } OldProcess;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
typedef struct { unsigned gpu, memory; } Utilization;

extern size_t hollow_used_bytes(int device) __attribute__((weak)); /* of device.c, which is loaded before */

static unsigned number(void) { /* of devices: 0 without a kind, and MAX_DEVICES of hollow.h at most, as in device.c */
    if (!getenv("HOLLOW_KIND")) return 0;
    const char *text = getenv("HOLLOW_COUNT");
    int asked = text ? atoi(text) : 1;
    return asked < 0 ? 0 : asked > 16 ? 16 : (unsigned)asked;
}
static int read_kind(char *name, int *major, int *minor, size_t *bytes) {
    const char *text = getenv("HOLLOW_KIND"), *set = getenv("HOLLOW_BYTES");
    if (sscanf(text ? text : "", "%127[^|]|%d|%d|%*d|%*d|%*d|%*d|%*d|%zu", name, major, minor, bytes) != 4)
        return NOT_FOUND;
    if (set) *bytes = strtoull(set, 0, 10);
    return OK;
}
static int memory(void *device, unsigned long long *total, unsigned long long *rest, unsigned long long *taken) {
    char name[128];
    int major, minor;
    size_t bytes, used = hollow_used_bytes ? hollow_used_bytes((int)(unsigned long)device - 1) : 0;
    if (read_kind(name, &major, &minor, &bytes) != OK) return NOT_FOUND;
    return *total = bytes, *taken = used, *rest = bytes > used ? bytes - used : 0, OK;
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
API int nvmlSystemGetNVMLVersion(char *out, unsigned n) { return snprintf(out, n, "13.595.00.00"), OK; }
API int nvmlDeviceGetCount(unsigned *out) { return nvmlDeviceGetCount_v2(out); }
API int nvmlDeviceGetHandleByIndex(unsigned index, void **out) { return handle(index, out); }
API int nvmlDeviceGetName(void *device, char *out, unsigned n) {
    char name[128];
    int major, minor;
    size_t bytes;
    if (read_kind(name, &major, &minor, &bytes) != OK) return NOT_FOUND;
    return snprintf(out, n, "%s", name) < (int)n ? OK : TOO_SMALL;
}
API int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    char name[128];
    size_t bytes;
    return read_kind(name, major, minor, &bytes);
}
API int nvmlDeviceGetMemoryInfo(void *device, Memory *out) {
    return memory(device, &out->total, &out->free, &out->used);
}
API int nvmlDeviceGetMemoryInfo_v2(void *device, Memory2 *out) {
    return out->reserved = 0, memory(device, &out->total, &out->free, &out->used);
}
API int nvmlDeviceGetUtilizationRates(void *device, Utilization *out) { return *out = (Utilization){0, 0}, OK; }
API int nvmlDeviceGetMinorNumber(void *device, unsigned *out) { return *out = (unsigned)(unsigned long)device - 1, OK; }
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

/* what else is asked for by name, as nvidia-ml-py does: a name that is not there would be another error */
#define REFUSED(Name) API int nvml##Name(void) { return NOT_SUPPORTED; }
REFUSED(DeviceGetApplicationsClock) REFUSED(DeviceGetArchitecture) REFUSED(DeviceGetAttributes_v2)
REFUSED(DeviceGetBAR1MemoryInfo) REFUSED(DeviceGetBoardId) REFUSED(DeviceGetBrand) REFUSED(DeviceGetClock)
REFUSED(DeviceGetComputeMode) REFUSED(DeviceGetComputeRunningProcesses_v2) REFUSED(DeviceGetCpuAffinity)
REFUSED(DeviceGetCurrPcieLinkGeneration) REFUSED(DeviceGetCurrPcieLinkWidth) REFUSED(DeviceGetDecoderUtilization)
REFUSED(DeviceGetDisplayActive) REFUSED(DeviceGetDisplayMode) REFUSED(DeviceGetEccMode)
REFUSED(DeviceGetEncoderUtilization) REFUSED(DeviceGetFanSpeed) REFUSED(DeviceGetFanSpeed_v2)
REFUSED(DeviceGetFieldValues) REFUSED(DeviceGetGraphicsRunningProcesses) REFUSED(DeviceGetGraphicsRunningProcesses_v2)
REFUSED(DeviceGetGraphicsRunningProcesses_v3) REFUSED(DeviceGetMaxMigDeviceCount)
REFUSED(DeviceGetMaxPcieLinkGeneration) REFUSED(DeviceGetMaxPcieLinkWidth) REFUSED(DeviceGetMemoryBusWidth)
REFUSED(DeviceGetMigMode) REFUSED(DeviceGetNumFans) REFUSED(DeviceGetNumGpuCores) REFUSED(DeviceGetNvLinkCapability)
REFUSED(DeviceGetNvLinkState) REFUSED(DeviceGetNvLinkVersion) REFUSED(DeviceGetP2PStatus) REFUSED(DeviceGetPciInfo_v2)
REFUSED(DeviceGetPciInfo_v3) REFUSED(DeviceGetPcieThroughput) REFUSED(DeviceGetPerformanceState)
REFUSED(DeviceGetPersistenceMode) REFUSED(DeviceGetPowerManagementLimit)
REFUSED(DeviceGetPowerManagementLimitConstraints) REFUSED(DeviceGetProcessUtilization) REFUSED(DeviceGetRemappedRows)
REFUSED(DeviceGetRetiredPages) REFUSED(DeviceGetSamples) REFUSED(DeviceGetSerial)
REFUSED(DeviceGetSupportedGraphicsClocks) REFUSED(DeviceGetSupportedMemoryClocks)
REFUSED(DeviceGetTemperatureThreshold) REFUSED(DeviceGetTopologyCommonAncestor) REFUSED(DeviceGetTotalEccErrors)
REFUSED(DeviceGetTotalEnergyConsumption) REFUSED(DeviceGetVbiosVersion) REFUSED(DeviceGetViolationStatus)
