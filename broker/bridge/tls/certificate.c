/*
 * Certificates: see certificate.h.
 */
#include "broker/bridge/tls/certificate.h"

#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>

#include "shm/base/error.h"

#define SCHEME    "cableway://"
#define DAY       86400LL
#define SOON_DAYS 30

/* ---- reading ---- */

bool cwb_certificate_print(X509 *certificate, uint8_t print[CWB_PRINT_BYTES]) {
    uint8_t *der = NULL;
    int length = i2d_X509_PUBKEY(X509_get_X509_PUBKEY(certificate), &der);
    bool ok = length > 0 && EVP_Digest(der, (size_t)length, print, NULL, EVP_sha256(), NULL) == 1;
    OPENSSL_free(der);
    return ok;
}

void cwb_certificate_node(X509 *certificate, char node[CW_NODE_MAX + 1]) {
    GENERAL_NAMES *names = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
    int found = 0;
    node[0] = 0;
    for (int i = 0; i < sk_GENERAL_NAME_num(names); i++) {
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(names, i);
        if (name->type != GEN_URI)
            continue;
        const unsigned char *text = ASN1_STRING_get0_data(name->d.uniformResourceIdentifier);
        size_t length = (size_t)ASN1_STRING_length(name->d.uniformResourceIdentifier);
        size_t begin = strlen(SCHEME);
        if (length < begin || memcmp(text, SCHEME, begin) != 0)
            continue;
        found++;
        length -= begin;
        if (length > CW_NODE_MAX || memchr(text + begin, 0, length))
            length = 0; /* no name of a node */
        memcpy(node, text + begin, length);
        node[length] = 0;
    }
    GENERAL_NAMES_free(names);
    if (found != 1 || !cw_node_valid(node))
        node[0] = 0;
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

/* From one moment to another, in seconds. */
static bool seconds_between(const ASN1_TIME *from, const ASN1_TIME *to, int64_t *out) {
    int days, seconds;
    if (ASN1_TIME_diff(&days, &seconds, from, to) != 1)
        return false;
    *out = days * DAY + seconds;
    return true;
}

bool cwb_certificate_ends_soon(const X509 *certificate, const char *what, int64_t now) {
    const ASN1_TIME *begin = X509_get0_notBefore(certificate);
    const ASN1_TIME *end = X509_get0_notAfter(certificate);
    ASN1_TIME *moment = ASN1_TIME_set(NULL, (time_t)now);
    int64_t life = 0, left = 0;
    bool known =
        moment && seconds_between(begin, end, &life) && seconds_between(moment, end, &left);
    ASN1_TIME_free(moment);
    if (!known || left > SOON_DAYS * DAY || left > life / 3)
        return false;
    if (left <= 0)
        cw_fail(-EPERM, "%s ended", what);
    else if (left >= 2 * DAY)
        cw_fail(-EPERM, "%s ends in %lld days", what, (long long)(left / DAY));
    else
        cw_fail(-EPERM, "%s ends in %lld hours", what, (long long)(left / 3600));
    return true;
}

/* ---- making ---- */

EVP_PKEY *cwb_certificate_key(void) {
    return EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
}

static bool add_extension(X509 *certificate, int kind, const char *value) {
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, certificate, certificate, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, kind, value);
    bool ok = extension && X509_add_ext(certificate, extension, -1) == 1;
    X509_EXTENSION_free(extension);
    return ok;
}

static bool add_extensions(X509 *certificate, const char *node) {
    char uri[sizeof SCHEME + CW_NODE_MAX + 4];
    if (!node)
        return add_extension(certificate, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
               add_extension(certificate, NID_key_usage, "critical,keyCertSign,cRLSign") &&
               add_extension(certificate, NID_subject_key_identifier, "hash");
    snprintf(uri, sizeof uri, "URI:" SCHEME "%s", node);
    return add_extension(certificate, NID_basic_constraints, "critical,CA:FALSE") &&
           add_extension(certificate, NID_key_usage, "critical,digitalSignature") &&
           /* It dials and is dialed. */
           add_extension(certificate, NID_ext_key_usage, "serverAuth,clientAuth") &&
           add_extension(certificate, NID_subject_alt_name, uri);
}

/* A node's is its name; an authority's is its own alone, so that the certificates of a former one
 * are never taken for those of a later one. */
static bool set_subject(X509 *certificate, const char *node) {
    char text[64 + CW_NODE_MAX];
    uint8_t random[8];
    int used = 0;
    if (RAND_bytes(random, sizeof random) != 1)
        return false;
    if (node)
        snprintf(text, sizeof text, "%s", node);
    else
        used = snprintf(text, sizeof text, "cableway CA ");
    for (unsigned i = 0; !node && i < sizeof random; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, "%02x", random[i]);
    X509_NAME *name = X509_NAME_new();
    bool ok = name &&
              X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)text, -1,
                                         -1, 0) == 1 &&
              X509_set_subject_name(certificate, name) == 1;
    X509_NAME_free(name);
    return ok;
}

static bool set_serial(X509 *certificate) {
    uint64_t random = 0;
    return RAND_bytes((unsigned char *)&random, sizeof random) == 1 &&
           ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate), random >> 1 | 1) == 1;
}

X509 *cwb_certificate_new(EVP_PKEY *key, const char *node, X509 *issuer, EVP_PKEY *issuer_key,
                          int days) {
    X509 *certificate = X509_new();
    bool ok =
        certificate && X509_set_version(certificate, X509_VERSION_3) == 1 &&
        set_serial(certificate) &&
        X509_time_adj_ex(X509_getm_notBefore(certificate), -1, 0, NULL) &&
        X509_time_adj_ex(X509_getm_notAfter(certificate), days, 0, NULL) &&
        set_subject(certificate, node) &&
        X509_set_issuer_name(certificate, X509_get_subject_name(issuer ? issuer : certificate)) &&
        X509_set_pubkey(certificate, key) == 1 && add_extensions(certificate, node) &&
        X509_sign(certificate, issuer ? issuer_key : key, NULL) > 0;
    if (ok)
        return certificate;
    X509_free(certificate);
    return NULL;
}
