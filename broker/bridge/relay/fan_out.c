/*
 * Fan-out: see fan_out.h.
 */
#include "broker/bridge/relay/fan_out.h"

#include <stdlib.h>
#include <string.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/link/peer.h"
#include "broker/bridge/local/arrays.h"
#include "broker/bridge/memory.h"
#include "broker/bridge/serve/serve.h"
#include "broker/bridge/tls/digest.h"

struct holder {
    struct cwb_peer *peer;
    uint64_t turn, parent; /* the turn of who sends it; 0: this node */
    uint32_t sends;        /* to how many others it was to send it */
    bool failed;           /* it did not bring it to one of them */
};

struct pending { /* is referred when the digest is known; a served's owner */
    struct cwb_fan_out *fan_out;
    struct cwb_served *served;
    struct cwb_opened opened;
    struct cwb_referral referral;
    struct pending *next, *prev;
    uint8_t meta[];
};

struct cwb_fan_out { /* of one put of a name */
    struct cwb_bridge *bridge;
    uint64_t entry, turns;
    uint64_t secret[2];
    uint32_t sends;         /* by this node itself */
    struct holder *holders; /* by turn */
    uint32_t count, room;
    bool hashing, hashed;
    uint8_t digest[CWB_DIGEST_BYTES];
    struct pending *pending;
    UT_hash_handle hh; /* of the bridge, by entry */
};

struct hashing {
    struct cwb_work work;
    struct cwb_fan_out *fan_out;
    cw_array *array;
    uint8_t digest[CWB_DIGEST_BYTES];
};

static struct cwb_fan_out *find(struct cwb_bridge *bridge, uint64_t entry) {
    struct cwb_fan_out *fan_out;
    HASH_FIND(hh, bridge->fan_outs, &entry, sizeof entry, fan_out);
    return fan_out;
}

/* NULL: there is no memory. */
static struct cwb_fan_out *fan_out_of(struct cwb_bridge *bridge, uint64_t entry) {
    struct cwb_fan_out *fan_out = find(bridge, entry);
    if (fan_out)
        return fan_out;
    fan_out = calloc(1, sizeof *fan_out);
    if (!fan_out || cwb_secret(fan_out->secret, sizeof fan_out->secret) != 0) {
        free(fan_out);
        return NULL;
    }
    fan_out->bridge = bridge;
    fan_out->entry = entry;
    HASH_ADD(hh, bridge->fan_outs, entry, sizeof entry, fan_out);
    if (CWD_ADDED(fan_out))
        return fan_out;
    free(fan_out);
    return NULL;
}

static void free_unused(struct cwb_fan_out *fan_out) {
    if (fan_out->count || fan_out->hashing)
        return;
    CW_ASSERT(!fan_out->pending); /* who waits holds it, and is told when it is hashed */
    HASH_DEL(fan_out->bridge->fan_outs, fan_out);
    free(fan_out->holders);
    free(fan_out);
}

/* ---- holders ---- */

static struct holder *holder_of(struct cwb_fan_out *fan_out, const struct cwb_peer *peer) {
    for (uint32_t i = 0; i < fan_out->count; i++)
        if (fan_out->holders[i].peer == peer)
            return &fan_out->holders[i];
    return NULL;
}

static void remove_holder(struct cwb_fan_out *fan_out, struct holder *holder) {
    struct holder *end = fan_out->holders + fan_out->count;
    memmove(holder, holder + 1, (size_t)(end - holder - 1) * sizeof *holder);
    fan_out->count--;
}

/* One that asks again is the last then, as any that asks. NULL: there is no memory. */
static struct holder *add_holder(struct cwb_fan_out *fan_out, struct cwb_peer *peer, bool failed) {
    struct holder *known = holder_of(fan_out, peer);
    uint32_t sends = known ? known->sends : 0;
    for (uint32_t i = 0; known && failed && i < fan_out->count; i++)
        if (fan_out->holders[i].turn == known->parent)
            fan_out->holders[i].failed = true;
    if (known)
        remove_holder(fan_out, known);
    if (fan_out->count == fan_out->room) {
        uint32_t room = fan_out->room ? 2 * fan_out->room : 16;
        struct holder *more = realloc(fan_out->holders, room * sizeof *more);
        if (!more)
            return NULL;
        fan_out->holders = more;
        fan_out->room = room;
    }
    struct holder *holder = &fan_out->holders[fan_out->count++];
    *holder = (struct holder){.peer = peer, .turn = ++fan_out->turns, .sends = sends};
    return holder;
}

/* Who is to send it to the last holder: the earliest that has not sent it --fan-out times; where
 * all have, who has sent least. NULL: this node. */
static struct holder *sender_of(struct cwb_fan_out *fan_out) {
    const uint32_t most = fan_out->bridge->options.fan_out;
    struct holder *best = NULL;
    uint32_t least = fan_out->sends;
    if (least < most)
        return NULL;
    for (uint32_t i = 0; i + 1 < fan_out->count; i++) {
        struct holder *holder = &fan_out->holders[i];
        const struct cwb_link *link = cwb_peer_link(holder->peer);
        if (holder->failed || !link || link->parting)
            continue;
        if (holder->sends < most)
            return holder;
        if (holder->sends < least) {
            best = holder;
            least = holder->sends;
        }
    }
    return best;
}

void cwb_fan_out_leave(struct cwb_bridge *bridge, uint64_t entry, const struct cwb_peer *peer) {
    struct cwb_fan_out *fan_out = find(bridge, entry);
    struct holder *holder = fan_out ? holder_of(fan_out, peer) : NULL;
    if (!holder)
        return;
    remove_holder(fan_out, holder);
    free_unused(fan_out);
}

/* ---- the answer, when the digest is known ---- */

static void pending_free(struct pending *pending) {
    DL_DELETE(pending->fan_out->pending, pending);
    free(pending);
}

static void on_cancel(struct cwb_served *served) {
    pending_free(served->owner);
    free(served);
}

/* status < 0: with this thread's sentence. */
static void answer(struct pending *pending, int status) {
    struct iovec parts[] = {{&pending->opened, sizeof pending->opened},
                            {pending->meta, pending->opened.meta_bytes},
                            {&pending->referral, sizeof pending->referral}};
    memcpy(pending->referral.digest, pending->fan_out->digest, CWB_DIGEST_BYTES);
    cwb_served_reply(pending->served, status, parts, 3);
    pending_free(pending);
}

static void answer_all(struct cwb_fan_out *fan_out, int status) {
    char sentence[CW_DETAIL_MAX];
    strcpy(sentence, cw_detail());
    while (fan_out->pending) {
        if (status)
            cw_fail(status, "%s", sentence);
        answer(fan_out->pending, status);
    }
}

static void hash(struct cwb_work *work) {
    struct hashing *hashing = (struct hashing *)work;
    const cw_array *array = hashing->array;
    cwb_work_set(work, cwb_digest(cw_array_lowest(array), cw_array_nbytes(array), hashing->digest));
}

static void on_hashed(struct cwb_work *work) {
    struct hashing *hashing = (struct hashing *)work;
    struct cwb_fan_out *fan_out = hashing->fan_out;
    fan_out->hashing = false;
    fan_out->hashed = work->code == 0;
    memcpy(fan_out->digest, hashing->digest, CWB_DIGEST_BYTES);
    if (work->code)
        cw_fail(work->code, "%s", work->detail);
    answer_all(fan_out, work->code);
    cwb_local_close(fan_out->bridge, hashing->array);
    free(hashing);
    free_unused(fan_out);
}

/* Takes the array over. 0 or -EDQUOT: it stays the caller's. */
static int begin_hashing(struct cwb_fan_out *fan_out, cw_array *array) {
    struct hashing *hashing = calloc(1, sizeof *hashing);
    if (!hashing)
        return cwb_no_memory("the digest of an array");
    hashing->work = (struct cwb_work){.run = hash, .done = on_hashed};
    hashing->fan_out = fan_out;
    hashing->array = array;
    fan_out->hashing = true;
    cwb_work_begin(fan_out->bridge->memory_helpers, &hashing->work);
    return 0;
}

/* Answers when it is hashed, perhaps at once; takes the array over. 0 or -EDQUOT: it stays. */
static int refer(struct cwb_link *link, const struct cwb_frame *frame, const struct cw_found *found,
                 cw_array *array, struct cwb_fan_out *fan_out,
                 const struct cwb_referral *referral) {
    const uint32_t meta_bytes = found->entry.meta_bytes;
    struct pending *pending = calloc(1, sizeof *pending + meta_bytes);
    struct cwb_served *served = pending ? cwb_served_new(link, frame) : NULL;
    bool hash = served && !fan_out->hashed && !fan_out->hashing;
    if (!served || (hash && begin_hashing(fan_out, array) != 0)) {
        if (served)
            (void)cwb_served_leave(served);
        free(pending);
        return cwb_no_memory("an array that a peer reads");
    }
    *pending = (struct pending){.fan_out = fan_out,
                                .served = served,
                                .opened = {.size_bytes = found->entry.size_bytes,
                                           .instance = cw_client_instance(link->bridge->client),
                                           .entry = found->entry.id,
                                           .inside = CWB_REFERRED,
                                           .meta_bytes = meta_bytes},
                                .referral = *referral};
    memcpy(pending->meta, found->meta, meta_bytes);
    served->owner = pending;
    served->on_cancel = on_cancel;
    DL_APPEND(fan_out->pending, pending);
    if (!hash)
        cwb_local_close(link->bridge, array);
    if (fan_out->hashed)
        answer(pending, 0);
    return 0;
}

bool cwb_fan_out(struct cwb_link *link, const struct cwb_frame *frame, const struct cw_found *found,
                 cw_array *array, struct cwb_referral *referral) {
    struct cwb_fan_out *fan_out = fan_out_of(link->bridge, found->entry.id);
    struct holder *holder =
        fan_out ? add_holder(fan_out, link->peer, frame->open.flags & CWB_FAILED) : NULL;
    *referral = (struct cwb_referral){.turn = 0};
    if (!holder) { /* no memory: it is sent from here, and the peer cannot send it on */
        if (fan_out)
            free_unused(fan_out);
        return false;
    }
    referral->turn = holder->turn;
    memcpy(referral->secret, fan_out->secret, sizeof referral->secret);
    struct holder *sender = sender_of(fan_out);
    if (sender)
        strcpy(referral->node, sender->peer->config.name);
    if (sender && refer(link, frame, found, array, fan_out, referral) == 0) {
        sender->sends++;
        holder->parent = sender->turn;
        return true;
    }
    memset(referral->node, 0, sizeof referral->node);
    fan_out->sends++;
    return false;
}
