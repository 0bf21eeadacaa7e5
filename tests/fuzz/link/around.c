/*
 * See around.h. Stands in place of io.c, helpers.c and broker_channel.c; also for deeds, since a
 * broker does them for its own bridge alone. One broker serves all inputs: it is started by the
 * first call, in a folder of its own, and takes MOST_BYTES.
 */
#include "tests/fuzz/link/around.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/io/io.h"
#include "broker/bridge/link/peer.h"
#include "broker/bridge/link/peer_list.h"
#include "broker/bridge/local/broker_channel.h"
#include "broker/bridge/local/job.h"
#include "broker/bridge/memory.h"
#include "broker/bridge/tls/folder.h"
#include "broker/bridge/tls/tls.h"
#include "broker/bridge/wire/checksum.h"
#include "ipc/base/hash.h"
#include "ipc/client.h"
#include "ipc/request/channel.h"

#define MOST_BYTES "100000000"
#define SIZES      3u
#define JOBS_MOST  256u

static struct {
    cw_client *client;
    cw_array *arrays[SIZES];
    uint64_t tree_version;
    char folder[64];
} world;

static const char *const world_names[SIZES] = {"s/small", "s/middle", "s/large"};

void promise(bool kept) {
    if (!kept)
        abort();
}

/* ---- the log ---- */

void __wrap_cwb_log(const char *format, ...);
void __wrap_cwb_log(const char *format, ...) {
    (void)format;
}

/* ---- sockets ---- */

struct cwb_io {
    struct cwb_socket *ready;
};

#define FUZZ_CONNECTS 1u
#define FUZZ_SENDS    2u

static void ready(struct cwb_io *io, struct cwb_socket *socket) {
    if (socket->is_ready)
        return;
    socket->is_ready = true;
    socket->next_ready = io->ready;
    io->ready = socket;
}

int cwb_io_new(bool use_epoll, bool bulk, struct cwb_io **out, const char **why) {
    (void)bulk;
    (void)use_epoll;
    *why = "";
    *out = calloc(1, sizeof **out);
    return 0;
}

void cwb_io_free(struct cwb_io *io) {
    free(io);
}

const char *cwb_io_kind(const struct cwb_io *io) {
    (void)io;
    return "none";
}

int cwb_io_watch(struct cwb_io *io, struct cwb_watch *watch) {
    (void)io, (void)watch;
    return 0;
}

void cwb_io_connect(struct cwb_io *io, struct cwb_socket *socket, const struct sockaddr *address,
                    socklen_t length) {
    (void)address, (void)length;
    socket->pending |= FUZZ_CONNECTS;
    ready(io, socket);
}

void cwb_io_start(struct cwb_io *io, struct cwb_socket *socket) {
    (void)io;
    socket->receiving = true;
}

void cwb_io_pause(struct cwb_io *io, struct cwb_socket *socket) {
    (void)io;
    socket->receiving = false; /* what comes all the same had been handed over already */
}

void cwb_io_send(struct cwb_io *io, struct cwb_socket *socket, const uint8_t *bytes,
                 uint32_t size_bytes) {
    volatile uint8_t sum = 0;
    promise(!(socket->pending & FUZZ_SENDS) && !socket->closing && size_bytes);
    for (uint32_t i = 0; i < size_bytes; i += 64)
        sum = bytes[i]; /* they are there */
    (void)sum;
    socket->pending |= FUZZ_SENDS;
    ready(io, socket);
}

void cwb_io_close(struct cwb_io *io, struct cwb_socket *socket) {
    if (socket->closing)
        return;
    socket->closing = true;
    ready(io, socket);
}

void cwb_io_turn(struct cwb_io *io, int64_t timeout_ns, int64_t *now_ns) {
    (void)timeout_ns, (void)now_ns;
    struct cwb_socket *list = io->ready, *socket;
    io->ready = NULL;
    while ((socket = list)) {
        uint16_t was = socket->pending;
        list = socket->next_ready;
        socket->is_ready = false;
        socket->pending = 0;
        if (socket->closing) {
            if (!socket->keep)
                close(socket->fd);
            socket->calls->on_closed(socket);
        } else if (was & FUZZ_CONNECTS) {
            socket->calls->on_connected(socket, 0);
        } else if (was & FUZZ_SENDS) {
            socket->calls->on_sent(socket);
        }
    }
}

int around_socket(void) {
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

/* ---- helpers ---- */

struct cwb_helpers {
    struct cwb_work *first, **last;
};

static struct cwb_helpers begun, told;

static void push(struct cwb_helpers *helpers, struct cwb_work *work) {
    work->next = NULL;
    if (!helpers->first)
        helpers->last = &helpers->first;
    *helpers->last = work;
    helpers->last = &work->next;
}

static struct cwb_work *pop(struct cwb_helpers *helpers) {
    struct cwb_work *work = helpers->first;
    if (work)
        helpers->first = work->next;
    return work;
}

void cwb_work_begin(struct cwb_helpers *helpers, struct cwb_work *work) {
    (void)helpers;
    push(&begun, work);
}

void cwb_work_tell(struct cwb_helpers *helpers, struct cwb_work *work) {
    (void)helpers;
    push(&told, work);
}

void cwb_work_set(struct cwb_work *work, int code) {
    work->code = code;
    work->detail[0] = 0;
    if (code < 0)
        strcpy(work->detail, cw_detail());
}

int cwb_helpers_new(struct cwb_io *io, const char *name, unsigned most, struct cwb_helpers **out) {
    (void)io, (void)name, (void)most;
    *out = &begun;
    return 0;
}

void around_turn(struct cwb_bridge *bridge) {
    struct cwb_work *work;
    cwb_io_turn(bridge->loop.io, 0, &bridge->loop.now_ns);
    while ((work = pop(&begun))) {
        work->run(work);
        push(&told, work);
    }
    while ((work = pop(&told)))
        work->done(work);
}

/* ---- the channel to the broker ---- */

struct question {
    uint16_t op;
    struct cw_deed deed;
    cwb_on_answer *on_answer;
    void *owner;
    struct question *prev, *next;
};

struct cwb_broker_channel {
    struct question *nexts, *others;
    uint8_t answered[JOBS_MOST], cancelled[JOBS_MOST]; /* by a job's number */
};

int cwb_broker_channel_new(struct cwb_bridge *bridge, struct cwb_broker_channel **out) {
    (void)bridge;
    *out = calloc(1, sizeof **out);
    return 0;
}

int cwb_broker_channel_ask(struct cwb_broker_channel *channel, uint16_t op,
                           const struct iovec *parts, uint32_t count, cwb_on_answer *on_answer,
                           void *owner) {
    promise(count == 0 || parts[0].iov_len > 0);
    uint64_t job =
        op == CW_OP_REMOTE_DONE ? ((const struct cw_remote_end *)parts[0].iov_base)->job : 0;
    promise(job < JOBS_MOST && (job == 0 || ++channel->answered[job] == 1));
    if (!on_answer)
        return 0;
    struct question *question = calloc(1, sizeof *question);
    promise(question != NULL);
    *question = (struct question){.op = op, .on_answer = on_answer, .owner = owner};
    if (op == CW_OP_DEED)
        memcpy(&question->deed, parts[0].iov_base, sizeof question->deed);
    if (op == CW_OP_REMOTE_NEXT)
        DL_APPEND(channel->nexts, question);
    else
        DL_APPEND(channel->others, question);
    return 0;
}

uint32_t cwb_broker_channel_session(const struct cwb_broker_channel *channel) {
    (void)channel;
    return 1;
}

void cwb_broker_channel_check(const struct cwb_broker_channel *channel) {
    (void)channel; /* it lives as long as this process */
}

void cwb_broker_channel_turn(struct cwb_broker_channel *channel) {
    (void)channel;
}

void cwb_broker_channel_batch_notify(struct cwb_broker_channel *channel) {
    (void)channel;
}

void cwb_broker_channel_quiet(struct cwb_broker_channel *channel, bool quiet) {
    (void)channel;
    (void)quiet;
}

void cwb_broker_channel_flush(struct cwb_broker_channel *channel) {
    (void)channel;
}

int64_t cwb_broker_channel_notify(struct cwb_broker_channel *channel) {
    (void)channel;
    return INT64_MAX;
}

bool cwb_broker_channel_rest(struct cwb_broker_channel *channel) {
    (void)channel;
    return true;
}

void cwb_broker_channel_rise(struct cwb_broker_channel *channel) {
    (void)channel;
}

bool around_job(struct cwb_bridge *bridge, const void *body, uint32_t body_bytes) {
    struct question *next = bridge->broker_channel->nexts;
    const struct cw_remote_job *head = body;
    if (!next || head->job >= JOBS_MOST)
        return false;
    bridge->broker_channel->cancelled[head->job] |= head->cancelled != 0;
    uint8_t *copy = malloc(body_bytes);
    promise(copy != NULL);
    memcpy(copy, body, body_bytes);
    DL_DELETE(bridge->broker_channel->nexts, next);
    next->on_answer(next->owner, 0, copy, body_bytes);
    free(next);
    free(copy);
    return true;
}

static int deed_status(const struct cw_deed *deed) {
    bool done = deed->verb != CW_DEED_ASK && deed->number % 4;
    return done ? 0 : cw_fail(-ENOENT, "no array has that name");
}

bool around_answer(struct cwb_bridge *bridge, uint8_t which, uint8_t how) {
    struct question *question = bridge->broker_channel->others;
    for (which %= 8; question && which && question->next; which--)
        question = question->next;
    if (!question)
        return false;
    struct cw_changed changed = {.seen = 1, .all = how % 2};
    struct cw_holders holders = {.holders = how % 3};
    const uint32_t head_bytes = (uint32_t)(sizeof changed - sizeof changed.ended);
    DL_DELETE(bridge->broker_channel->others, question);
    if (question->op == CW_OP_DEED)
        question->on_answer(question->owner, deed_status(&question->deed), NULL, 0);
    else if (question->op == CW_OP_CHANGES)
        question->on_answer(question->owner, 0, &changed, head_bytes);
    else if (how % 4 == 3)
        question->on_answer(question->owner, cw_fail(-ESTALE, "gone"), "gone", 4);
    else
        question->on_answer(question->owner, 0, &holders, sizeof holders);
    free(question);
    return true;
}

/* ---- the world ---- */

static void *zeros(uint64_t size_bytes) {
    void *bytes = calloc(1, size_bytes + 1);
    promise(bytes != NULL);
    return bytes;
}

uint64_t around_hash(const void *bytes, uint64_t size_bytes) {
    return cw_hash(bytes, size_bytes, 0);
}

uint64_t around_hash_of_zeros(uint64_t number) {
    static const uint64_t sizes[] = {16385, 65536, 300000, 1 << 20, 3 << 20};
    uint64_t size = sizes[number % (sizeof sizes / sizeof *sizes)];
    uint8_t *bytes = zeros(size);
    struct cwb_sum *sum = cwb_sum_new(bytes, size, size);
    promise(cwb_sum_rest(sum, size));
    uint64_t digest = cwb_sum_digest(sum);
    cwb_sum_free(sum);
    free(bytes);
    return digest;
}

void around_handle(uint8_t which, struct cw_remote *remote) {
    cw_handle handle;
    cw_array *array = world.arrays[which % SIZES];
    promise(cw_array_export(array, 0, &handle) == 0);
    remote->instance = handle.instance;
    remote->slab = handle.slab;
    remote->block = handle.block;
    remote->gen = which % 32 == 31 ? handle.gen + 1 : handle.gen;
    remote->offset_bytes = handle.offset_bytes;
    remote->size_bytes = handle.size_bytes;
}

void around_change(uint8_t which) {
    promise(cw_array_put(world.arrays[which % SIZES], world_names[which % SIZES], CW_REPLACE, NULL,
                         0) == 0);
}

void around_part(uint8_t how, struct cwb_part *out) {
    *out = (struct cwb_part){.instance = how & 0x38 ? cw_client_instance(world.client) : 1,
                             .version = how & 0xc0 ? world.tree_version : 1u + how / 8u,
                             .number = how % 4};
}

/* Of two parts: one that goes inside a frame, and one that does not. */
static void put_tree(void) {
    static const int64_t sizes[] = {200, 100000};
    cw_leaf leaves[2] = {{.path = "x"}, {.path = "y"}};
    cw_tree_info info;
    cw_tree *tree;
    for (unsigned i = 0; i < 2; i++) {
        leaves[i].layout =
            (cw_layout){.ndim = 1, .itemsize = 1, .shape = &sizes[i], .dtype = "|u1"};
        promise(cw_array_new(world.client, "cpu", &leaves[i].layout, 0, &leaves[i].array) == 0);
        memset(cw_array_data(leaves[i].array), 0, (size_t)sizes[i]);
    }
    promise(cw_tree_put(world.client, "s/tree", leaves, 2, NULL, 0, CW_REPLACE, CW_ANY_VERSION,
                        &tree) == 0);
    cw_tree_look_at(tree, &info);
    world.tree_version = info.version;
    cw_tree_close(tree);
    for (unsigned i = 0; i < 2; i++)
        cw_array_close(leaves[i].array);
}

static void end_world(void) {
    char path[96];
    snprintf(path, sizeof path, "rm -rf %s", world.folder);
    int broker_pid = world.client->broker_pid;
    cw_client_unref(world.client);
    promise(kill(broker_pid, SIGTERM) == 0);
    promise(system(path) == 0);
}

static void begin_world(void) {
    static const int64_t sizes[SIZES] = {100, 65536, 3 << 20};
    strcpy(world.folder, "/tmp/cw-fuzz-XXXXXX");
    promise(mkdtemp(world.folder) != NULL);
    setenv("CABLEWAY_DIR", world.folder, 1);
    setenv("CABLEWAY_NODE_DIR", world.folder, 1);
    setenv("CABLEWAY_MAX_BYTES", MOST_BYTES, 1);
    if (cw_connect(NULL, "", 0, &world.client) != 0) {
        fprintf(stderr, "no broker: %s\n", cw_error());
        exit(1);
    }
    world.client->host_only = true;
    for (unsigned i = 0; i < SIZES; i++) {
        cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &sizes[i], .dtype = "|u1"};
        promise(cw_array_new(world.client, "cpu", &layout, 0, &world.arrays[i]) == 0);
        memset(cw_array_data(world.arrays[i]), 0, (size_t)sizes[i]);
        promise(cw_array_put(world.arrays[i], world_names[i], CW_REPLACE, NULL, 0) == 0);
    }
    put_tree();
    atexit(end_world);
}

static struct cwb_peer *peer_new(void) {
    static char star[] = "*", *all[] = {star};
    struct cwb_peer *peer = calloc(1, sizeof *peer);
    promise(peer != NULL);
    strcpy(peer->config.name, "evil");
    strcpy(peer->config.address, "127.0.0.1:9");
    peer->config.print[0] = 1;
    peer->config.pinned = true;
    peer->config.read = peer->config.write = (struct cwb_patterns){.texts = all, .count = 1};
    return peer;
}

struct cwb_peer *around_begin(struct cwb_bridge *bridge) {
    const char *why;
    if (!world.client)
        begin_world();
    bridge->options.folder = world.folder;
    bridge->options.streams = 1;
    strcpy(bridge->node, "fuzzed");
    bridge->run = 2;
    bridge->next_upload = 1000;
    bridge->client = world.client;
    bridge->loop.now_ns = 1000000000000;
    promise(cwb_tls_new(world.folder, 0, &bridge->tls) == 0);
    pthread_mutex_init(&bridge->uploads_lock, NULL);
    cwb_spin_init(&bridge->spin, 1);
    promise(cwb_io_new(true, false, &bridge->loop.io, &why) == 0);
    promise(cwb_helpers_new(bridge->loop.io, "", 1, &bridge->helpers) == 0);
    bridge->resolver_helpers = bridge->mover_helpers = bridge->broker_helpers =
        bridge->memory_helpers = bridge->helpers;
    struct cwb_peer *peer = bridge->peers = bridge->peers_last = peer_new();
    HASH_ADD(hh, bridge->peers_by_name, config.name, strlen(peer->config.name), peer);
    HASH_ADD(hh_key, bridge->peers_by_key, config.print, CWB_PRINT_BYTES, peer);
    promise(CWD_ADDED(peer) && peer->hh_key.tbl);
    bridge->peer_count = 1;
    bridge->peers_stamp = cwb_folder_stamp(bridge->options.folder, "peers");
    promise(cwb_broker_channel_new(bridge, &bridge->broker_channel) == 0);
    promise(cwb_jobs_init(bridge) == 0);
    return bridge->peers;
}

void around_end(struct cwb_bridge *bridge, uint64_t jobs) {
    struct question *question, *next;
    for (uint64_t job = 1; job <= jobs; job++)
        promise(bridge->broker_channel->answered[job] || bridge->broker_channel->cancelled[job]);
    DL_FOREACH_SAFE(bridge->broker_channel->nexts, question, next)
    free(question);
    DL_FOREACH_SAFE(bridge->broker_channel->others, question, next)
    free(question);
    promise(!begun.first && !told.first);
    cw_array_close(bridge->reserve);
    HASH_CLEAR(hh, bridge->peers_by_name);
    HASH_CLEAR(hh_key, bridge->peers_by_key);
    free(bridge->jobs);
    free(bridge->broker_channel);
    free(bridge->loop.io);
    pthread_mutex_destroy(&bridge->uploads_lock);
}
