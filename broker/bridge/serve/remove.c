/*
 * Removals of peers: a name is taken away by the broker, once for each token (once.h). The answer
 * is waited for here, not by the loop; the effect comes whether or not there is somebody left to
 * hear it. What had been asked before is looked up first, and whose asker went meanwhile is left
 * to be asked again. If this process dies the asker's bridge asks the next one.
 */
#include "broker/bridge/serve/remove.h"

#include <stdlib.h>
#include <string.h>

#include "broker/bridge/link/link.h"
#include "broker/bridge/local/once.h"
#include "broker/bridge/memory.h"
#include "broker/bridge/serve/deferred.h"
#include "broker/bridge/serve/serve.h"

struct removing { /* a served's owner, until the broker has answered */
    struct cwb_bridge *bridge;
    struct cwb_peer *peer;
    struct cwb_served *served; /* NULL: nobody hears the answer */
    struct cwb_remove remove;
    struct cw_name_key key;
};

static void cancel(struct cwb_served *served) {
    ((struct removing *)served->owner)->served = NULL;
    free(served);
}

static void finish(struct removing *removing, int code) {
    if (code == -ENOENT) {
        char key[CW_KEY_MAX + 1] = "";
        memcpy(key, removing->key.text, removing->key.length);
        key[removing->key.length] = 0;
        cw_fail(-ENOENT, "no array has the name \"%s\" there", key + strlen(key) + 1);
    }
    if (removing->served)
        cwb_served_reply(removing->served, code, NULL, 0);
    free(removing);
}

static void on_removed(void *owner, int status, const void *body, uint32_t body_bytes) {
    (void)body, (void)body_bytes;
    finish(owner, status);
}

static void begin(struct removing *removing) {
    const struct cw_name_key *key = &removing->key;
    int code = -EREMOTEIO;
    if (cwb_may_write(removing->bridge, removing->peer, key->text, key->length))
        code = cwb_deed_remove(removing->peer, removing->bridge, &removing->remove.token,
                               removing->remove.flags, key, on_removed, removing);
    if (code)
        finish(removing, code);
}

/* Was it done before? */
static void on_asked(void *owner, int status, const void *body, uint32_t body_bytes) {
    struct removing *removing = owner;
    (void)body, (void)body_bytes;
    if (status == -ENOENT && removing->served)
        begin(removing);
    else
        finish(removing, status);
}

void cwb_remove_serve(struct cwb_link *link, const struct cwb_frame *frame) {
    const bool again = frame->remove.flags & CWB_AGAIN;
    int code = cwb_deferred_refuse(link->bridge, CWB_REMOVE, again);
    struct removing *removing = code ? NULL : calloc(1, sizeof *removing);
    struct cwb_served *served = removing ? cwb_served_new(link, frame) : NULL;
    if (!served) {
        code = code ? code : cwb_no_memory("a request of a peer");
        free(removing);
        cwb_link_reply(link, CWB_REMOVE, frame->head.id, code, cw_detail(), NULL, 0);
        return;
    }
    removing->bridge = link->bridge;
    removing->peer = link->peer;
    removing->remove = frame->remove;
    memcpy(removing->key.text, frame->key, frame->key_bytes);
    removing->key.length = frame->key_bytes;
    removing->served = served;
    removing->served->owner = removing;
    removing->served->on_cancel = cancel;
    cwb_deferred_begin(removing->served);
    if (!again) {
        begin(removing);
        return;
    }
    code = cwb_deed_asked(link->peer, link->bridge, &frame->remove.token, on_asked, removing);
    if (code)
        finish(removing, code);
}
