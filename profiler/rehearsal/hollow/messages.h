/* Messages of up to HOLLOW_COPY_BYTES (1 MiB) between ranks that are processes of this machine; see messages.c. */
#define _GNU_SOURCE
#define __CUDA_FP8_H__ /* skips that header: it is not needed, and CUDA 12's does not compile as C */
#include <nccl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK ncclSuccess
typedef struct Room Room; /* what the ranks of a communicator share */
struct ncclComm { int ranks, rank, device, splits; char name[40]; Room *room; /* 0: the other ranks are not there */ };
typedef enum { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, SPLIT, SEND, RECV } Kind; /* the last two: pairs */
typedef union { double real; uint64_t whole; } Sum;
typedef struct {
    Kind kind;
    const void *in;
    void *out;
    size_t count; /* of elements: of what a rank gets in a reduce-scatter, else of what it gives */
    ncclDataType_t type;
    ncclRedOp_t op;
    int peer; /* or root */
    ncclComm_t comm;
    /* how far it is */
    int is_posted, next; /* the rank whose message is read next */
    void *scaled; /* what is sent instead of `in` */
    Sum *sum;
} Call;

size_t most_bytes(void);
size_t width(ncclDataType_t type);
Room *join(const char *name, int ranks, int rank); /* 0 where messages are not carried, or failed: see last_error */
ncclResult_t gather_all(ncclComm_t comm); /* waits until every rank has joined */
void leave(ncclComm_t comm); /* which is freed */
void name_room(char out[40], const void *data, size_t bytes);
const char *messages_folder(void);
ncclResult_t run_calls(Call *calls, size_t number); /* waits until all are done */
extern __thread char last_error[256];

void fold(Sum *sum, const void *data, size_t n, ncclDataType_t type, ncclRedOp_t op, int is_first);
void finish(const Sum *sum, void *out, size_t n, ncclDataType_t type, ncclRedOp_t op, int ranks);
void *scaled(const void *data, size_t n, ncclDataType_t type, ncclRedOp_t op); /* 0 where the operation has no factor */
ncclResult_t make_factor(ncclRedOp_t *op, const void *scalar, ncclDataType_t type);
