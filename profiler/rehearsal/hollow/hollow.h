/* What the parts of the runtime share. Devices that have memory and do no arithmetic; see device.c for their settings. */
#define _GNU_SOURCE
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define MAX_DEVICES 16
#define GRANULE ((size_t)2 << 20) /* what the driver hands out */
#define UP(n) (((n) + GRANULE - 1) & ~(GRANULE - 1))
#define READY() do { cudaError_t error_ = on_device(); if (error_ != cudaSuccess) return error_; } while (0)

typedef struct { /* all devices of a process are of one kind */
    char name[128];
    int major, minor, multiprocessors;
    int threads, blocks, shared_kib; /* of one multiprocessor: resident at most, and KiB of shared memory */
    int optin_kib; /* KiB of shared memory that one block may ask for */
    size_t bytes; /* of memory */
} Kind;
typedef struct { uintptr_t at; size_t bytes, counted; int device, host; } Block; /* host: 1 pinned, 2 registered; counted: bytes of `used` */

extern Kind kind;
extern size_t capacity, context_bytes, copied_bytes, used[MAX_DEVICES];
extern int count, visible[MAX_DEVICES], touched[MAX_DEVICES];
extern __thread int current; /* the thread's device */
extern pthread_mutex_t lock; /* guards `used`, the table of blocks and the reading of settings */

cudaError_t set_error(cudaError_t error); /* kept for cudaGetLastError, and returned */
cudaError_t ready(void); /* as cuInit: once; a child that was forked after it cannot use CUDA, but with HOLLOW_FORKS */
cudaError_t on_device(void); /* ready, and the current device has a context */
int take(int device, size_t bytes); /* 1 where the device had so many bytes left: they are counted as used */
void give_back(int device, size_t bytes); /* undoes `take` */
void remember(uintptr_t at, size_t bytes, size_t counted, int device, int host);
int forget(uintptr_t at, Block *out);
void forget_range(uintptr_t at, size_t bytes);
int holder(const void *pointer, Block *out); /* 1 where a pointer is into a block, which is copied to `out` */
void *reserve_pages(size_t bytes, int protection); /* 2 MiB aligned; no page is there before it is written */
