/*
 * Keygen: see keys.h. Keys are Ed25519. What a node's own certificate says counts for nobody but
 * its dates, until an authority has signed the same.
 */
#include "broker/bridge/tls/keys.h"

#include <errno.h>
#include <openssl/pem.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "broker/bridge/tls/certificate.h"
#include "broker/bridge/tls/folder.h"
#include "shm/base/error.h"

static int write_key(const char *path, EVP_PKEY *key) {
    FILE *file = cwb_folder_create(path, 0600);
    if (!file)
        return cw_fail(-errno, "%.300s: %m%s", path,
                       errno == EEXIST
                           ? "; remove it (and the .crt beside it) first: whoever knows "
                             "the old key must then be told the new one"
                           : "");
    bool ok = PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL) == 1;
    ok = fclose(file) == 0 && ok;
    if (ok)
        return 0;
    unlink(path);
    return cw_fail(-EIO, "the key could not be written into %.300s", path);
}

int cwb_keygen_write(const char *folder, const char *name, EVP_PKEY *key, X509 *certificate) {
    char key_path[PATH_MAX], path[PATH_MAX], file_name[64];
    snprintf(file_name, sizeof file_name, "%.32s.key", name);
    int code = cwb_folder_path(folder, file_name, key_path);
    snprintf(file_name, sizeof file_name, "%.32s.crt", name);
    if (code == 0)
        code = cwb_folder_path(folder, file_name, path);
    if (code == 0)
        code = cwb_folder_make(folder);
    if (code == 0 && key)
        code = write_key(key_path, key);
    if (code)
        return code;
    FILE *file = cwb_folder_create(path, 0644);
    if (!file && errno == EEXIST && unlink(path) == 0) /* of a key that is gone */
        file = cwb_folder_create(path, 0644);
    bool ok = file && PEM_write_X509(file, certificate) == 1;
    if (file)
        ok = fclose(file) == 0 && ok;
    if (ok)
        return 0;
    code = cw_fail(-EIO, "the certificate could not be written into %.300s: %m", path);
    unlink(path);
    if (key)
        unlink(key_path);
    return code;
}

static int make(const char *folder, const char *name, const char *node) {
    EVP_PKEY *key = cwb_certificate_key();
    X509 *certificate = key ? cwb_certificate_new(key, node, NULL, NULL, CWB_SELF_DAYS) : NULL;
    int code = certificate ? cwb_keygen_write(folder, name, key, certificate)
                           : cw_fail(-EIO, "OpenSSL could not make an Ed25519 key and certificate");
    X509_free(certificate);
    EVP_PKEY_free(key);
    return code;
}

int cwb_keygen(const char *folder, const char *node) {
    return make(folder, "node", node);
}

int cwb_keygen_ca(const char *folder) {
    return make(folder, "ca", NULL);
}

/* ---- signing ---- */

struct authority {
    X509 *certificate;
    EVP_PKEY *key;
};

static void authority_free(struct authority *authority) {
    X509_free(authority->certificate);
    EVP_PKEY_free(authority->key);
}

static int authority_load(const char *folder, struct authority *out) {
    char key_path[PATH_MAX], path[PATH_MAX];
    *out = (struct authority){.key = NULL};
    int code = cwb_folder_path(folder, "ca.key", key_path);
    if (code == 0)
        code = cwb_folder_path(folder, "ca.crt", path);
    if (code == 0)
        code = cwb_folder_trust(key_path, true);
    if (code == -ENOENT)
        return cw_fail(-ENOENT, "there is no %.300s; `cableway keygen --ca` makes it", key_path);
    if (code)
        return code;
    FILE *file = fopen(key_path, "re");
    out->key = file ? PEM_read_PrivateKey(file, NULL, NULL, NULL) : NULL;
    if (file)
        fclose(file);
    file = fopen(path, "re");
    out->certificate = file ? PEM_read_X509(file, NULL, NULL, NULL) : NULL;
    if (file)
        fclose(file);
    if (out->key && out->certificate && X509_check_private_key(out->certificate, out->key) == 1)
        return 0;
    authority_free(out);
    return cw_fail(-EINVAL, "%.300s and ca.crt beside it are not a key and its certificate",
                   key_path);
}

/* What is asked for: a certificate that its own key has signed, for a node. */
static int read_request(FILE *in, const char *node, X509 **out, char named[64]) {
    X509 *request = PEM_read_X509(in, NULL, NULL, NULL);
    int code = 0;
    named[0] = 0;
    if (!request)
        return cw_fail(-EINVAL, "what is to be signed is not a certificate in PEM: it is the "
                                "node.crt that `cableway keygen` made on the node");
    cwb_certificate_node(request, named);
    if (X509_verify(request, X509_get0_pubkey(request)) != 1)
        code = cw_fail(-EINVAL, "the certificate is not signed by its own key, so it does not show "
                                "who has the key: take the one that `cableway keygen` made");
    else if (!*named)
        code = cw_fail(-EINVAL, "the certificate names no node (one URI cableway://NODE); make it "
                                "with `cableway keygen --node NAME`");
    else if (node && strcmp(node, named) != 0)
        code =
            cw_fail(-EINVAL, "the certificate is of the node \"%s\", not of \"%s\"", named, node);
    if (code)
        X509_free(request);
    else
        *out = request;
    return code;
}

int cwb_keygen_sign(const char *folder, FILE *in, FILE *out, const char *node, int days,
                    char signed_node[64], char until[64]) {
    struct authority authority;
    X509 *request, *certificate;
    struct tm end;
    int code = authority_load(folder, &authority);
    if (code)
        return code;
    code = read_request(in, node, &request, signed_node);
    if (code) {
        authority_free(&authority);
        return code;
    }
    certificate = cwb_certificate_new(X509_get0_pubkey(request), signed_node, authority.certificate,
                                      authority.key, days);
    if (!certificate || PEM_write_X509(out, certificate) != 1 || fflush(out) != 0)
        code = cw_fail(-EIO, "the certificate could not be signed and written");
    else if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &end) == 1)
        strftime(until, 64, "%Y-%m-%dT%H:%M:%SZ", &end);
    X509_free(certificate);
    X509_free(request);
    authority_free(&authority);
    return code;
}
