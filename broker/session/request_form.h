/*
 * The form of a request in the broker: a copy of the client's record, and the answer. For
 * requests.c and the functions in its table.
 */
#ifndef CW_BROKER_SESSION_REQUEST_FORM_H
#define CW_BROKER_SESSION_REQUEST_FORM_H

#include <stdbool.h>
#include <stdint.h>

#include "broker/memory/holders.h"
#include "ipc/wire.h"
#include "shm/names/directory.h"

struct cwd_broker;
struct cwd_session;

struct request { /* our own copy */
    struct cw_message head;
    union {
        uint8_t bytes[CW_MESSAGE_MAX - sizeof(struct cw_message)];
        struct cw_put put;
        struct cw_key key;
        struct cw_wait_after wait_after;
        struct cw_cancel cancel;
        struct cw_block_ref ref;
        struct cw_transit_share share;
        struct cw_blocks blocks;
        struct cw_slab_request slab;
        struct cw_room room;
        struct cw_fence_page fences;
        struct cw_copy copy;
        struct cw_make make;
        struct cw_job_end end;
        struct cw_remote remote;
        struct cw_remote_end remote_end;
        struct cw_changes changes;
        struct cw_replica replica;
        struct cw_link link;
        struct cw_limit_set limit_set;
    } body;
    uint32_t body_bytes;
};

struct result {
    bool none;  /* no reply, or a later one */
    bool calm;  /* who asked is not woken for it */
    bool again; /* it takes longer than a turn may: it stays in the ring for the next one */
    int status;
    uint32_t body_bytes;
    const void *large; /* the body, where it is none of these; NULL: it is */
    union {
        struct cw_slab_info slab;
        struct cw_room room;
        struct cw_link link;
        struct cw_version version;
        struct cw_deed_done deed;
        struct cw_limit_reply limit;
        struct {
            struct cw_version_found head;
            char key[CW_KEY_MAX];
        } next;
        struct {
            struct cw_holders head;
            uint32_t pids[CWD_HOLDERS_LISTED];
        } holders;
    } body;
};

typedef int serve(struct cwd_broker *, struct cwd_session *, struct request *, struct result *);

#endif
