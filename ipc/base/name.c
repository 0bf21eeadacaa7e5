/*
 * Names: the grammar of names and namespaces, and which flags of a put go together, in one place.
 *
 * Pure functions, from any thread.
 */
#include <string.h>

#include "ipc/cableway.h"
#include "ipc/base/layout.h"
#include "ipc/base/name_key.h"
#include "ipc/wire.h"
#include "shm/base/error.h"

/* Length of the UTF-8 character at text, its code point in *point; 0 if it is none. */
static unsigned utf8_length(const unsigned char *text, uint32_t *point) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned length = text[0] < 0x80   ? 1
                      : text[0] < 0xc2 ? 0
                      : text[0] < 0xe0 ? 2
                      : text[0] < 0xf0 ? 3
                      : text[0] < 0xf5 ? 4
                                       : 0;
    if (length == 0)
        return 0;
    *point = length == 1 ? text[0] : text[0] & (0x7fu >> length);
    for (unsigned i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
        *point = *point << 6 | (text[i] & 0x3f);
    }
    if (*point < least[length] || *point > 0x10ffff || (*point >= 0xd800 && *point < 0xe000))
        return 0;
    return length;
}

static int check_part(const char *name, const char *part, size_t length) {
    if (length == 0)
        return cw_fail(-EINVAL,
                       "\"%.200s\" is no name: it has an empty part, or begins or ends with '/'",
                       name);
    if ((length == 1 && part[0] == '.') || (length == 2 && part[0] == '.' && part[1] == '.'))
        return cw_fail(-EINVAL, "\"%.200s\" is no name: a part is \".\" or \"..\"", name);
    return 0;
}

int cw_local_name_check(const char *name) {
    if (!name || !*name)
        return cw_fail(-EINVAL, "a name has 1 to %d bytes, this one has none", CW_NAME_MAX);
    size_t at = 0, part = 0;
    while (name[at]) {
        uint32_t point;
        if (name[at] == '/') {
            int code = check_part(name, name + part, at - part);
            if (code)
                return code;
            part = ++at;
            continue;
        }
        unsigned length = utf8_length((const unsigned char *)name + at, &point);
        if (length == 0)
            return cw_fail(-EINVAL, "a name is UTF-8; byte %zu of this one is not", at);
        if (point < 0x20 || (point >= 0x7f && point < 0xa0))
            return cw_fail(-EINVAL, "a name holds no control characters; byte %zu begins U+%04X",
                           at, point);
        at += length;
        if (at > CW_NAME_MAX)
            break;
    }
    if (at > CW_NAME_MAX)
        return cw_fail(-EINVAL, "a name has at most %d bytes, \"%.40s...\" has more", CW_NAME_MAX,
                       name);
    return check_part(name, name + part, at - part);
}

int cw_path_check(const char *path) {
    size_t length = path ? strnlen(path, CW_PATH_MAX + 1) : 0;
    if (length == 0 || length > CW_PATH_MAX)
        return cw_fail(-EINVAL, "a path in a tree has 1 to %u bytes, this one has %s", CW_PATH_MAX,
                       length ? "more" : "none");
    for (size_t at = 0, bytes; at < length; at += bytes) {
        uint32_t point;
        bytes = utf8_length((const unsigned char *)path + at, &point);
        if (bytes == 0)
            return cw_fail(-EINVAL, "a path in a tree is UTF-8; byte %zu of this one is not", at);
        if (point < 0x20 || (point >= 0x7f && point < 0xa0))
            return cw_fail(-EINVAL,
                           "a path in a tree holds no control characters; byte %zu begins U+%04X",
                           at, point);
    }
    return 0;
}

uint32_t cw_text_clean(char *text, size_t length) {
    uint32_t cleaned = 0;
    for (size_t at = 0, bytes; at < length; at += bytes) {
        uint32_t point = 0;
        char whole[5] = ""; /* the last one may be cut off */
        memcpy(whole, text + at, length - at < 4 ? length - at : 4);
        bytes = utf8_length((const unsigned char *)whole, &point);
        if (bytes && point >= 0x20 && (point < 0x7f || point >= 0xa0))
            continue;
        bytes = bytes ? bytes : 1;
        memset(text + at, '?', bytes);
        cleaned++;
    }
    return cleaned;
}

int cw_namespace_check(const char *name_space) {
    size_t length = strnlen(name_space, CW_NAMESPACE_MAX + 1);
    if (length > CW_NAMESPACE_MAX)
        return cw_fail(-EINVAL, "a namespace has at most %d bytes, \"%.40s...\" has more",
                       CW_NAMESPACE_MAX, name_space);
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    if (strspn(name_space, allowed) != length)
        return cw_fail(-EINVAL,
                       "a namespace holds letters, digits, '_', '.' and '-' alone; "
                       "\"%s\" holds another character",
                       name_space);
    return 0;
}

int cw_put_flags_check(uint32_t flags) {
    return (flags & (CW_KEEP | CW_TIED)) == (CW_KEEP | CW_TIED)
               ? cw_fail(-EINVAL, "a name is kept until it is removed (CW_KEEP) or ends with this "
                                  "process (CW_TIED), not both: leave one of them out")
               : 0;
}

uint32_t cw_put_flags_of(uint32_t flags) {
    return (flags & CW_REPLACE ? CW_PUT_REPLACE : 0u) | (flags & CW_KEEP ? CW_PUT_KEEP : 0u) |
           (flags & CW_TIED ? CW_PUT_TIED : 0u) | (flags & CW_WEAK ? CW_PUT_WEAK : 0u) |
           (flags & CW_REMOTE_READ ? CW_PUT_REMOTE_READ : 0u);
}

int cw_remote_put_check(uint32_t flags) {
    if (flags & CW_TIED)
        return cw_fail(-EINVAL, "a name of another node cannot end with a process of this one: put "
                                "it without CW_TIED (tied=True), and remove it");
    if (flags & CW_SEAL)
        return cw_fail(-EINVAL,
                       "an array cannot be sealed on another node: put it there unsealed, or "
                       "put it here, where others get it");
    return flags & CW_REMOTE_READ
               ? cw_fail(-EINVAL, "remote reading cannot be allowed from another node: put the "
                                  "array on its own node with remote reading allowed")
               : 0;
}
