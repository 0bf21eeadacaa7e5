/*
 * TLS: the node's key and certificate, and one contact's encryption, in memory alone.
 *
 * TLS 1.3 and nothing else, both sides with a certificate, no session tickets (each connection
 * shows its key anew). Who the other side is says the fingerprint of its public key: SHA-256 of the
 * certificate's SubjectPublicKeyInfo, so that a certificate may be renewed with the same key. Its
 * dates are checked, its names are not.
 *
 * A struct cwb_tls_end never touches a socket: what came is handed to cwb_tls_feed(), what is to go
 * is appended to its `out`. One thread at a time.
 */
#ifndef CW_BRIDGE_TLS_H
#define CW_BRIDGE_TLS_H

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stdint.h>

#define CWB_PRINT_BYTES 32u
#define CWB_PRINT_TEXT  (7 + 2 * CWB_PRINT_BYTES + 1) /* "sha256:", hex, NUL */
/* Keys are changed before so many records of 16 KiB were encrypted with them (2^24 at most). */
#define CWB_TLS_REKEY_BYTES (1ull << 36)

struct cwb_tls;     /* the node's */
struct cwb_tls_end; /* one contact's */

struct cwb_bytes { /* grows */
    uint8_t *data;
    uint32_t used, room;
};

struct cwb_tls_end {
    SSL *ssl;
    const uint8_t *in; /* what is being fed */
    uint32_t in_left;
    struct cwb_bytes *out;
    uint64_t since_rekey; /* bytes written */
    /* Asked once when the other side has shown its key (it holds it): may it come in? */
    bool (*allow)(struct cwb_tls_end *end, const uint8_t print[CWB_PRINT_BYTES]);
};

/* Loads folder/node.key and folder/node.crt. -ENOENT: there are none, -EINVAL. */
int cwb_tls_new(const char *folder, struct cwb_tls **out);
void cwb_tls_free(struct cwb_tls *tls);
/* The node's own. */
const uint8_t *cwb_tls_print(const struct cwb_tls *tls);
void cwb_print_text(const uint8_t print[CWB_PRINT_BYTES], char text[CWB_PRINT_TEXT]);
/* "sha256:" and 64 hex digits, in either case. */
bool cwb_print_parse(const char *text, uint8_t print[CWB_PRINT_BYTES]);

/* out is the caller's and may be changed between calls. 0 or -EDQUOT. */
int cwb_tls_end_init(struct cwb_tls_end *end, struct cwb_tls *tls, bool server,
                     struct cwb_bytes *out);
void cwb_tls_end_deinit(struct cwb_tls_end *end);
/* The same contact at another place, with another out; from is as after deinit. */
void cwb_tls_end_move(struct cwb_tls_end *from, struct cwb_tls_end *to, struct cwb_bytes *out);
/* Goes on with the handshake. 1 done, 0 more is needed, -EPERM refused (by either side), -EPROTO.
 */
int cwb_tls_shake(struct cwb_tls_end *end);
/* Reads what was fed. > 0 bytes, 0 none just now, -EPROTO, -EPERM, -ECONNRESET (its end). */
int cwb_tls_read(struct cwb_tls_end *end, void *buffer, uint32_t room);
/* Encrypts all of it into out. 0 or -EPROTO. */
int cwb_tls_write(struct cwb_tls_end *end, const void *bytes, uint32_t size_bytes);
/* Says that nothing more comes. */
void cwb_tls_bye(struct cwb_tls_end *end);

/* Makes folder/node.key (0600) and folder/node.crt for a node of that name; neither may exist. 0,
 * -EEXIST, or what the system says. */
int cwb_keygen(const char *folder, const char *node);

/* Room for so many bytes more. */
void cwb_bytes_reserve(struct cwb_bytes *bytes, uint32_t more);

#endif
