/*
 * Many peers at once: one process with a TLS connection for each of many keys, that asks for small
 * arrays as a bridge does when its clients get names that are new to it (OPEN with CWB_WATCH): one
 * request of each peer is under way at any time, and as soon as it is answered the next one goes.
 *
 *   bench_tls_load FOLDERS PEERS PORT NAMES SIZE     FOLDERS/0, FOLDERS/1, ... have the keys
 *
 * reads commands from its input: SECONDS; prints how many answers came in how many seconds, and the
 * CPU seconds of this process. Between commands it answers PINGs. Every answer's bytes are hashed
 * and compared. It takes most of a core, as a server does: on two cores they do not hold each other
 * up, and what it takes is the same whoever serves.
 *
 * LDLIBS: -lssl -lcrypto
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "broker/bridge/wire/frame.h"
#include "tls_plain.h"

#define EVENTS    64
#define PEERS_MAX 1024

struct peer {
    int fd;
    SSL *ssl;
    bool greeted, asked;
    uint64_t next_id, next_name;
    uint8_t in[CWB_FRAME_MAX];
    uint32_t have;
};

static struct peer peers[PEERS_MAX];
static uint32_t peer_count, names, size_bytes;
static uint64_t answers;
static bool running;

static void need(bool right, const char *what) {
    if (right)
        return;
    fprintf(stderr, "bench_tls_load: %s\n", what);
    exit(1);
}

static double seconds_of(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void send_frame(struct peer *peer, uint16_t op, uint64_t id, const void *body,
                       uint32_t body_bytes) {
    uint8_t out[1024];
    struct cw_message head = {.size_bytes = CWB_HEAD_BYTES + body_bytes, .op = op, .id = id};
    need(head.size_bytes <= sizeof out, "a long frame");
    memcpy(out, &head, sizeof head);
    if (body_bytes)
        memcpy(out + sizeof head, body, body_bytes);
    need(SSL_write(peer->ssl, out, (int)head.size_bytes) == (int)head.size_bytes, "a write failed");
}

static void ask(struct peer *peer) {
    uint8_t body[sizeof(struct cwb_key) + 64] = {0};
    char *key = (char *)body + sizeof(struct cwb_key);
    /* namespace "", NUL, name */
    int length =
        1 + snprintf(key + 1, 63, "many/%llu", (unsigned long long)(peer->next_name++ % names));
    struct cwb_key head = {.key_bytes = (uint32_t)length, .flags = CWB_WATCH};
    memcpy(body, &head, sizeof head);
    peer->asked = true;
    send_frame(peer, CWB_OPEN, ++peer->next_id, body, (uint32_t)sizeof head + head.key_bytes);
}

static void take(struct peer *peer, const struct cwb_frame *frame) {
    if (frame->head.op == CWB_HELLO) {
        peer->greeted = true;
    } else if (frame->head.op == CWB_PING) {
        send_frame(peer, CWB_PING | CW_OP_REPLY, frame->head.id, NULL, 0);
    } else if (frame->head.op == (CWB_OPEN | CW_OP_REPLY)) {
        need(frame->head.status == 0 && frame->opened.inside &&
                 frame->opened.size_bytes == size_bytes &&
                 XXH3_64bits(frame->data, size_bytes) == frame->opened.hash,
             "a wrong answer");
        peer->asked = false;
        answers++;
        if (running)
            ask(peer);
    }
}

static void receive(struct peer *peer) {
    for (;;) {
        int got = SSL_read(peer->ssl, peer->in + peer->have, (int)(sizeof peer->in - peer->have));
        if (got <= 0) {
            need(SSL_get_error(peer->ssl, got) == SSL_ERROR_WANT_READ, "the server ended");
            return;
        }
        peer->have += (uint32_t)got;
        uint32_t at = 0;
        while (peer->have - at >= CWB_HEAD_BYTES) {
            struct cwb_frame frame;
            struct cw_message head;
            memcpy(&head, peer->in + at, sizeof head);
            need(head.size_bytes >= sizeof head && head.size_bytes <= sizeof peer->in,
                 "a bad frame");
            if (peer->have - at < head.size_bytes)
                break;
            need(cwb_frame_parse(&head, peer->in + at + sizeof head, &frame) == 0, "a bad frame");
            take(peer, &frame);
            at += head.size_bytes;
        }
        peer->have -= at;
        memmove(peer->in, peer->in + at, peer->have);
    }
}

static void open_peer(struct peer *peer, const char *folders, uint32_t i, int port) {
    char folder[4000];
    int one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct cwb_hello hello = {.magic = CWB_MAGIC,
                              .version_min = CWB_VERSION,
                              .version_max = CWB_VERSION,
                              .run = i + 1,
                              .read_max = CWB_READ_MAX,
                              .requests_max = CWB_REQUESTS_MAX,
                              .instance = 1};
    snprintf(folder, sizeof folder, "%s/%u", folders, i);
    snprintf(hello.node, sizeof hello.node, "peer%u", i);
    peer->fd = socket(AF_INET, SOCK_STREAM, 0);
    need(connect(peer->fd, (struct sockaddr *)&address, sizeof address) == 0, "no connection");
    need(setsockopt(peer->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0, "no TCP_NODELAY");
    SSL_CTX *ctx = tls_context(folder);
    peer->ssl = tls_over(ctx, peer->fd, false);
    SSL_CTX_free(ctx);
    need(fcntl(peer->fd, F_SETFL, O_NONBLOCK) == 0, "no O_NONBLOCK");
    peer->next_name = i * 7;
    send_frame(peer, CWB_HELLO, 0, &hello, sizeof hello);
}

/* One turn of the loop; whether there is a command. */
static bool turn(int poll_fd, int timeout_ms) {
    struct epoll_event events[EVENTS];
    bool command = false;
    int count = epoll_wait(poll_fd, events, EVENTS, timeout_ms);
    for (int i = 0; i < count; i++) {
        if (events[i].data.ptr)
            receive(events[i].data.ptr);
        else
            command = true;
    }
    return command;
}

static bool resting(void) {
    for (uint32_t i = 0; i < peer_count; i++)
        if (!peers[i].greeted || peers[i].asked)
            return false;
    return true;
}

static void measure(int poll_fd, double seconds) {
    uint64_t before = answers;
    double begun = seconds_of(CLOCK_MONOTONIC), used = seconds_of(CLOCK_PROCESS_CPUTIME_ID), now;
    running = true;
    for (uint32_t i = 0; i < peer_count; i++)
        ask(&peers[i]);
    do
        turn(poll_fd, 100);
    while ((now = seconds_of(CLOCK_MONOTONIC)) - begun < seconds);
    printf("%llu %.9f %.9f\n", (unsigned long long)(answers - before), now - begun,
           seconds_of(CLOCK_PROCESS_CPUTIME_ID) - used);
    fflush(stdout);
    running = false;
    while (!resting())
        turn(poll_fd, 100);
}

int main(int argc, char **argv) {
    char text[64];
    if (argc != 6)
        return fprintf(stderr, "usage: bench_tls_load FOLDERS PEERS PORT NAMES SIZE\n"), 2;
    peer_count = (uint32_t)strtoul(argv[2], NULL, 10);
    names = (uint32_t)strtoul(argv[4], NULL, 10);
    size_bytes = (uint32_t)strtoul(argv[5], NULL, 10);
    need(peer_count >= 1 && peer_count <= PEERS_MAX && names >= 1, "1 to 1024 peers");
    int poll_fd = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    need(epoll_ctl(poll_fd, EPOLL_CTL_ADD, STDIN_FILENO, &event) == 0, "epoll_ctl");
    for (uint32_t i = 0; i < peer_count; i++) {
        open_peer(&peers[i], argv[1], i, atoi(argv[3]));
        event.data.ptr = &peers[i];
        need(epoll_ctl(poll_fd, EPOLL_CTL_ADD, peers[i].fd, &event) == 0, "epoll_ctl");
        turn(poll_fd, 0); /* those that came before are pinged meanwhile */
    }
    while (!resting())
        turn(poll_fd, 100);
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        if (!turn(poll_fd, -1))
            continue;
        if (!fgets(text, sizeof text, stdin))
            return 0;
        measure(poll_fd, strtod(text, NULL));
    }
}
