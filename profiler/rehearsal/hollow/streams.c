/* Streams and events: work is complete as soon as it is queued. Which streams are captured is in graphs.c. */
#include "graphs.h"

typedef struct { int64_t ns; unsigned long long capture; int recorded, timed; } Event;

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

API cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority) {
    READY();
    Stream *stream = calloc(1, sizeof *stream);
    stream->priority = priority;
    return *out = (cudaStream_t)stream, cudaSuccess;
}
API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned f) {
    return cudaStreamCreateWithPriority(out, f, 0);
}
API cudaError_t cudaStreamCreate(cudaStream_t *out) { return cudaStreamCreateWithPriority(out, 0, 0); }
API cudaError_t cudaStreamDestroy(cudaStream_t s) { return free(s), cudaSuccess; }
API cudaError_t cudaStreamGetPriority(cudaStream_t s, int *out) {
    return *out = (uintptr_t)s > 2 ? ((Stream *)s)->priority : 0, cudaSuccess;
}
API cudaError_t cudaStreamQuery(cudaStream_t s) { return on_device(); }
API cudaError_t cudaStreamSynchronize(cudaStream_t s) { return on_device(); }
API cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) {
    if (!(flags & cudaEventWaitExternal)) join_capture(s, ((Event *)e)->capture);
    return on_device();
}
API cudaError_t cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t call, void *data, unsigned flags) {
    return call(s, cudaSuccess, data), cudaSuccess;
}
API cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t call, void *data) { return call(data), cudaSuccess; }
API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
    READY();
    Event *event = calloc(1, sizeof *event);
    event->timed = !(flags & cudaEventDisableTiming);
    return *out = (cudaEvent_t)event, cudaSuccess;
}
API cudaError_t cudaEventCreate(cudaEvent_t *out) { return cudaEventCreateWithFlags(out, 0); }
API cudaError_t cudaEventDestroy(cudaEvent_t e) { return free(e), cudaSuccess; }
API cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *out, cudaEvent_t e) {
    return memset(out, 0, sizeof *out), cudaSuccess;
}
API cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *out, cudaIpcEventHandle_t handle) {
    return cudaEventCreateWithFlags(out, cudaEventDisableTiming);
}
API cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned flags) {
    ((Event *)e)->ns = now();
    ((Event *)e)->recorded = 1;
    ((Event *)e)->capture = flags & cudaEventRecordExternal ? 0 : capture_of(s);
    return on_device();
}
API cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) { return cudaEventRecordWithFlags(e, s, 0); }
API cudaError_t cudaEventQuery(cudaEvent_t e) { return on_device(); }
API cudaError_t cudaEventSynchronize(cudaEvent_t e) { return on_device(); }
API cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b) {
    Event *from = (Event *)a, *to = (Event *)b;
    if (!from->recorded || !to->recorded || !from->timed || !to->timed) return set_error(cudaErrorInvalidResourceHandle);
    return *ms = (float)((double)(to->ns - from->ns) / 1e6), cudaSuccess;
}
