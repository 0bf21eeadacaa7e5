/*
 * Fuzzes the broker with what a client can do: messages in the ring, well formed, bent and raw,
 * messages with descriptors over the socket, slabs, leases, block words, positions. The whole
 * broker runs in this process, its loop in a thread; the client is killed and forgotten after each
 * input, and nothing of it may be left.
 *
 * A client is a process to the broker: each input connects from a child of its own that ends at
 * once, so that the broker, which sees its pidfd end, counts it dead as soon as the socket is
 * closed.
 */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "broker/broker.h"
#include "broker/core/loop.h"
#include "tests/unit/raw_client.c"

#define SLABS_MAX  4
#define BLOCKS     16
#define SLAB_BYTES 65536

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

static struct cwd_broker broker;
static struct raw_broker place; /* its address alone */
static char folder[] = "/tmp/cw-fuzz-XXXXXX";
static pthread_t loop_thread;

static void must(bool condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "fuzz_requests: %s\n", what);
        abort();
    }
}

static void *run_loop(void *unused) {
    (void)unused;
    cwd_loop_run(&broker);
    return NULL;
}

static void remove_folder(void) {
    DIR *directory = opendir(folder);
    for (struct dirent *entry; directory && (entry = readdir(directory));)
        (void)unlinkat(dirfd(directory), entry->d_name, 0);
    if (directory)
        closedir(directory);
    rmdir(folder);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    enum cwd_exit code;
    setenv("CABLEWAY_MAX_NAMES", "64", 1);
    setenv("CABLEWAY_MAX_SLABS", "64", 1);
    setenv("CABLEWAY_MAX_CLIENT_SLABS", "16", 1);
    setenv("CABLEWAY_MAX_CLIENT_TRANSITS", "16", 1);
    setenv("CABLEWAY_MAX_CLIENT_WAITS", "16", 1);
    setenv("CABLEWAY_MAX_CLIENT_UNREAD", "8", 1);
    setenv("CABLEWAY_TRANSIT_SECONDS", "1", 1);
    setenv("CABLEWAY_NAMES_LINGER_SECONDS", "0", 1);
    must(mkdtemp(folder), "no folder");
    setenv("CABLEWAY_DIR", folder, 1);
    atexit(remove_folder);
    struct cwd_options options = {.place = folder, .idle_exit_ns = -1};
    must(cw_address_find(folder, &place.address) == 0, "no address");
    must(cwd_broker_init(&broker, &options, &code) == 0, cw_detail());
    must(pthread_create(&loop_thread, NULL, run_loop, NULL) == 0, "no thread");
    return 0;
}

/* ---- the input, taken apart ---- */

struct input {
    const uint8_t *data;
    size_t size;
};

static uint64_t take(struct input *in, size_t bytes) {
    uint64_t value = 0;
    if (bytes > in->size)
        bytes = in->size;
    memcpy(&value, in->data, bytes);
    in->data += bytes;
    in->size -= bytes;
    return value;
}

static uint32_t take_body(struct input *in, uint8_t *body, uint32_t room) {
    uint32_t length = (uint32_t)take(in, 1) * ((take(in, 1) & 7) == 0 ? 8 : 1);
    length = length < room ? length : room;
    length = length < in->size ? length : (uint32_t)in->size;
    memcpy(body, in->data, length);
    in->data += length;
    in->size -= length;
    return length;
}

/* ---- what a client does with it ---- */

struct world {
    struct raw_client client;
    struct raw_slab slabs[SLABS_MAX];
    uint32_t slab_count;
};

/* Mostly a slab and block of ours; sometimes any number. */
static void take_place(struct input *in, const struct world *w, uint32_t *slab, uint32_t *block) {
    uint8_t which = (uint8_t)take(in, 1);
    *block = which >> 4;
    *slab = w->slab_count ? w->slabs[which % w->slab_count].id : which % 8;
    if (which == 0xff) {
        *slab = (uint32_t)take(in, 4);
        *block = (uint32_t)take(in, 4);
    }
}

static uint64_t gen_of(const struct world *w, uint32_t slab, uint32_t block) {
    for (uint32_t i = 0; i < w->slab_count; i++)
        if (w->slabs[i].id == slab && block < BLOCKS)
            return cw_block_gen(atomic_load(&w->slabs[i].table->blocks[block].word));
    return 0;
}

static bool ring_write(struct world *w, uint32_t type, const void *bytes, uint32_t length) {
    if (length >= sizeof(struct cw_message) && type == CW_OP_STOP)
        type = CW_OP_PING; /* whoever may connect may end the broker: nothing to find there */
    if (type == CW_RING_PADDING)
        type = 0;
    return cw_ring_write(&w->client.requests, type, bytes, length) == 0;
}

static void say(struct world *w, struct input *in, bool bent) {
    static const uint16_t ops[] = {
        CW_OP_PUT,          CW_OP_REMOVE,        CW_OP_WAIT,           CW_OP_CANCEL,
        CW_OP_DROP,         CW_OP_TRANSIT_BEGIN, CW_OP_TRANSIT_END,    CW_OP_SLAB_CLOSE,
        CW_OP_SLAB_ADOPT,   CW_OP_HOLDERS,       CW_OP_HOLDERS_OF,     CW_OP_BYE,
        CW_OP_PING,         CW_OP_COPY,          CW_OP_MOVER_NEXT,     CW_OP_MOVER_DONE,
        CW_OP_MAKE,         CW_OP_LINK,          CW_OP_LINK_KEEP,      CW_OP_REMOTE,
        CW_OP_REMOTE_NEXT,  CW_OP_REMOTE_DONE,   CW_OP_CHANGES,        CW_OP_REPLICA,
        CW_OP_ROOM,         CW_OP_DEED,          CW_OP_GROUP,          CW_OP_PUT_TREE,
        CW_OP_FIND_VERSION, CW_OP_WAIT_AFTER,    CW_OP_CLAIM,          CW_OP_RELEASE,
        CW_OP_NEXT_VERSION, CW_OP_TRANSIT_SHARE, CW_OP_TRANSIT_OPENED, CW_OP_TRANSITS,
        CW_OP_LIMIT_SET};
    uint8_t bytes[sizeof(struct cw_message) + 2048];
    struct cw_message head = {.op = ops[take(in, 1) % (sizeof ops / sizeof *ops)],
                              .id = take(in, 1)};
    uint32_t length = take_body(in, bytes + sizeof head, 2048) + (uint32_t)sizeof head;
    uint32_t type = head.op;
    head.size_bytes = length;
    if (bent) {
        uint64_t how = take(in, 8);
        head.size_bytes += (uint32_t)(int8_t)how;
        head.op = how & 0x100 ? (uint16_t)(how >> 16) : head.op;
        head.flags = how & 0x200 ? (uint16_t)(how >> 32) : 0;
        type = how & 0x400 ? head.op : type;
        length = how & 0x800 ? (uint32_t)(how >> 48) % length : length;
    }
    memcpy(bytes, &head, sizeof head);
    ring_write(w, type, bytes, length);
}

static void say_put(struct world *w, struct input *in) {
    struct {
        struct cw_message head;
        struct cw_put put;
        char rest[64];
    } message = {.head = {.op = CW_OP_PUT, .id = take(in, 1)}};
    uint32_t slab, block;
    take_place(in, w, &slab, &block);
    uint64_t how = take(in, 2);
    message.put = (struct cw_put){.slab = slab,
                                  .block = block,
                                  .gen = gen_of(w, slab, block) + (how & 1),
                                  .offset_bytes = how & 2 ? take(in, 8) : 0,
                                  .size_bytes = how & 4 ? take(in, 8) : 64,
                                  .flags = how & 8 ? CW_PUT_REPLACE : (how >> 8) & ~CW_PUT_KEEP,
                                  .key_bytes = 3,
                                  .meta_bytes = (uint16_t)(how & 16 ? take(in, 1) % 60 : 8)};
    message.rest[1] = 'n';
    message.rest[2] = (char)('a' + (how >> 5 & 3));
    message.rest[0] = 0;
    message.head.size_bytes =
        (uint32_t)(sizeof message.head + sizeof message.put) + 3 + message.put.meta_bytes;
    ring_write(w, CW_OP_PUT, &message, message.head.size_bytes);
}

/* A group of some blocks, or a version of one that may be an anchor. */
static void say_tree(struct world *w, struct input *in) {
    struct {
        struct cw_message head;
        union {
            struct {
                struct cw_block_group head;
                struct cw_block_name members[4];
            } group;
            struct {
                struct cw_put_tree head;
                char rest[16];
            } put;
        } body;
    } message = {.head = {.op = CW_OP_GROUP, .id = take(in, 1)}};
    uint32_t slab, block;
    uint8_t how = (uint8_t)take(in, 1);
    take_place(in, w, &slab, &block);
    if (how & 1) {
        struct cw_put_tree *head = &message.body.put.head;
        message.head.op = CW_OP_PUT_TREE;
        head->if_version = how & 2 ? CW_VERSION_ANY : take(in, 1);
        head->put = (struct cw_put){.slab = slab,
                                    .block = block,
                                    .gen = gen_of(w, slab, block),
                                    .size_bytes = 64,
                                    .flags = CW_PUT_REPLACE,
                                    .key_bytes = 3,
                                    .meta_bytes = 8};
        message.body.put.rest[1] = 'n';
        message.body.put.rest[2] = (char)('a' + (how >> 2 & 3));
        message.head.size_bytes = (uint32_t)(sizeof message.head + sizeof *head) + 11;
    } else {
        struct cw_block_group *head = &message.body.group.head;
        *head = (struct cw_block_group){
            .anchor = {.slab = slab, .block = block, .gen = gen_of(w, slab, block)},
            .count = how >> 1 & 3};
        for (uint32_t i = 0; i < head->count; i++) {
            struct cw_block_name *member = &message.body.group.members[i];
            take_place(in, w, &member->slab, &member->block);
            member->gen = gen_of(w, member->slab, member->block) + (how == 0xfe);
        }
        message.head.size_bytes = (uint32_t)(sizeof message.head + sizeof *head +
                                             head->count * sizeof(struct cw_block_name));
    }
    ring_write(w, message.head.op, &message, message.head.size_bytes);
}

static void say_ref(struct world *w, struct input *in) {
    static const uint16_t ops[] = {CW_OP_TRANSIT_BEGIN, CW_OP_TRANSIT_END, CW_OP_DROP,
                                   CW_OP_HOLDERS, CW_OP_TRANSIT_OPENED};
    struct {
        struct cw_message head;
        struct cw_block_ref ref;
    } message = {.head = {.size_bytes = sizeof message, .id = take(in, 1)}};
    uint8_t how = (uint8_t)take(in, 1);
    message.head.op = ops[how >> 6 == 3 ? 4 : how & 3];
    take_place(in, w, &message.ref.slab, &message.ref.block);
    if (how >> 6 == 2 && (how & 3) == 0) {
        struct cw_transit_share share = {.ref = message.ref, .openers = how >> 2 & 3};
        struct {
            struct cw_message head;
            struct cw_transit_share share;
        } shared = {.head = {.size_bytes = sizeof shared, .op = CW_OP_TRANSIT_SHARE}};
        share.ref.gen = gen_of(w, share.ref.slab, share.ref.block);
        share.ref.token = (uint64_t)w->client.session << 32 | (how >> 2 & 15);
        shared.share = share;
        ring_write(w, shared.head.op, &shared, sizeof shared);
        return;
    }
    message.ref.gen = gen_of(w, message.ref.slab, message.ref.block);
    message.ref.token = (uint64_t)(w->client.session + (how >> 6)) << 32 | (how >> 2 & 15);
    ring_write(w, message.head.op, &message, sizeof message);
}

static int some_fd(uint8_t kind) {
    int ends[2];
    switch (kind & 7) {
    case 0:
        return open("/dev/null", O_RDWR | O_CLOEXEC);
    case 1:
    case 2: /* a fork pipe, open or hung up */
        if (pipe2(ends, O_CLOEXEC) != 0)
            return -1;
        close(ends[kind & 7 ? 1 : 0]);
        return ends[0];
    case 3:
        return eventfd(0, EFD_CLOEXEC);
    case 4:
        return memfd_create("fuzz", MFD_CLOEXEC);
    default:
        return raw_pidfd(getpid());
    }
}

static void send_over_socket(struct world *w, struct input *in) {
    uint8_t bytes[sizeof(struct cw_message) + 512];
    struct cw_message head = {.op = (uint16_t)(take(in, 1) % 8), .id = take(in, 1)};
    int fds[6];
    uint32_t count = take(in, 1) % 7, made = 0;
    for (; made < count && (fds[made] = some_fd((uint8_t)take(in, 1))) >= 0; made++)
        ;
    uint32_t length = take_body(in, bytes + sizeof head, 512) + (uint32_t)sizeof head;
    head.size_bytes = length + (uint32_t)(take(in, 1) == 0xff);
    memcpy(bytes, &head, sizeof head);
    struct pollfd poller = {.fd = w->client.sock, .events = POLLOUT};
    if (poll(&poller, 1, 100) == 1)
        (void)raw_send(w->client.sock, bytes, length, fds, made);
    while (made > 0)
        close(fds[--made]);
}

static void add_slab(struct world *w) {
    struct raw_slab *slab = &w->slabs[w->slab_count];
    if (w->slab_count < SLABS_MAX && raw_slab_add(&w->client, SLAB_BYTES, BLOCKS, slab) == 0)
        w->slab_count++;
}

static void carve(struct world *w, struct input *in) {
    uint8_t which = (uint8_t)take(in, 1);
    if (!w->slab_count)
        return;
    struct raw_slab *slab = &w->slabs[which % w->slab_count];
    struct cw_block *block = &slab->table->blocks[which >> 4];
    if (cw_block_state(atomic_load(&block->word)) == CW_BLOCK_FREE)
        cw_block_carve(block, (uint64_t)(which >> 4) * 4096, 4096);
}

static void write_table(struct world *w, struct input *in) {
    uint64_t where = take(in, 2), value = take(in, take(in, 1) & 8 ? 8 : 2);
    if (!w->slab_count)
        return;
    struct raw_slab *slab = &w->slabs[where % w->slab_count];
    cw_a64 *words = (cw_a64 *)(void *)slab->table;
    atomic_store(&words[(where >> 2) % (cw_block_table_bytes(BLOCKS) / 8)], value);
}

static void write_session(struct world *w, struct input *in) {
    cw_a64 *words = w->client.session_segment.base;
    uint64_t where = take(in, 2) * (1 + take(in, 1)), value = take(in, 8);
    if (value >> 32 != CW_OP_STOP)
        atomic_store(&words[where % (CW_SESSION_BYTES / 8)], value);
}

static void lease(struct world *w, struct input *in) {
    uint32_t slab, block, slot = (uint32_t)take(in, 1);
    take_place(in, w, &slab, &block);
    atomic_store(&w->client.leases->slots[slot], slot & 1 ? 0 : cw_lease_slot(slab, block));
}

static void read_replies(struct world *w) {
    uint32_t type, length;
    const void *payload;
    while (cw_ring_peek(&w->client.replies, &type, &payload, &length) == 1)
        cw_ring_consume(&w->client.replies);
}

static void act(struct world *w, struct input *in) {
    switch (take(in, 1) % 18) {
    case 0:
    case 1:
        say(w, in, false);
        break;
    case 2:
        say(w, in, true);
        break;
    case 3:
    case 4:
        say_put(w, in);
        break;
    case 5:
    case 6:
        say_ref(w, in);
        break;
    case 7:
        send_over_socket(w, in);
        break;
    case 8:
        add_slab(w);
        break;
    case 9:
        carve(w, in);
        break;
    case 10:
        write_table(w, in);
        break;
    case 11:
        write_session(w, in);
        break;
    case 12:
    case 13:
        lease(w, in);
        break;
    case 14:
        read_replies(w);
        break;
    case 16:
    case 17:
        say_tree(w, in);
        break;
    default:
        raw_ring(&w->client);
        sched_yield();
    }
}

/* ---- one client ---- */

/* Connects as a child that has ended: *pid is its zombie. */
static int dial_as_the_dead(pid_t *pid) {
    struct sockaddr_un name;
    socklen_t length;
    int folder_fd = -1, sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    must(sock >= 0 && cw_address_open_folder(&place.address, false, &folder_fd) == 0, "no folder");
    cw_address_sockaddr(&place.address, folder_fd, &name, &length);
    *pid = vfork(); /* returns here when the child has ended */
    if (*pid == 0)
        _exit(connect(sock, (struct sockaddr *)&name, length) != 0);
    close(folder_fd);
    return sock;
}

static void come(struct world *w, pid_t *pid) {
    static struct raw_mail mail;
    *w = (struct world){.client = {.root_segment = {.fd = -1}, .session_segment = {.fd = -1}}};
    w->client.sock = dial_as_the_dead(pid);
    int pidfd = raw_pidfd(*pid);
    must(raw_say_hello(w->client.sock, CW_PROTOCOL_VERSION, CW_PROTOCOL_VERSION, pidfd) == 0,
         "no HELLO");
    close(pidfd);
    must(raw_receive(w->client.sock, &mail, RAW_TIMEOUT_MS) == 1, "no answer to a HELLO");
    must(mail.head.status == 0 && open_session(&w->client, &mail) == 0, "HELLO was refused");
}

static uint64_t gauge(enum cw_gauge which) {
    return atomic_load(&broker.root->gauges[which]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct world w;
    struct input in = {data, size};
    pid_t pid;
    come(&w, &pid);
    for (int i = 0; i < 200 && in.size; i++)
        act(&w, &in);
    raw_ring(&w.client);
    for (uint32_t i = 0; i < w.slab_count; i++)
        raw_slab_close(&w.slabs[i]);
    raw_close(&w.client);
    waitpid(pid, NULL, 0);
    must(RAW_UNTIL(broker.stopping ||
                   (gauge(CW_GAUGE_clients) == 0 && gauge(CW_GAUGE_waiting) == 0)),
         "the dead client is still there");
    if (broker.stopping) { /* a STOP got through in raw words */
        pthread_join(loop_thread, NULL);
        broker.stopping = false;
        must(pthread_create(&loop_thread, NULL, run_loop, NULL) == 0, "no thread");
    }
    return 0;
}
