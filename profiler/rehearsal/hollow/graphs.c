/* Graphs: what is captured is done at once, as outside of a capture; replaying it does nothing, and sends nothing.
 *
 * A capture begins in one stream, is seen by all threads, and goes over to streams that wait for an event of it. A graph
 * lives as long as it or one that was instantiated of it, and so do the objects of the user's that it holds.
 */
#include "graphs.h"
#include <dlfcn.h>

struct Object { /* of the user's, destroyed once nobody refers to it */
    unsigned references;
    cudaHostFn_t destroy;
    void *data;
};
typedef struct Held { struct Object *object; struct Held *next; } Held; /* one reference */
typedef struct Graph {
    unsigned long long id;
    int references;
    cudaStream_t origin;
    Held *held;
    struct Graph *next; /* that is captured meanwhile */
} Graph;
static Graph *captured;
static unsigned long long captures;
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER; /* of all of these */

static Graph *capture_named(unsigned long long id) {
    Graph *found;
    pthread_mutex_lock(&guard);
    for (found = captured; found && found->id != id; found = found->next) {}
    pthread_mutex_unlock(&guard);
    return found;
}
static unsigned long long *place_of(cudaStream_t s) { return (uintptr_t)s > 2 ? &((Stream *)s)->capture : 0; }
static Graph *graph_in(cudaStream_t s) {
    unsigned long long *place = place_of(s);
    return place && *place ? capture_named(*place) : 0;
}
unsigned long long capture_of(cudaStream_t s) {
    Graph *graph = graph_in(s);
    return graph ? graph->id : 0;
}
void join_capture(cudaStream_t s, unsigned long long capture) {
    unsigned long long *place = place_of(s);
    if (place && capture && capture_named(capture)) *place = capture;
}

static int is_ending(void) { /* Python, in which what an object refers to may be gone: the driver's thread never gets there */
    int (*newer)(void) = dlsym(RTLD_DEFAULT, "Py_IsFinalizing"), (*older)(void) = dlsym(RTLD_DEFAULT, "_Py_IsFinalizing");
    return newer ? newer() : older ? older() : 0;
}
static void let_go(Held *held) { /* of references, with the objects that have no other */
    while (held) {
        Held *next = held->next;
        struct Object *object = held->object;
        if (!__atomic_sub_fetch(&object->references, 1, __ATOMIC_ACQ_REL) && !is_ending()) {
            object->destroy(object->data);
            free(object);
        }
        free(held);
        held = next;
    }
}
static cudaError_t leave(Graph *graph) {
    if (!graph || __atomic_sub_fetch(&graph->references, 1, __ATOMIC_ACQ_REL)) return cudaSuccess;
    let_go(graph->held);
    return free(graph), cudaSuccess;
}

API cudaError_t cudaGraphCreate(cudaGraph_t *out, unsigned flags) {
    Graph *graph = calloc(1, sizeof *graph);
    graph->references = 1;
    graph->id = __atomic_add_fetch(&captures, 1, __ATOMIC_RELAXED);
    return *out = (cudaGraph_t)graph, cudaSuccess;
}
API cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode) {
    unsigned long long *place = place_of(s);
    Graph *graph;
    if (!place) return set_error(cudaErrorStreamCaptureUnsupported); /* a default stream */
    if (graph_in(s)) return set_error(cudaErrorIllegalState);
    cudaGraphCreate((cudaGraph_t *)&graph, 0);
    graph->origin = s;
    pthread_mutex_lock(&guard);
    graph->next = captured;
    captured = graph;
    pthread_mutex_unlock(&guard);
    return *place = graph->id, cudaSuccess;
}
API cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out) {
    Graph *graph = graph_in(s);
    *out = 0;
    if (!graph) return set_error(cudaErrorIllegalState);
    if (graph->origin != s) return set_error(cudaErrorStreamCaptureUnmatched);
    pthread_mutex_lock(&guard);
    Graph **at = &captured;
    while (*at != graph) at = &(*at)->next;
    *at = graph->next;
    pthread_mutex_unlock(&guard);
    return *out = (cudaGraph_t)graph, cudaSuccess;
}
API cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *out) {
    *out = graph_in(s) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *out, unsigned long long *id,
                                         cudaGraph_t *graph, const cudaGraphNode_t **dependencies,
#if CUDART_VERSION >= 13000 /* before, the header calls this one _v2 */
                                         const cudaGraphEdgeData **edges,
#endif
                                         size_t *number) {
    Graph *found = graph_in(s);
    *out = found ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    if (id) *id = found ? found->id : 0;
    if (graph) *graph = (cudaGraph_t)found;
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
API cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    static __thread enum cudaStreamCaptureMode own = cudaStreamCaptureModeGlobal;
    enum cudaStreamCaptureMode before = own;
    own = *mode;
    return *mode = before, cudaSuccess;
}
API cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *number) {
    return *number = nodes ? 0 : 1, cudaSuccess; /* of none, torch would warn that the graph is empty */
}
API cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
    __atomic_add_fetch(&((Graph *)graph)->references, 1, __ATOMIC_RELAXED);
    return *out = (cudaGraphExec_t)graph, cudaSuccess;
}
API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
    return cudaGraphInstantiate(out, graph, flags);
}
API cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t s) { return on_device(); }
API cudaError_t cudaGraphUpload(cudaGraphExec_t graph, cudaStream_t s) { return on_device(); }
API cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return leave((Graph *)graph); }
API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return leave((Graph *)graph); }

API cudaError_t cudaUserObjectCreate(cudaUserObject_t *out, void *data, cudaHostFn_t destroy, unsigned references,
                                     unsigned flags) {
    struct Object *object = malloc(sizeof *object);
    *object = (struct Object){references, destroy, data};
    return *out = (cudaUserObject_t)object, cudaSuccess;
}
API cudaError_t cudaUserObjectRetain(cudaUserObject_t object, unsigned number) {
    __atomic_add_fetch(&((struct Object *)object)->references, number, __ATOMIC_RELAXED);
    return cudaSuccess;
}
static Held *held_of(struct Object *object, unsigned number, Held *next) {
    while (number--) {
        Held *held = malloc(sizeof *held);
        *held = (Held){object, next};
        next = held;
    }
    return next;
}
API cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned number) {
    return let_go(held_of((struct Object *)object, number, 0)), cudaSuccess;
}
API cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned number, unsigned flags) {
    if (!(flags & cudaGraphUserObjectMove)) cudaUserObjectRetain(object, number); /* else the caller's become the graph's */
    pthread_mutex_lock(&guard);
    ((Graph *)graph)->held = held_of((struct Object *)object, number, ((Graph *)graph)->held);
    pthread_mutex_unlock(&guard);
    return cudaSuccess;
}
API cudaError_t cudaGraphReleaseUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned number) {
    Held *released = 0;
    pthread_mutex_lock(&guard);
    for (Held **at = &((Graph *)graph)->held; *at && number;) {
        Held *one = *at;
        if (one->object != (struct Object *)object) {
            at = &one->next;
            continue;
        }
        *at = one->next;
        one->next = released;
        released = one, number--;
    }
    pthread_mutex_unlock(&guard);
    return let_go(released), cudaSuccess;
}
