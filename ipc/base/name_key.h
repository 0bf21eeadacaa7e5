/*
 * Keys: a namespace, NUL and a name, as the directory has them; for those who name arrays of other
 * namespaces than their client's own (the bridge). names.c has the functions.
 */
#ifndef CW_IPC_BASE_NAME_KEY_H
#define CW_IPC_BASE_NAME_KEY_H

#include <stdint.h>

#include "ipc/base/layout.h"
#include "ipc/cableway.h"
#include "ipc/wire.h"
#include "shm/names/directory.h"

/* Flags for opening an array, beside those of cableway.h. */
#define CW_UNMAPPED (1u << 31) /* memory is not mapped: only the lease, layout and order count */
#define CW_CURRENT                                                                                 \
    (1u << 30) /* a replica: -ENOENT, without a sentence, once its name means another */

/* A tree, also another node's: the bytes of its index, in place of -EISDIR. */
#define CW_INDEX (1u << 29)

/* A flag for making an array, beside CW_APART: in memory of its own, however small it is. */
#define CW_OWN_SLAB (1u << 28)

struct cw_name_key {
    uint32_t length;
    char text[CW_KEY_MAX]; /* not terminated */
};

/* Checks client and name and makes the key. */
int cw_name_key_make(cw_client *client, const char *name, struct cw_name_key *key);
/* The sentence. Returns -ENOENT. */
int cw_no_such_name(cw_client *client, const char *name);
/* The array under a key, and its record. Asks nobody when its slab is mapped. -ENOENT (without a
 * sentence), -ECONNRESET. */
int cw_name_key_get(cw_client *client, const struct cw_name_key *key, uint32_t flags,
                    struct cw_found *found, cw_array **out);
/* The record alone. Asks nobody as a rule: a part of the directory that is new is mapped first.
 * -ENOENT (without a sentence), -ECONNRESET. */
int cw_name_key_find(cw_client *client, const struct cw_name_key *key, struct cw_found *found);
/* What a record alone tells of a name, also without a connection: holders and references are 0,
 * device is empty but for trees. ndim 0 and an empty dtype: who put it wrote no description. */
void cw_name_describe(const char *name, const struct cw_found *found, cw_name_info *out);
/* The bytes of a small array in host memory, as a record has it, copied: cheaper than to open it.
 * -ESTALE: it went meanwhile; -EOPNOTSUPP (without a sentence): it lies on a GPU. */
int cw_found_read(cw_client *client, const struct cw_found *found, void *buffer);
/* Before others know of an array of our own: whoever opens it has it read-only, by whatever name or
 * handle. */
void cw_array_freeze(cw_array *array);
/* Of a replica in a slab of our own, or that we hold: its name does not mean it any more
 * (cw_block_outdate()). Where the slab is gone nobody can open it. */
void cw_slab_outdate(cw_client *client, uint32_t id, uint32_t block, uint64_t gen);
/* The lowest byte of an array in host memory. */
uint8_t *cw_array_lowest(const cw_array *array);
/* As cw_array_put(); the array is usable, and the key is checked by the broker. */
int cw_name_key_put(cw_array *array, const struct cw_name_key *key, uint32_t flags,
                    const cw_layout *layout, uint64_t offset_bytes);
/* A flag beside those of cw_array_put(), for cw_name_key_put() alone. */
#define CW_WEAK 0x80000000u
/* Do a put's flags (CW_KEEP, CW_TIED) go together? 0 or -EINVAL. */
int cw_put_flags_check(uint32_t flags);
/* Of a name of another node: do they ask for what its own node alone can do? 0 or -EINVAL. */
int cw_remote_put_check(uint32_t flags);
/* The flags of a put of a name of this node, as the broker takes them (enum cw_put_flags). */
uint32_t cw_put_flags_of(uint32_t flags);
/* The same as a message, for who sends it himself: head and meta (CW_META_BYTES_MAX bytes). The
 * array stays until the broker has read it. */
int cw_name_key_put_form(cw_array *array, const struct cw_name_key *key, uint32_t flags,
                         const cw_layout *layout, uint64_t offset_bytes, struct cw_put *put,
                         uint8_t *meta);
/* After such a put: what the name meant before may be back already. */
void cw_name_key_replaced(cw_client *client);
/* -ENOENT. */
int cw_name_key_remove(cw_client *client, const struct cw_name_key *key);
/* All names whose key begins with prefix, as cw_names(). */
int cw_name_key_list(cw_client *client, const struct cw_name_key *prefix, char **names,
                     uint64_t *count);
/* The layout to be put, and where its lowest byte lies within the array. */
int cw_put_view(const cw_array *array, const cw_layout *layout, uint64_t offset_bytes,
                struct cw_shape *shape, uint64_t *low_bytes);

#endif
