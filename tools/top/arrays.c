/*
 * The rows of arrays and trees that have names, and those of other nodes of which something lies
 * here: from the directory, which is read again only when it has changed. One thread. What a record
 * says was written by a client: it is checked as everything else.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/device.h"
#include "ipc/base/meta.h"
#include "shm/base/error.h"
#include "shm/names/directory.h"
#include "tools/top/look.h"

#define WALKS 10u /* the directory is built anew while it is walked through */

enum { NAMESPACE, NAME, DEVICE, SHAPE, DTYPE, BYTES, OWNER, COMMAND, HOLDERS, AGE, KEEP };
enum { NODE, REPLICAS, REPLICA_BYTES, REPLICA_HOLDERS };

/* ---- the directory ---- */

static void describe_tree(struct top *top, const struct cw_found *found, struct top_array *out) {
    struct cw_meta_tree tree;
    char uuid[CW_UUID_TEXT];
    if (cw_meta_tree_decode(found->meta, found->entry.meta_bytes, &tree))
        return;
    out->dtype = "tree";
    out->shape = top_texts_addf(&top->array_texts, "%u %s", tree.leaves,
                                tree.leaves == 1 ? "leaf" : "leaves");
    out->size_bytes = tree.total_bytes;
    cw_uuid_text(tree.device_uuid, uuid);
    out->device = tree.device_kind == CW_DEVICE_CUDA ? top_texts_add(&top->array_texts, uuid)
                  : tree.device_kind                 ? "cpu"
                                                     : "-";
}

static void describe(struct top *top, const struct cw_found *found, struct top_array *out) {
    struct cw_shape shape;
    if (found->entry.flags & CW_ENTRY_TREE)
        describe_tree(top, found, out);
    else if (cw_meta_decode(found->meta, found->entry.meta_bytes, found->entry.size_bytes,
                            &shape) == 0) {
        char *text = output_shape(shape.ndim, shape.shape);
        out->shape = top_texts_add(&top->array_texts, text);
        out->dtype = top_texts_add(&top->array_texts, shape.dtype);
        free(text);
    }
}

static void add_array(struct top *top, const struct cw_found *found) {
    char key[CW_KEY_MAX + 1];
    size_t length = found->entry.key_bytes;
    memcpy(key, found->key, length);
    key[length] = 0;
    size_t space = strlen(key);
    if (space >= length)
        return; /* no key of ours */
    if (top->array_count == top->array_room) {
        top->array_room = top->array_room ? 2 * top->array_room : 256;
        top->arrays = realloc(top->arrays, top->array_room * sizeof *top->arrays);
        CW_ASSERT(top->arrays);
    }
    struct top_array *array = &top->arrays[top->array_count++];
    *array = (struct top_array){.entry = found->entry,
                                .size_bytes = found->entry.size_bytes,
                                .name_space = top_texts_add(&top->array_texts, key),
                                .name = top_texts_add(&top->array_texts, key + space + 1)};
    describe(top, found, array);
}

static int walk(struct top *top, struct cw_found *found) {
    uint64_t cursor = 0;
    int code;
    top->array_count = 0;
    top_texts_free(&top->array_texts);
    while ((code = cw_directory_next(top->directory, &cursor, found)) == 1)
        add_array(top, found);
    return code;
}

void top_read_arrays(struct top *top) {
    uint64_t changes = monitor_word(&top->monitor.root->directory.changes);
    if (top->arrays_known && changes == top->changes && !*top->arrays_error)
        return;
    struct cw_found *found = malloc(sizeof *found);
    CW_ASSERT(found);
    int code = -EAGAIN;
    for (unsigned turn = 0; code == -EAGAIN && turn < WALKS; turn++)
        code = walk(top, found);
    free(found);
    /* What was found is shown all the same: of a broker that died in a change most is whole. */
    snprintf(top->arrays_error, sizeof top->arrays_error, "%s",
             code == 0         ? ""
             : code == -EAGAIN ? "the directory changes faster than it is read"
                               : cw_detail());
    top->arrays_known = code == 0 || top->array_count;
    top->changes = changes;
}

/* ---- rows ---- */

static const struct top_hold *hold_of(const struct top_slab *slab, uint32_t block) {
    static const struct top_hold nobody;
    return slab->holds && block < slab->capacity ? &slab->holds[block] : &nobody;
}

static void add_row(struct top *top, const struct top_array *array) {
    const struct cw_entry *entry = &array->entry;
    const struct top_slab *slab = top_find_slab(top, entry->slab);
    const struct top_client *owner = top_find_client(top, entry->owner_session);
    struct top_cell *cells = top_table_add(&top->tables[TOP_ARRAYS]);
    cells[NAMESPACE].text = array->name_space;
    cells[NAME].text = array->name;
    if (array->device || slab)
        cells[DEVICE].text = array->device ? array->device : slab->memory.device;
    cells[SHAPE].text = array->shape;
    cells[DTYPE].text = array->dtype;
    cells[BYTES].number = (double)array->size_bytes;
    cells[OWNER].number = entry->owner_pid;
    if (owner)
        cells[COMMAND].text = owner->row.comm;
    if (slab)
        cells[HOLDERS].number = hold_of(slab, entry->block)->holders;
    cells[AGE].number = output_age_seconds(entry->created_ns);
    cells[KEEP].number = entry->flags & CW_ENTRY_KEEP ? 1 : entry->flags & CW_ENTRY_TIED ? -1 : 0;
}

void top_add_arrays(struct top *top) {
    for (size_t i = 0; i < top->array_count; i++)
        add_row(top, &top->arrays[i]);
}

/* ---- other nodes ---- */

/* The row of a node; a further one if there is none yet. */
static struct top_cell *node_row(struct top *top, const char *name, size_t length) {
    struct top_table *table = &top->tables[TOP_PEERS];
    for (size_t i = 0; i < table->rows; i++) {
        struct top_cell *cells = table->cells + i * table->columns;
        if (strlen(cells[NODE].text) == length && memcmp(cells[NODE].text, name, length) == 0)
            return cells;
    }
    struct top_cell *cells = top_table_add(table);
    cells[NODE].text = top_texts_addf(&top->texts, "%.*s", (int)length, name);
    cells[REPLICAS].number = cells[REPLICA_BYTES].number = cells[REPLICA_HOLDERS].number = 0;
    return cells;
}

void top_add_peers(struct top *top) {
    for (size_t i = 0; i < top->array_count; i++) {
        const struct top_array *array = &top->arrays[i];
        if (!(array->entry.flags & CW_ENTRY_REPLICA) || strncmp(array->name, "//", 2) != 0)
            continue;
        const struct top_slab *slab = top_find_slab(top, array->entry.slab);
        struct top_cell *cells = node_row(top, array->name + 2, strcspn(array->name + 2, "/"));
        cells[REPLICAS].number++;
        cells[REPLICA_BYTES].number += (double)array->size_bytes;
        if (slab)
            cells[REPLICA_HOLDERS].number += hold_of(slab, array->entry.block)->holders;
    }
}
