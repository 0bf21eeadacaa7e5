/*
 * The rows of memory, by device and process. Of a GPU the driver (NVML) counts what each process
 * has in all: what is not ours of that is its context, and what it took without cableway. What no
 * process has is orphans, and the driver's own. So the rows of a GPU add up to what nvidia-smi
 * shows. One thread.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/error.h"
#include "tools/top/look.h"
#include "tools/watch/remains.h"

enum { DEVICE, PID, COMMAND, LIVE, CACHED, ORPHAN, CONTEXT, TOTAL };

/* Who has memory on a device, as far as slabs tell. */
struct share {
    const char *device; /* of the first of its slabs */
    uint32_t owner;     /* session; 0: nobody */
    bool gpu;
    double live_bytes, cached_bytes; /* of an orphan together what it is */
};

struct shares {
    struct share *all;
    size_t count;
};

static int by_owner(const void *a, const void *b) {
    const struct memory_slab *const *first = a, *const *second = b;
    int compared = strcmp((*first)->device, (*second)->device);
    if (compared)
        return compared;
    return ((*first)->owner > (*second)->owner) - ((*first)->owner < (*second)->owner);
}

static void find_shares(const struct top *top, struct shares *out) {
    const struct memory_slab **slabs = malloc((top->slab_count + 1) * sizeof(void *));
    out->all = calloc(top->slab_count + 1, sizeof *out->all);
    CW_ASSERT(slabs && out->all);
    for (size_t i = 0; i < top->slab_count; i++)
        slabs[i] = &top->slabs[i].memory;
    qsort(slabs, top->slab_count, sizeof(void *), by_owner);
    for (size_t i = 0; i < top->slab_count; i++) {
        if (i == 0 || by_owner(&slabs[i - 1], &slabs[i]) != 0)
            out->all[out->count++] = (struct share){
                .device = slabs[i]->device, .owner = slabs[i]->owner, .gpu = slabs[i]->gpu};
        struct share *share = &out->all[out->count - 1];
        share->live_bytes += (double)slabs[i]->live_bytes;
        share->cached_bytes += (double)(slabs[i]->size_bytes - slabs[i]->live_bytes);
    }
    free(slabs);
}

/* What the driver counts for a process on a GPU; NAN: it does not tell. */
static double driver_bytes(const struct nvml_gpu *gpu, uint32_t pid) {
    for (size_t i = 0; gpu && i < gpu->count; i++) {
        if (gpu->processes[i].pid == pid)
            return (double)gpu->processes[i].used_bytes;
    }
    return NAN;
}

static struct top_cell *add_row(struct top *top, const char *device, const char *command) {
    struct top_cell *cells = top_table_add(&top->tables[TOP_MEMORY]);
    cells[DEVICE].text = top_texts_add(&top->texts, device);
    cells[COMMAND].text = command;
    return cells;
}

static void add_share(struct top *top, const struct share *share) {
    const struct top_client *client = share->owner ? top_find_client(top, share->owner) : NULL;
    double total_bytes = share->live_bytes + share->cached_bytes;
    struct top_cell *cells = add_row(top, share->device,
                                     client         ? client->row.comm
                                     : share->owner ? "a client that has just gone"
                                                    : "no process");
    cells[TOTAL].number = total_bytes;
    if (!share->owner) {
        cells[ORPHAN].number = total_bytes;
        return;
    }
    cells[LIVE].number = share->live_bytes;
    cells[CACHED].number = share->cached_bytes;
    if (!client)
        return;
    cells[PID].number = client->row.pid;
    double told_bytes =
        share->gpu ? driver_bytes(nvml_find(&top->nvml, share->device), client->row.pid) : NAN;
    if (isnan(told_bytes) || told_bytes < total_bytes)
        return;
    cells[CONTEXT].number = told_bytes - total_bytes;
    cells[TOTAL].number = told_bytes;
}

static bool has_share(const struct top *top, const struct shares *shares, const char *device,
                      uint32_t pid) {
    for (size_t i = 0; i < shares->count; i++) {
        const struct share *share = &shares->all[i];
        const struct top_client *client = share->owner ? top_find_client(top, share->owner) : NULL;
        if (client && client->row.pid == pid && strcmp(share->device, device) == 0)
            return true;
    }
    return false;
}

static const char *command_of(struct top *top, uint32_t pid) {
    char path[32], text[64] = "";
    snprintf(path, sizeof path, "/proc/%u/comm", pid);
    FILE *file = fopen(path, "re");
    if (file) {
        if (!fgets(text, sizeof text, file))
            *text = 0;
        fclose(file);
    }
    text[strcspn(text, "\n")] = 0;
    return *text ? top_texts_add(&top->texts, text) : NULL;
}

/* Processes that have nothing of ours on this GPU, and what no process has. */
static void add_rest(struct top *top, const struct shares *shares, const struct nvml_gpu *gpu) {
    struct top_table *table = &top->tables[TOP_MEMORY];
    double counted_bytes = 0;
    for (size_t i = 0; i < gpu->count; i++) {
        const struct nvml_process *process = &gpu->processes[i];
        if (has_share(top, shares, gpu->uuid, process->pid))
            continue;
        struct top_cell *cells = add_row(top, gpu->uuid, command_of(top, process->pid));
        cells[PID].number = process->pid;
        cells[CONTEXT].number = cells[TOTAL].number = (double)process->used_bytes;
    }
    for (size_t i = 0; i < table->rows; i++) {
        const struct top_cell *cells = table->cells + i * table->columns;
        if (strcmp(cells[DEVICE].text, gpu->uuid) == 0)
            counted_bytes += cells[TOTAL].number;
    }
    if ((double)gpu->used_bytes > counted_bytes) {
        struct top_cell *cells = add_row(top, gpu->uuid, "the driver");
        cells[CONTEXT].number = cells[TOTAL].number = (double)gpu->used_bytes - counted_bytes;
    }
}

void top_add_memory(struct top *top) {
    struct shares shares = {.all = NULL};
    bool gpus = false;
    find_shares(top, &shares);
    for (size_t i = 0; i < shares.count; i++)
        gpus |= shares.all[i].gpu;
    /* The driver is not woken for a machine whose GPUs nobody uses here. */
    if (gpus)
        nvml_look(&top->nvml);
    for (size_t i = 0; i < shares.count; i++)
        add_share(top, &shares.all[i]);
    for (size_t i = 0; gpus && i < top->nvml.count; i++) {
        if (top->nvml.gpus[i].told)
            add_rest(top, &shares, &top->nvml.gpus[i]);
    }
    free(shares.all);
}

/* ---- without a broker ---- */

static void add_remains(void *context, const struct remains_row *row) {
    struct top *top = context;
    struct top_cell *cells = add_row(top, "cpu", top_texts_add(&top->texts, row->comm));
    cells[PID].number = row->pid;
    cells[TOTAL].number = (double)row->host_bytes;
}

void top_add_remains(struct top *top) {
    remains_walk(add_remains, top);
}
