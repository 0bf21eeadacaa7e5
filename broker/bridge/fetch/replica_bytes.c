/*
 * The bytes of a replica in host memory: room for them, and their download, from its owner or from
 * another node that has them (relay/redirect.h). replica.h has the life of a replica. The loop's
 * thread owns all.
 */
#include <stddef.h>
#include <string.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/fetch/download.h"
#include "broker/bridge/fetch/replica.h"
#include "broker/bridge/local/arrays.h"
#include "broker/bridge/relay/redirect.h"

static void on_downloaded(struct cwb_download *download, int status) {
    struct cwb_replica *replica =
        (struct cwb_replica *)((char *)download - offsetof(struct cwb_replica, download));
    if (replica->redirect)
        cwb_redirect_came(replica, status);
    else if (status == 0)
        cwb_replica_put(replica);
    else if (status == -ESTALE || status == -EAGAIN)
        cwb_replica_again(replica);
    else
        cwb_replica_fail(replica, status);
}

static void on_array(void *owner, int code, cw_array *array) {
    struct cwb_replica *replica = owner;
    if (code) {
        char sentence[CW_DETAIL_MAX];
        strcpy(sentence, cw_detail());
        if (!replica->opened.inside)
            cwb_download_refuse(replica->from, replica->run, replica->source);
        cw_fail(code, "%s", sentence);
        cwb_replica_fail(replica, code);
        return;
    }
    replica->array = array;
    if (replica->opened.inside) {
        code = replica->opened.size_bytes
                   ? cw_array_write(array, 0, replica->came + replica->opened.meta_bytes,
                                    replica->opened.size_bytes)
                   : 0;
        if (code)
            cwb_replica_fail(replica, code);
        else
            cwb_replica_put(replica);
        return;
    }
    replica->download = (struct cwb_download){.on_done = on_downloaded,
                                              .bridge = replica->bridge,
                                              .peer = replica->from,
                                              .source = replica->source,
                                              .wait_ns = replica->wait_ns,
                                              .size_bytes = replica->opened.size_bytes,
                                              .array = array};
    cwb_download_begin(&replica->download, replica->run);
}

void cwb_replica_fetch(struct cwb_replica *replica, struct cwb_peer *from, uint64_t source,
                       int64_t wait_ns) {
    replica->from = from;
    replica->run = from->run;
    replica->source = source;
    replica->wait_ns = wait_ns;
    cwb_local_new(replica->bridge, replica->opened.size_bytes, on_array, replica);
}
