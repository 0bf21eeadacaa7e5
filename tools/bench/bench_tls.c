/*
 * A plain blocking loop over OpenSSL, beside which the bridge is measured: one process writes so
 * many bytes, another reads them; and a ping-pong of 64 bytes. TLS 1.3 with the cipher and the keys
 * of the bridge, sockets of OpenSSL's own.
 *
 *   bench_tls FOLDER BYTES REPEATS   prints seconds a transfer (the fastest), CPU seconds of both
 *                                    sides for each, and the median of the ping-pong in seconds
 *
 * LDLIBS: -lssl -lcrypto
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PIECE (256 << 10)
#define PINGS 2000

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double cpu(int who) {
    struct rusage usage;
    getrusage(who, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static int believe(X509_STORE_CTX *store, void *context) {
    (void)store, (void)context;
    return 1;
}

static SSL *make(const char *folder, int fd, int server) {
    char key[4096], certificate[4096];
    SSL_CTX *ctx = SSL_CTX_new(TLS_method());
    snprintf(key, sizeof key, "%s/node.key", folder);
    snprintf(certificate, sizeof certificate, "%s/node.crt", folder);
    SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION);
    SSL_CTX_set_ciphersuites(ctx, "TLS_AES_128_GCM_SHA256");
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    SSL_CTX_set_cert_verify_callback(ctx, believe, NULL);
    if (SSL_CTX_use_certificate_file(ctx, certificate, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM) != 1) {
        fprintf(stderr, "bench_tls: no key in %s\n", folder);
        exit(1);
    }
    SSL *ssl = SSL_new(ctx);
    SSL_set_fd(ssl, fd);
    if ((server ? SSL_accept(ssl) : SSL_connect(ssl)) != 1) {
        fprintf(stderr, "bench_tls: no handshake\n");
        exit(1);
    }
    return ssl;
}

static void whole(int result, int wanted) {
    if (result != wanted) {
        fprintf(stderr, "bench_tls: %d of %d bytes\n", result, wanted);
        exit(1);
    }
}

static void read_all(SSL *ssl, char *to, long count) {
    while (count) {
        int got = SSL_read(ssl, to, count < PIECE ? (int)count : PIECE);
        if (got <= 0)
            whole(got, 1);
        to += got;
        count -= got;
    }
}

static void serve(SSL *ssl, char *memory, long bytes, int repeats) {
    char word[64];
    for (int i = 0; i < repeats; i++) {
        read_all(ssl, word, 1);
        for (long at = 0; at < bytes; at += PIECE) {
            int count = bytes - at < PIECE ? (int)(bytes - at) : PIECE;
            whole(SSL_write(ssl, memory + at, count), count);
        }
    }
    for (int i = 0; i < PINGS; i++) {
        read_all(ssl, word, sizeof word);
        whole(SSL_write(ssl, word, sizeof word), sizeof word);
    }
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(SSL *ssl, char *memory, long bytes, int repeats) {
    static double pings[PINGS];
    char word[64] = "x";
    double best = 1e9, begun_cpu = cpu(RUSAGE_SELF);
    for (int i = 0; i < repeats; i++) {
        double begun = now();
        whole(SSL_write(ssl, word, 1), 1);
        read_all(ssl, memory, bytes);
        double took = now() - begun;
        best = took < best ? took : best;
    }
    double used = cpu(RUSAGE_SELF) - begun_cpu;
    for (int i = 0; i < PINGS; i++) {
        double begun = now();
        whole(SSL_write(ssl, word, sizeof word), sizeof word);
        read_all(ssl, word, sizeof word);
        pings[i] = now() - begun;
    }
    qsort(pings, PINGS, sizeof *pings, compare);
    int status;
    wait(&status);
    printf("%.9f %.9f %.9f\n", best, (used + cpu(RUSAGE_CHILDREN)) / repeats, pings[PINGS / 2]);
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: bench_tls FOLDER BYTES REPEATS\n");
        return 2;
    }
    long bytes = atol(argv[2]);
    int repeats = atoi(argv[3]), one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    static char *memory; /* for as long as the program runs */
    memory = malloc((size_t)bytes + 1);
    if (!memory)
        return 1;
    memset(memory, 7, (size_t)bytes + 1);
    if (bind(listener, (struct sockaddr *)&address, length) < 0 || listen(listener, 1) < 0 ||
        getsockname(listener, (struct sockaddr *)&address, &length) < 0)
        return 1;
    pid_t child = fork();
    if (child == 0) {
        int fd = accept(listener, NULL, NULL);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        serve(make(argv[1], fd, 1), memory, bytes, repeats);
        return 0;
    }
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(fd, (struct sockaddr *)&address, length) < 0)
        return 1;
    measure(make(argv[1], fd, 0), memory, bytes, repeats);
    return 0;
}
