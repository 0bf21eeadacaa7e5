/*
 * A tree: one version, held. See tree.c.
 */
#ifndef CW_IPC_TREE_TREE_H
#define CW_IPC_TREE_TREE_H

#include "ipc/base/meta.h"
#include "ipc/base/name_key.h"
#include "ipc/tree/index.h"

struct cw_tree {
    cw_client *client; /* one reference */
    cw_array *array;   /* the index: the one lease. Its bytes are not looked at again. NULL: there
                        * is none, the tree is described alone */
    uint64_t version;
    uint64_t instance; /* of the broker whose version it is: another node's, if it was fetched */
    struct cw_index index;
};

/* A tree of an index's array and of its bytes, that were checked; takes both over, also on failure.
 */
int cw_tree_make(cw_client *client, cw_array *array, uint64_t version, struct cw_index *index,
                 cw_tree **out);
/* cw_tree_part() with CW_UNMAPPED, too: the lease alone. */
int cw_tree_part_as(const cw_tree *tree, cw_client *client, uint32_t part, uint32_t flags,
                    cw_array **out);
/* The key of a name of this node, also as "//NODE/NAME". -EREMOTEIO: of another. */
int cw_tree_key(cw_client *client, const char *name, struct cw_name_key *key);
/* The same of a name of any node. 1: of another, and the key is that of "//NODE/NAME". */
int cw_tree_key_of(cw_client *client, const char *name, struct cw_name_key *key);
/* A name of this node, and a GPU, or -1: 0 or -EINVAL. */
int cw_tree_stays(const char *name, int gpu);
/* An index that is an anchor is put onto another node, with all of its tree, under a key of
 * "//NODE/NAME"; onto GPU `gpu` there, -1: into host memory. *version is of the broker *instance.
 * Blocks. As cw_tree_put(), -EREMOTEIO. */
int cw_tree_put_remote(cw_array *array, const struct cw_index *index, const struct cw_name_key *key,
                       int gpu, uint32_t flags, uint64_t if_version, uint64_t *instance,
                       uint64_t *version);
/* An index of parts and leaves (with part and offset_bytes set): its bytes in an array of their
 * own, and checked as each reader checks them. */
int cw_index_make(cw_client *client, const struct cw_index_part *parts, uint32_t part_count,
                  const cw_leaf *leaves, uint32_t leaf_count, const void *meta, uint64_t meta_bytes,
                  struct cw_index *index, cw_array **out);
/* The same of the leaves of another index, whose parts lie elsewhere now: spans as
 * cw_index_spans(from) has them, numbers of each part with bytes there the part here. */
int cw_index_move(cw_client *client, const struct cw_index *from, const struct cw_index_span *spans,
                  const uint32_t *numbers, const struct cw_index_part *parts, uint32_t part_count,
                  struct cw_index *index, cw_array **out);
/* Where an array lies, as an index says it of a part. */
struct cw_index_part cw_part_of(const cw_array *array);
/* Others may know of these from now on: their memory is not used again before the broker says so.
 * To be called before GROUP for all parts that this client has allocated itself. NULL: skipped. */
void cw_parts_published(cw_client *client, cw_array *const *arrays, uint32_t count);
/* GROUP: the broker holds the parts for the index; from now on others may know of all of them. */
int cw_index_group(cw_client *client, cw_array *index, const struct cw_index_part *parts,
                   uint32_t count);
/* The body of a PUT_TREE; the key and then meta stand behind it. */
void cw_tree_put_form(const cw_array *array, const struct cw_index_head *head,
                      const struct cw_name_key *key, uint32_t flags, uint64_t if_version,
                      struct cw_put_tree *put, struct cw_meta_tree *meta);
/* PUT_TREE of an index that is an anchor. -EEXIST, -ESTALE, ... as cw_tree_put(). */
int cw_tree_put_index(cw_client *client, cw_array *array, const struct cw_index_head *head,
                      const struct cw_name_key *key, uint32_t flags, uint64_t if_version,
                      uint64_t *version);
/* cw_tree_put(); hashed: a leaf that says CW_LEAF_HASHED has its hash, which is believed. */
int cw_tree_put_hashed(cw_client *client, const char *name, const cw_leaf *leaves, uint32_t count,
                       const void *meta, uint64_t meta_bytes, uint32_t flags, uint64_t if_version,
                       bool hashed, cw_tree **out);

#endif
