/*
 * Keygen: the files of a node's key and of an authority's. Each is made anew or not at all, and a
 * key is never readable by others, not even for a moment.
 *
 * Killed in the middle: the key is there and its certificate is not, or empty; the next call says
 * that the key exists and what to remove. No call ever writes over a key.
 */
#ifndef CW_BROKER_BRIDGE_TLS_KEYS_H
#define CW_BROKER_BRIDGE_TLS_KEYS_H

#include <openssl/x509.h>
#include <stdio.h>

#define CWB_SELF_DAYS 3650 /* of a certificate that a node signs itself, and of an authority's */
#define CWB_SIGN_DAYS 365  /* of one that an authority signs, if nothing else is said */

/* node.key and node.crt for a node of that name, which signs itself. 0, -EEXIST, or what the system
 * says. */
int cwb_keygen(const char *folder, const char *node);
/* ca.key and ca.crt. */
int cwb_keygen_ca(const char *folder);
/* Signs with folder's ca.key what the PEM text from `in` says: a node's certificate that it signed
 * itself (so it has the key). The new one goes to `out`. node: as which it must be (NULL: as which
 * it says); set to it on return, with until: when it ends. 0, -EINVAL, -ENOENT. */
int cwb_keygen_sign(const char *folder, FILE *in, FILE *out, const char *node, int days,
                    char signed_node[64], char until[64]);
/* key and certificate (key NULL: the certificate alone) into folder/NAME.key and .crt. */
int cwb_keygen_write(const char *folder, const char *name, EVP_PKEY *key, X509 *certificate);

#endif
