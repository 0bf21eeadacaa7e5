/*
 * Frames: see frame.h. Pure functions, from any thread.
 */
#include "broker/bridge/wire/frame.h"

#include <string.h>

#include "ipc/cableway.h"
#include "ipc/base/layout.h"
#include "ipc/base/meta.h"
#include "shm/base/error.h"

#define ERRNO_MAX 4095 /* the broker takes no other status */

static const struct {
    uint16_t request, reply; /* least bytes of the body; 0xffff: there is none such */
    uint16_t exact;          /* bit 0: the request's body is of no other size, bit 1: the reply's */
} forms[CWB_OPS] = {
    [CWB_HELLO] = {sizeof(struct cwb_hello), 0xffff, 1},
    [CWB_PING] = {0, 0, 3},
    [CWB_OPEN] = {sizeof(struct cwb_key), sizeof(struct cwb_opened), 0},
    [CWB_READ] = {sizeof(struct cwb_read), sizeof(struct cwb_read), 1},
    [CWB_CLOSE] = {sizeof(struct cwb_close), sizeof(struct cwb_closed), 3},
    [CWB_OFFER] = {sizeof(struct cwb_offer), 0, 0},
    [CWB_WAIT] = {sizeof(struct cwb_key), 0, 2},
    [CWB_NAMES] = {sizeof(struct cwb_key), sizeof(struct cwb_opened), 0},
    [CWB_REMOVE] = {sizeof(struct cwb_remove), 0, 2},
    [CWB_CANCEL] = {sizeof(struct cwb_cancel), 0xffff, 1},
    [CWB_CHANGED] = {sizeof(struct cwb_changed), 0xffff, 0},
    [CWB_STREAMS] = {sizeof(struct cwb_streams_said), 0xffff, 1},
    [CWB_STREAM] = {sizeof(struct cwb_stream_hello), 0, 3},
    [CWB_IDLE] = {0, 0, 3},
};

int cwb_head_check(const struct cw_message *head, bool greeted, uint32_t read_max) {
    bool reply = (head->op & CW_OP_REPLY) != 0;
    uint32_t op = head->op & ~CW_OP_REPLY, most = CWB_FRAME_MAX;
    if (op == 0 || op >= CWB_OPS)
        return cw_fail(-EPROTO, "a frame with op %u, which version %u does not have", head->op,
                       CWB_VERSION);
    if (greeted == (op == CWB_HELLO || op == CWB_STREAM))
        return cw_fail(-EPROTO,
                       greeted ? "a second greeting" : "a frame with op %u before the HELLO",
                       head->op);
    uint32_t least = reply ? forms[op].reply : forms[op].request;
    bool exact = forms[op].exact >> reply & 1;
    if (least == 0xffff)
        return cw_fail(-EPROTO, "a reply with op %u, to which there is none", op);
    if (head->flags || head->reserved || (!reply && head->status) || head->status > 0 ||
        head->status < -ERRNO_MAX)
        return cw_fail(-EPROTO,
                       "a frame with op %u whose head has flags or a status that cannot be",
                       head->op);
    if (reply && head->status < 0) {
        least = 0;
        exact = false;
        most = CWB_HEAD_BYTES + CW_DETAIL_MAX;
    } else if (reply && op == CWB_READ) {
        most = CWB_HEAD_BYTES + (uint32_t)sizeof(struct cwb_read) + read_max;
    }
    if (head->size_bytes > most || head->size_bytes < CWB_HEAD_BYTES + least ||
        (exact && head->size_bytes != CWB_HEAD_BYTES + least))
        return cw_fail(-EPROTO, "a frame with op %u of %u bytes; it has %u to %u", head->op,
                       head->size_bytes, CWB_HEAD_BYTES + least,
                       exact ? CWB_HEAD_BYTES + least : most);
    return 0;
}

static int form(const char *what) {
    return cw_fail(-EPROTO, "a frame whose %s cannot be", what);
}

/* Takes so many bytes off the rest of a body. */
static const void *take(const uint8_t **at, uint32_t *left, uint32_t count) {
    const uint8_t *begin = *at;
    if (count > *left)
        return NULL;
    *at += count;
    *left -= count;
    return begin;
}

int cwb_key_check(const char *key, uint32_t key_bytes, bool prefix) {
    char text[CW_KEY_MAX + 1];
    if (!key || key_bytes == 0 || key_bytes > CW_KEY_MAX)
        return form("key");
    memcpy(text, key, key_bytes);
    text[key_bytes] = 0;
    size_t name_at = strlen(text) + 1;
    if (name_at > key_bytes || strlen(text + name_at) != key_bytes - name_at ||
        cw_namespace_check(text) != 0)
        return form("key");
    return prefix || cw_local_name_check(text + name_at) == 0 ? 0 : form("name");
}

static int take_key(const uint8_t **at, uint32_t *left, uint32_t key_bytes, bool prefix,
                    struct cwb_frame *out) {
    const char *key = take(at, left, key_bytes);
    int code = cwb_key_check(key, key_bytes, prefix);
    if (code)
        return code;
    out->key = key;
    out->key_bytes = key_bytes;
    return 0;
}

/* An array's, or (of a reply) that of the index of a tree, or (tree) of one that is offered. */
static int check_meta(const uint8_t *meta, uint32_t meta_bytes, uint64_t size_bytes, bool reply,
                      bool tree) {
    struct cw_meta_remote_tree remote;
    struct cw_meta_put_tree put;
    struct cw_shape shape;
    if (tree)
        return cw_meta_put_tree_decode(meta, meta_bytes, size_bytes, &put);
    if (reply && cw_meta_is_remote_tree(meta, meta_bytes))
        return cw_meta_remote_tree_decode(meta, meta_bytes, size_bytes, &remote);
    if (cw_meta_decode(meta, meta_bytes, size_bytes, &shape) != 0)
        return -EPROTO;
    return shape.span_bytes == size_bytes ? 0 : form("metadata");
}

/* Metadata, and the data if they are inside. names: a list of names has no metadata. */
static int take_array(const uint8_t **at, uint32_t *left, uint64_t size_bytes, uint32_t meta_bytes,
                      uint32_t inside, uint64_t source, bool names, bool elsewhere,
                      struct cwb_frame *out) {
    if (size_bytes > CWB_ARRAY_MAX || inside > 1 || (source == 0) != (inside == 1 || elsewhere) ||
        meta_bytes > CW_META_MAX || (inside && size_bytes > CWB_INLINE_MAX) ||
        (!inside && size_bytes == 0))
        return form("size");
    out->meta_bytes = meta_bytes;
    out->meta = take(at, left, meta_bytes);
    if (!out->meta || names != (meta_bytes == 0))
        return form("metadata");
    if (!names &&
        check_meta(out->meta, meta_bytes, size_bytes, out->head.op == (CWB_OPEN | CW_OP_REPLY),
                   out->head.op == CWB_OFFER && out->offer.flags & CW_PUT_TREE) != 0)
        return -EPROTO;
    out->data = inside ? take(at, left, (uint32_t)size_bytes) : NULL;
    return inside && !out->data ? form("data") : 0;
}

static int parse_hello(const struct cwb_hello *hello) {
    if (hello->magic != CWB_MAGIC)
        return form("greeting");
    if (hello->version_min > CWB_VERSION || hello->version_max < CWB_VERSION_MIN ||
        hello->version_min > hello->version_max)
        return cw_fail(-EPROTO,
                       "the other side speaks versions %u to %u of the bridges' protocol, this one "
                       "%u to %u: use the same release of cableway on both",
                       hello->version_min, hello->version_max, CWB_VERSION_MIN, CWB_VERSION);
    if (hello->run == 0 || hello->instance == 0 || hello->read_max < CWB_READ_MIN ||
        hello->requests_max < CWB_REQUESTS_MIN)
        return form("limits");
    if (hello->node[CW_NODE_MAX] || !cw_node_valid(hello->node))
        return form("node");
    return 0;
}

static bool token_valid(const struct cwb_token *token) {
    return token->instance && token->number && token->settled <= token->number;
}

/* What stands behind the key of an OPEN or WAIT. */
static int take_more(uint32_t op, const uint8_t **at, uint32_t *left, struct cwb_frame *out) {
    const void *more = NULL;
    if (op == CWB_OPEN && out->open.flags & CWB_PART) {
        more = take(at, left, sizeof out->part);
        if (more)
            memcpy(&out->part, more, sizeof out->part);
        return more && out->part.instance && out->part.version && !out->part.reserved
                   ? 0
                   : form("part");
    }
    if (op == CWB_OPEN && out->open.flags & CWB_TICKET) {
        more = take(at, left, sizeof out->ticket);
        if (more)
            memcpy(&out->ticket, more, sizeof out->ticket);
        return more && out->ticket.instance && out->ticket.entry && out->ticket.turn
                   ? 0
                   : form("ticket");
    }
    if (op == CWB_WAIT && out->open.flags & CWB_AFTER) {
        more = take(at, left, sizeof out->after);
        if (more)
            memcpy(&out->after, more, sizeof out->after);
        return more ? 0 : form("version");
    }
    return 0;
}

/* Those of OPEN, WAIT and NAMES. */
static bool flags_valid(uint32_t op, uint32_t flags) {
    const uint32_t plain = CWB_WATCH | CWB_PART | CWB_PUT_PART | CWB_REFER | CWB_FAILED;
    if (op != CWB_OPEN)
        return !(flags & ~(uint32_t)(op == CWB_NAMES ? CWB_ABOUT : CWB_AFTER));
    if (flags & CWB_TICKET)
        return flags == CWB_TICKET;
    return !(flags & ~(uint32_t)(plain | CWB_AHEAD)) && flags >> CWB_AHEAD_SHIFT <= CWB_AHEAD_MAX &&
           (flags & CWB_PART || !(flags & CWB_PUT_PART)) &&
           (!(flags & CWB_REFER) || (flags & (CWB_WATCH | CWB_PART)) == CWB_WATCH) &&
           (flags & CWB_REFER || !(flags & CWB_FAILED));
}

static int parse_request(uint32_t op, const uint8_t *at, uint32_t left, struct cwb_frame *out) {
    int code = 0;
    switch (op) {
    case CWB_HELLO:
        code = parse_hello(&out->hello);
        break;
    case CWB_OPEN:
    case CWB_WAIT:
    case CWB_NAMES:
        code = take_key(&at, &left, out->open.key_bytes,
                        op == CWB_NAMES && !(out->open.flags & CWB_ABOUT), out);
        if (code == 0 && !flags_valid(op, out->open.flags))
            code = form("flags");
        if (code == 0)
            code = take_more(op, &at, &left, out);
        break;
    case CWB_READ:
        if (out->read.length_bytes == 0 || out->read.reserved ||
            out->read.offset_bytes > CWB_ARRAY_MAX)
            code = form("range");
        break;
    case CWB_CLOSE:
        if (out->close.unneeded > 1 || out->close.reserved)
            code = form("flags");
        break;
    case CWB_OFFER:
        if (out->offer.flags &
            ~(uint32_t)(CW_PUT_REPLACE | CW_PUT_KEEP | CW_PUT_TREE | CW_PUT_GPU | CWB_AGAIN))
            return form("flags");
        if (!token_valid(&out->offer.token))
            return form("token");
        code = take_key(&at, &left, out->offer.key_bytes, false, out);
        if (code == 0)
            code = take_array(&at, &left, out->offer.size_bytes, out->offer.meta_bytes,
                              out->offer.inside, out->offer.source, false, false, out);
        break;
    case CWB_REMOVE:
        if (out->remove.flags & ~(uint32_t)CWB_AGAIN)
            return form("flags");
        if (!token_valid(&out->remove.token))
            return form("token");
        code = take_key(&at, &left, out->remove.key_bytes, false, out);
        break;
    case CWB_CHANGED:
        if (out->changed.reserved)
            return form("flags");
        code = take_key(&at, &left, out->changed.key_bytes, false, out);
        break;
    case CWB_STREAMS:
        if (out->streams.streams == 0 || out->streams.reserved)
            code = form("count");
        break;
    case CWB_STREAM:
        if (out->stream.magic != CWB_MAGIC || out->stream.run == 0)
            code = form("greeting");
        break;
    default: /* PING, CANCEL, IDLE: the size said all */
        break;
    }
    return code == 0 && left && forms[op].exact % 2 == 0 ? form("length") : code;
}

/* What stands behind the meta of what was opened; elsewhere: no source does. */
static int take_referral(const uint8_t **at, uint32_t *left, bool elsewhere,
                         struct cwb_referral *out) {
    const void *more = take(at, left, sizeof *out);
    if (!more)
        return form("referral");
    memcpy(out, more, sizeof *out);
    if (!out->turn || out->node[CW_NODE_MAX] || (*out->node != 0) != elsewhere ||
        (elsewhere && !cw_node_valid(out->node)))
        return form("referral");
    return 0;
}

static int parse_opened(uint32_t op, const uint8_t *at, uint32_t left, struct cwb_frame *out) {
    struct cwb_opened *opened = &out->opened;
    const bool referred = op == CWB_OPEN && opened->inside == CWB_REFERRED;
    const bool elsewhere = referred && opened->source == 0;
    if (referred)
        opened->inside = 0;
    int code = take_array(&at, &left, opened->size_bytes, opened->meta_bytes, opened->inside,
                          opened->source, op == CWB_NAMES, elsewhere, out);
    if (code == 0 && referred)
        code = take_referral(&at, &left, elsewhere, &out->referral);
    if (code == 0 && opened->ahead && (opened->inside || elsewhere || op == CWB_NAMES))
        code = form("count");
    return code == 0 && left ? form("length") : code;
}

static int parse_reply(uint32_t op, const uint8_t *at, uint32_t left, struct cwb_frame *out) {
    if (op == CWB_OPEN || op == CWB_NAMES)
        return parse_opened(op, at, left, out);
    if (op == CWB_OFFER && left) {
        if (left != sizeof out->put_done)
            return form("length");
        memcpy(&out->put_done, at, left);
    }
    if (op == CWB_READ &&
        (out->read.length_bytes == 0 || out->read.reserved ||
         out->head.size_bytes != CWB_HEAD_BYTES + sizeof out->read + out->read.length_bytes))
        return form("range");
    return 0;
}

int cwb_frame_parse(const struct cw_message *head, const void *body, struct cwb_frame *out) {
    const uint8_t *at = body;
    uint32_t op = head->op & ~CW_OP_REPLY, left = head->size_bytes - CWB_HEAD_BYTES;
    bool reply = (head->op & CW_OP_REPLY) != 0;
    memset(out, 0, sizeof *out);
    out->head = *head;
    if (reply && head->status < 0) {
        out->sentence = body;
        out->sentence_bytes = left;
        return 0;
    }
    uint32_t fixed = reply ? forms[op].reply : forms[op].request;
    memcpy(&out->hello, at, fixed); /* the union begins here */
    at += fixed;
    left -= fixed;
    return reply ? parse_reply(op, at, left, out) : parse_request(op, at, left, out);
}

void cwb_frame_fill(uint8_t *frame, const struct cw_message *head, const struct iovec *parts,
                    uint32_t count) {
    uint32_t used = CWB_HEAD_BYTES;
    CW_ASSERT(head->size_bytes <= CWB_FRAME_MAX);
    memcpy(frame, head, CWB_HEAD_BYTES);
    for (uint32_t i = 0; i < count; i++) {
        if (parts[i].iov_len)
            memcpy(frame + used, parts[i].iov_base, parts[i].iov_len);
        used += (uint32_t)parts[i].iov_len;
    }
}

uint32_t cwb_frame_bytes(const struct iovec *parts, uint32_t count) {
    uint32_t size = CWB_HEAD_BYTES;
    for (uint32_t i = 0; i < count; i++)
        size += (uint32_t)parts[i].iov_len;
    return size;
}
