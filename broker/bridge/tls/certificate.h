/*
 * Certificates: what stands in one, and making one. Pure functions over OpenSSL's types; no files.
 *
 * A node's certificate names it by one subjectAltName of type URI, cableway://NODE, compared byte
 * for byte. A scheme of our own, so that no certificate that an authority gave out for something
 * else (a web server's, with the host's DNS name) makes its holder a node. An authority's
 * certificate has CA:TRUE and names no node.
 */
#ifndef CW_BROKER_BRIDGE_TLS_CERTIFICATE_H
#define CW_BROKER_BRIDGE_TLS_CERTIFICATE_H

#include <openssl/x509.h>
#include <stdbool.h>
#include <stdint.h>

#include "broker/bridge/wire/frame.h"

#define CWB_PRINT_BYTES 32u
#define CWB_PRINT_TEXT  (7 + 2 * CWB_PRINT_BYTES + 1) /* "sha256:", hex, NUL */

/* SHA-256 of the certificate's SubjectPublicKeyInfo. */
bool cwb_certificate_print(X509 *certificate, uint8_t print[CWB_PRINT_BYTES]);
/* The node that it names; "": none, more than one, or one whose name is none. */
void cwb_certificate_node(X509 *certificate, char node[CW_NODE_MAX + 1]);
/* An Ed25519 key, or NULL. */
EVP_PKEY *cwb_certificate_key(void);
/* A certificate for key: a node's, or (node NULL) an authority's; valid from a day ago (for clocks
 * that are late) for so many days. Signed by issuer's key; issuer NULL: by key itself. NULL:
 * OpenSSL could not. */
X509 *cwb_certificate_new(EVP_PKEY *key, const char *node, X509 *issuer, EVP_PKEY *issuer_key,
                          int days);

void cwb_print_text(const uint8_t print[CWB_PRINT_BYTES], char text[CWB_PRINT_TEXT]);
/* "sha256:" and 64 hex digits, in either case. */
bool cwb_print_parse(const char *text, uint8_t print[CWB_PRINT_BYTES]);

/* Does it end soon (within 30 days, or the last third of its life if that is less), or has it
 * ended? true: cw_detail() says when; what: its file. now: seconds since 1970. */
bool cwb_certificate_ends_soon(const X509 *certificate, const char *what, int64_t now);

#endif
