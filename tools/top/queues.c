/*
 * The rows of Queues. One thread. The data of a slab with a queue in it is opened and kept, so that
 * its queues are seen when the broker has died, until no queue is in it any more.
 */
#include <stdlib.h>
#include <unistd.h>
#include <uthash.h>

#include "shm/base/error.h"
#include "shm/blocks/block.h"
#include "tools/top/look.h"
#include "tools/watch/queues.h"

enum {
    PID,
    COMMAND,
    ITEMS,
    MAX,
    BYTES,
    PUT_RATE,
    TAKEN_RATE,
    PUT,
    TAKEN,
    LOST,
    HOLDERS,
    QUEUE,
    SLAB,
    BLOCK
};

static void add_queue(struct top *top, const struct top_slab *slab, uint32_t block,
                      const struct queue_row *row) {
    const struct top_client *owner = top_find_client(top, slab->memory.owner);
    uint64_t of = (uint64_t)slab->memory.slab << 32 | block,
             gen = cw_block_gen(monitor_word(&slab->table->blocks[block].word));
    struct top_cell *cells = top_table_add(&top->tables[TOP_QUEUES]);
    if (owner) {
        cells[PID].number = owner->row.pid;
        cells[COMMAND].text = owner->row.comm;
    }
    cells[ITEMS].number = (double)row->items;
    if (row->max_items)
        cells[MAX].number = (double)row->max_items;
    cells[BYTES].number = (double)row->bytes;
    cells[PUT].number = (double)row->put;
    cells[TAKEN].number = (double)row->taken;
    cells[LOST].number = (double)row->lost;
    cells[HOLDERS].number = slab->holds ? slab->holds[block].holders : 0;
    cells[QUEUE].number = (double)row->id; /* below 2^53: ipc/tasks/queue.c */
    cells[SLAB].number = slab->memory.slab;
    cells[BLOCK].number = block;
    cells[PUT_RATE].number = top_rate(top, (struct top_figure){TOP_RATE_PUT, of, gen}, row->put);
    cells[TAKEN_RATE].number =
        top_rate(top, (struct top_figure){TOP_RATE_TAKEN, of, gen}, row->taken);
}

static bool is_queue(const struct top_slab *slab, uint32_t block) {
    struct cw_block *at = &slab->table->blocks[block];
    uint64_t queue = monitor_word(&at->queue), word = monitor_word(&at->word);
    return queue && cw_block_state(word) != CW_BLOCK_FREE && queue == cw_block_gen(word) + 1;
}

struct top_data {
    uint64_t inode, looks; /* looks: in which it was last needed */
    int fd;
    UT_hash_handle hh;
};

/* The data of a slab, open; negative: the broker does not have it, or has died before. */
static int data_of(struct top *top, uint64_t inode) {
    struct top_data *data;
    HASH_FIND(hh, top->data, &inode, sizeof inode, data);
    if (!data) {
        int fd = queues_open_data(&top->monitor, inode);
        if (fd < 0)
            return fd;
        data = calloc(1, sizeof *data);
        CW_ASSERT(data);
        *data = (struct top_data){.inode = inode, .fd = fd};
        HASH_ADD(hh, top->data, inode, sizeof inode, data);
    }
    data->looks = top->looks;
    return data->fd;
}

static void close_unused(struct top *top, bool all) {
    struct top_data *data, *next;
    HASH_ITER(hh, top->data, data, next) {
        if (!all && data->looks == top->looks)
            continue;
        HASH_DELETE(hh, top->data, data);
        close(data->fd);
        free(data);
    }
}

void top_close_data(struct top *top) {
    close_unused(top, true);
}

static void look_at_slab(struct top *top, const struct top_slab *slab) {
    uint64_t inode = monitor_word(&slab->table->data);
    for (uint32_t block = 0; inode && block < slab->capacity; block++) {
        struct queue_row row;
        if (!is_queue(slab, block))
            continue;
        int data = data_of(top, inode);
        if (data < 0)
            return;
        if (queues_read(data, monitor_word(&slab->table->blocks[block].offset_bytes), &row))
            add_queue(top, slab, block, &row);
    }
}

void top_add_queues(struct top *top) {
    for (size_t i = 0; i < top->slab_count; i++) {
        if (!top->slabs[i].memory.gpu)
            look_at_slab(top, &top->slabs[i]);
    }
    close_unused(top, false);
}
