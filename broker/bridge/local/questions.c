/*
 * Jobs that are one question to a peer: WAIT, REMOVE, NAMES, ABOUT; and PEERS, which asks nobody. A
 * link that ends lets them ask again over the next one; a REMOVE is done once all the same
 * (once.h).
 */
#include "broker/bridge/local/questions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/fetch/download.h"
#include "broker/bridge/fetch/floor.h"
#include "broker/bridge/link/link.h"
#include "broker/bridge/link/peer.h"
#include "broker/bridge/link/stream.h"
#include "broker/bridge/local/answers.h"
#include "broker/bridge/local/arrays.h"
#include "broker/bridge/local/job.h"
#include "broker/bridge/local/once.h"
#include "broker/bridge/memory.h"
#include "broker/bridge/wire/frame.h"
#include "ipc/base/hash.h"
#include "broker/bridge/wire/wire.h"

#define TWIN_TOLD_NS 60000000000

struct asking {
    struct cwb_waiter waiter; /* first: it is cast back */
    struct cwb_download download;
    struct cwb_job *job;
    bool waits, asked_once;
    struct cwb_request *asked;
    uint64_t asked_before; /* the job's asked_of, before it was asked now */
    uint64_t run, source, size_bytes;
    cw_array *array;
};

static void asking_free(struct asking *a) {
    if (a->waits)
        cwb_peer_forget(a->job->peer, &a->waiter);
    if (a->asked)
        cwb_request_forget(a->asked);
    cwb_download_cancel(&a->download);
    cw_array_close(a->array);
    free(a);
}

static void finish(struct asking *a, int status) {
    struct cwb_job *job = a->job;
    char sentence[CW_DETAIL_MAX];
    strcpy(sentence, cw_detail());
    asking_free(a);
    if (status)
        cw_fail(status, "%s", sentence);
    cwb_job_done(job, status, NULL, 0);
}

static void cancel(struct cwb_job *job) {
    struct asking *a = job->owner;
    if (a->asked && a->asked->link->state == CWB_OPEN_LINK) {
        struct cwb_cancel cancel = {.id = a->asked->id};
        struct iovec part = {&cancel, sizeof cancel};
        cwb_link_say(a->asked->link, CWB_CANCEL, &part, 1);
    }
    asking_free(a);
}

/* ---- the list of names, whose bytes come as an array's do ---- */

static bool asks_texts(const struct asking *a) {
    return a->job->remote.verb == CW_REMOTE_NAMES || a->job->remote.verb == CW_REMOTE_ABOUT;
}

static void give_texts(struct asking *a, const char *bytes, uint64_t size_bytes) {
    struct cwb_job *job = a->job;
    if (job->remote.verb == CW_REMOTE_NAMES)
        cwb_job_names(job, bytes, size_bytes);
    else
        cwb_job_texts(job, bytes, size_bytes);
    asking_free(a);
}

static void on_downloaded(struct cwb_download *download, int status) {
    struct asking *a = (struct asking *)((char *)download - offsetof(struct asking, download));
    if (status)
        finish(a, status == -ESTALE || status == -EAGAIN ? -EREMOTEIO : status);
    else
        give_texts(a, (const char *)cw_array_lowest(a->array), a->size_bytes);
}

static void on_array(void *owner, int code, cw_array *array) {
    struct asking *a = owner;
    a->array = array;
    if (code) {
        finish(a, code);
        return;
    }
    a->job->on_cancel = cancel;
    a->download = (struct cwb_download){.on_done = on_downloaded,
                                        .bridge = a->job->bridge,
                                        .peer = a->job->peer,
                                        .source = a->source,
                                        .size_bytes = a->size_bytes,
                                        .array = array};
    cwb_download_begin(&a->download, a->run);
}

/* ---- the question ---- */

static void ask(struct asking *a);

static void on_reply(struct cwb_request *request, const struct cwb_frame *frame) {
    struct asking *a = request->owner;
    a->asked = NULL;
    if (!frame) {
        ask(a);
        return;
    }
    if (a->job->remote.verb != CW_REMOTE_NAMES)
        cwb_floor_answer(a->job, frame->head.status, asks_texts(a) ? &frame->opened : NULL);
    if (frame->head.status < 0) {
        finish(a, cwb_link_refused(a->job->peer, frame));
    } else if (!asks_texts(a)) {
        finish(a, 0);
    } else if (frame->opened.size_bytes > CWB_LISTS_BYTES) {
        cw_fail(-EREMOTEIO, "%s answered with a list of %llu bytes of names, at most %u are taken",
                a->job->peer->config.name, (unsigned long long)frame->opened.size_bytes,
                CWB_LISTS_BYTES);
        finish(a, -EREMOTEIO);
    } else if (frame->opened.inside &&
               cw_hash(frame->data, frame->opened.size_bytes, 0) != frame->opened.hash) {
        cw_fail(-EREMOTEIO, "the bytes of the list of names are not those that %s hashed",
                a->job->peer->config.name);
        finish(a, -EREMOTEIO);
    } else if (frame->opened.inside) {
        give_texts(a, (const char *)frame->data, frame->opened.size_bytes);
    } else {
        a->source = frame->opened.source;
        a->size_bytes = frame->opened.size_bytes;
        a->job->on_cancel = NULL; /* until there is memory; then the download can be given up */
        cwb_local_new(a->job->bridge, a->size_bytes, on_array, a);
    }
}

/* request NULL: there was no memory for it, and it was not asked. */
static void asked(struct asking *a, struct cwb_request *request) {
    a->asked = request;
    if (request)
        return;
    a->job->asked_of = a->asked_before;
    finish(a, a->job->remote.verb == CW_REMOTE_REMOVE ? cwb_deed_fail(a->job, -EDQUOT) : -EDQUOT);
}

static void ask_remove(struct asking *a, struct cwb_link *link) {
    struct cwb_remove remove = {.key_bytes = a->job->there.length};
    struct iovec parts[] = {{&remove, sizeof remove}, {a->job->there.text, a->job->there.length}};
    a->asked_before = a->job->asked_of;
    int code = link ? cwb_deed_ask(a->job, link, &remove.token, &remove.flags)
                    : cwb_deed_fail(a->job, -EREMOTEIO);
    if (code)
        finish(a, code);
    else
        asked(a, cwb_link_ask(link, CWB_REMOVE, parts, 2, on_reply, a));
}

static void on_link(struct cwb_waiter *waiter, struct cwb_link *link) {
    static const uint16_t ops[CW_REMOTE_VERBS] = {
        [CW_REMOTE_WAIT] = CWB_WAIT, [CW_REMOTE_NAMES] = CWB_NAMES, [CW_REMOTE_ABOUT] = CWB_NAMES};
    struct asking *a = (struct asking *)waiter;
    a->waits = false;
    if (a->job->remote.verb == CW_REMOTE_REMOVE) {
        ask_remove(a, link);
        return;
    }
    if (!link) {
        finish(a, -EREMOTEIO);
        return;
    }
    struct cwb_key key = {.key_bytes = a->job->there.length,
                          .flags = a->job->remote.verb == CW_REMOTE_ABOUT ? CWB_ABOUT : 0};
    struct cwb_after after = {.instance = a->job->remote.instance, .version = a->job->remote.gen};
    struct iovec parts[] = {
        {&key, sizeof key}, {a->job->there.text, a->job->there.length}, {&after, 0}};
    if (a->job->remote.verb == CW_REMOTE_WAIT && a->job->remote.flags & CW_REMOTE_AFTER) {
        key.flags = CWB_AFTER;
        parts[2].iov_len = sizeof after;
    }
    a->asked_once = true;
    a->run = a->job->peer->run;
    asked(a, cwb_link_ask(link, ops[a->job->remote.verb], parts, 3, on_reply, a));
}

static void ask(struct asking *a) {
    a->waits = true;
    a->waiter = (struct cwb_waiter){.on_link = on_link};
    cwb_peer_await(a->job->bridge, a->job->peer, &a->waiter,
                   a->asked_once ? CWB_SILENCE_NS : cwb_deed_wait_ns(a->job));
}

void cwb_job_ask(struct cwb_job *job) {
    struct asking *a = calloc(1, sizeof *a);
    if (!a) {
        cwb_job_done(job, cwb_no_memory("a request to another node"), NULL, 0);
        return;
    }
    a->job = job;
    job->owner = a;
    job->on_cancel = cancel;
    ask(a);
}

/* ---- about all peers ---- */

static void add_wire(FILE *out, const char *kind, bool dialed, const char *where, int64_t since_ns,
                     struct cwb_wire *wire) {
    uint64_t in = 0, sent = 0;
    cwb_wire_counts(wire, &in, &sent);
    fprintf(out, "  %s %s %s seconds %.0f bytes_in %llu bytes_out %llu\n", kind,
            dialed ? "to" : "from", where, (double)since_ns / 1e9, (unsigned long long)in,
            (unsigned long long)sent);
}

/* Why it is not connected, or why it was not; "-" if there is nothing to say. */
static const char *error_of(const struct cwb_bridge *bridge, const struct cwb_peer *peer) {
    if (!bridge->tls)
        return bridge->no_key;
    if (!cwb_config_known(&peer->config))
        return "it has neither a key here nor a CA: cableway peers add NAME ... --key or --ca";
    return *peer->error ? peer->error : "-";
}

/* What a person is to look after; "-": nothing. A bridge that is refused tries again within
 * CWB_REDIAL_MOST_NS. */
static const char *warning_of(const struct cwb_bridge *bridge, const struct cwb_peer *peer) {
    bool twin = peer->twin_ns && bridge->loop.now_ns - peer->twin_ns < TWIN_TOLD_NS;
    return twin ? "two bridges show its key; one is let in, and the other refused" : "-";
}

/* One text a peer: NAME, then KEY VALUE lines, as `cableway peers list` prints them. */
void cwb_job_peers(struct cwb_job *job) {
    struct cwb_bridge *bridge = job->bridge;
    int64_t now_ns = bridge->loop.now_ns;
    char *text = NULL;
    size_t size_bytes = 0;
    FILE *out = open_memstream(&text, &size_bytes);
    if (!out) {
        cwb_job_done(job, cwb_no_memory("a text about all peers"), NULL, 0);
        return;
    }
    uint32_t dialed = 0;
    char version[12], rtt[24];
    for (struct cwb_peer *peer = bridge->peers; peer; peer = peer->next) {
        uint64_t in = peer->bytes_in, sent = peer->bytes_out;
        uint32_t connections = 0, key_updates = 0;
        struct cwb_link *link = peer->link;
        struct cwb_stream *stream;
        if (peer->gone)
            continue;
        if (!link && *peer->config.address && peer->look_until_ns <= now_ns &&
            dialed++ < CWB_STATES_MAX)
            cwb_peer_look(bridge, peer);
        if (link) {
            cwb_wire_counts(&link->wire, &in, &sent);
            key_updates += cwb_wire_key_updates(&link->wire);
            connections++;
        }
        for (stream = peer->streams; stream; stream = stream->next) {
            cwb_wire_counts(&stream->wire, &in, &sent);
            connections += stream->open;
            key_updates += cwb_wire_key_updates(&stream->wire);
        }
        strcpy(version, "-");
        strcpy(rtt, "-");
        if (link)
            snprintf(version, sizeof version, "%u", link->version);
        if (link && link->rtt_ns)
            snprintf(rtt, sizeof rtt, "%lld", (long long)(link->rtt_ns / 1000));
        fprintf(out,
                "%s\n  state %s\n  address %s\n  known_by %s\n  version %s\n  rtt_us %s\n"
                "  bytes_in %llu\n  bytes_out %llu\n  streams %u\n  key_updates %u\n"
                "  idle_closes %u\n"
                "  engine %s\n  error %s\n  warning %s\n",
                peer->config.name,
                link                     ? "connected"
                : cwb_peer_trying(peer)  ? "connecting"
                : !*peer->config.address ? "away"
                : *peer->error           ? "unreachable"
                                         : "idle",
                *peer->config.address ? peer->config.address : "-",
                peer->config.pinned  ? "key"
                : peer->config.by_ca ? "ca"
                                     : "-",
                version, rtt, (unsigned long long)in, (unsigned long long)sent, connections,
                key_updates, peer->idle_closes, cwb_io_kind(bridge->loop.io),
                error_of(bridge, peer), warning_of(bridge, peer));
        if (link)
            add_wire(out, "link", link->dialed, link->where, now_ns - link->opened_ns, &link->wire);
        for (stream = peer->streams; stream; stream = stream->next)
            if (stream->open)
                add_wire(out, "stream", stream->dialed, stream->where, now_ns - stream->opened_ns,
                         &stream->wire);
        fputc(0, out);
    }
    bool whole = !ferror(out);
    if (fclose(out) == 0 && whole && text)
        cwb_job_texts(job, text, size_bytes);
    else
        cwb_job_done(job, cwb_no_memory("a text about all peers"), NULL, 0);
    free(text);
}
