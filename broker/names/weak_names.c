/*
 * Weak names: see weak_names.h.
 */
#include "broker/names/weak_names.h"

#include <stdlib.h>
#include <string.h>

#include "broker/broker.h"
#include "broker/core/table.h"
#include "broker/memory/slabs.h"
#include "broker/names/changes.h"

struct cwd_weak_name {
    struct cw_block_name block; /* key of the table */
    UT_hash_handle hh;
    uint16_t key_bytes;
    char key[]; /* of the directory */
};

static struct cwd_weak_name *find(struct cwd_broker *b, uint32_t slab, uint32_t block,
                                  uint64_t gen) {
    struct cw_block_name name = {.slab = slab, .block = block, .gen = gen};
    struct cwd_weak_name *weak;
    HASH_FIND(hh, b->weak_names, &name, sizeof name, weak);
    return weak;
}

static void drop(struct cwd_broker *b, struct cwd_weak_name *weak) {
    struct cwd_slab *slab = cwd_slab_find(b, weak->block.slab);
    if (slab)
        slab->weak_names--;
    HASH_DEL(b->weak_names, weak);
    free(weak);
}

int cwd_weak_name_add(struct cwd_broker *b, const struct cw_put *put, const char *key) {
    struct cwd_weak_name *weak = find(b, put->slab, put->block, put->gen);
    if (weak && weak->key_bytes == put->key_bytes && memcmp(weak->key, key, put->key_bytes) == 0)
        return cw_fail(-EEXIST, "the array has this name already");
    if (weak)
        return cw_fail(-EINVAL, "the array has a name already that lasts as long as it is open");
    weak = calloc(1, sizeof *weak + put->key_bytes);
    if (!weak)
        return cwd_no_memory("a name");
    weak->block = (struct cw_block_name){.slab = put->slab, .block = put->block, .gen = put->gen};
    weak->key_bytes = put->key_bytes;
    memcpy(weak->key, key, put->key_bytes);
    HASH_ADD(hh, b->weak_names, block, sizeof weak->block, weak);
    if (!CWD_ADDED(weak)) {
        free(weak);
        return cwd_no_memory("a name");
    }
    cwd_slab_find(b, put->slab)->weak_names++;
    return 0;
}

void cwd_weak_name_forget(struct cwd_broker *b, uint32_t slab, uint32_t block, uint64_t gen) {
    struct cwd_weak_name *weak = find(b, slab, block, gen);
    CW_ASSERT(weak);
    drop(b, weak);
}

static void end(struct cwd_broker *b, struct cwd_weak_name *weak) {
    struct cw_entry old;
    int code = cw_directory_remove(b->directory, weak->key, weak->key_bytes, &old);
    CW_ASSERT(code == 0 && old.slab == weak->block.slab && old.block == weak->block.block);
    drop(b, weak);
    cwd_changes_ended(b, old.id);
    b->weak_names_ended = true;
}

void cwd_weak_name_end(struct cwd_broker *b, uint32_t slab, uint32_t block, uint64_t gen) {
    struct cwd_weak_name *weak = b->weak_names ? find(b, slab, block, gen) : NULL;
    if (weak)
        end(b, weak);
}

void cwd_weak_names_end_in(struct cwd_broker *b, uint32_t slab) {
    struct cwd_weak_name *weak, *next;
    HASH_ITER(hh, b->weak_names, weak, next) {
        if (weak->block.slab == slab)
            end(b, weak);
    }
}

void cwd_weak_names_tell(struct cwd_broker *b) {
    if (b->weak_names_ended)
        cwd_changes_tell(b);
    b->weak_names_ended = false;
}
