/*
 * How the bridge's bytes go to the kernel and come from it: ways of io_uring beside each other,
 * over TCP on the loopback device, without TLS. One thread sends pieces of 256 KiB, each written
 * anew before it is sent, as encrypting does; another receives them into a ring of provided buffers
 * by one multishot entry, as the bridge does, or into registered buffers, and reads each byte.
 *
 *   send          what the bridge does
 *   fixed         from registered buffers (WRITE_FIXED)
 *   zero-copy     SEND_ZC; the buffer is used again when the kernel has given it back
 *   zero-copy fixed
 *   fixed receive send, and READ_FIXED into registered buffers in place of multishot
 *
 * The ways take turns, so that all see the same machine. For each the best seconds and, of that
 * round, the CPU seconds of both threads for a gigabyte. The loopback device copies what is sent
 * without a copy: a network card need not.
 *
 *   bench_send [ROUNDS]
 *
 * LDLIBS: -luring
 */
#include <arpa/inet.h>
#include <liburing.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PIECE      (256u << 10)
#define PIECES     4096u /* of one round: 1 GiB */
#define RING       16u   /* buffers of the sender */
#define RECEIVE    (64u << 10)
#define RECEIVES   64u
#define MUST(wish) must((wish), #wish, __LINE__)

enum way { SEND, FIXED, ZERO, ZERO_FIXED, FIXED_RECEIVE, WAYS };
static const char *const names[WAYS] = {"send", "fixed", "zero-copy", "zero-copy fixed",
                                        "fixed receive"};
static uint8_t *buffers, *received;

struct round {
    enum way way;
    int out, in;
    double seconds, cpu;
    double receiver_cpu;
    uint64_t sum;
};

static int must(int result, const char *wish, int line) {
    if (result >= 0)
        return result;
    fprintf(stderr, "bench_send: line %d: %s: %s\n", line, wish, strerror(-result));
    exit(1);
}

static double clock_s(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void ring_new(struct io_uring *ring) {
    struct io_uring_params params = {.flags =
                                         IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN};
    MUST(io_uring_queue_init_params(64, ring, &params));
}

static void register_all(struct io_uring *ring, uint8_t *bytes, uint32_t count, uint32_t each) {
    struct iovec parts[64];
    for (uint32_t i = 0; i < count; i++)
        parts[i] = (struct iovec){bytes + (size_t)i * each, each};
    MUST(io_uring_register_buffers(ring, parts, count));
}

/* Of all bytes, however they were cut: eight at a time, in lanes of 16 bits. */
static uint64_t sum_of(const uint8_t *bytes, uint32_t count) {
    const uint64_t even = 0x00ff00ff00ff00ffull;
    uint64_t sum = 0, word;
    uint32_t i = 0;
    while (count - i >= 8) {
        uint64_t lanes = 0;
        for (int words = 0; words < 64 && count - i >= 8; words++, i += 8) {
            memcpy(&word, bytes + i, 8);
            lanes += (word & even) + (word >> 8 & even);
        }
        for (; lanes; lanes >>= 16)
            sum += lanes & 0xffff;
    }
    for (; i < count; i++)
        sum += bytes[i];
    return sum;
}

static void receive_multishot(struct io_uring *ring, struct round *round) {
    struct io_uring_buf_ring *provided = aligned_alloc(4096, 4096);
    struct io_uring_buf_reg reg = {
        .ring_addr = (uint64_t)(uintptr_t)provided, .ring_entries = RECEIVES, .bgid = 0};
    memset(provided, 0, 4096);
    MUST(io_uring_register_buf_ring(ring, &reg, 0));
    io_uring_buf_ring_init(provided);
    for (unsigned i = 0; i < RECEIVES; i++)
        io_uring_buf_ring_add(provided, received + (size_t)i * RECEIVE, RECEIVE, (uint16_t)i,
                              RECEIVES - 1, (int)i);
    io_uring_buf_ring_advance(provided, RECEIVES);
    bool armed = false;
    for (uint64_t left = (uint64_t)PIECE * PIECES; left;) {
        struct io_uring_cqe *cqe;
        if (!armed) {
            struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
            io_uring_prep_recv_multishot(sqe, round->in, NULL, 0, 0);
            sqe->flags |= IOSQE_BUFFER_SELECT;
            armed = true;
        }
        MUST(io_uring_submit_and_wait(ring, 1));
        while (io_uring_peek_cqe(ring, &cqe) == 0) {
            armed = armed && (cqe->flags & IORING_CQE_F_MORE);
            if (cqe->res > 0) {
                uint32_t id = cqe->flags >> IORING_CQE_BUFFER_SHIFT;
                round->sum += sum_of(received + (size_t)id * RECEIVE, (uint32_t)cqe->res);
                left -= (uint32_t)cqe->res;
                io_uring_buf_ring_add(provided, received + (size_t)id * RECEIVE, RECEIVE,
                                      (uint16_t)id, RECEIVES - 1, 0);
                io_uring_buf_ring_advance(provided, 1);
            } else if (cqe->res != -ENOBUFS) {
                MUST(cqe->res ? cqe->res : -ECONNRESET);
            }
            io_uring_cqe_seen(ring, cqe);
        }
    }
}

static void receive_fixed(struct io_uring *ring, struct round *round) {
    register_all(ring, received, 2, PIECE);
    uint32_t at = 0;
    for (uint64_t left = (uint64_t)PIECE * PIECES; left; at ^= 1) {
        struct io_uring_cqe *cqe;
        uint8_t *place = received + (size_t)at * PIECE;
        io_uring_prep_read_fixed(io_uring_get_sqe(ring), round->in, place, PIECE, 0, (int)at);
        MUST(io_uring_submit_and_wait(ring, 1));
        MUST(io_uring_peek_cqe(ring, &cqe));
        MUST(cqe->res ? cqe->res : -ECONNRESET);
        round->sum += sum_of(place, (uint32_t)cqe->res);
        left -= (uint32_t)cqe->res;
        io_uring_cqe_seen(ring, cqe);
    }
}

static void *receiver(void *context) {
    struct round *round = context;
    struct io_uring ring;
    ring_new(&ring);
    if (round->way == FIXED_RECEIVE)
        receive_fixed(&ring, round);
    else
        receive_multishot(&ring, round);
    io_uring_queue_exit(&ring);
    round->receiver_cpu = clock_s(CLOCK_THREAD_CPUTIME_ID);
    return NULL;
}

static void prepare(struct io_uring *ring, const struct round *round, uint32_t slot,
                    const uint8_t *bytes, uint32_t count) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
    switch (round->way) {
    case FIXED:
        io_uring_prep_write_fixed(sqe, round->out, bytes, count, 0, (int)slot);
        break;
    case ZERO:
        io_uring_prep_send_zc(sqe, round->out, bytes, count, MSG_NOSIGNAL, 0);
        break;
    case ZERO_FIXED:
        io_uring_prep_send_zc_fixed(sqe, round->out, bytes, count, MSG_NOSIGNAL, 0, slot);
        break;
    default:
        io_uring_prep_send(sqe, round->out, bytes, count, MSG_NOSIGNAL);
    }
    sqe->user_data = slot;
}

/* One send at a time, as a wire has it; what the kernel still holds is not written to. */
static void send_all(struct io_uring *ring, struct round *round) {
    bool held[RING] = {false};
    for (uint32_t i = 0; i < PIECES; i++) {
        uint32_t slot = i % RING, sent = 0;
        uint8_t *bytes = buffers + (size_t)slot * PIECE;
        bool busy = false;
        while (sent < PIECE || busy || held[slot]) {
            struct io_uring_cqe *cqe;
            if (!busy && !held[slot] && sent == 0)
                memset(bytes, (int)i, PIECE);
            if (!busy && sent < PIECE && (sent || !held[slot])) {
                prepare(ring, round, slot, bytes + sent, PIECE - sent);
                busy = true;
            } else if (!busy && sent == PIECE) {
                break;
            }
            MUST(io_uring_submit_and_wait(ring, 1));
            while (io_uring_peek_cqe(ring, &cqe) == 0) {
                if (cqe->flags & IORING_CQE_F_NOTIF) {
                    held[cqe->user_data] = false;
                } else {
                    MUST(cqe->res);
                    sent += (uint32_t)cqe->res;
                    busy = false;
                    if (cqe->flags & IORING_CQE_F_MORE)
                        held[cqe->user_data] = true;
                }
                io_uring_cqe_seen(ring, cqe);
            }
        }
    }
}

static void connected(struct round *round) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int one = 1, listener = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(bind(listener, (struct sockaddr *)&address, sizeof address));
    MUST(listen(listener, 1));
    MUST(getsockname(listener, (struct sockaddr *)&address, &length));
    round->out = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(connect(round->out, (struct sockaddr *)&address, sizeof address));
    round->in = MUST(accept(listener, NULL, NULL));
    MUST(setsockopt(round->out, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
    close(listener);
}

static void run(struct round *round) {
    struct io_uring ring;
    pthread_t thread;
    connected(round);
    ring_new(&ring);
    if (round->way == FIXED || round->way == ZERO_FIXED)
        register_all(&ring, buffers, RING, PIECE);
    double begun = clock_s(CLOCK_MONOTONIC), used = clock_s(CLOCK_THREAD_CPUTIME_ID);
    MUST(-pthread_create(&thread, NULL, receiver, round));
    send_all(&ring, round);
    pthread_join(thread, NULL);
    round->seconds = clock_s(CLOCK_MONOTONIC) - begun;
    round->cpu = clock_s(CLOCK_THREAD_CPUTIME_ID) - used + round->receiver_cpu;
    io_uring_queue_exit(&ring);
    close(round->out);
    close(round->in);
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 5;
    struct round best[WAYS] = {{.way = SEND}};
    buffers = aligned_alloc(4096, (size_t)RING * PIECE);
    received = aligned_alloc(4096, (size_t)RECEIVES * RECEIVE);
    if (!buffers || !received)
        return 1;
    memset(received, 0, (size_t)RECEIVES * RECEIVE);
    for (int i = 0; i < rounds; i++)
        for (enum way way = SEND; way < WAYS; way++) {
            struct round round = {.way = way};
            run(&round);
            if (i == 0 || round.seconds < best[way].seconds)
                best[way] = round;
        }
    double gigabytes = (double)PIECE * PIECES / 1e9;
    for (enum way way = SEND; way < WAYS; way++)
        printf("%-16s %6.2f GB/s %6.3f CPU s/GB%s\n", names[way], gigabytes / best[way].seconds,
               best[way].cpu / gigabytes, best[way].sum == best[SEND].sum ? "" : " WRONG BYTES");
    return 0;
}
