/*
 * Memory by its address: the array of ours that an address lies in, for what comes back from other
 * libraries that were shown it.
 *
 * Owner: client->lock. No state of its own.
 */
#include "ipc/array/array.h"
#include "ipc/client.h"
#include "ipc/memory/slab.h"

/* The block of a slab that holds an offset. The lock is held. */
static bool find_block(struct cw_slab *slab, uint64_t offset_bytes, uint32_t *block) {
    for (uint32_t i = 0; i < slab->capacity; i++) {
        const struct cw_extent *extent = slab->locals[i].extent;
        if (slab->locals[i].count == 0 || (extent && (extent->pool || extent->on_free)))
            continue;
        /* B9: a block that we hold: its place does not change. Others could write here: what is
         * made of it is checked. */
        uint64_t begin = CW_LOAD(B9, &slab->table->blocks[i].offset_bytes, relaxed);
        uint64_t length = CW_LOAD(B9, &slab->table->blocks[i].length_bytes, relaxed);
        if (offset_bytes >= begin && offset_bytes - begin < length) {
            *block = i;
            return true;
        }
    }
    return false;
}

static struct cw_slab *find_slab(cw_client *client, const uint8_t *address) {
    for (uint32_t i = 0; i < CW_SLAB_BUCKETS; i++)
        for (struct cw_slab *slab = client->slabs.buckets[i]; slab; slab = slab->hash_next) {
            const uint8_t *base = slab->rw.base;
            if (slab->device_kind == CW_DEVICE_CUDA && base && address >= base &&
                (uint64_t)(address - base) < slab->size_bytes)
                return slab;
        }
    return NULL;
}

int cw_memory_is_shared(cw_client *client, const void *address) {
    if (!client || !address)
        return cw_needs("a client and an address");
    pthread_mutex_lock(&client->lock);
    bool is_shared = find_slab(client, address) != NULL;
    pthread_mutex_unlock(&client->lock);
    return is_shared;
}

int cw_memory_array(cw_client *client, const void *address, cw_array **out) {
    uint32_t block;
    if (!client || !address || !out)
        return cw_needs("a client, an address and a place for the array");
    int code = cw_client_usable(client);
    if (code)
        return code;
    pthread_mutex_lock(&client->lock);
    struct cw_slab *slab = find_slab(client, address);
    if (!slab ||
        !find_block(slab, (uint64_t)((const uint8_t *)address - (uint8_t *)slab->rw.base), &block))
        code = -ENOENT;
    else {
        /* B8: we hold it, so its generation stands. */
        uint64_t word = CW_LOAD(B8, &slab->table->blocks[block].word, acquire);
        uint64_t length = CW_LOAD(B9, &slab->table->blocks[block].length_bytes, relaxed);
        struct cw_shape shape = {.ndim = 1,
                                 .itemsize = 1,
                                 .dtype_bytes = 3,
                                 .span_bytes = length,
                                 .shape = {(int64_t)length},
                                 .strides = {1},
                                 .dtype = "|u1"};
        code = cw_array_attach(client, slab->id, block, cw_block_gen(word), 0, length, &shape,
                               slab->rw.readonly ? CW_READONLY : 0, out);
    }
    pthread_mutex_unlock(&client->lock);
    return code == -ENOENT
               ? cw_fail(code, "the address %p is not in a GPU array of cableway", address)
               : code;
}
