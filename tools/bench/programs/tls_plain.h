/*
 * What the benchmarks over OpenSSL share: TLS 1.3 with the cipher and a key of the bridge, over a
 * socket of OpenSSL's own. Whoever answers is believed: it is on this machine.
 */
#ifndef CW_BENCH_TLS_PLAIN_H
#define CW_BENCH_TLS_PLAIN_H

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define TLS_CIPHER "TLS_AES_128_GCM_SHA256"

static inline int tls_believe(X509_STORE_CTX *store, void *context) {
    (void)store, (void)context;
    return 1;
}

/* The key and certificate of a node's folder. Ends the program where there is none. */
static inline SSL_CTX *tls_context(const char *folder) {
    char key[4200], certificate[4200];
    SSL_CTX *ctx = SSL_CTX_new(TLS_method());
    snprintf(key, sizeof key, "%s/node.key", folder);
    snprintf(certificate, sizeof certificate, "%s/node.crt", folder);
    if (!ctx || SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(ctx, TLS_CIPHER) != 1 ||
        SSL_CTX_use_certificate_file(ctx, certificate, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM) != 1) {
        fprintf(stderr, "no TLS with the key in %s\n", folder);
        exit(1);
    }
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    SSL_CTX_set_cert_verify_callback(ctx, tls_believe, NULL);
    return ctx;
}

/* A handshake over a connected blocking socket. Ends the program where it fails. */
static inline SSL *tls_over(SSL_CTX *ctx, int fd, bool server) {
    SSL *ssl = SSL_new(ctx);
    if (!ssl || SSL_set_fd(ssl, fd) != 1 || (server ? SSL_accept(ssl) : SSL_connect(ssl)) != 1) {
        fprintf(stderr, "no TLS handshake\n");
        exit(1);
    }
    return ssl;
}

#endif
