/* Memory: host mappings that stand for a device's, counted against its capacity; large copies are not made. */
#include "hollow.h"

static Block *blocks;
static size_t num_blocks, max_blocks;

int take(int device, size_t bytes) {
    int fits;
    pthread_mutex_lock(&lock);
    if ((fits = bytes <= capacity && used[device] <= capacity - bytes)) used[device] += bytes;
    pthread_mutex_unlock(&lock);
    return fits;
}

void give_back(int device, size_t bytes) {
    pthread_mutex_lock(&lock);
    used[device] -= bytes;
    pthread_mutex_unlock(&lock);
}

void remember(uintptr_t at, size_t bytes, size_t counted, int device, int host) {
    pthread_mutex_lock(&lock);
    if (num_blocks == max_blocks) blocks = realloc(blocks, (max_blocks = 2 * max_blocks + 64) * sizeof *blocks);
    blocks[num_blocks++] = (Block){at, bytes, counted, device, host};
    pthread_mutex_unlock(&lock);
}

int forget(uintptr_t at, Block *out) {
    int found = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < num_blocks && !found; i++)
        if (blocks[i].at == at) {
            *out = blocks[i];
            blocks[i] = blocks[--num_blocks];
            used[out->device] -= out->counted;
            found = 1;
        }
    pthread_mutex_unlock(&lock);
    return found;
}

void forget_range(uintptr_t at, size_t bytes) {
    pthread_mutex_lock(&lock);
    for (size_t i = num_blocks; i-- > 0;)
        if (blocks[i].at - at < bytes) blocks[i] = blocks[--num_blocks];
    pthread_mutex_unlock(&lock);
}

int holder(const void *pointer, Block *out) {
    int found = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < num_blocks && !found; i++)
        if ((uintptr_t)pointer - blocks[i].at < blocks[i].bytes) *out = blocks[i], found = 1;
    pthread_mutex_unlock(&lock);
    return found;
}

void *reserve_pages(size_t bytes, int protection) {
    char *at = mmap(0, bytes + GRANULE, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return 0;
    size_t head = (GRANULE - (uintptr_t)at % GRANULE) % GRANULE;
    if (head) munmap(at, head);
    munmap(at + head + bytes, GRANULE - head);
    madvise(at + head, bytes, MADV_NOHUGEPAGE); /* else a byte that is written takes 2 MiB of the host */
    return at + head;
}

static void *device_pages(size_t bytes) { /* each above the last: PyTorch's allocator prefers low addresses */
    static uintptr_t next = (uintptr_t)1 << 45; /* between the host's heap and its libraries */
    pthread_mutex_lock(&lock);
    uintptr_t at = next;
    next += UP(bytes);
    pthread_mutex_unlock(&lock);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    if (mmap((void *)at, bytes, PROT_READ | PROT_WRITE, flags, -1, 0) != (void *)at) return 0;
    madvise((void *)at, bytes, MADV_NOHUGEPAGE);
    return (void *)at;
}

static cudaError_t allocate(void **out, size_t bytes, int host) {
    READY();
    *out = 0;
    if (!bytes) return cudaSuccess;
    if (bytes > SIZE_MAX / 2) return set_error(cudaErrorMemoryAllocation); /* which rounding up would overflow */
    size_t whole = UP(bytes), counted = host ? 0 : whole;
    if (counted && !take(current, counted)) return set_error(cudaErrorMemoryAllocation);
    void *at = host ? reserve_pages(whole, PROT_READ | PROT_WRITE) : device_pages(whole);
    if (!at) return give_back(current, counted), set_error(cudaErrorMemoryAllocation);
    remember((uintptr_t)at, whole, counted, current, host);
    *out = at;
    return cudaSuccess;
}

static cudaError_t release(void *at) {
    Block block;
    READY();
    if (!at) return cudaSuccess;
    if (!forget((uintptr_t)at, &block)) return set_error(cudaErrorInvalidValue);
    munmap(at, block.bytes);
    return cudaSuccess;
}

API cudaError_t cudaMalloc(void **p, size_t n) { return allocate(p, n, 0); }
API cudaError_t cudaMallocManaged(void **p, size_t n, unsigned flags) { return allocate(p, n, 0); }
API cudaError_t cudaMallocAsync(void **p, size_t n, cudaStream_t s) { return allocate(p, n, 0); }
API cudaError_t cudaMallocHost(void **p, size_t n) { return allocate(p, n, 1); }
API cudaError_t cudaHostAlloc(void **p, size_t n, unsigned flags) { return allocate(p, n, 1); }
API cudaError_t cudaFree(void *p) { return release(p); }
API cudaError_t cudaFreeAsync(void *p, cudaStream_t s) { return release(p); }
API cudaError_t cudaFreeHost(void *p) { return release(p); }

API cudaError_t cudaHostRegister(void *p, size_t n, unsigned flags) {
    READY();
    remember((uintptr_t)p, n, 0, current, 2);
    return cudaSuccess;
}
API cudaError_t cudaHostUnregister(void *p) {
    Block block;
    return forget((uintptr_t)p, &block) ? cudaSuccess : set_error(cudaErrorHostMemoryNotRegistered);
}

typedef struct { Block block; pid_t pid; } Shared; /* in the 64 bytes of a handle, which names it among all processes */
API cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *out, void *p) {
    Shared shared = {.pid = getpid()};
    READY();
    if (!holder(p, &shared.block) || shared.block.host) return set_error(cudaErrorInvalidValue);
    memset(out, 0, sizeof *out);
    return memcpy(out, &shared, sizeof shared), cudaSuccess;
}
API cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t handle, unsigned flags) { /* memory that its owner counts, without what is in it */
    Shared shared;
    READY();
    memcpy(&shared, &handle, sizeof shared);
    if (!(*out = device_pages(shared.block.bytes))) return set_error(cudaErrorMemoryAllocation);
    remember((uintptr_t)*out, shared.block.bytes, 0, current, 0);
    return cudaSuccess;
}
API cudaError_t cudaIpcCloseMemHandle(void *p) { return release(p); }

API cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *out, int device) { /* there is no pool: freed memory is unmapped at once */
    return *out = (cudaMemPool_t)&used[device], cudaSuccess;
}
API cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr which, void *out) {
    return *(uint64_t *)out = *(size_t *)pool, cudaSuccess;
}
API cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t p, enum cudaMemPoolAttr which, void *value) {
    return cudaSuccess;
}
API cudaError_t cudaMemPoolSetAccess(cudaMemPool_t p, const struct cudaMemAccessDesc *d, size_t n) {
    return cudaSuccess;
}
API cudaError_t cudaMemPoolTrimTo(cudaMemPool_t p, size_t keep) { return cudaSuccess; }

API cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    READY();
    *total = capacity;
    *free_bytes = capacity > used[current] ? capacity - used[current] : 0;
    return cudaSuccess;
}

API cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *p) {
    Block block;
    READY();
    memset(out, 0, sizeof *out);
    out->device = -1;
    out->hostPointer = (void *)p;
    if (!holder(p, &block)) return cudaSuccess; /* cudaMemoryTypeUnregistered */
    out->type = block.host ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    out->device = block.device;
    out->devicePointer = (void *)p;
    if (!block.host) out->hostPointer = 0;
    return cudaSuccess;
}

#define PAGE ((uintptr_t)4096)
static void vanish(void *p, size_t n) { /* drop its whole pages, which then read as zeros */
    uintptr_t from = ((uintptr_t)p + PAGE - 1) & ~(PAGE - 1), to = ((uintptr_t)p + n) & ~(PAGE - 1);
    if (from < to) madvise((void *)from, to - from, MADV_DONTNEED); /* pages of a file, or locked, keep what they held */
}

/* Where PyTorch's own code reads a size that is known here: the next copy of 4 or 8 bytes to the host brings it. */
static __thread int is_answered;
static __thread int64_t answer;
API void hollow_answer(int64_t size, int is_set) {
    answer = size;
    is_answered = is_set;
}

static void edges(void *p, size_t n) { /* as zeros too, of what was not whole pages */
    uintptr_t head = -(uintptr_t)p & (PAGE - 1), tail = ((uintptr_t)p + n) & (PAGE - 1);
    memset(p, 0, head);
    memset((char *)p + n - tail, 0, tail);
}

API cudaError_t cudaMemcpy(void *to, const void *from, size_t n, enum cudaMemcpyKind k) {
    READY();
    if (is_answered && (n == 4 || n == 8) && (k == cudaMemcpyDeviceToHost || k == cudaMemcpyDefault)) {
        is_answered = 0;
        return memcpy(to, &answer, n), cudaSuccess;
    }
    if (n <= copied_bytes) return memmove(to, from, n), cudaSuccess;
    vanish(to, n);
    if (n >= 2 * PAGE) edges(to, n);
    return cudaSuccess;
}
API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind k, cudaStream_t s) {
    return cudaMemcpy(to, from, n, k);
}
API cudaError_t cudaMemcpyPeerAsync(void *to, int a, const void *from, int b, size_t n, cudaStream_t s) {
    return cudaMemcpy(to, from, n, cudaMemcpyDefault);
}
API cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                                  size_t height, enum cudaMemcpyKind k, cudaStream_t s) {
    READY();
    if (width * height > copied_bytes) return cudaSuccess;
    for (size_t row = 0; row < height; row++)
        memmove((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
    return cudaSuccess;
}
API cudaError_t cudaMemset(void *p, int value, size_t n) {
    READY();
    if (n < 2 * PAGE || (value && n <= copied_bytes)) return memset(p, value, n), cudaSuccess;
    uintptr_t head = -(uintptr_t)p & (PAGE - 1), tail = ((uintptr_t)p + n) & (PAGE - 1);
    vanish(p, n);
    memset(p, value, head);
    memset((char *)p + n - tail, value, tail);
    return cudaSuccess;
}
API cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t s) { return cudaMemset(p, value, n); }
