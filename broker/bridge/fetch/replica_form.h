/*
 * What a replica is of: an array, the index of a tree, or a part of one; and where. See
 * replica_form.c.
 */
#ifndef CW_BROKER_BRIDGE_FETCH_REPLICA_FORM_H
#define CW_BROKER_BRIDGE_FETCH_REPLICA_FORM_H

#include "broker/bridge/fetch/replica.h"

struct cwb_replica_keys {
    struct cw_name_key key; /* under which it stands here */
    struct cw_name_key
        there;           /* by which it is known who else has it, at other places of this node */
    uint32_t name_bytes; /* of there: the owner's name */
    bool on_gpu, is_part;
    uint8_t gpu[CW_UUID_BYTES];
    struct cwb_part part;
};
/* Of what a client asks for. 0, or -EINVAL: the name is too long. */
int cwb_replica_keys(const struct cwb_job *job, struct cwb_replica_keys *out);
void cwb_replica_describe(struct cwb_replica *replica, const struct cwb_replica_keys *keys);
/* The OPEN by which its owner is asked for it: head, and what stands behind it, in text; how long
 * that is. */
uint32_t cwb_replica_question(const struct cwb_replica *replica, struct cwb_key *key, char *text);
/* -EISDIR: it is to lie on a GPU, and these metadata are a tree's: what comes onto GPUs is parts.
 */
int cwb_replica_check_place(const struct cwb_replica *replica, const void *meta,
                            uint32_t meta_bytes);
/* How it is put under its key; array and came are there. meta: CW_META_BYTES_MAX bytes. 0 or a
 * negative code. */
int cwb_replica_form(const struct cwb_replica *replica, struct cw_put *put, uint8_t *meta);

#endif
