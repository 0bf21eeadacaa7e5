/*
 * Making a node's key: Ed25519, and a certificate that it signs itself, so that TLS has one to
 * show. Nobody checks what the certificate says but its dates; peers know the key by its
 * fingerprint. The files are made anew or not at all; the key is never readable by others, not even
 * for a moment.
 */
#include <fcntl.h>
#include <limits.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "broker/bridge/tls.h"
#include "shm/error.h"

#define VALID_DAYS 3650

static X509 *make_certificate(EVP_PKEY *key, const char *node) {
    X509 *certificate = X509_new();
    ASN1_INTEGER *serial = ASN1_INTEGER_new();
    X509_NAME *name = X509_NAME_new();
    CW_ASSERT(certificate && serial && name);
    bool ok = X509_set_version(certificate, X509_VERSION_3) == 1 &&
              ASN1_INTEGER_set(serial, 1) == 1 && X509_set_serialNumber(certificate, serial) == 1 &&
              /* A day for clocks that are late. */
              X509_time_adj_ex(X509_getm_notBefore(certificate), -1, 0, NULL) &&
              X509_time_adj_ex(X509_getm_notAfter(certificate), VALID_DAYS, 0, NULL) &&
              X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)node, -1,
                                         -1, 0) == 1 &&
              X509_set_subject_name(certificate, name) == 1 &&
              X509_set_issuer_name(certificate, name) == 1 &&
              X509_set_pubkey(certificate, key) == 1 && X509_sign(certificate, key, NULL) > 0;
    ASN1_INTEGER_free(serial);
    X509_NAME_free(name);
    if (ok)
        return certificate;
    X509_free(certificate);
    return NULL;
}

/* A new file, or NULL with errno. */
static FILE *create(const char *path, mode_t mode) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    return fd < 0 ? NULL : fdopen(fd, "w");
}

/* The folder and those above it, ours alone. */
static int make_folders(const char *folder) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s", folder) >= PATH_MAX)
        return -ENAMETOOLONG;
    for (char *at = path + 1; *at; at++) {
        if (*at != '/')
            continue;
        *at = 0;
        if (mkdir(path, 0700) < 0 && errno != EEXIST)
            return -errno;
        *at = '/';
    }
    return mkdir(path, 0700) < 0 && errno != EEXIST ? -errno : 0;
}

int cwb_keygen(const char *folder, const char *node) {
    char key_path[PATH_MAX], certificate_path[PATH_MAX];
    if (snprintf(key_path, sizeof key_path, "%s/node.key", folder) >= PATH_MAX ||
        snprintf(certificate_path, sizeof certificate_path, "%s/node.crt", folder) >= PATH_MAX)
        return cw_fail(-EINVAL, "the folder's path is too long");
    int code = make_folders(folder);
    if (code)
        return cw_fail(code, "making the folder %.300s failed: %s", folder, strerror(-code));
    FILE *key_file = create(key_path, 0600), *certificate_file = NULL;
    if (!key_file)
        return cw_fail(-errno, "%.300s: %m%s", key_path,
                       errno == EEXIST ? "; remove it (and node.crt) first, and tell the new "
                                         "fingerprint to every peer"
                                       : "");
    EVP_PKEY *key = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
    X509 *certificate = key ? make_certificate(key, node) : NULL;
    bool ok = certificate && PEM_write_PrivateKey(key_file, key, NULL, NULL, 0, NULL, NULL) == 1;
    ok = fflush(key_file) == 0 && ok;
    fclose(key_file);
    if (ok) {
        unlink(certificate_path); /* of a key that is gone */
        certificate_file = create(certificate_path, 0644);
        ok = certificate_file && PEM_write_X509(certificate_file, certificate) == 1;
    }
    if (certificate_file)
        ok = fclose(certificate_file) == 0 && ok;
    X509_free(certificate);
    EVP_PKEY_free(key);
    if (ok)
        return 0;
    unlink(key_path);
    return cw_fail(-EIO, "the key could not be made, or %.300s could not be written", folder);
}
