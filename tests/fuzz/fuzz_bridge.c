/*
 * Fuzzes the parser of what another node says (broker/bridge/wire/frame.c): a row of frames, each a
 * head and a body, as a connection would bring them. Whatever passes the parser keeps its promises.
 */
#include <stdlib.h>
#include <string.h>

#include "broker/bridge/wire/frame.c"

static void promise(bool kept) {
    if (!kept)
        abort();
}

static bool within(const void *at, uint64_t count, const uint8_t *body, uint32_t body_bytes) {
    const uint8_t *begin = at;
    return count == 0 ||
           (begin >= body && count <= body_bytes && begin - body <= body_bytes - (int64_t)count);
}

static void check(const struct cwb_frame *frame, const uint8_t *body, uint32_t body_bytes) {
    char name[CW_KEY_MAX + 1];
    bool reply = frame->head.op & CW_OP_REPLY;
    uint32_t op = frame->head.op & ~CW_OP_REPLY;
    promise(op > 0 && op < CWB_OPS);
    promise(within(frame->key, frame->key_bytes, body, body_bytes));
    promise(within(frame->meta, frame->meta_bytes, body, body_bytes));
    promise(within(frame->sentence, frame->sentence_bytes, body, body_bytes));
    if (frame->key_bytes) {
        promise(frame->key_bytes <= CW_KEY_MAX);
        memcpy(name, frame->key, frame->key_bytes);
        name[frame->key_bytes] = 0;
        const char *rest = name + strlen(name) + 1;
        promise(rest <= name + frame->key_bytes);
        promise(op == CWB_NAMES || cw_local_name_check(rest) == 0);
    }
    if (reply && frame->head.status < 0)
        return;
    if (reply && (op == CWB_OPEN || op == CWB_NAMES)) {
        promise(frame->opened.size_bytes <= CWB_ARRAY_MAX);
        promise((frame->opened.source == 0) == (frame->opened.inside == 1));
        promise(frame->opened.ahead == 0 || (op == CWB_OPEN && !frame->opened.inside));
        if (frame->opened.inside)
            promise(within(frame->data, frame->opened.size_bytes, body, body_bytes));
    }
    if (!reply && op == CWB_OPEN)
        promise(frame->open.flags >> CWB_AHEAD_SHIFT <= CWB_AHEAD_MAX);
    if (!reply && op == CWB_OPEN && frame->open.flags & CWB_PART)
        promise(frame->part.instance && frame->part.version && !frame->part.reserved);
    if (reply && op == CWB_OPEN && cw_meta_is_remote_tree(frame->meta, frame->meta_bytes)) {
        struct cw_meta_remote_tree tree;
        promise(cw_meta_remote_tree_decode(frame->meta, frame->meta_bytes, frame->opened.size_bytes,
                                           &tree) == 0);
    }
    if (!reply && op == CWB_REMOVE) {
        promise(frame->remove.token.instance && frame->remove.token.number);
        promise(frame->remove.token.settled <= frame->remove.token.number);
    }
    if (!reply && op == CWB_OFFER) {
        struct cw_shape shape;
        promise(frame->offer.size_bytes <= CWB_ARRAY_MAX);
        promise(frame->offer.token.instance && frame->offer.token.number);
        promise(frame->offer.token.settled <= frame->offer.token.number);
        if (frame->offer.flags & CW_PUT_TREE) {
            struct cw_meta_put_tree tree;
            promise(cw_meta_put_tree_decode(frame->meta, frame->meta_bytes, frame->offer.size_bytes,
                                            &tree) == 0);
        } else {
            promise(cw_meta_decode(frame->meta, frame->meta_bytes, frame->offer.size_bytes,
                                   &shape) == 0);
            promise(shape.span_bytes == frame->offer.size_bytes);
        }
        if (frame->offer.inside)
            promise(within(frame->data, frame->offer.size_bytes, body, body_bytes));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bool greeted = size % 2;
    while (size >= CWB_HEAD_BYTES) {
        struct cw_message head;
        struct cwb_frame frame;
        memcpy(&head, data, sizeof head);
        if (cwb_head_check(&head, greeted, CWB_READ_MAX) != 0)
            return 0;
        bool data_follow = head.op == (CWB_READ | CW_OP_REPLY) && head.status == 0;
        uint32_t need =
            data_follow ? (uint32_t)sizeof(struct cwb_read) : head.size_bytes - CWB_HEAD_BYTES;
        promise(need <= CWB_FRAME_MAX);
        data += CWB_HEAD_BYTES;
        size -= CWB_HEAD_BYTES;
        if (need > size)
            return 0;
        uint8_t *body = malloc(need + 1); /* a place of its own: what lies behind it is found */
        if (!body)
            return 0;
        memcpy(body, data, need);
        if (cwb_frame_parse(&head, body, &frame) == 0)
            check(&frame, body, need);
        free(body);
        data += need;
        size -= need;
        greeted = true;
    }
    return 0;
}
