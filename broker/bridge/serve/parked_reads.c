/*
 * Parked READs: see parked_reads.h.
 */
#include "broker/bridge/serve/parked_reads.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "broker/bridge/link/link.h"
#include "broker/bridge/link/stream.h"
#include "broker/bridge/memory.h"
#include "broker/bridge/serve/serve.h"
#include "broker/bridge/serve/upload.h"

/* The upload stays: what is parked it has not ended with. */
void cwb_parked_read_remove(struct cwb_parked_read *parked) {
    DL_DELETE(*parked->list, parked);
    cwb_upload_unref(parked->upload);
    free(parked);
}

static void cancel(struct cwb_served *served) {
    cwb_parked_read_remove(served->owner);
    free(served);
}

bool cwb_parked_read_add(struct cwb_parked_read **list, const struct cwb_parked_read *what) {
    struct cwb_parked_read *parked = malloc(sizeof *parked);
    if (!parked) {
        cwb_no_memory("a piece that a peer reads");
        return false;
    }
    *parked = *what;
    parked->list = list;
    if (parked->served) {
        parked->served->owner = parked;
        parked->served->on_cancel = cancel;
    }
    DL_APPEND(*list, parked);
    cwb_upload_ref(parked->upload);
    return true;
}

bool cwb_parked_read_send(const struct cwb_parked_read *what, const uint8_t *bytes) {
    if (!what->served)
        return cwb_stream_send_piece(what->stream, what->id, what->upload, &what->read, bytes);
    uint64_t id = what->served->id;
    struct cwb_link *link = cwb_served_leave(what->served);
    return cwb_upload_send(what->upload, &link->wire, id, &what->read, bytes);
}

void cwb_parked_read_refuse(const struct cwb_parked_read *what, int status) {
    if (what->served)
        cwb_served_reply(what->served, status, NULL, 0);
    else
        cwb_stream_refuse(what->stream, what->id, status);
}

void cwb_parked_reads_refuse(struct cwb_parked_read **list, int status) {
    char sentence[CW_DETAIL_MAX];
    strcpy(sentence, cw_detail());
    while (*list) {
        struct cwb_parked_read what = **list;
        cwb_parked_read_remove(*list);
        cw_fail(status, "%s", sentence);
        cwb_parked_read_refuse(&what, status);
    }
}

void cwb_parked_reads_forget(struct cwb_parked_read **list, const struct cwb_stream *stream) {
    struct cwb_parked_read *parked, *next;
    DL_FOREACH_SAFE(*list, parked, next) {
        if (parked->stream == stream)
            cwb_parked_read_remove(parked);
    }
}
