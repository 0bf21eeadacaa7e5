/*
 * TLS: the node's key and certificate, and one contact's encryption, in memory alone.
 *
 * TLS 1.3 and nothing else, both sides with a certificate, no session tickets (each connection
 * shows its key anew). Who the other side is says its owner (cwb_allow), by one of two things:
 *   its key: SHA-256 of the certificate's SubjectPublicKeyInfo is pinned for a peer, so that a
 *     certificate may be renewed with the same key. Its dates count, its names and signer do not.
 *   its name: an authority of ca.crt has signed the certificate for cableway://NODE. OpenSSL then
 *     looks at the chain: signatures, dates, purpose (it must do for who dials and who is dialed).
 *     Lists of revoked certificates are not looked at.
 *
 * Keys are changed after rekey_records records were written with them (OpenSSL 3 counts none and
 * never does so by itself). Each side counts what it writes and changes the key of that direction
 * alone; the other side follows when it reads the KeyUpdate, which lies in the stream of records.
 *
 * A struct cwb_tls_end never touches a socket: what came is set as its `in`, what is to go is
 * appended to its `out`. One thread at a time.
 */
#ifndef CW_BROKER_BRIDGE_TLS_TLS_H
#define CW_BROKER_BRIDGE_TLS_TLS_H

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stdint.h>

#include "broker/bridge/tls/certificate.h"
#include "broker/bridge/tls/folder.h"

/* So many records are written with one key at most (of AES-GCM, RFC 8446, 5.5: 2^24.5). */
#define CWB_TLS_REKEY_RECORDS (1u << 22)

struct cwb_tls; /* the node's */

struct cwb_bytes { /* grows */
    uint8_t *data;
    uint32_t used, room;
};

enum cwb_known { CWB_STRANGER, CWB_BY_KEY, CWB_BY_CA };

struct cwb_tls_end;
/* Asked once, when the other side has shown its certificate (whether it has the key, and whether an
 * authority signed, is looked at after): who is it, going by its key or by the node that it names
 * ("": none)? CWB_STRANGER: cw_detail() says why it may not come in. */
typedef enum cwb_known cwb_allow(struct cwb_tls_end *end, const uint8_t print[CWB_PRINT_BYTES],
                                 const char *node);

struct cwb_tls_end {
    SSL *ssl;
    const uint8_t *in; /* what is being fed */
    uint32_t in_left;
    struct cwb_bytes *out;
    uint32_t rekey_records; /* from the struct cwb_tls */
    uint32_t records;       /* written since the key was changed */
    uint32_t key_updates;   /* of what we write */
    bool no_memory;         /* for what TLS wanted to write */
    cwb_allow *allow;
};

/* Loads folder/node.key, node.crt, and ca.crt if there is one. rekey_records: 0, or fewer than
 * CWB_TLS_REKEY_RECORDS, for tests. -ENOENT: there are none, -EINVAL. */
int cwb_tls_new(const char *folder, uint32_t rekey_records, struct cwb_tls **out);
void cwb_tls_free(struct cwb_tls *tls);
/* Looks whether the files are others than those that were loaded, and then loads them for the
 * connections that are made from now on. 0: nothing changed; bits of enum cwb_renewed; or a
 * negative code with the sentence: all stays as it was, and the same files are not tried again. */
enum cwb_renewed { CWB_NEW_KEY = 1, CWB_NEW_CERTIFICATE = 2, CWB_NEW_CA = 4 };
int cwb_tls_renew(struct cwb_tls *tls, const char *folder);
/* The node's own. */
const uint8_t *cwb_tls_print(const struct cwb_tls *tls);
/* The node that its certificate names; "": none. */
const char *cwb_tls_node(const struct cwb_tls *tls);
/* Does the node's certificate, or an authority's, end soon, or has it ended? true: cw_detail() says
 * which and when. */
bool cwb_tls_ends_soon(const struct cwb_tls *tls, int64_t now);
/* Is there an authority? */
bool cwb_tls_has_ca(const struct cwb_tls *tls);

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
/* Encrypts all of it into out. 0, -EPROTO, or -EDQUOT: the connection cannot go on either way. */
int cwb_tls_write(struct cwb_tls_end *end, const void *bytes, uint32_t size_bytes);
/* Says that nothing more comes. */
void cwb_tls_bye(struct cwb_tls_end *end);

/* Room for so many bytes more. 0 or -EDQUOT: it is as it was. */
int cwb_bytes_reserve(struct cwb_bytes *bytes, uint32_t more);

#endif
