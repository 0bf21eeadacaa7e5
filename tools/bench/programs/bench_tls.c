/*
 * Plain blocking loops over sockets, beside which the bridge is measured: a process writes bytes
 * that another asks for, over some connections with a thread each at both ends; with TLS 1.3, the
 * bridge's cipher and a node's key, or without. The writes and reads of OpenSSL's socket BIO as a
 * program has them that does nothing about them.
 *
 *   bench_tls tls|plain FOLDER THREADS MOST_BYTES
 *
 * reads commands from its input, so that its samples alternate with others':
 *   BYTES        so many in all are asked for; prints the seconds from the first question to the
 *                last byte, and the CPU seconds of both processes
 *   ping COUNT   COUNT times 64 bytes there and 64 back, over one connection; the same of one
 *
 * The bytes are random, each time others of an area of at least 64 MiB, and are compared with what
 * they should be when the clocks have stopped.
 *
 * LDLIBS: -lssl -lcrypto
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "tls_plain.h"

#define PIECE       (256 << 10)
#define AREA_LEAST  (64ul << 20)
#define THREADS_MAX 64

struct question { /* of 64 bytes; the answer is so many bytes of the area */
    uint64_t offset, length;
    uint8_t rest[48];
};

struct line { /* one connection */
    int fd;
    SSL *ssl; /* NULL: without TLS */
    pthread_t thread;
    struct question next;
};

static uint8_t *area, *arrived;
static size_t area_bytes;
static struct line lines[THREADS_MAX];
static int threads;
static pthread_barrier_t begin, end;

static void need(bool right, const char *what) {
    if (right)
        return;
    fprintf(stderr, "bench_tls: %s\n", what);
    exit(1);
}

static double seconds_of(clockid_t clock) {
    struct timespec t;
    need(clock_gettime(clock, &t) == 0, "a clock cannot be read");
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* false: the other side ended */
static bool read_all(struct line *line, void *to, size_t count) {
    uint8_t *at = to;
    while (count) {
        int piece = count < PIECE ? (int)count : PIECE;
        long got = line->ssl ? SSL_read(line->ssl, at, piece) : read(line->fd, at, (size_t)piece);
        if (got <= 0)
            return false;
        at += got;
        count -= (size_t)got;
    }
    return true;
}

static void write_all(struct line *line, const void *from, size_t count) {
    const uint8_t *at = from;
    while (count) {
        int piece = count < PIECE ? (int)count : PIECE;
        long put = line->ssl ? SSL_write(line->ssl, at, piece) : write(line->fd, at, (size_t)piece);
        need(put > 0, "a write failed");
        at += put;
        count -= (size_t)put;
    }
}

/* ---- the side that has the bytes ---- */

static void *serve(void *context) {
    struct line *line = context;
    struct question asked;
    while (read_all(line, &asked, sizeof asked))
        write_all(line, area + asked.offset, asked.length);
    return NULL;
}

/* ---- the side that asks ---- */

static void ask(struct line *line) {
    write_all(line, &line->next, sizeof line->next);
    need(read_all(line, arrived + line->next.offset, line->next.length), "the other side ended");
}

static void *work(void *context) {
    for (;;) {
        pthread_barrier_wait(&begin);
        ask(context);
        pthread_barrier_wait(&end);
    }
    return NULL;
}

/* Whose turn it is to be asked for. One byte a page is spoiled, so that nothing of an earlier time
 * is taken for right, and the rest stays as far from the caches as it was. */
static void prepare(size_t bytes) {
    static size_t at;
    need(bytes > 0 && bytes <= area_bytes, "more bytes than MOST_BYTES");
    if (at + bytes > area_bytes)
        at = 0;
    size_t share = (bytes / (size_t)threads + 63) & ~63ul;
    for (int i = 0; i < threads; i++) {
        size_t first = share * (size_t)i < bytes ? share * (size_t)i : bytes;
        size_t length = bytes - first < share ? bytes - first : share;
        lines[i].next = (struct question){.offset = at + first, .length = length};
    }
    for (size_t i = 0; i < bytes; i += 4096)
        arrived[at + i] = (uint8_t)~area[at + i];
    at += bytes;
}

static void transfer(void) {
    if (threads == 1) {
        ask(&lines[0]);
        return;
    }
    pthread_barrier_wait(&begin);
    pthread_barrier_wait(&end);
}

static void fill(void) {
    uint64_t x = 88172645463325252ull;
    for (size_t i = 0; i < area_bytes / 8; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        ((uint64_t *)area)[i] = x;
    }
}

static void check(size_t bytes) {
    size_t first = lines[0].next.offset;
    need(memcmp(area + first, arrived + first, bytes) == 0, "wrong bytes arrived");
}

static void command(const char *text, clockid_t theirs) {
    bool pings = *text == 'p';
    size_t count = strtoul(text + (pings ? 5 : 0), NULL, 10), bytes = pings ? 0 : count;
    if (pings)
        lines[0].next = (struct question){.length = 64};
    else
        prepare(bytes);
    count = pings ? count : 1;
    double used = seconds_of(CLOCK_PROCESS_CPUTIME_ID) + seconds_of(theirs);
    double begun = seconds_of(CLOCK_MONOTONIC);
    for (size_t i = 0; i < count; i++)
        pings ? ask(&lines[0]) : transfer();
    double took = seconds_of(CLOCK_MONOTONIC) - begun;
    used = seconds_of(CLOCK_PROCESS_CPUTIME_ID) + seconds_of(theirs) - used;
    if (!pings)
        check(bytes);
    printf("%.9f %.9f\n", took / (double)count, used / (double)count);
    fflush(stdout);
}

static int listen_here(struct sockaddr_in *address) {
    socklen_t length = sizeof *address;
    *address =
        (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    need(fd >= 0 && bind(fd, (struct sockaddr *)address, length) == 0 &&
             listen(fd, THREADS_MAX) == 0 &&
             getsockname(fd, (struct sockaddr *)address, &length) == 0,
         "no socket to listen at");
    return fd;
}

int main(int argc, char **argv) {
    int one = 1;
    struct sockaddr_in address;
    char text[64];
    clockid_t theirs;
    if (argc != 5)
        return fprintf(stderr, "usage: bench_tls tls|plain FOLDER THREADS MOST_BYTES\n"), 2;
    threads = atoi(argv[3]);
    area_bytes = strtoul(argv[4], NULL, 10);
    need(threads >= 1 && threads <= THREADS_MAX, "1 to 64 threads");
    area_bytes = area_bytes < AREA_LEAST ? AREA_LEAST : area_bytes;
    area = mmap(NULL, 2 * area_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    need(area != MAP_FAILED, "no memory");
    arrived = area + area_bytes;
    fill();
    SSL_CTX *ctx = strcmp(argv[1], "tls") == 0 ? tls_context(argv[2]) : NULL;
    int listener = listen_here(&address);
    pid_t child = fork();
    need(child >= 0, "no process");
    if (child == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 0; i < threads; i++) {
        int fd = child ? socket(AF_INET, SOCK_STREAM, 0) : accept(listener, NULL, NULL);
        need(!child || connect(fd, (struct sockaddr *)&address, sizeof address) == 0, "no connect");
        need(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0, "no TCP_NODELAY");
        lines[i] = (struct line){.fd = fd, .ssl = ctx ? tls_over(ctx, fd, child == 0) : NULL};
    }
    if (child == 0) {
        for (int i = 0; i < threads; i++)
            need(pthread_create(&lines[i].thread, NULL, serve, &lines[i]) == 0, "no thread");
        for (int i = 0; i < threads; i++)
            pthread_join(lines[i].thread, NULL);
        return 0;
    }
    need(clock_getcpuclockid(child, &theirs) == 0, "the child has no clock");
    pthread_barrier_init(&begin, NULL, (unsigned)threads + 1);
    pthread_barrier_init(&end, NULL, (unsigned)threads + 1);
    for (int i = 0; threads > 1 && i < threads; i++)
        need(pthread_create(&lines[i].thread, NULL, work, &lines[i]) == 0, "no thread");
    while (fgets(text, sizeof text, stdin))
        command(text, theirs);
    kill(child, SIGKILL);
    return 0;
}
