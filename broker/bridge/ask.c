/*
 * Jobs that are one question to a peer: WAIT, REMOVE, NAMES, ABOUT; and PEERS, which asks nobody. A
 * link that ends lets all but a REMOVE ask again over the next one; whether a REMOVE was done is
 * then not known, and said so.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/bridge/job.h"
#include "broker/bridge/stream.h"

struct asking {
    struct cwb_waiter waiter; /* first: it is cast back */
    struct cwb_take take;
    struct cwb_job *job;
    bool waits, asked_once;
    struct cwb_request *asked;
    uint64_t run, source, size_bytes;
    cw_array *array;
};

static void asking_free(struct asking *a) {
    if (a->waits)
        cwb_peer_forget(a->job->peer, &a->waiter);
    if (a->asked)
        cwb_request_forget(a->asked);
    cwb_take_cancel(&a->take);
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

static uint64_t texts_in(const char *bytes, uint64_t size_bytes) {
    uint64_t count = 0;
    for (uint64_t i = 0; i < size_bytes; i++)
        count += bytes[i] == 0;
    return size_bytes && bytes[size_bytes - 1] ? UINT64_MAX : count;
}

static void give_names(struct asking *a, const char *bytes, uint64_t size_bytes) {
    uint64_t count = texts_in(bytes, size_bytes);
    struct cwb_job *job = a->job;
    if (count == UINT64_MAX) {
        cw_fail(-EREMOTEIO, "%s answered with a list of names that is none",
                job->peer->config.name);
        finish(a, -EREMOTEIO);
        return;
    }
    cwb_job_texts(job, bytes, size_bytes, count);
    asking_free(a);
}

static void on_taken(struct cwb_take *take, int status) {
    struct asking *a = (struct asking *)((char *)take - offsetof(struct asking, take));
    if (status)
        finish(a, status == -ESTALE || status == -EAGAIN ? -EREMOTEIO : status);
    else
        give_names(a, (const char *)cw_array_lowest(a->array), a->size_bytes);
}

static void on_array(void *owner, int code, cw_array *array) {
    struct asking *a = owner;
    a->array = array;
    if (code) {
        finish(a, code);
        return;
    }
    a->job->on_cancel = cancel;
    a->take = (struct cwb_take){.on_done = on_taken,
                                .bridge = a->job->bridge,
                                .peer = a->job->peer,
                                .source = a->source,
                                .size_bytes = a->size_bytes,
                                .array = array};
    cwb_take_begin(&a->take, a->run);
}

/* ---- the question ---- */

static void ask(struct asking *a);

static void on_reply(struct cwb_request *request, const struct cwb_frame *frame) {
    struct asking *a = request->owner;
    a->asked = NULL;
    if (!frame) {
        if (a->job->remote.verb == CW_REMOTE_REMOVE) {
            cw_fail(-EREMOTEIO,
                    "whether the name was removed is not known: the connection to %s "
                    "ended before it answered",
                    a->job->peer->config.name);
            finish(a, -EREMOTEIO);
        } else {
            ask(a);
        }
        return;
    }
    if (frame->head.status < 0) {
        cw_fail(frame->head.status, "%.*s", (int)frame->sentence_bytes, frame->sentence);
        finish(a, frame->head.status);
    } else if (!asks_texts(a)) {
        if (a->job->remote.verb == CW_REMOTE_REMOVE)
            cwb_replica_wrote(a->job);
        finish(a, 0);
    } else if (frame->opened.inside) {
        give_names(a, (const char *)frame->data, frame->opened.size_bytes);
    } else {
        a->source = frame->opened.source;
        a->size_bytes = frame->opened.size_bytes;
        a->job->on_cancel = NULL; /* until there is memory; then the take can be given up */
        cwb_local_new(a->job->bridge, a->size_bytes, on_array, a);
    }
}

static void on_link(struct cwb_waiter *waiter, struct cwb_link *link) {
    static const uint16_t ops[CW_REMOTE_VERBS] = {[CW_REMOTE_WAIT] = CWB_WAIT,
                                                  [CW_REMOTE_REMOVE] = CWB_REMOVE,
                                                  [CW_REMOTE_NAMES] = CWB_NAMES,
                                                  [CW_REMOTE_ABOUT] = CWB_NAMES};
    struct asking *a = (struct asking *)waiter;
    a->waits = false;
    if (!link) {
        finish(a, -EREMOTEIO);
        return;
    }
    struct cwb_key key = {.key_bytes = a->job->there.length,
                          .flags = a->job->remote.verb == CW_REMOTE_ABOUT ? CWB_ABOUT : 0};
    struct iovec parts[] = {{&key, sizeof key}, {a->job->there.text, a->job->there.length}};
    a->asked_once = true;
    a->run = a->job->peer->run;
    a->asked = cwb_link_ask(link, ops[a->job->remote.verb], parts, 2, on_reply, a);
}

static void ask(struct asking *a) {
    a->waits = true;
    a->waiter = (struct cwb_waiter){.on_link = on_link};
    cwb_peer_await(a->job->bridge, a->job->peer, &a->waiter, a->asked_once ? CWB_RESUME_NS : 0);
}

void cwb_job_ask(struct cwb_job *job) {
    struct asking *a = calloc(1, sizeof *a);
    CW_ASSERT(a);
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

/* One text a peer: NAME, then KEY VALUE lines, as `cableway peers list` prints them. */
void cwb_job_peers(struct cwb_job *job) {
    struct cwb_bridge *bridge = job->bridge;
    int64_t now_ns = bridge->loop.now_ns;
    char *text = NULL;
    size_t size_bytes = 0;
    uint64_t count = 0;
    FILE *out = open_memstream(&text, &size_bytes);
    CW_ASSERT(out);
    char version[12], rtt[24];
    for (struct cwb_peer *peer = bridge->peers; peer; peer = peer->next) {
        uint64_t in = peer->bytes_in, sent = peer->bytes_out;
        uint32_t connections = 0, key_updates = 0;
        struct cwb_link *link;
        struct cwb_stream *stream;
        if (peer->gone)
            continue;
        for (link = peer->links; link; link = link->peer_next) {
            cwb_wire_counts(&link->wire, &in, &sent);
            key_updates += cwb_wire_key_updates(&link->wire);
            connections++;
        }
        for (stream = peer->streams; stream; stream = stream->next) {
            cwb_wire_counts(&stream->wire, &in, &sent);
            connections += stream->open;
            key_updates += cwb_wire_key_updates(&stream->wire);
        }
        link = peer->links;
        strcpy(version, "-");
        strcpy(rtt, "-");
        if (link)
            snprintf(version, sizeof version, "%u", link->version);
        if (link && link->rtt_ns)
            snprintf(rtt, sizeof rtt, "%lld", (long long)(link->rtt_ns / 1000));
        fprintf(out,
                "%s\n  state %s\n  address %s\n  known_by %s\n  version %s\n  rtt_us %s\n"
                "  bytes_in %llu\n  bytes_out %llu\n  streams %u\n  key_updates %u\n"
                "  engine %s\n  error %s\n",
                peer->config.name,
                link                    ? "connected"
                : peer->dialing         ? "connecting"
                : *peer->config.address ? "unreachable"
                                        : "away",
                *peer->config.address ? peer->config.address : "-",
                peer->config.pinned  ? "key"
                : peer->config.by_ca ? "ca"
                                     : "-",
                version, rtt, (unsigned long long)in, (unsigned long long)sent, connections,
                key_updates, cwb_io_kind(bridge->loop.io), error_of(bridge, peer));
        for (; link; link = link->peer_next)
            add_wire(out, "link", link->dialed, link->where, now_ns - link->opened_ns, &link->wire);
        for (stream = peer->streams; stream; stream = stream->next)
            if (stream->open)
                add_wire(out, "stream", stream->dialed, stream->where, now_ns - stream->opened_ns,
                         &stream->wire);
        fputc(0, out);
        count++;
    }
    CW_ASSERT(fclose(out) == 0);
    cwb_job_texts(job, text, size_bytes, count);
    free(text);
}
