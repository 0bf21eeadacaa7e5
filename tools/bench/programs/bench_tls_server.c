/*
 * A server for small gets beside which the bridge is measured with many peers: one thread, epoll
 * and OpenSSL, that speaks as much of the bridge's protocol (broker/bridge/wire/frame.h) as a get
 * of a small array needs. It greets, answers PING, and answers OPEN by a lookup in a hash table,
 * with metadata, the bytes and their XXH3. It watches no names, asks no rights, and shares no
 * memory.
 *
 *   bench_tls_server FOLDER NAMES SIZE   the key's folder; arrays many/0, many/1, ... of SIZE bytes
 *
 * prints its port, and ends with its input.
 *
 * LDLIBS: -lssl -lcrypto
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <uthash.h>
#include <xxhash.h>

#include "broker/bridge/wire/frame.h"
#include "ipc/base/meta.h"
#include "tls_plain.h"

#define EVENTS 64

struct entry {
    char key[64];
    uint8_t *bytes;
    UT_hash_handle hh;
};

struct peer {
    int fd;
    SSL *ssl;
    bool shaken;
    uint8_t in[CWB_FRAME_MAX];
    uint32_t have;
};

struct meta { /* of an array of bytes */
    struct cw_meta head;
    int64_t shape, stride;
    char dtype[3];
} __attribute__((packed));

static struct entry *entries;
static uint32_t size_bytes;

static void need(bool right, const char *what) {
    if (right)
        return;
    fprintf(stderr, "bench_tls_server: %s\n", what);
    exit(1);
}

static void make_entries(uint32_t names) {
    for (uint32_t i = 0; i < names; i++) {
        struct entry *entry = calloc(1, sizeof *entry);
        need(entry && (entry->bytes = malloc(size_bytes)), "no memory");
        for (uint32_t at = 0; at < size_bytes; at++)
            entry->bytes[at] = (uint8_t)random();
        /* namespace "", NUL, name */
        int length = 1 + snprintf(entry->key + 1, sizeof entry->key - 1, "many/%u", i);
        HASH_ADD_KEYPTR(hh, entries, entry->key, (size_t)length, entry);
    }
}

static void send_frame(struct peer *peer, uint16_t op, uint64_t id, int status, const void *body,
                       uint32_t body_bytes) {
    uint8_t out[CWB_FRAME_MAX];
    struct cw_message head = {
        .size_bytes = CWB_HEAD_BYTES + body_bytes, .op = op, .id = id, .status = status};
    memcpy(out, &head, sizeof head);
    if (body_bytes)
        memcpy(out + sizeof head, body, body_bytes);
    /* A peer has one request under way: its socket has room for the answer. */
    need(SSL_write(peer->ssl, out, (int)head.size_bytes) == (int)head.size_bytes, "a write failed");
}

static void answer_open(struct peer *peer, const struct cwb_frame *frame) {
    uint8_t body[sizeof(struct cwb_opened) + sizeof(struct meta) + CWB_INLINE_MAX];
    struct meta meta = {.head = {.version = 1, .ndim = 1, .itemsize = 1, .dtype_bytes = 3},
                        .shape = size_bytes,
                        .stride = 1,
                        .dtype = "|u1"};
    struct cwb_opened opened = {.size_bytes = size_bytes,
                                .instance = 1,
                                .entry = 1,
                                .inside = 1,
                                .meta_bytes = sizeof meta};
    struct entry *entry;
    HASH_FIND(hh, entries, frame->key, frame->key_bytes, entry);
    if (!entry) {
        send_frame(peer, CWB_OPEN | CW_OP_REPLY, frame->head.id, -ENOENT, "none", 4);
        return;
    }
    opened.hash = XXH3_64bits(entry->bytes, size_bytes);
    memcpy(body, &opened, sizeof opened);
    memcpy(body + sizeof opened, &meta, sizeof meta);
    memcpy(body + sizeof opened + sizeof meta, entry->bytes, size_bytes);
    send_frame(peer, CWB_OPEN | CW_OP_REPLY, frame->head.id, 0, body,
               (uint32_t)(sizeof opened + sizeof meta) + size_bytes);
}

static void say_hello(struct peer *peer) {
    struct cwb_hello hello = {.magic = CWB_MAGIC,
                              .version_min = CWB_VERSION,
                              .version_max = CWB_VERSION,
                              .run = 1,
                              .read_max = CWB_READ_MAX,
                              .requests_max = CWB_REQUESTS_MAX,
                              .instance = 1,
                              .node = "server"};
    send_frame(peer, CWB_HELLO, 0, 0, &hello, sizeof hello);
}

static void take_frames(struct peer *peer) {
    uint32_t at = 0;
    while (peer->have - at >= CWB_HEAD_BYTES) {
        struct cwb_frame frame;
        struct cw_message head;
        memcpy(&head, peer->in + at, sizeof head);
        need(head.size_bytes >= sizeof head && head.size_bytes <= sizeof peer->in, "a bad frame");
        if (peer->have - at < head.size_bytes)
            break;
        need(cwb_frame_parse(&head, peer->in + at + sizeof head, &frame) == 0, "a bad frame");
        if (head.op == CWB_OPEN)
            answer_open(peer, &frame);
        else if (head.op == CWB_PING)
            send_frame(peer, CWB_PING | CW_OP_REPLY, head.id, 0, NULL, 0);
        at += head.size_bytes;
    }
    peer->have -= at;
    memmove(peer->in, peer->in + at, peer->have);
}

/* false: it ended */
static bool serve(struct peer *peer) {
    if (!peer->shaken) {
        int done = SSL_accept(peer->ssl);
        if (done != 1)
            return SSL_get_error(peer->ssl, done) == SSL_ERROR_WANT_READ;
        peer->shaken = true;
        say_hello(peer);
    }
    for (;;) {
        int got = SSL_read(peer->ssl, peer->in + peer->have, (int)(sizeof peer->in - peer->have));
        if (got <= 0)
            return SSL_get_error(peer->ssl, got) == SSL_ERROR_WANT_READ;
        peer->have += (uint32_t)got;
        take_frames(peer);
    }
}

static void accept_all(int listener, int poll_fd, SSL_CTX *ctx) {
    int one = 1, fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        struct peer *peer = calloc(1, sizeof *peer);
        need(peer && (peer->ssl = SSL_new(ctx)) && SSL_set_fd(peer->ssl, fd) == 1, "no memory");
        need(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0, "no TCP_NODELAY");
        peer->fd = fd;
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = peer};
        need(epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
    }
}

int main(int argc, char **argv) {
    if (argc != 4)
        return fprintf(stderr, "usage: bench_tls_server FOLDER NAMES SIZE\n"), 2;
    size_bytes = (uint32_t)strtoul(argv[3], NULL, 10);
    need(size_bytes > 0 && size_bytes <= CWB_INLINE_MAX, "1 to 16384 bytes");
    make_entries((uint32_t)strtoul(argv[2], NULL, 10));
    SSL_CTX *ctx = tls_context(argv[1]);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), poll_fd = epoll_create1(0);
    need(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 4096) == 0 &&
             getsockname(listener, (struct sockaddr *)&address, &length) == 0 && poll_fd >= 0,
         "no socket to listen at");
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL}, events[EVENTS];
    static char input;
    need(epoll_ctl(poll_fd, EPOLL_CTL_ADD, listener, &event) == 0, "epoll_ctl");
    event.data.ptr = &input;
    need(epoll_ctl(poll_fd, EPOLL_CTL_ADD, STDIN_FILENO, &event) == 0, "epoll_ctl");
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        int count = epoll_wait(poll_fd, events, EVENTS, -1);
        for (int i = 0; i < count; i++) {
            struct peer *peer = events[i].data.ptr;
            if (events[i].data.ptr == &input)
                return 0;
            if (!peer)
                accept_all(listener, poll_fd, ctx);
            else if (!serve(peer))
                need(epoll_ctl(poll_fd, EPOLL_CTL_DEL, peer->fd, NULL) == 0, "epoll_ctl");
        }
    }
}
