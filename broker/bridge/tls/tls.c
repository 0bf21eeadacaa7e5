/*
 * TLS: see tls.h. OpenSSL does the work; a BIO of ours hands it the bytes that lie in the receive
 * buffers and takes what it wants to send into the buffer that is sent next, so that nothing is
 * copied but by encrypting.
 */
#include "broker/bridge/tls/tls.h"

#include <limits.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/bridge/memory.h"
#include "shm/base/error.h"

#define CIPHERS "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"
#define CHUNK   (16u << 10) /* of plain text in one record */

struct loaded { /* what comes from files */
    SSL_CTX *ctx;
    struct cwb_stamp key, certificate, ca;
    uint8_t print[CWB_PRINT_BYTES];
    char node[CW_NODE_MAX + 1];
};

struct cwb_tls {
    struct loaded now;
    struct loaded refused; /* files that could not be loaded: their stamps alone */
    BIO_METHOD *bio;
    uint32_t rekey_records;
};

int cwb_bytes_reserve(struct cwb_bytes *bytes, uint32_t more) {
    uint64_t need = (uint64_t)bytes->used + more, room = bytes->room ? bytes->room : 2048;
    if (need <= bytes->room)
        return 0;
    while (room < need)
        room *= 2;
    uint8_t *data = room <= UINT32_MAX / 2 ? realloc(bytes->data, room) : NULL;
    if (!data)
        return cwb_no_memory("what goes over a connection");
    bytes->data = data;
    bytes->room = (uint32_t)room;
    return 0;
}

/* ---- the BIO ---- */

static int bio_write(BIO *bio, const char *data, int length) {
    struct cwb_tls_end *end = BIO_get_data(bio);
    if (length <= 0)
        return 0;
    if (cwb_bytes_reserve(end->out, (uint32_t)length) != 0) {
        end->no_memory = true;
        BIO_clear_retry_flags(bio);
        return -1;
    }
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

/* The dates alone. */
static int check_dates(X509 *certificate) {
    if (X509_cmp_current_time(X509_get0_notBefore(certificate)) >= 0)
        return X509_V_ERR_CERT_NOT_YET_VALID;
    if (X509_cmp_current_time(X509_get0_notAfter(certificate)) <= 0)
        return X509_V_ERR_CERT_HAS_EXPIRED;
    return X509_V_OK;
}

/* In place of OpenSSL's own. Whatever is refused leaves its sentence in cw_detail(), from where
 * outcome() takes it. */
static int verify(X509_STORE_CTX *store, void *context) {
    (void)context;
    uint8_t print[CWB_PRINT_BYTES];
    char node[CW_NODE_MAX + 1];
    SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    struct cwb_tls_end *end = SSL_get_app_data(ssl);
    X509 *certificate = X509_STORE_CTX_get0_cert(store);
    enum cwb_known known = CWB_STRANGER;
    cwb_certificate_node(certificate, node);
    if (cwb_certificate_print(certificate, print))
        known = end->allow(end, print, node);
    else
        cw_fail(-EPERM, "it has no key that could be read");
    int error = X509_V_ERR_CERT_UNTRUSTED;
    if (known == CWB_BY_KEY)
        error = check_dates(certificate);
    else if (known == CWB_BY_CA)
        error = X509_verify_cert(store) == 1 ? X509_V_OK : X509_STORE_CTX_get_error(store);
    if (known != CWB_STRANGER && error != X509_V_OK)
        cw_fail(-EPERM, "%s%s%s", X509_verify_cert_error_string(error),
                known == CWB_BY_CA ? "; it was to be signed by this node's CA (ca.crt) for " : "",
                known == CWB_BY_CA ? node : "");
    /* For its alert alone: OpenSSL has none for what is not valid yet. */
    X509_STORE_CTX_set_error(
        store, error == X509_V_ERR_CERT_NOT_YET_VALID ? X509_V_ERR_CERT_HAS_EXPIRED : error);
    return error == X509_V_OK;
}

/* ---- the node ---- */

static int tls_fail(int code, const char *what) {
    char text[160];
    unsigned long error = ERR_peek_last_error();
    ERR_error_string_n(error, text, sizeof text);
    ERR_clear_error();
    return cw_fail(code, "%.700s failed: %s", what, error ? text : "OpenSSL does not say why");
}

static int load_key(SSL_CTX *ctx, const char *folder) {
    char key[PATH_MAX], certificate[PATH_MAX];
    int code = cwb_folder_path(folder, "node.key", key);
    if (code == 0)
        code = cwb_folder_path(folder, "node.crt", certificate);
    if (code == 0)
        code = cwb_folder_trust(key, true);
    if (code == -ENOENT)
        return cw_fail(-ENOENT,
                       "this node has no key: there is no %.300s; make one with "
                       "`cableway keygen`",
                       key);
    if (code)
        return code;
    if (SSL_CTX_use_certificate_chain_file(ctx, certificate) != 1 ||
        SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_check_private_key(ctx) != 1)
        return tls_fail(-EINVAL, "loading the node's key and certificate");
    return 0;
}

static int load_ca(SSL_CTX *ctx, const char *folder) {
    char path[PATH_MAX];
    int code = cwb_folder_find(folder, "ca.crt", path, NULL);
    if (code == 0)
        code = cwb_folder_trust(path, false);
    if (code == -ENOENT)
        return 0; /* then nobody is known by one */
    if (code)
        return code;
    return SSL_CTX_load_verify_file(ctx, path) == 1 ? 0 : tls_fail(-EINVAL, "loading ca.crt");
}

static SSL_CTX *new_ctx(void) {
    SSL_CTX *ctx = SSL_CTX_new(TLS_method());
    if (!ctx)
        return NULL;
    SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION);
    SSL_CTX_set_max_proto_version(ctx, TLS1_3_VERSION);
    SSL_CTX_set_ciphersuites(ctx, CIPHERS);
    SSL_CTX_set_options(ctx, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_num_tickets(ctx, 0);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    /* What stands in node.crt is shown, and nothing that ca.crt could add. */
    SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_NO_AUTO_CHAIN);
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    SSL_CTX_set_cert_verify_callback(ctx, verify, NULL);
    SSL_CTX_set_max_cert_list(ctx, 4096);
    return ctx;
}

static void stamp(struct loaded *loaded, const char *folder) {
    loaded->key = cwb_folder_stamp(folder, "node.key");
    loaded->certificate = cwb_folder_stamp(folder, "node.crt");
    loaded->ca = cwb_folder_stamp(folder, "ca.crt");
}

/* out has its stamps in any case; its ctx only on success. */
static int load(const char *folder, struct loaded *out) {
    *out = (struct loaded){.ctx = NULL};
    stamp(out, folder); /* before: what changes meanwhile is then another */
    SSL_CTX *ctx = new_ctx();
    int code = ctx ? load_key(ctx, folder) : tls_fail(-EDQUOT, "making room for the node's key");
    if (code == 0)
        code = load_ca(ctx, folder);
    if (code == 0 && !cwb_certificate_print(SSL_CTX_get0_certificate(ctx), out->print))
        code = tls_fail(-EINVAL, "reading the node's certificate");
    if (code) {
        SSL_CTX_free(ctx);
        return code;
    }
    cwb_certificate_node(SSL_CTX_get0_certificate(ctx), out->node);
    out->ctx = ctx;
    return 0;
}

int cwb_tls_new(const char *folder, uint32_t rekey_records, struct cwb_tls **out) {
    struct cwb_tls *tls = calloc(1, sizeof *tls);
    int code = tls ? load(folder, &tls->now) : cwb_no_memory("the node's key");
    if (code) {
        free(tls);
        return code;
    }
    tls->rekey_records = rekey_records && rekey_records < CWB_TLS_REKEY_RECORDS
                             ? rekey_records
                             : CWB_TLS_REKEY_RECORDS;
    tls->bio = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "cwb");
    if (!tls->bio) {
        cwb_tls_free(tls);
        return cwb_no_memory("the node's key");
    }
    BIO_meth_set_write(tls->bio, bio_write);
    BIO_meth_set_read(tls->bio, bio_read);
    BIO_meth_set_ctrl(tls->bio, bio_ctrl);
    BIO_meth_set_create(tls->bio, bio_create);
    *out = tls;
    return 0;
}

void cwb_tls_free(struct cwb_tls *tls) {
    if (!tls)
        return;
    SSL_CTX_free(tls->now.ctx);
    BIO_meth_free(tls->bio);
    free(tls);
}

static bool same_files(const struct loaded *a, const struct loaded *b) {
    return cwb_stamp_same(&a->key, &b->key) && cwb_stamp_same(&a->certificate, &b->certificate) &&
           cwb_stamp_same(&a->ca, &b->ca);
}

int cwb_tls_renew(struct cwb_tls *tls, const char *folder) {
    struct loaded fresh = {.ctx = NULL};
    int what = 0;
    stamp(&fresh, folder);
    if (same_files(&fresh, &tls->now) || same_files(&fresh, &tls->refused))
        return 0;
    int code = load(folder, &fresh);
    if (code) {
        tls->refused = fresh;
        return code;
    }
    if (memcmp(fresh.print, tls->now.print, CWB_PRINT_BYTES) != 0)
        what |= CWB_NEW_KEY;
    if (!cwb_stamp_same(&fresh.certificate, &tls->now.certificate) ||
        !cwb_stamp_same(&fresh.key, &tls->now.key))
        what |= CWB_NEW_CERTIFICATE;
    if (!cwb_stamp_same(&fresh.ca, &tls->now.ca))
        what |= CWB_NEW_CA;
    SSL_CTX_free(tls->now.ctx); /* connections that there are have their own reference */
    tls->now = fresh;
    return what;
}

const uint8_t *cwb_tls_print(const struct cwb_tls *tls) {
    return tls->now.print;
}

const char *cwb_tls_node(const struct cwb_tls *tls) {
    return tls->now.node;
}

bool cwb_tls_ends_soon(const struct cwb_tls *tls, int64_t now) {
    X509_STORE *store = SSL_CTX_get_cert_store(tls->now.ctx);
    STACK_OF(X509_OBJECT) *roots = X509_STORE_get0_objects(store);
    if (cwb_certificate_ends_soon(SSL_CTX_get0_certificate(tls->now.ctx), "node.crt", now))
        return true;
    for (int i = 0; i < sk_X509_OBJECT_num(roots); i++) {
        const X509 *root = X509_OBJECT_get0_X509(sk_X509_OBJECT_value(roots, i));
        if (root && cwb_certificate_ends_soon(root, "a root in ca.crt", now))
            return true;
    }
    return false;
}

bool cwb_tls_has_ca(const struct cwb_tls *tls) {
    return tls->now.ca.inode != 0;
}

/* ---- one contact ---- */

int cwb_tls_end_init(struct cwb_tls_end *end, struct cwb_tls *tls, bool server,
                     struct cwb_bytes *out) {
    BIO *bio = BIO_new(tls->bio);
    end->ssl = SSL_new(tls->now.ctx);
    if (!bio || !end->ssl) {
        BIO_free(bio);
        SSL_free(end->ssl);
        end->ssl = NULL;
        return tls_fail(-EDQUOT, "making a TLS connection");
    }
    end->out = out;
    end->rekey_records = tls->rekey_records;
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

/* What the other side's alert says about our certificate; NULL: it is no such alert. An alert's
 * reason is its number and SSL_AD_REASON_OFFSET. */
static const char *refusal(int reason) {
    switch (reason - SSL_AD_REASON_OFFSET) {
    case SSL_AD_CERTIFICATE_EXPIRED:
        return "it has expired, or is not valid yet, by the clock there";
    case SSL_AD_UNKNOWN_CA:
        return "it is not signed by the CA that counts there (its ca.crt)";
    case SSL_AD_UNSUPPORTED_CERTIFICATE:
        return "its purpose is another; it must do for TLS servers and clients";
    case SSL_AD_DECRYPT_ERROR:
        return "its signature is wrong";
    case SSL_AD_BAD_CERTIFICATE:
    case SSL_AD_ACCESS_DENIED:
    case SSL_AD_CERTIFICATE_UNKNOWN:
    case SSL_AD_CERTIFICATE_REVOKED:
        return "does it know this node by this fingerprint, or by the name in this certificate? "
               "(`cableway peers list` and the broker's log there)";
    default:
        return NULL;
    }
}

/* What an OpenSSL call that did not succeed means. */
static int outcome(struct cwb_tls_end *end, int result) {
    int error = SSL_get_error(end->ssl, result);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE)
        return 0;
    if (end->no_memory) {
        ERR_clear_error();
        return cwb_no_memory("what goes over a connection");
    }
    if (error == SSL_ERROR_ZERO_RETURN)
        return cw_fail(-ECONNRESET, "the other side ended the connection");
    unsigned long last = ERR_peek_last_error();
    int reason = ERR_GET_REASON(last);
    if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED) { /* by verify(), within the same call */
        char why[CW_DETAIL_MAX];
        snprintf(why, sizeof why, "%s", cw_detail());
        ERR_clear_error();
        return cw_fail(-EPERM, "the other side's certificate is refused: %s", why);
    }
    const char *alert = refusal(reason);
    if (alert) {
        ERR_clear_error();
        return cw_fail(-EPERM, "the other side refused this node's certificate: %s", alert);
    }
    return tls_fail(-EPROTO, "TLS");
}

int cwb_tls_shake(struct cwb_tls_end *end) {
    ERR_clear_error();
    int result = SSL_do_handshake(end->ssl);
    if (result != 1)
        return outcome(end, result);
    /* Strangers get no buffers to keep (2 of 17 KB); a peer's are not made anew for each record. */
    SSL_clear_mode(end->ssl, SSL_MODE_RELEASE_BUFFERS);
    return 1;
}

int cwb_tls_read(struct cwb_tls_end *end, void *buffer, uint32_t room) {
    if (end->in_left == 0 && !SSL_has_pending(end->ssl))
        return 0;         /* what SSL_read would find out at length */
    if (ERR_peek_error()) /* to clear what is empty costs more, and this is done for each record */
        ERR_clear_error();
    int result = SSL_read(end->ssl, buffer, room < INT_MAX ? (int)room : INT_MAX);
    return result > 0 ? result : outcome(end, result);
}

int cwb_tls_write(struct cwb_tls_end *end, const void *bytes, uint32_t size_bytes) {
    ERR_clear_error();
    uint32_t records = size_bytes / CHUNK + 1;
    /* The KeyUpdate itself is the last record of the old key. */
    if (end->records && end->records + records >= end->rekey_records) {
        if (SSL_key_update(end->ssl, SSL_KEY_UPDATE_NOT_REQUESTED) != 1)
            return tls_fail(-EPROTO, "changing the keys of a connection");
        end->records = 0;
        end->key_updates++;
    }
    end->records += records;
    /* Room for all records at once, so that the buffer is moved no more than once. */
    int code = cwb_bytes_reserve(end->out, size_bytes + (size_bytes / CHUNK + 1) * 32);
    if (code)
        return code;
    int result = SSL_write(end->ssl, bytes, (int)size_bytes);
    if (result == (int)size_bytes)
        return 0;
    code = outcome(end, result);
    return code ? code : cw_fail(-EPROTO, "TLS took %d of %u bytes", result, size_bytes);
}

void cwb_tls_bye(struct cwb_tls_end *end) {
    ERR_clear_error();
    (void)SSL_shutdown(end->ssl); /* our half alone; how the other side ends is its business */
    ERR_clear_error();
}
