/* Streams, events and graphs: work is complete as soon as it is queued. */
#include "hollow.h"

typedef struct { int64_t ns; int recorded, timed; } Event;
typedef struct { int priority; } Stream;

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
API cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) { return on_device(); }
API cudaError_t cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t call, void *data, unsigned flags) {
    return call(s, cudaSuccess, data), cudaSuccess;
}
API cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t call, void *data) { return call(data), cudaSuccess; }
/* graphs: a capture is a state and a number; replaying one does nothing */
static unsigned long long captures;
static __thread struct { cudaStream_t stream; unsigned long long id; } capture; /* id 0: none */
API cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode) {
    if (capture.id) return set_error(cudaErrorStreamCaptureUnsupported);
    capture.stream = s;
    capture.id = __atomic_add_fetch(&captures, 1, __ATOMIC_RELAXED);
    return cudaSuccess;
}
API cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out) {
    return *out = (cudaGraph_t)&captures, capture.id = 0, cudaSuccess;
}
API cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *out) {
    *out = capture.id && capture.stream == s ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *out, unsigned long long *id,
                                         cudaGraph_t *graph, const cudaGraphNode_t **dependencies,
#if CUDART_VERSION >= 13000 /* before, the header calls this one _v2 */
                                         const cudaGraphEdgeData **edges,
#endif
                                         size_t *number) {
    cudaStreamIsCapturing(s, out);
    int active = *out == cudaStreamCaptureStatusActive;
    if (id) *id = active ? capture.id : 0;
    if (graph) *graph = active ? (cudaGraph_t)&captures : 0;
    if (dependencies) *dependencies = 0;
#if CUDART_VERSION >= 13000
    if (edges) *edges = 0;
#endif
    if (number) *number = 0;
    return cudaSuccess;
}
#if CUDART_VERSION >= 13000
API cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t s, cudaGraphNode_t *nodes, const cudaGraphEdgeData *e,
                                                    size_t n, unsigned flags) {
#else
API cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t s, cudaGraphNode_t *nodes, size_t n, unsigned flags) {
#endif
    return cudaSuccess;
}
API cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *number) {
    return *number = nodes ? 0 : 1, cudaSuccess; /* of none, torch would warn that the graph is empty */
}
API cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
    return *out = (cudaGraphExec_t)&captures, cudaSuccess;
}
API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
    return *out = (cudaGraphExec_t)&captures, cudaSuccess;
}
API cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t s) { return on_device(); }
API cudaError_t cudaGraphUpload(cudaGraphExec_t graph, cudaStream_t s) { return on_device(); }
API cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return cudaSuccess; }
API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return cudaSuccess; }
API cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    return *mode = cudaStreamCaptureModeGlobal, cudaSuccess;
}

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
    READY();
    Event *event = calloc(1, sizeof *event);
    event->timed = !(flags & cudaEventDisableTiming);
    return *out = (cudaEvent_t)event, cudaSuccess;
}
API cudaError_t cudaEventCreate(cudaEvent_t *out) { return cudaEventCreateWithFlags(out, 0); }
API cudaError_t cudaEventDestroy(cudaEvent_t e) { return free(e), cudaSuccess; }
API cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    ((Event *)e)->ns = now();
    ((Event *)e)->recorded = 1;
    return on_device();
}
API cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned f) { return cudaEventRecord(e, s); }
API cudaError_t cudaEventQuery(cudaEvent_t e) { return on_device(); }
API cudaError_t cudaEventSynchronize(cudaEvent_t e) { return on_device(); }
API cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b) {
    Event *from = (Event *)a, *to = (Event *)b;
    if (!from->recorded || !to->recorded || !from->timed || !to->timed) return set_error(cudaErrorInvalidResourceHandle);
    return *ms = (float)((double)(to->ns - from->ns) / 1e6), cudaSuccess;
}
