/*
 * See around.h. Stands in place of the bridge's tls.c: what comes is as it was sent, and who comes
 * is the peer "evil".
 */
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/link/around.h"

struct cwb_tls {
    SSL_CTX *ctx;
};

static struct cwb_tls no_tls;

int cwb_bytes_reserve(struct cwb_bytes *bytes, uint32_t more) {
    if (bytes->used + more <= bytes->room)
        return 0;
    bytes->room = 2 * (bytes->used + more);
    bytes->data = realloc(bytes->data, bytes->room);
    promise(bytes->data != NULL);
    return 0;
}

int cwb_tls_new(const char *folder, uint32_t rekey_records, struct cwb_tls **out) {
    (void)folder, (void)rekey_records;
    if (!no_tls.ctx)
        no_tls.ctx = SSL_CTX_new(TLS_method());
    *out = &no_tls;
    return no_tls.ctx ? 0 : -EDQUOT;
}

void cwb_tls_free(struct cwb_tls *tls) {
    (void)tls;
}

int cwb_tls_renew(struct cwb_tls *tls, const char *folder) {
    (void)tls, (void)folder;
    return 0;
}

const uint8_t *cwb_tls_print(const struct cwb_tls *tls) {
    static const uint8_t print[CWB_PRINT_BYTES];
    (void)tls;
    return print;
}

const char *cwb_tls_node(const struct cwb_tls *tls) {
    (void)tls;
    return "";
}

bool cwb_tls_ends_soon(const struct cwb_tls *tls, int64_t now) {
    (void)tls, (void)now;
    return false;
}

bool cwb_tls_has_ca(const struct cwb_tls *tls) {
    (void)tls;
    return false;
}

int cwb_tls_end_init(struct cwb_tls_end *end, struct cwb_tls *tls, bool server,
                     struct cwb_bytes *out) {
    (void)server;
    end->ssl = SSL_new(tls->ctx); /* who asks it whether anything is left hears no */
    end->out = out;
    return end->ssl ? 0 : -EDQUOT;
}

void cwb_tls_end_deinit(struct cwb_tls_end *end) {
    SSL_free(end->ssl);
    end->ssl = NULL;
}

void cwb_tls_end_move(struct cwb_tls_end *from, struct cwb_tls_end *to, struct cwb_bytes *out) {
    *to = *from;
    to->out = out;
    from->ssl = NULL;
}

/* Who comes is evil, as soon as a byte has come; what came is of the handshake. */
int cwb_tls_shake(struct cwb_tls_end *end) {
    static const uint8_t print[CWB_PRINT_BYTES] = {1};
    if (end->in_left == 0)
        return 0;
    end->in_left = 0;
    return end->allow(end, print, "") == CWB_STRANGER ? -EPERM : 1;
}

int cwb_tls_read(struct cwb_tls_end *end, void *buffer, uint32_t room) {
    uint32_t count = room < end->in_left ? room : end->in_left;
    if (count == 0)
        return 0;
    memcpy(buffer, end->in, count);
    end->in += count;
    end->in_left -= count;
    return (int)count;
}

int cwb_tls_write(struct cwb_tls_end *end, const void *bytes, uint32_t size_bytes) {
    (void)cwb_bytes_reserve(end->out, size_bytes);
    memcpy(end->out->data + end->out->used, bytes, size_bytes);
    end->out->used += size_bytes;
    return 0;
}

void cwb_tls_bye(struct cwb_tls_end *end) {
    (void)end;
}
