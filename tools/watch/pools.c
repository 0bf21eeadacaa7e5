/*
 * Pools, seen from outside: see pools.h. Forked workers have their parent's descriptors, so one
 * memory may be found in several processes: it counts once, for the client that connected first.
 * Processes may end at any moment; what cannot be opened any more is passed over.
 */
#include "tools/watch/pools.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/tasks/pool_parts.h"
#include "shm/base/error.h"
#include "tools/watch/clients.h"
#include "tools/monitor.h"

#define POOLS_MAX 4096u

struct walk {
    pools_each *each;
    void *context;
    uint64_t *seen;
    size_t count;
};

static bool seen_before(struct walk *walk, uint64_t pool) {
    for (size_t i = 0; i < walk->count; i++) {
        if (walk->seen[i] == pool)
            return true;
    }
    if (walk->count < POOLS_MAX)
        walk->seen[walk->count++] = pool;
    return false;
}

/* Where the parts lie, if this is a pool's memory: it may be a part of one that is being made. */
static bool lay_out(void *base, uint64_t size_bytes, struct parts *out) {
    struct head head;
    memcpy(&head, base, sizeof head);
    uint64_t needed =
        head.magic == POOL_MAGIC ? cw_pool_bytes(head.workers, head.cells, head.groups) : 0;
    if (needed == 0 || needed > size_bytes)
        return false;
    cw_pool_lay_out(base, head.workers, head.cells, head.groups, out);
    return true;
}

static void read_figures(const struct parts *parts, struct pool_row *out) {
    for (uint32_t w = 0; w < parts->view.worker_count; w++) {
        struct cw_dispatch_worker *worker = &parts->view.workers[w];
        out->workers += CW_LOAD(MON, &worker->group, relaxed) != 0;
        out->tasks += monitor_word(&worker->figures[FIGURE_CALLS]);
        out->chunks += monitor_word(&worker->figures[FIGURE_TASKS]);
        out->busy_ns += monitor_word(&worker->figures[FIGURE_BUSY_NS]);
        out->bytes_in += monitor_word(&worker->figures[FIGURE_BYTES_IN]);
        out->bytes_out += monitor_word(&worker->figures[FIGURE_BYTES_OUT]);
        out->failed += monitor_word(&worker->figures[FIGURE_FAILED]);
    }
    uint64_t repeated = monitor_word(&parts->head->repeated),
             lost = monitor_word(&parts->head->lost);
    out->repeated = repeated;
    out->failed += lost > repeated ? lost - repeated : 0;
    for (uint32_t g = 0; g < parts->view.group_count; g++) {
        uint64_t head = monitor_word(&parts->view.groups[g].head),
                 tail = monitor_word(&parts->view.groups[g].tail);
        out->queued += tail > head ? tail - head : 0;
    }
}

/* Tasks that are run now: of each worker that has some, the one that it took first. */
static void read_running(const struct parts *parts, struct pool_row *out) {
    int64_t begun_ns[CW_DISPATCH_WORKERS_MAX] = {0}, now_ns = cw_now_ns();
    for (uint32_t c = 0; c < parts->view.cell_count; c++) {
        uint64_t word = monitor_word(&parts->view.cells[c].word);
        uint32_t worker = (uint32_t)(word >> 4 & 0xfff);
        if ((word & 15) != CW_CELL_TAKEN || worker == 0 || worker > parts->view.worker_count)
            continue;
        int64_t taken_ns = (int64_t)monitor_word(&parts->view.cells[c].taken_ns),
                *first_ns = &begun_ns[worker - 1];
        if (taken_ns > 0 && (*first_ns == 0 || taken_ns < *first_ns))
            *first_ns = taken_ns;
    }
    for (uint32_t w = 0; w < parts->view.worker_count; w++) {
        if (begun_ns[w] == 0)
            continue;
        out->busy_workers++;
        out->running_ns += now_ns > begun_ns[w] ? (uint64_t)(now_ns - begun_ns[w]) : 0;
    }
}

static void look_at(struct walk *walk, int fd, uint32_t pid) {
    struct stat status;
    struct pool_row row = {.pid = pid};
    struct parts parts;
    int seals = fcntl(fd, F_GET_SEALS);
    /* Sealed, so that nobody shortens it under us. */
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &status) ||
        status.st_size < (off_t)sizeof(struct head) || seen_before(walk, status.st_ino))
        return;
    size_t size_bytes = (size_t)status.st_size;
    void *base = mmap(NULL, size_bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return;
    if (lay_out(base, size_bytes, &parts)) {
        row.pool = status.st_ino;
        read_figures(&parts, &row);
        read_running(&parts, &row);
        walk->each(walk->context, &row);
    }
    munmap(base, size_bytes);
}

static void look_into(struct walk *walk, uint32_t pid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/fd", pid);
    DIR *folder = opendir(path);
    if (!folder)
        return; /* it has ended, or is not ours to look into */
    for (struct dirent *entry; (entry = readdir(folder));) {
        int fd = monitor_open_memfd((pid_t)pid, entry->d_name, "/memfd:cw-pool ");
        if (fd >= 0) {
            look_at(walk, fd, pid);
            close(fd);
        }
    }
    closedir(folder);
}

static int by_session(const void *a, const void *b) {
    const struct client_row *first = a, *second = b;
    return (first->session > second->session) - (first->session < second->session);
}

void pools_walk(struct cw_root *root, pools_each *each, void *context) {
    struct client_row *rows = calloc(CW_MONITOR_CLIENTS, sizeof *rows);
    struct walk walk = {
        .each = each, .context = context, .seen = calloc(POOLS_MAX, sizeof *walk.seen)};
    size_t count = 0;
    CW_ASSERT(rows && walk.seen);
    for (unsigned i = 0; i < CW_MONITOR_CLIENTS; i++)
        count += clients_copy(root, i, &rows[count]) && rows[count].role == CLIENT_USER;
    qsort(rows, count, sizeof *rows, by_session);
    for (size_t i = 0; i < count; i++)
        look_into(&walk, rows[i].pid);
    free(walk.seen);
    free(rows);
}
