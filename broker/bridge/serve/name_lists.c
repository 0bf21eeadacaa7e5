/*
 * Lists of this node's names for peers (NAMES): see name_lists.h.
 *
 * A list is made in slices of SLICE_NS, one slice a turn of the loop, so that however many names
 * there are and however many lists are asked for, what else came is served in between. Each peer
 * has one list under way and the others wait behind it; peers take turns. A name that stands
 * throughout is in the list (shm/names/directory.h); when the directory was rebuilt meanwhile the
 * list begins anew. While a helper maps a part of it that this process has not seen, the list
 * rests, and its requests are deferred (deferred.c). More than was agreed at once is a breach, as
 * of all requests (serve.c). A request whose link ended, or that was cancelled, is taken off.
 */
#include "broker/bridge/serve/name_lists.h"

#include <stdlib.h>
#include <string.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/link/link.h"
#include "broker/bridge/link/peer.h"
#include "broker/bridge/local/arrays.h"
#include "broker/bridge/serve/deferred.h"
#include "broker/bridge/serve/serve.h"
#include "ipc/client.h"
#include "ipc/request/channel.h"

#define SLICE_NS  200000
#define SLICE_ONE 16u /* records between two looks at the clock */
#define TRIES     100u

struct asked { /* a request for one; a served's owner */
    struct cwb_list *list;
    struct cw_name_key prefix;
};

struct cwb_list { /* of one peer: what it asks for, and the first of it under way */
    struct cwb_bridge *bridge;
    struct cwb_peer *peer;
    struct cwb_served *asked; /* in order */
    uint32_t count;
    uint64_t cursor; /* 0: the first was not begun */
    bool resting;    /* and not one of the bridge's */
    uint32_t tries;
    char *text;
    uint64_t used, room;
    struct cwb_list *next, *prev; /* of the bridge, while something is asked for */
};

/* The next of them is begun anew. */
static void rewind_list(struct cwb_list *list) {
    list->bridge->lists_bytes -= list->room;
    free(list->text);
    list->text = NULL;
    list->cursor = list->used = list->room = list->tries = 0;
}

static void take_off(struct cwb_list *list, struct cwb_served *served) {
    if (list->asked == served)
        rewind_list(list);
    DL_DELETE(list->asked, served);
    free(served->owner);
    if (--list->count)
        return;
    if (!list->resting)
        DL_DELETE(list->bridge->lists, list);
    list->peer->list = NULL;
    free(list);
}

static void cancel_list(struct cwb_served *served) {
    struct asked *asked = served->owner;
    take_off(asked->list, served);
    free(served);
}

/* The peer's, made if there is none yet. NULL: cw_detail() says why. */
static struct cwb_list *list_of(struct cwb_link *link) {
    struct cwb_list *list = link->peer->list;
    if (list)
        return list;
    list = calloc(1, sizeof *list);
    if (!list) {
        cw_fail(-EDQUOT, "no memory for a list of names there");
        return NULL;
    }
    list->bridge = link->bridge;
    list->peer = link->peer;
    link->peer->list = list;
    DL_APPEND(link->bridge->lists, list);
    return list;
}

void cwb_list_begin(struct cwb_link *link, const struct cwb_frame *frame) {
    struct asked *asked = malloc(sizeof *asked);
    if (!asked)
        cw_fail(-EDQUOT, "no memory for a list of names there");
    struct cwb_served *served = asked ? cwb_served_new(link, frame) : NULL;
    struct cwb_list *list = served ? list_of(link) : NULL;
    if (!list) {
        if (served)
            cwb_served_reply(served, -EDQUOT, NULL, 0);
        else
            cwb_link_reply(link, CWB_NAMES, frame->head.id, -EDQUOT, cw_detail(), NULL, 0);
        free(asked);
        return;
    }
    asked->list = list;
    memcpy(asked->prefix.text, frame->key, frame->key_bytes);
    asked->prefix.length = frame->key_bytes;
    served->owner = asked;
    served->on_cancel = cancel_list;
    DL_APPEND(list->asked, served);
    list->count++;
    if (list->resting)
        cwb_deferred_begin(served);
}

/* The first of a peer is done; status < 0: cw_detail() is the sentence. */
static void finish(struct cwb_list *list, int status) {
    struct cwb_served *served = list->asked;
    char *text = list->text;
    uint64_t used = list->used;
    list->text = NULL;
    take_off(list, served);
    cwb_list_answer(served, status, text, used);
}

int cwb_lists_room(const struct cwb_bridge *bridge, uint64_t own_bytes, uint64_t more_bytes) {
    if (own_bytes <= CWB_LISTS_OWN || bridge->lists_bytes + more_bytes <= CWB_LISTS_ALL_MAX)
        return 0;
    return cw_fail(-EDQUOT,
                   "lists of names for all nodes take %llu bytes there, at most %u are kept "
                   "(CWB_LISTS_ALL_MAX), and each node may have %u of them in any case: ask for "
                   "names that begin with something, or again when others have read theirs",
                   (unsigned long long)bridge->lists_bytes, CWB_LISTS_ALL_MAX, CWB_LISTS_OWN);
}

static int add_name(struct cwb_list *list, const char *name, size_t length) {
    if (list->used + length + 1 > CWB_LISTS_BYTES)
        return cw_fail(-EDQUOT,
                       "a list of more than %u bytes of names: ask for those that begin with "
                       "something",
                       CWB_LISTS_BYTES);
    if (list->room - list->used < length + 1) {
        uint64_t room = 2 * list->room + length + 256;
        int code = cwb_lists_room(list->bridge, room, room - list->room);
        if (code)
            return code;
        char *grown = realloc(list->text, room);
        if (!grown)
            return cw_fail(-EDQUOT, "no memory for a list of names there");
        list->bridge->lists_bytes += room - list->room;
        list->text = grown;
        list->room = room;
    }
    memcpy(list->text + list->used, name, length);
    list->text[list->used + length] = 0;
    list->used += length + 1;
    return 0;
}

/* A record: is it asked for, and may the peer read it? */
static int look_at(struct cwb_list *list, const struct cw_name_key *prefix,
                   const struct cw_found *found) {
    char name[CW_KEY_MAX + 1];
    size_t space = strnlen(prefix->text, prefix->length) + 1, length = found->entry.key_bytes;
    if (length < prefix->length || length > CW_KEY_MAX || length <= space ||
        memcmp(found->key, prefix->text, prefix->length) != 0 || found->key[space] == '/')
        return 0; /* not asked for, or a replica, whose name is its owner's */
    length -= space;
    memcpy(name, found->key + space, length);
    name[length] = 0;
    return cwb_may_read(list->peer, name, &found->entry) ? add_name(list, name, length) : 0;
}

/* Up to SLICE_ONE records. 1: there may be more; 0: that was all; or a negative code. */
static int go_on(struct cwb_list *list) {
    const struct asked *asked = list->asked->owner;
    cw_client *client = list->bridge->client;
    struct cw_found found;
    int code = 1;
    for (uint32_t i = 0; code == 1 && i < SLICE_ONE; i++) {
        pthread_mutex_lock(&client->lock);
        code = cw_directory_next(&client->directory, &list->cursor, &found);
        pthread_mutex_unlock(&client->lock);
        int added = code == 1 ? look_at(list, &asked->prefix, &found) : 0;
        code = added ? added : code;
    }
    if (code == -ECONNRESET)
        return cw_client_lost(client);
    if (code == -EAGAIN && list->tries < TRIES) {
        uint32_t tries = list->tries + 1;
        rewind_list(list);
        list->tries = tries;
        return 1;
    }
    return code == -EAGAIN
               ? cw_fail(-EREMOTEIO,
                         "the names on that node change too fast to be listed: try again")
               : code;
}

/* ---- for what is not mapped ---- */

static void go_on_after(void *owner, int code) {
    struct cwb_list *list = ((struct cwb_peer *)owner)->list;
    struct cwb_served *served;
    if (!list || !list->resting)
        return; /* nobody asks any more */
    list->resting = false;
    DL_APPEND(list->bridge->lists, list);
    DL_FOREACH(list->asked, served) {
        cwb_deferred_end(served);
    }
    if (code)
        finish(list, code);
}

static void rest(struct cwb_list *list) {
    struct cwb_served *served;
    int code = cwb_deferred_refuse(list->bridge, CWB_NAMES, false);
    if (code) {
        finish(list, code);
        return;
    }
    list->resting = true;
    DL_DELETE(list->bridge->lists, list);
    DL_FOREACH(list->asked, served) {
        cwb_deferred_begin(served);
    }
    cwb_local_map(list->bridge, NULL, go_on_after, list->peer);
}

void cwb_lists_turn(struct cwb_bridge *bridge) {
    struct cwb_list *list = bridge->lists;
    if (!list)
        return;
    DL_DELETE(bridge->lists, list); /* another one's turn comes next */
    DL_APPEND(bridge->lists, list);
    int64_t until_ns = cw_now_ns() + SLICE_NS;
    int code;
    do {
        code = go_on(list);
    } while (code == 1 && cw_now_ns() < until_ns);
    if (code == CW_WOULD_WAIT)
        rest(list);
    else if (code != 1)
        finish(list, code);
}
