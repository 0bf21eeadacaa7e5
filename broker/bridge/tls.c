/*
 * TLS: see tls.h. OpenSSL does the work; a BIO of ours hands it the bytes that lie in the receive
 * buffers and takes what it wants to send into the buffer that is sent next, so that nothing is
 * copied but by encrypting.
 */
#include "broker/bridge/tls.h"

#include <limits.h>
#include <openssl/err.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "shm/error.h"

#define CIPHERS "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"
#define CHUNK   (16u << 10) /* of plain text in one record */

struct cwb_tls {
    SSL_CTX *ctx;
    BIO_METHOD *bio;
    uint8_t print[CWB_PRINT_BYTES];
};

void cwb_bytes_reserve(struct cwb_bytes *bytes, uint32_t more) {
    uint64_t need = (uint64_t)bytes->used + more, room = bytes->room ? bytes->room : 2048;
    if (need <= bytes->room)
        return;
    while (room < need)
        room *= 2;
    CW_ASSERT(room <= UINT32_MAX / 2);
    bytes->data = realloc(bytes->data, room);
    CW_ASSERT(bytes->data);
    bytes->room = (uint32_t)room;
}

/* ---- the BIO ---- */

static int bio_write(BIO *bio, const char *data, int length) {
    struct cwb_tls_end *end = BIO_get_data(bio);
    if (length <= 0)
        return 0;
    cwb_bytes_reserve(end->out, (uint32_t)length);
    memcpy(end->out->data + end->out->used, data, (size_t)length);
    end->out->used += (uint32_t)length;
    return length;
}

static int bio_read(BIO *bio, char *data, int length) {
    struct cwb_tls_end *end = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (end->in_left == 0) {
        BIO_set_retry_read(bio);
        return -1;
    }
    uint32_t count = (uint32_t)length < end->in_left ? (uint32_t)length : end->in_left;
    memcpy(data, end->in, count);
    end->in += count;
    end->in_left -= count;
    return (int)count;
}

static long bio_ctrl(BIO *bio, int command, long number, void *pointer) {
    (void)bio, (void)number, (void)pointer;
    return command == BIO_CTRL_FLUSH;
}

static int bio_create(BIO *bio) {
    BIO_set_init(bio, 1);
    return 1;
}

/* ---- who the other side is ---- */

static bool print_of(X509 *certificate, uint8_t print[CWB_PRINT_BYTES]) {
    uint8_t *der = NULL;
    int length = i2d_X509_PUBKEY(X509_get_X509_PUBKEY(certificate), &der);
    bool ok = length > 0 && EVP_Digest(der, (size_t)length, print, NULL, EVP_sha256(), NULL) == 1;
    OPENSSL_free(der);
    return ok;
}

/* In place of a chain of authorities: dates, then the pinned key. */
static int verify(X509_STORE_CTX *store, void *context) {
    (void)context;
    uint8_t print[CWB_PRINT_BYTES];
    SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    struct cwb_tls_end *end = SSL_get_app_data(ssl);
    X509 *certificate = X509_STORE_CTX_get0_cert(store);
    int error = X509_V_OK;
    if (X509_cmp_current_time(X509_get0_notBefore(certificate)) >= 0)
        error = X509_V_ERR_CERT_NOT_YET_VALID;
    else if (X509_cmp_current_time(X509_get0_notAfter(certificate)) <= 0)
        error = X509_V_ERR_CERT_HAS_EXPIRED;
    else if (!print_of(certificate, print) || !end->allow(end, print))
        error = X509_V_ERR_CERT_UNTRUSTED;
    X509_STORE_CTX_set_error(store, error);
    return error == X509_V_OK;
}

void cwb_print_text(const uint8_t print[CWB_PRINT_BYTES], char text[CWB_PRINT_TEXT]) {
    char *at = text + sprintf(text, "sha256:");
    for (unsigned i = 0; i < CWB_PRINT_BYTES; i++)
        at += sprintf(at, "%02x", print[i]);
}

bool cwb_print_parse(const char *text, uint8_t print[CWB_PRINT_BYTES]) {
    if (strncmp(text, "sha256:", 7) != 0 || strlen(text) != CWB_PRINT_TEXT - 1)
        return false;
    for (unsigned i = 0; i < CWB_PRINT_BYTES; i++) {
        unsigned byte;
        int used = 0;
        if (text[7 + 2 * i] == ' ' || sscanf(text + 7 + 2 * i, "%2x%n", &byte, &used) != 1 ||
            used != 2)
            return false;
        print[i] = (uint8_t)byte;
    }
    return true;
}

/* ---- the node ---- */

static int tls_fail(int code, const char *what) {
    char text[160];
    unsigned long error = ERR_peek_last_error();
    ERR_error_string_n(error, text, sizeof text);
    ERR_clear_error();
    return cw_fail(code, "%.700s failed: %s", what, error ? text : "OpenSSL does not say why");
}

static int load(struct cwb_tls *tls, const char *folder) {
    char key[PATH_MAX], certificate[PATH_MAX];
    struct stat status;
    if (snprintf(key, sizeof key, "%s/node.key", folder) >= PATH_MAX ||
        snprintf(certificate, sizeof certificate, "%s/node.crt", folder) >= PATH_MAX)
        return cw_fail(-EINVAL, "the folder's path is too long");
    if (stat(key, &status) < 0)
        return cw_fail(-ENOENT, "this node has no key, %.300s: %m; make one with `causeway keygen`",
                       key);
    if (status.st_mode & 077)
        return cw_fail(-EINVAL, "%.300s may be read by others; chmod 600 it, or make a new key",
                       key);
    if (SSL_CTX_use_certificate_file(tls->ctx, certificate, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_use_PrivateKey_file(tls->ctx, key, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_check_private_key(tls->ctx) != 1)
        return tls_fail(-EINVAL, "loading the node's key and certificate");
    if (!print_of(SSL_CTX_get0_certificate(tls->ctx), tls->print))
        return tls_fail(-EINVAL, "reading the node's certificate");
    return 0;
}

int cwb_tls_new(const char *folder, struct cwb_tls **out) {
    struct cwb_tls *tls = calloc(1, sizeof *tls);
    CW_ASSERT(tls);
    tls->ctx = SSL_CTX_new(TLS_method());
    tls->bio = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "cwb");
    CW_ASSERT(tls->ctx && tls->bio);
    BIO_meth_set_write(tls->bio, bio_write);
    BIO_meth_set_read(tls->bio, bio_read);
    BIO_meth_set_ctrl(tls->bio, bio_ctrl);
    BIO_meth_set_create(tls->bio, bio_create);
    SSL_CTX_set_min_proto_version(tls->ctx, TLS1_3_VERSION);
    SSL_CTX_set_max_proto_version(tls->ctx, TLS1_3_VERSION);
    SSL_CTX_set_ciphersuites(tls->ctx, CIPHERS);
    SSL_CTX_set_options(tls->ctx, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_num_tickets(tls->ctx, 0);
    SSL_CTX_set_session_cache_mode(tls->ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_mode(tls->ctx, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_verify(tls->ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    SSL_CTX_set_cert_verify_callback(tls->ctx, verify, NULL);
    SSL_CTX_set_max_cert_list(tls->ctx, 4096);
    int code = load(tls, folder);
    if (code) {
        cwb_tls_free(tls);
        return code;
    }
    *out = tls;
    return 0;
}

void cwb_tls_free(struct cwb_tls *tls) {
    if (!tls)
        return;
    SSL_CTX_free(tls->ctx);
    BIO_meth_free(tls->bio);
    free(tls);
}

const uint8_t *cwb_tls_print(const struct cwb_tls *tls) {
    return tls->print;
}

/* ---- one contact ---- */

int cwb_tls_end_init(struct cwb_tls_end *end, struct cwb_tls *tls, bool server,
                     struct cwb_bytes *out) {
    BIO *bio = BIO_new(tls->bio);
    end->ssl = SSL_new(tls->ctx);
    if (!bio || !end->ssl) {
        BIO_free(bio);
        SSL_free(end->ssl);
        end->ssl = NULL;
        return tls_fail(-EDQUOT, "making a TLS connection");
    }
    end->out = out;
    BIO_set_data(bio, end);
    SSL_set_bio(end->ssl, bio, bio);
    SSL_set_app_data(end->ssl, end);
    if (server)
        SSL_set_accept_state(end->ssl);
    else
        SSL_set_connect_state(end->ssl);
    return 0;
}

void cwb_tls_end_deinit(struct cwb_tls_end *end) {
    SSL_free(end->ssl);
    end->ssl = NULL;
}

void cwb_tls_end_move(struct cwb_tls_end *from, struct cwb_tls_end *to, struct cwb_bytes *out) {
    *to = *from;
    to->out = out;
    to->in = NULL;
    to->in_left = 0;
    from->ssl = NULL;
    BIO_set_data(SSL_get_rbio(to->ssl), to);
    SSL_set_app_data(to->ssl, to);
}

/* What an OpenSSL call that did not succeed means. */
static int outcome(struct cwb_tls_end *end, int result) {
    int error = SSL_get_error(end->ssl, result);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE)
        return 0;
    if (error == SSL_ERROR_ZERO_RETURN)
        return cw_fail(-ECONNRESET, "the other side ended the connection");
    unsigned long last = ERR_peek_last_error();
    int reason = ERR_GET_REASON(last);
    long verdict = SSL_get_verify_result(end->ssl);
    if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED) {
        ERR_clear_error();
        return cw_fail(-EPERM, "the other side's certificate is refused: %s",
                       verdict == X509_V_ERR_CERT_UNTRUSTED
                           ? "its key is not the one that is pinned for any peer (`causeway peers "
                             "add` pins it)"
                           : X509_verify_cert_error_string(verdict));
    }
    /* An alert's reason is its number and 1000: it refused our certificate. */
    if (reason == SSL_R_TLSV1_ALERT_UNKNOWN_CA || reason == SSL_R_SSLV3_ALERT_BAD_CERTIFICATE ||
        reason == SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED ||
        reason == SSL_R_TLSV1_ALERT_ACCESS_DENIED ||
        reason == SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN) {
        ERR_clear_error();
        return cw_fail(-EPERM, "the other side refused this node's certificate: does it have this "
                               "node's fingerprint (`causeway peers list` on it), and is the "
                               "certificate valid by its clock?");
    }
    return tls_fail(-EPROTO, "TLS");
}

int cwb_tls_shake(struct cwb_tls_end *end) {
    ERR_clear_error();
    int result = SSL_do_handshake(end->ssl);
    return result == 1 ? 1 : outcome(end, result);
}

int cwb_tls_read(struct cwb_tls_end *end, void *buffer, uint32_t room) {
    ERR_clear_error();
    int result = SSL_read(end->ssl, buffer, room < INT_MAX ? (int)room : INT_MAX);
    return result > 0 ? result : outcome(end, result);
}

int cwb_tls_write(struct cwb_tls_end *end, const void *bytes, uint32_t size_bytes) {
    ERR_clear_error();
    end->since_rekey += size_bytes + CHUNK; /* a record at least */
    if (end->since_rekey > CWB_TLS_REKEY_BYTES) {
        end->since_rekey = 0;
        if (SSL_key_update(end->ssl, SSL_KEY_UPDATE_NOT_REQUESTED) != 1)
            return tls_fail(-EPROTO, "changing the keys of a connection");
    }
    /* Room for all records at once, so that the buffer is moved no more than once. */
    cwb_bytes_reserve(end->out, size_bytes + (size_bytes / CHUNK + 1) * 32);
    int result = SSL_write(end->ssl, bytes, (int)size_bytes);
    if (result == (int)size_bytes)
        return 0;
    int code = outcome(end, result);
    return code ? code : cw_fail(-EPROTO, "TLS took %d of %u bytes", result, size_bytes);
}

void cwb_tls_bye(struct cwb_tls_end *end) {
    ERR_clear_error();
    (void)SSL_shutdown(end->ssl); /* our half alone; how the other side ends is its business */
    ERR_clear_error();
}
