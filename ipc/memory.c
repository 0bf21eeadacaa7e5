/*
 * Memory by its address: for the allocators of GPU libraries, whose arrays then lie in ours from
 * the start, and for finding the array of ours that an address lies in.
 *
 * An allocation is an array of bytes that this process holds until it gives the address back;
 * others who were handed the array by then keep it. What is given back while a stream still uses it
 * is noted as that stream's read, so that the bytes are not carved anew before (order.h).
 *
 * Owner: client->lock. The table of addresses dies with the client; the broker takes the arrays
 * back.
 */
#include <stdio.h>
#include <stdlib.h>

#include "ipc/client.h"

struct cw_allocation {
    const void *address;
    cw_array *array;
    struct cw_allocation *next;
};

static struct cw_allocation **bucket(cw_client *client, const void *address) {
    uint64_t hash = ((uint64_t)(uintptr_t)address >> 9) * 0x9e3779b97f4a7c15ull;
    return &client->allocations[hash >> (64 - CW_ALLOCATION_BITS)];
}

int cw_memory_new(cw_client *client, int gpu, uint64_t size_bytes, void **out) {
    char device[16];
    int64_t shape = (int64_t)size_bytes;
    const cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &shape, .dtype = "|u1"};
    if (!out || gpu < 0 || size_bytes == 0 || size_bytes > INT64_MAX)
        return cw_fail(-EINVAL, "%llu bytes on the GPU %d cannot be",
                       (unsigned long long)size_bytes, gpu);
    struct cw_allocation *made = malloc(sizeof *made);
    if (!made)
        return cw_fail(-EDQUOT, "no memory for the books of an allocation");
    snprintf(device, sizeof device, "cuda:%d", gpu);
    int code = cw_array_new(client, device, &layout, 0, &made->array);
    if (code) {
        free(made);
        return code;
    }
    *out = cw_array_data(made->array);
    made->address = *out;
    pthread_mutex_lock(&client->lock);
    struct cw_allocation **at = bucket(client, made->address);
    made->next = *at;
    *at = made;
    pthread_mutex_unlock(&client->lock);
    return 0;
}

int cw_memory_release(cw_client *client, const void *address, void *stream) {
    struct cw_allocation *found = NULL;
    if (!client)
        return cw_fail(-EINVAL, "a client is needed, NULL was given");
    pthread_mutex_lock(&client->lock);
    for (struct cw_allocation **at = bucket(client, address); *at; at = &(*at)->next)
        if ((*at)->address == address) {
            found = *at;
            *at = found->next;
            break;
        }
    pthread_mutex_unlock(&client->lock);
    if (!found)
        return cw_fail(-EINVAL, "%p was not allocated here", address);
    /* Whoever died before does not matter to who lets go. */
    int code = cw_array_reading_begin(found->array, stream, -1);
    if (code == 0)
        code = cw_array_reading_end(found->array, stream);
    cw_array_close(found->array);
    free(found);
    return code == -EOWNERDEAD ? 0 : code;
}

/* The block of a slab that holds an offset. The lock is held. */
static bool find_block(struct cw_slab *slab, uint64_t offset_bytes, uint32_t *block) {
    for (uint32_t i = 0; i < slab->capacity; i++) {
        if (slab->locals[i].count == 0)
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

int cw_memory_array(cw_client *client, const void *address, cw_array **out) {
    uint32_t block;
    if (!client || !out)
        return cw_fail(-EINVAL, "a client and a place for the array are needed, NULL was given");
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
        code =
            cw_array_attach(client, slab->id, block, cw_block_gen(word), 0, length, &shape, 0, out);
    }
    pthread_mutex_unlock(&client->lock);
    return code == -ENOENT ? cw_fail(code, "%p lies in no GPU array of ours", address) : code;
}

void cw_memory_deinit(cw_client *client) {
    for (uint32_t i = 0; i < 1u << CW_ALLOCATION_BITS; i++)
        for (struct cw_allocation *next, *at = client->allocations[i]; at; at = next) {
            next = at->next;
            free(at);
        }
}
