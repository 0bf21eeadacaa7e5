/*
 * Python literals, token by token: see text.h. Pure functions over borrowed bytes.
 */
#include "tools/npy/text.h"

#include <ctype.h>
#include <string.h>

#include "ipc/cableway.h"
#include "shm/base/error.h"

static int damaged(const struct npy_text *text, const char *expected) {
    char found[24];
    size_t length = 0;
    while (text->at + length < text->end && length < sizeof found - 1) {
        found[length] = text->at[length];
        length++;
    }
    found[length] = 0;
    return cw_fail(-EPROTO, "the header of the .npy file is damaged: %s was expected at \"%s\"",
                   expected, found);
}

char npy_text_next(struct npy_text *text) {
    while (text->at < text->end && isspace((unsigned char)*text->at))
        text->at++;
    return text->at < text->end ? *text->at : 0;
}

int npy_text_take(struct npy_text *text, char wanted) {
    char expected[] = {'\'', wanted, '\'', 0};
    if (npy_text_next(text) != wanted)
        return damaged(text, expected);
    text->at++;
    return 0;
}

static int hex_value(char digit) {
    return isdigit((unsigned char)digit) ? digit - '0' : (tolower((unsigned char)digit) - 'a') + 10;
}

static size_t encode(uint32_t point, char *out) {
    if (point < 0x80) {
        out[0] = (char)point;
        return 1;
    }
    size_t length = point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
    for (size_t i = length - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (point & 0x3f));
        point >>= 6;
    }
    out[0] = (char)((0xf00u >> length) | point);
    return length;
}

/* What stands behind a backslash. Writes its UTF-8 to out (4 bytes at most). Returns its length, 0
 * if it is none. */
static size_t unescape(struct npy_text *text, char *out) {
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    if (text->at == text->end)
        return 0;
    char kind = *text->at++;
    const char *simple = kind ? strchr(from, kind) : NULL;
    if (simple) {
        *out = to[simple - from];
        return 1;
    }
    int digits = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
    uint32_t point = 0;
    if (!digits || text->end - text->at < digits)
        return 0;
    for (int i = 0; i < digits; i++, text->at++) {
        if (!isxdigit((unsigned char)*text->at))
            return 0;
        point = point << 4 | (uint32_t)hex_value(*text->at);
    }
    return point > 0x10ffff ? 0 : encode(point, out);
}

int npy_text_string(struct npy_text *text, char *out, size_t out_bytes) {
    char quote = npy_text_next(text);
    if (quote != '\'' && quote != '"')
        return damaged(text, "a string");
    text->at++;
    size_t length = 0;
    while (text->at < text->end && *text->at != quote) {
        char piece[4] = {*text->at++};
        size_t count = piece[0] == '\\' ? unescape(text, piece) : 1;
        if (count == 0)
            return damaged(text, "an escape");
        if (length + count >= out_bytes)
            return cw_fail(-EPROTO, "a string in the header of the .npy file is too long");
        memcpy(out + length, piece, count);
        length += count;
    }
    if (text->at == text->end)
        return damaged(text, "the end of a string");
    text->at++;
    out[length] = 0;
    return 0;
}

int npy_text_integer(struct npy_text *text, int64_t *out) {
    int64_t value = 0;
    if (!isdigit((unsigned char)npy_text_next(text)))
        return damaged(text, "a number of 0 or more");
    while (text->at < text->end && isdigit((unsigned char)*text->at)) {
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, *text->at - '0', &value))
            return damaged(text, "a number of 63 bits");
        text->at++;
    }
    if (text->at < text->end && *text->at == 'L')
        text->at++;
    *out = value;
    return 0;
}

int npy_text_bool(struct npy_text *text, bool *out) {
    char first = npy_text_next(text);
    const char *word = first == 'T' ? "True" : "False";
    size_t length = strlen(word);
    if ((size_t)(text->end - text->at) < length || strncmp(text->at, word, length))
        return damaged(text, "True or False");
    text->at += length;
    *out = first == 'T';
    return 0;
}

int npy_text_tuple(struct npy_text *text, int64_t *out, uint32_t *count) {
    uint32_t found = 0;
    int code = npy_text_take(text, '(');
    while (code == 0 && npy_text_next(text) != ')') {
        if (found == CW_NDIM_MAX)
            return cw_fail(-EPROTO, "the array has more than %d axes", CW_NDIM_MAX);
        code = npy_text_integer(text, &out[found++]);
        /* (3) is a number and no tuple, but nothing else could be meant. */
        if (code == 0 && npy_text_next(text) != ')')
            code = npy_text_take(text, ',');
    }
    if (code == 0)
        code = npy_text_take(text, ')');
    if (code)
        return code;
    *count = found;
    return 0;
}

/* Steps over one string, escapes included. */
static bool skip_string(struct npy_text *text) {
    char quote = *text->at++;
    while (text->at < text->end && *text->at != quote)
        text->at += *text->at == '\\' ? 2 : 1;
    if (text->at >= text->end)
        return false;
    text->at++;
    return true;
}

int npy_text_skip(struct npy_text *text, const char **begin, const char **end) {
    int depth = 0;
    npy_text_next(text);
    *begin = text->at;
    while (text->at < text->end) {
        char here = *text->at;
        if (here == '\'' || here == '"') {
            if (!skip_string(text))
                break;
        } else if (here == '(' || here == '[') {
            depth++;
            text->at++;
        } else if (here == ')' || here == ']') {
            depth--;
            text->at++;
        } else {
            text->at++;
            continue;
        }
        if (depth <= 0) {
            *end = text->at;
            return depth < 0 ? damaged(text, "a value") : 0;
        }
    }
    text->at = text->end;
    return damaged(text, "the end of 'descr'");
}
