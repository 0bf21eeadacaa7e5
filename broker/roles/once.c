/*
 * Deeds: see once.h. The loop's thread alone.
 */
#include "broker/roles/once.h"

#include <stdlib.h>
#include <string.h>

#include "broker/broker.h"
#include "broker/names/names.h"
#include "broker/names/versions.h"
#include "broker/session/session.h"

#define DONE_MAX   16384u /* numbers of one asker; more are noted only while an early one stands */
#define ASKERS_MAX 4u     /* runs of one peer's broker */

struct done {
    uint64_t number;
    uint64_t version; /* that it gave to a tree; of others 0 */
    UT_hash_handle hh;
};

struct asker { /* one run of a peer's broker */
    uint64_t instance;
    uint64_t settled;   /* numbers below it are refused */
    uint64_t forgotten; /* up to here some numbers are not noted any more */
    struct done *done;  /* in the order in which they came */
    struct asker *prev, *next;
};

struct cwd_deeds {
    char peer[sizeof((struct cw_deed *)0)->peer];
    bool lossy;           /* an asker was dropped: another may be that one */
    struct asker *askers; /* the one that asked last comes first */
    UT_hash_handle hh;
};

static void forget(struct asker *asker, struct done *done) {
    HASH_DEL(asker->done, done);
    free(done);
}

static void asker_free(struct cwd_deeds *peer, struct asker *asker) {
    while (asker->done)
        forget(asker, asker->done);
    DL_DELETE(peer->askers, asker);
    free(asker);
}

static struct cwd_deeds *peer_of(struct cwd_broker *b, const char *name) {
    struct cwd_deeds *peer;
    HASH_FIND(hh, b->deeds, name, sizeof peer->peer, peer);
    if (peer)
        return peer;
    peer = calloc(1, sizeof *peer);
    if (!peer)
        return NULL;
    memcpy(peer->peer, name, sizeof peer->peer);
    HASH_ADD(hh, b->deeds, peer, sizeof peer->peer, peer);
    if (CWD_ADDED(peer))
        return peer;
    free(peer);
    return NULL;
}

/* NULL: no memory. */
static struct asker *asker_of(struct cwd_broker *b, const struct cw_deed *deed) {
    struct cwd_deeds *peer = peer_of(b, deed->peer);
    struct asker *asker = NULL;
    uint32_t count = 0;
    if (!peer)
        return NULL;
    DL_FOREACH(peer->askers, asker) {
        if (asker->instance == deed->instance)
            break;
        count++;
    }
    if (asker) {
        DL_DELETE(peer->askers, asker);
        DL_PREPEND(peer->askers, asker);
        return asker;
    }
    asker = calloc(1, sizeof *asker);
    if (!asker)
        return NULL;
    if (count >= ASKERS_MAX) {
        asker_free(peer, peer->askers->prev);
        peer->lossy = true;
    }
    asker->instance = deed->instance;
    asker->forgotten = peer->lossy ? UINT64_MAX : 0;
    DL_PREPEND(peer->askers, asker);
    return asker;
}

/* The earliest go while they are settled: one that is not keeps those behind it, up to DONE_MAX. */
static void settle(struct asker *asker, uint64_t settled) {
    if (settled > asker->settled)
        asker->settled = settled;
    while (asker->done && asker->done->number < asker->settled)
        forget(asker, asker->done);
}

static int not_known(void) {
    return cw_fail(-EREMOTEIO, "it is not known whether this was done: it was asked for again, and "
                               "the node has no record of it any more; check on that node");
}

/* 1: it was done (*version: of a tree); 0: it is to be done. */
static int look(const struct asker *asker, const struct cw_deed *deed, uint64_t *version) {
    struct done *done;
    if (deed->number < asker->settled)
        return cw_fail(-ECANCELED, "the node that asked for this does not wait for it any more");
    HASH_FIND(hh, asker->done, &deed->number, sizeof deed->number, done);
    if (done) {
        *version = done->version;
        return 1;
    }
    if (deed->again && deed->number <= asker->forgotten)
        return not_known();
    return 0;
}

/* Before the effect, so that there is room to note it. NULL: no memory. */
static struct done *note(struct asker *asker, uint64_t number) {
    struct done *done = calloc(1, sizeof *done);
    if (!done)
        return NULL;
    done->number = number;
    HASH_ADD(hh, asker->done, number, sizeof done->number, done);
    if (!CWD_ADDED(done)) {
        free(done);
        return NULL;
    }
    return done;
}

static void bound(struct asker *asker) {
    if (HASH_COUNT(asker->done) <= DONE_MAX)
        return;
    if (asker->done->number > asker->forgotten)
        asker->forgotten = asker->done->number;
    forget(asker, asker->done);
}

struct effect { /* what is to be done */
    struct cw_put put;
    struct cw_key key;
    const char *text;    /* the key, and behind it the meta */
    const uint8_t *body; /* of a PUT_TREE, body_bytes of it */
    uint32_t body_bytes;
};

/* Takes the bytes behind a deed apart. false: a breach. */
static bool take_apart(const struct cw_deed *deed, const uint8_t *at, uint32_t bytes,
                       struct effect *out) {
    uint32_t head_bytes = deed->verb == CW_DEED_PUT        ? sizeof out->put
                          : deed->verb == CW_DEED_REMOVE   ? sizeof out->key
                          : deed->verb == CW_DEED_PUT_TREE ? sizeof(struct cw_put_tree)
                                                           : 0;
    if (deed->verb == 0 || deed->verb >= CW_DEED_VERBS || deed->again > 1 ||
        deed->settled > deed->number || deed->peer[sizeof deed->peer - 1] || bytes < head_bytes)
        return false;
    out->text = (const char *)at + head_bytes;
    out->body = at;
    out->body_bytes = bytes;
    if (deed->verb == CW_DEED_PUT_TREE)
        return true; /* cwd_version_put() looks at its form */
    if (deed->verb == CW_DEED_ASK)
        return bytes == 0;
    if (deed->verb == CW_DEED_PUT) {
        memcpy(&out->put, at, sizeof out->put);
        return cwd_put_fits(&out->put, bytes);
    }
    memcpy(&out->key, at, sizeof out->key);
    return out->key.key_bytes <= CW_KEY_MAX && bytes == head_bytes + out->key.key_bytes;
}

/* *version: of a tree. */
static int take_effect(struct cwd_broker *b, struct cwd_session *session, uint32_t verb,
                       const struct effect *effect, uint64_t *version) {
    if (verb == CW_DEED_PUT_TREE) {
        struct cw_version put;
        int code = cwd_version_put(b, session, effect->body, effect->body_bytes, &put);
        if (code == 0)
            *version = put.version;
        return code;
    }
    return verb == CW_DEED_PUT ? cwd_name_put(b, session, &effect->put, effect->text,
                                              effect->text + effect->put.key_bytes)
                               : cwd_name_remove(b, session, effect->text, effect->key.key_bytes);
}

int cwd_deed(struct cwd_broker *b, struct cwd_session *session, const uint8_t *body,
             uint32_t body_bytes, struct cw_deed_done *out) {
    struct cw_deed deed;
    struct effect effect = {.text = NULL};
    memcpy(&deed, body, sizeof deed);
    if (!take_apart(&deed, body + sizeof deed, body_bytes - (uint32_t)sizeof deed, &effect))
        return -EBADMSG;
    if (!session->of_bridge)
        return cw_fail(-EPERM, "this is for the bridge that this broker started");
    struct asker *asker = asker_of(b, &deed);
    if (!asker)
        return deed.again ? not_known() : cwd_no_memory("a peer's put or remove");
    settle(asker, deed.settled);
    *out = (struct cw_deed_done){.version = 0};
    int code = look(asker, &deed, &out->version);
    if (code)
        return code < 0 ? code : 0;
    if (deed.verb == CW_DEED_ASK)
        return cw_fail(-ENOENT, "it was not done");
    struct done *done = note(asker, deed.number);
    if (!done)
        return cwd_no_memory("a peer's put or remove");
    code = take_effect(b, session, deed.verb, &effect, &out->version);
    done->version = out->version;
    if (code)
        forget(asker, done);
    else
        bound(asker);
    return code;
}

void cwd_deeds_deinit(struct cwd_broker *b) {
    while (b->deeds) {
        struct cwd_deeds *peer = b->deeds;
        while (peer->askers)
            asker_free(peer, peer->askers);
        HASH_DEL(b->deeds, peer);
        free(peer);
    }
}
