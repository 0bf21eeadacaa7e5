/*
 * What goes out over a link: frames and pieces into `out`, and `out` to the kernel when what was
 * sent before has gone. One piece is encrypted straight from the array's memory.
 */
#include <stdlib.h>
#include <string.h>

#include "broker/bridge/parts.h"

#define ENOUGH_BYTES (256u << 10) /* encrypted ahead of what is being sent */
#define KEEP_BYTES   (64u << 10)  /* larger buffers are freed when the link rests */

void cwb_link_touch(struct cwb_link *link) {
    if (link->is_dirty || link->state == CWB_ENDED)
        return;
    link->is_dirty = true;
    link->dirty_next = link->bridge->dirty;
    link->bridge->dirty = link;
}

void cwb_link_drop_pieces(struct cwb_link *link) {
    struct cwb_piece *piece;
    while ((piece = link->pieces)) {
        link->pieces = piece->next;
        cwb_source_dropped(piece->source, piece->read.offset_bytes, piece->read.length_bytes);
        cwb_source_unref(piece->source);
        free(piece);
    }
    link->pieces_end = &link->pieces;
    link->piece_count = 0;
}

void cwb_link_send_piece(struct cwb_link *link, uint64_t id, struct cwb_source *source,
                         const struct cwb_read *read) {
    struct cwb_piece *piece = calloc(1, sizeof *piece);
    CW_ASSERT(piece);
    *piece = (struct cwb_piece){.id = id, .source = source, .read = *read};
    cwb_source_ref(source);
    *link->pieces_end = piece;
    link->pieces_end = &piece->next;
    link->piece_count++;
    cwb_link_touch(link);
}

/* Encrypts the next piece. */
static int write_piece(struct cwb_link *link) {
    struct cwb_piece *piece = link->pieces;
    struct {
        struct cw_message head;
        struct cwb_read read;
    } begin = {.head = {.size_bytes = (uint32_t)sizeof begin + piece->read.length_bytes,
                        .op = CWB_READ | CW_OP_REPLY,
                        .id = piece->id},
               .read = piece->read};
    link->pieces = piece->next;
    if (!link->pieces)
        link->pieces_end = &link->pieces;
    link->piece_count--;
    int code = cwb_tls_write(&link->tls, &begin, sizeof begin);
    if (code == 0)
        code = cwb_tls_write(&link->tls, cwb_source_at(piece->source, piece->read.offset_bytes),
                             piece->read.length_bytes);
    if (code == 0)
        cwb_source_passed(piece->source, piece->read.offset_bytes, piece->read.length_bytes);
    else
        cwb_source_dropped(piece->source, piece->read.offset_bytes, piece->read.length_bytes);
    cwb_source_unref(piece->source);
    free(piece);
    return code;
}

static void let_go(struct cwb_bytes *bytes) {
    if (bytes->room <= KEEP_BYTES)
        return;
    free(bytes->data);
    *bytes = (struct cwb_bytes){.data = NULL};
}

static void flush(struct cwb_link *link) {
    if (link->broken) {
        cw_fail(-EPROTO, "TLS failed");
        cwb_link_end(link);
        return;
    }
    while (link->pieces && link->out.used < ENOUGH_BYTES)
        if (write_piece(link) < 0) {
            cwb_link_end(link);
            return;
        }
    if (link->sending)
        return;
    if (link->out.used == 0) {
        let_go(&link->out);
        let_go(&link->flying);
        return;
    }
    struct cwb_bytes flying = link->out;
    link->out = link->flying;
    link->out.used = 0;
    link->flying = flying;
    link->sending = true;
    link->bytes_out += flying.used;
    cwb_io_send(link->bridge->io, &link->socket, flying.data, flying.used);
    if (link->pieces)
        cwb_link_touch(link); /* encrypt the next while these go */
}

void cwb_link_on_sent(struct cwb_socket *socket) {
    struct cwb_link *link = (struct cwb_link *)socket;
    link->sending = false;
    cwb_link_touch(link);
}

void cwb_links_flush(struct cwb_bridge *bridge) {
    struct cwb_link *link;
    while ((link = bridge->dirty)) {
        bridge->dirty = link->dirty_next;
        link->is_dirty = false;
        if (link->state != CWB_ENDED && link->state != CWB_DIALING)
            flush(link);
    }
}
