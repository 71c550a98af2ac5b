/* Carries messages between the processes of this machine, through a file that the ranks of a communicator share.
 *
 * It lies in the folder HOLLOW_MESSAGES until the last rank has joined. Every rank has a ring to all others, for
 * collectives, and one to each, for what is sent and received; the figures of both are mapped by all. A rank that waits
 * sleeps until another gives or takes. It ends with ncclRemoteError where that rank has ended, never joined, or did
 * nothing for HOLLOW_WAIT_SECONDS (60), or for ten times as long while processes beside it computed.
 */
#include "messages.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef struct { _Atomic uint32_t bell, joined; } Head;
typedef struct { uint64_t kind, bytes; } Label; /* before each message */
struct Room {
    int file, ranks, rank;
    _Atomic int is_broken, busy; /* busy: calls of threads that are in it */
    size_t ring, begin; /* bytes of a ring, and where the first one begins */
    void *map;
    Head *head;
    _Atomic int32_t *here; /* of each rank: 0 before it joins, its process, -1 after it left */
    _Atomic uint64_t *given, *taken; /* bytes: of each channel; of each channel's readers */
    char path[PATH_MAX];
};
static const char *NAMES[] = {"AllReduce", "Reduce", "Broadcast", "AllGather", "ReduceScatter", "CommSplit", "Send", "Recv"};
__thread char last_error[256];

size_t most_bytes(void) {
    const char *text = getenv("HOLLOW_COPY_BYTES");
    return text ? strtoull(text, 0, 10) : (size_t)1 << 20;
}
const char *messages_folder(void) {
    const char *folder = getenv("HOLLOW_MESSAGES");
    return folder && *folder ? folder : 0;
}
static ncclResult_t failed(ncclResult_t result, const char *what) {
    return snprintf(last_error, sizeof last_error, "%s: %s", what, strerror(errno)), result;
}
void name_room(char out[40], const void *data, size_t bytes) { /* FNV-1a, from both ends */
    uint64_t a = 14695981039346656037u, b = a ^ bytes;
    for (size_t i = 0; i < bytes; i++) {
        a = (a ^ ((const uint8_t *)data)[i]) * 1099511628211u;
        b = (b ^ ((const uint8_t *)data)[bytes - 1 - i]) * 1099511628211u;
    }
    snprintf(out, 40, "nccl-%016llx%016llx", (unsigned long long)a, (unsigned long long)b);
}

/* channels: `rank` to all, or ranks + from * ranks + to */
static int pair(const Room *r, int from, int to) { return r->ranks + from * r->ranks + to; }
static _Atomic uint64_t *taken_of(const Room *r, int channel, int reader) {
    size_t ranks = (size_t)r->ranks;
    return r->taken + (channel < r->ranks ? (size_t)channel * ranks + (size_t)reader : ranks * ranks + (size_t)channel);
}
static int slowest(const Room *r, int channel, uint64_t *out) { /* of a channel's readers */
    if (channel >= r->ranks) return *out = *taken_of(r, channel, 0), (channel - r->ranks) % r->ranks;
    int found = -1;
    for (int i = 0; i < r->ranks; i++) {
        uint64_t at = *taken_of(r, channel, i);
        if (i != channel && (found < 0 || at < *out)) *out = at, found = i;
    }
    return found;
}

/* the file and its locks: each rank has one byte locked as long as its process lives, children aside */
static int lock_of(Room *r, int rank, int command, struct flock *out) {
    *out = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
    return fcntl(r->file, command, out);
}
static int has_ended(Room *r, int rank) {
    struct flock lock;
    if (r->here[rank] <= 0 || r->here[rank] == getpid()) return r->here[rank] < 0;
    return !lock_of(r, rank, F_GETLK, &lock) && lock.l_type == F_UNLCK;
}

static void ring_bell(Room *r) {
    r->head->bell++;
    syscall(SYS_futex, &r->head->bell, FUTEX_WAKE, INT_MAX, 0, 0, 0);
}

Room *join(const char *name, int ranks, int rank) {
    Room *r = calloc(1, sizeof *r);
    struct flock lock;
    size_t n = (size_t)ranks, page = 4096;
    snprintf(r->path, sizeof r->path, "%s/%s", messages_folder(), name);
    r->ranks = ranks, r->rank = rank;
    r->ring = (4 * most_bytes() + 2 * page) / page * page;
    r->begin = (sizeof(Head) + 4 * (n + 1) + 8 * (n + n * n + n * n + n + n * n) + page) / page * page;
    r->file = open(r->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (r->file < 0 || ftruncate(r->file, (off_t)(r->begin + (n + n * n) * r->ring))) goto no;
    r->map = mmap(0, r->begin, PROT_READ | PROT_WRITE, MAP_SHARED, r->file, 0);
    if (r->map == MAP_FAILED || lock_of(r, rank, F_SETLK, &lock)) goto no;
    r->head = r->map;
    r->given = (void *)(r->head + 1);
    r->taken = r->given + n + n * n;
    r->here = (void *)(r->taken + n * n + n + n * n);
    r->here[rank] = getpid();
    if (++r->head->joined == (uint32_t)ranks) unlink(r->path);
    ring_bell(r);
    return r;
no:
    failed(ncclSystemError, r->path);
    if (r->file >= 0) close(r->file);
    return free(r), (Room *)0;
}

void leave(ncclComm_t comm) {
    Room *r = comm->room;
    if (!r) return free(comm);
    r->is_broken = 1;
    r->here[r->rank] = -1;
    if (r->busy) return; /* another thread waits in it: it will fail, and what it uses stays */
    close(r->file);
    munmap(r->map, r->begin);
    free(r), free(comm);
}

/* rings: -1 failed, 0 not yet, 1 done */
static int moved(Room *r, int channel, uint64_t at, void *data, size_t bytes, int is_write) {
    for (size_t done = 0; done < bytes;) {
        size_t place = (at + done) % r->ring, part = bytes - done;
        if (part > r->ring - place) part = r->ring - place;
        off_t where = (off_t)(r->begin + (size_t)channel * r->ring + place);
        ssize_t n = is_write ? pwrite(r->file, (char *)data + done, part, where) : pread(r->file, (char *)data + done, part, where);
        if (n <= 0 && errno != EINTR) return failed(ncclSystemError, "messages between ranks"), -1;
        if (n > 0) done += (size_t)n;
    }
    return 1;
}
static int give(Room *r, int channel, Label label, const void *data) {
    uint64_t least = 0, at = r->given[channel], bytes = sizeof label + label.bytes;
    slowest(r, channel, &least);
    if ((int64_t)(at - least) > 0 && at - least + bytes > r->ring) return 0; /* readers may be ahead: what they skip */
    if (moved(r, channel, at, &label, sizeof label, 1) < 0 || moved(r, channel, at + sizeof label, (void *)data, label.bytes, 1) < 0)
        return -1;
    r->given[channel] = at + bytes;
    return ring_bell(r), 1;
}
static int get(Room *r, int channel, Label label, void *to, size_t from, size_t bytes) { /* a part of the message */
    _Atomic uint64_t *taken = taken_of(r, channel, r->rank);
    uint64_t at = *taken, whole = sizeof label + label.bytes;
    Label found;
    if (to) {
        if ((int64_t)(r->given[channel] - at) < (int64_t)sizeof label) return 0;
        if (moved(r, channel, at, &found, sizeof found, 0) < 0) return -1;
        if (memcmp(&found, &label, sizeof label)) {
            int from_rank = channel < r->ranks ? channel : (channel - r->ranks) / r->ranks;
            const char *format = "rank %d calls nccl%s of %llu bytes where rank %d of %d calls nccl%s of %llu";
            snprintf(last_error, sizeof last_error, format, from_rank, NAMES[found.kind % 8], (unsigned long long)found.bytes,
                     r->rank, r->ranks, NAMES[label.kind == SEND ? RECV : label.kind], (unsigned long long)label.bytes);
            return -1;
        }
        if (moved(r, channel, at + sizeof label + from, to, bytes, 0) < 0) return -1;
    }
    *taken = at + whole;
    return ring_bell(r), 1;
}

/* what each rank of a collective gives and gets */
static size_t size_of(const Call *c) {
    return c->count * width(c->type) * (c->kind == REDUCE_SCATTER ? (size_t)c->comm->ranks : 1);
}
static int gives(const Call *c, int rank) {
    return c->kind == BROADCAST ? rank == c->peer : c->kind == REDUCE ? rank != c->peer : 1;
}
static int gets(const Call *c, int rank) { return c->kind != REDUCE || rank == c->peer; }

static void keep(Call *c, int from, const void *data) { /* the message of a rank has come */
    size_t bytes = c->count * width(c->type);
    if (c->sum) fold(c->sum, data, c->count, c->type, c->op, from == 0);
    else if (c->kind == ALL_GATHER || c->kind == SPLIT) memmove((char *)c->out + (size_t)from * bytes, data, bytes);
    else if (c->out != data) memmove(c->out, data, bytes);
}
static int collect(Call *c) { /* the message of the next rank */
    Room *r = c->comm->room;
    int from = c->next, reduces = c->kind == ALL_REDUCE || c->kind == REDUCE || c->kind == REDUCE_SCATTER;
    size_t bytes = c->count * width(c->type), start = c->kind == REDUCE_SCATTER ? (size_t)r->rank * bytes : 0;
    if (reduces && gets(c, r->rank) && !c->sum) c->sum = malloc(c->count * sizeof *c->sum + 1);
    if (from == r->rank) {
        if (gets(c, r->rank) && (gives(c, from) || reduces)) keep(c, from, (const char *)(c->scaled ? c->scaled : c->in) + start);
        return 1;
    }
    if (!gives(c, from)) return 1;
    if (!gets(c, r->rank)) return get(r, from, (Label){c->kind, size_of(c)}, 0, 0, 0);
    void *room = malloc(bytes + 1);
    int done = get(r, from, (Label){c->kind, size_of(c)}, room, start, bytes);
    if (done > 0) keep(c, from, room);
    return free(room), done;
}

static int is_done(const Call *c) { return c->is_posted && c->next == (c->kind < SEND ? c->comm->ranks : 1); }

static int advance(Call *c) { /* as far as it can: whether it did */
    Room *r = c->comm->room;
    int any = 0, result = 0;
    if (!c->is_posted) {
        int to = c->kind < SEND ? r->rank : pair(r, r->rank, c->peer), is_sent = c->kind < SEND ? gives(c, r->rank) : c->kind == SEND;
        if (c->kind < SEND && !c->scaled) c->scaled = scaled(c->in, size_of(c) / width(c->type), c->type, c->op);
        result = is_sent ? give(r, to, (Label){c->kind, size_of(c)}, c->scaled ? c->scaled : c->in) : 1;
        if (result <= 0) return result;
        c->is_posted = any = 1;
        if (c->kind == SEND) c->next = 1;
    }
    while (!is_done(c)) {
        Label label = {SEND, size_of(c)};
        result = c->kind == RECV ? get(r, pair(r, c->peer, r->rank), label, c->out, 0, label.bytes) : collect(c);
        if (result <= 0) return result < 0 ? -1 : any;
        c->next++, any = 1;
    }
    if (c->sum) finish(c->sum, c->out, c->count, c->type, c->op, r->ranks);
    free(c->sum), free(c->scaled);
    return c->sum = c->scaled = 0, 1;
}

/* waiting */
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}
static unsigned long long ticks_beside(void) { /* of the processor, by other children of this process's parent */
    unsigned long long sum = 0, a, b, c, d;
    DIR *all = opendir("/proc");
    for (struct dirent *entry; all && (entry = readdir(all));) {
        char path[300], text[1024];
        int parent, file;
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9' || atoi(entry->d_name) == getpid()) continue;
        snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
        if ((file = open(path, O_RDONLY | O_CLOEXEC)) < 0) continue;
        ssize_t n = read(file, text, sizeof text - 1);
        close(file);
        text[n < 0 ? 0 : n] = 0;
        char *rest = strrchr(text, ')');
        const char *format = ") %*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %llu %llu";
        if (rest && sscanf(rest, format, &parent, &a, &b, &c, &d) == 5 && parent == getppid()) sum += a + b + c + d;
    }
    if (all) closedir(all);
    return sum;
}
typedef struct { double begin, since, looked; unsigned long long ticks; uint32_t bell; int was_ended; } Wait;

static ncclResult_t give_up(Room *r, int rank, const char *what, const char *why) {
    r->is_broken = 1;
    snprintf(last_error, sizeof last_error, "rank %d of %d waits in nccl%s for rank %d, which %s", r->rank, r->ranks, what, rank, why);
    return ncclRemoteError;
}
static ncclResult_t sleep_on(Wait *w, Room *r, int rank, const char *what) { /* until something moves; `rank` is awaited */
    const char *text = getenv("HOLLOW_WAIT_SECONDS");
    double limit = text ? atof(text) : 60, t = now();
    char why[64];
    if (r->is_broken) return ncclRemoteError; /* aborted by another thread */
    if (!w->begin) w->begin = w->since = w->looked = t, w->ticks = ticks_beside();
    if (rank >= 0 && has_ended(r, rank)) {
        if (w->was_ended++) return give_up(r, rank, what, r->here[rank] < 0 ? "has left the group" : "has ended");
        return OK; /* what it gave before is looked for once more */
    }
    if (t - w->looked > 1) {
        unsigned long long ticks = ticks_beside();
        if (ticks > w->ticks + (unsigned long long)(5 * (t - w->looked))) w->since = t; /* 5 % of a processor */
        w->looked = t, w->ticks = ticks;
    }
    if (t - w->since > limit || t - w->begin > 10 * limit) {
        snprintf(why, sizeof why, rank >= 0 && !r->here[rank] ? "never joined: %.0f s" : "did not answer for %.0f s", t - w->begin);
        return give_up(r, rank, what, why);
    }
    struct timespec most = {0, 20000000};
    syscall(SYS_futex, &r->head->bell, FUTEX_WAIT, w->bell, &most, 0, 0);
    return OK;
}

ncclResult_t gather_all(ncclComm_t comm) {
    Room *r = comm->room;
    Wait wait = {0};
    if (!r) return OK;
    while (wait.bell = r->head->bell, r->head->joined < (uint32_t)r->ranks) {
        int rank = 0;
        while (rank < r->ranks - 1 && r->here[rank]) rank++;
        ncclResult_t result = sleep_on(&wait, r, rank, "CommInitRank");
        if (result != OK) return unlink(r->path), result;
    }
    return r->is_broken ? ncclRemoteError : OK;
}

static int awaited(const Call *c) { /* the rank that lets this call go on */
    uint64_t at;
    Room *r = c->comm->room;
    if (!c->is_posted) return slowest(r, c->kind < SEND ? r->rank : pair(r, r->rank, c->peer), &at);
    return c->kind < SEND ? c->next : c->peer;
}
static int is_after(const Call *calls, size_t i) { /* whether an earlier call must end first: one of the same channel */
    for (size_t j = 0; j < i; j++) {
        const Call *a = calls + j, *b = calls + i;
        if (a->comm != b->comm || is_done(a)) continue;
        if (a->kind < SEND ? b->kind < SEND : a->kind == b->kind && a->peer == b->peer) return 1;
    }
    return 0;
}

static ncclResult_t run_all(Call *calls, size_t number) {
    Wait wait = {0};
    for (size_t i = 0; i < number; i++)
        if (gather_all(calls[i].comm) != OK) return ncclRemoteError;
    for (;;) {
        size_t left = 0, first = number;
        int any = 0;
        if (number) wait.bell = calls[0].comm->room->head->bell;
        for (size_t i = 0; i < number; i++) {
            if (is_done(calls + i)) continue;
            int result = is_after(calls, i) ? 0 : advance(calls + i);
            if (result < 0) {
                calls[i].comm->room->is_broken = 1;
                return ncclInvalidUsage;
            }
            any |= result;
            if (!is_done(calls + i)) left++, first = first < number ? first : i;
        }
        if (!left) return OK;
        if (any) wait = (Wait){.bell = wait.bell};
        else {
            Call *c = calls + first;
            ncclResult_t result = sleep_on(&wait, c->comm->room, awaited(c), NAMES[c->kind]);
            if (result != OK) return result;
        }
    }
}

ncclResult_t run_calls(Call *calls, size_t number) {
    for (size_t i = 0; i < number; i++) calls[i].comm->room->busy++;
    ncclResult_t result = run_all(calls, number);
    for (size_t i = 0; i < number; i++) calls[i].comm->room->busy--;
    return result;
}
