/*
 * Arrays of ours that a peer reads. See upload.c.
 */
#ifndef CW_BROKER_BRIDGE_SERVE_UPLOAD_H
#define CW_BROKER_BRIDGE_SERVE_UPLOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "broker/bridge/wire/wire.h"
#include "ipc/cableway.h"

struct cwb_bridge;
struct cwb_link;
struct cwb_peer;
struct cwb_upload;
struct cwb_stream;
struct cwb_tree;

enum cwb_upload_kind {
    CWB_UPLOAD_OPENED,
    CWB_UPLOAD_PUT,    /* it stays after a CLOSE */
    CWB_UPLOAD_PUSHED, /* its CLOSE came with its OPEN: answered when all was sent */
};
/* Takes the array over whose lowest byte is at bytes, or (array NULL) the malloced bytes. On
 * failure they stay the caller's. 0 or -EDQUOT. */
int cwb_upload_new(struct cwb_bridge *bridge, struct cwb_peer *peer, cw_array *array,
                   uint8_t *bytes, uint64_t size_bytes, enum cwb_upload_kind how,
                   struct cwb_upload **out);
/* So many READs came with the OPEN by which it was made, and was answered; of a pushed one they are
 * all of it. */
void cwb_upload_push(struct cwb_link *link, const struct cwb_frame *frame,
                     struct cwb_upload *upload, uint32_t count);
/* The same of an array on a GPU (CW_UNMAPPED), whose bytes come by way of host memory (staging.h).
 * Its READs are answered once they are there. read_max: what this peer's READs ask for. */
int cwb_upload_new_staged(struct cwb_bridge *bridge, struct cwb_peer *peer, cw_array *array,
                          uint64_t size_bytes, uint32_t read_max, bool for_put,
                          struct cwb_upload **out);
/* From staging.c: all was staged and hashed, or (status below 0, cw_detail()) it failed. */
void cwb_upload_staged(struct cwb_upload *upload, int status, uint64_t hash);
/* It is of that part of a tree, which is released when it is over. */
void cwb_upload_of_tree(struct cwb_upload *upload, struct cwb_tree *tree, uint32_t number);
/* Ends all of a tree's that a peer has. */
void cwb_uploads_end_of_tree(struct cwb_peer *peer, const struct cwb_tree *tree);
/* When one of these was last read; 0: there is none. */
int64_t cwb_uploads_used_ns(struct cwb_peer *peer, const struct cwb_tree *tree);
uint64_t cwb_upload_id(const struct cwb_upload *upload);
/* When it was made, or its peer last asked for bytes of it, or its hash. */
int64_t cwb_upload_used_ns(struct cwb_upload *upload);
/* Where the bytes of a piece lie, not of a staged one. Any thread. */
const uint8_t *cwb_upload_at(const struct cwb_upload *upload, uint64_t offset_bytes);
/* I/O threads too; there cwb_upload_drop() is the other. */
void cwb_upload_ref(struct cwb_upload *upload);
void cwb_upload_unref(struct cwb_upload *upload);
/* The peer has it no more: it goes with its last reference. */
void cwb_upload_end(struct cwb_upload *upload);
/* A READ of the peer, over its link. 0 or -EPROTO. */
int cwb_upload_serve_read(struct cwb_link *link, const struct cwb_frame *frame);
/* The same over a stream, on its I/O thread. */
int cwb_upload_serve_stream_read(struct cwb_stream *stream, const struct cwb_frame *frame);
int cwb_upload_serve_close(struct cwb_link *link, const struct cwb_frame *frame);
/* Ends a reference; I/O threads too. */
void cwb_upload_drop(struct cwb_upload *upload, const struct cwb_loop *loop);
/* The reply to a READ over a wire, with a reference to the upload. false: there is no memory for
 * it, nothing of the upload is held, and the wire ends with the next flush. */
bool cwb_upload_send(struct cwb_upload *upload, struct cwb_wire *wire, uint64_t id,
                     const struct cwb_read *read, const uint8_t *bytes);
/* A piece lets go of its upload, and its reference ends. sent: its bytes were just read, and lie in
 * the cache; else its wire ended. loop: of who says so; I/O threads too. */
void cwb_upload_release_piece(struct cwb_upload *upload, const struct cwb_loop *loop,
                              const struct cwb_read *read, bool sent);
/* Ends those of peers that were away for too long. */
void cwb_uploads_tick(struct cwb_bridge *bridge);

#endif
