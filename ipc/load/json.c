/*
 * JSON: see json.h. Pure functions over the caller's copy of a text; nothing to die.
 */
#include "ipc/load/json.h"

#include <errno.h>
#include <string.h>

static int wrong(struct cw_json *json, const char *what) {
    json->what = what;
    return -EPROTO;
}

/* ---- characters ---- */

/* How long the character is that begins here; 0: it is none. */
static size_t character(const uint8_t *at, const uint8_t *end) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t length = *at < 0x80       ? 1
                    : *at >> 5 == 6  ? 2
                    : *at >> 4 == 14 ? 3
                    : *at >> 3 == 30 ? 4
                                     : 0;
    if (length < 2 || (size_t)(end - at) < length)
        return length == 1;
    uint32_t point = *at & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if (at[i] >> 6 != 2)
            return 0;
        point = point << 6 | (at[i] & 0x3f);
    }
    return point < least[length] || point > 0x10ffff || (point >= 0xd800 && point < 0xe000)
               ? 0
               : length;
}

bool cw_json_utf8(const char *text, size_t length) {
    const uint8_t *at = (const uint8_t *)text, *end = at + length;
    while (at < end) {
        size_t some = character(at, end);
        if (!some)
            return false;
        at += some;
    }
    return true;
}

static char *put_utf8(char *to, uint32_t point) {
    if (point < 0x80) {
        *to++ = (char)point;
    } else if (point < 0x800) {
        *to++ = (char)(0xc0 | point >> 6);
        *to++ = (char)(0x80 | (point & 0x3f));
    } else if (point < 0x10000) {
        *to++ = (char)(0xe0 | point >> 12);
        *to++ = (char)(0x80 | (point >> 6 & 0x3f));
        *to++ = (char)(0x80 | (point & 0x3f));
    } else {
        *to++ = (char)(0xf0 | point >> 18);
        *to++ = (char)(0x80 | (point >> 12 & 0x3f));
        *to++ = (char)(0x80 | (point >> 6 & 0x3f));
        *to++ = (char)(0x80 | (point & 0x3f));
    }
    return to;
}

static void pass_blanks(struct cw_json *json) {
    while (json->at < json->end &&
           (*json->at == ' ' || *json->at == '\t' || *json->at == '\n' || *json->at == '\r'))
        json->at++;
}

bool cw_json_has(struct cw_json *json, char wanted) {
    pass_blanks(json);
    if (json->at == json->end || *json->at != wanted)
        return false;
    json->at++;
    return true;
}

int cw_json_take(struct cw_json *json, char wanted) {
    if (cw_json_has(json, wanted))
        return 0;
    return wrong(json, wanted == '{'   ? "is no object where one must be"
                       : wanted == '[' ? "has no list where one must be"
                       : wanted == ':' ? "has a key without a value"
                                       : "is no JSON");
}

/* ---- texts ---- */

static bool four_digits(struct cw_json *json, uint32_t *out) {
    *out = 0;
    if (json->end - json->at < 4)
        return false;
    for (int i = 0; i < 4; i++) {
        char c = *json->at++;
        uint32_t digit = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                         : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                         : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                                : 16;
        if (digit > 15)
            return false;
        *out = *out << 4 | digit;
    }
    return true;
}

/* Behind "\u". */
static bool escaped_point(struct cw_json *json, uint32_t *out) {
    uint32_t low;
    if (!four_digits(json, out) || (*out >= 0xdc00 && *out < 0xe000))
        return false;
    if (*out < 0xd800 || *out >= 0xe000)
        return true;
    if (json->end - json->at < 2 || json->at[0] != '\\' || json->at[1] != 'u')
        return false;
    json->at += 2;
    if (!four_digits(json, &low) || low < 0xdc00 || low >= 0xe000)
        return false;
    *out = 0x10000 + ((*out - 0xd800) << 10) + (low - 0xdc00);
    return true;
}

/* Behind a backslash. */
static bool escape(struct cw_json *json, char **to) {
    static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
    if (json->at == json->end)
        return false;
    char c = *json->at++;
    if (c == 'u') {
        uint32_t point;
        if (!escaped_point(json, &point))
            return false;
        *to = put_utf8(*to, point);
        return true;
    }
    const char *found = c ? strchr(from, c) : NULL;
    if (!found)
        return false;
    *(*to)++ = into[found - from];
    return true;
}

int cw_json_text(struct cw_json *json, struct cw_json_text *out) {
    if (!cw_json_has(json, '"'))
        return wrong(json, "has something else where a text must be");
    char *begin = json->at, *to = begin;
    while (json->at < json->end) {
        char c = *json->at++;
        if (c == '"') {
            *to = 0; /* where the quote stood, or before */
            *out = (struct cw_json_text){.text = begin, .length = (size_t)(to - begin)};
            return 0;
        }
        if ((uint8_t)c < 0x20)
            return wrong(json, "has a control character in a text");
        if (c != '\\')
            *to++ = c;
        else if (!escape(json, &to))
            return wrong(json, "has an escape in a text that means no character");
    }
    return wrong(json, "ends in a text");
}

/* ---- numbers ---- */

static bool is_digit(const struct cw_json *json) {
    return json->at < json->end && *json->at >= '0' && *json->at <= '9';
}

int cw_json_whole(struct cw_json *json, uint64_t *out) {
    static const char what[] = "has something else where a whole number from 0 on must be";
    uint64_t value = 0;
    pass_blanks(json);
    if (!is_digit(json))
        return wrong(json, what);
    if (*json->at == '0') {
        json->at++;
        if (is_digit(json))
            return wrong(json, what);
    }
    while (is_digit(json))
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*json->at++ - '0'), &value) ||
            value > INT64_MAX)
            return wrong(json, "has a number of more than 63 bits");
    if (json->at < json->end && (*json->at == '.' || *json->at == 'e' || *json->at == 'E'))
        return wrong(json, what);
    *out = value;
    return 0;
}

static bool digits(struct cw_json *json) {
    if (!is_digit(json))
        return false;
    while (is_digit(json))
        json->at++;
    return true;
}

/* Any number, of which nothing is wanted. */
static bool pass_number(struct cw_json *json) {
    if (json->at < json->end && *json->at == '-')
        json->at++;
    if (json->at < json->end && *json->at == '0')
        json->at++;
    else if (!digits(json))
        return false;
    if (json->at < json->end && *json->at == '.') {
        json->at++;
        if (!digits(json))
            return false;
    }
    if (json->at < json->end && (*json->at == 'e' || *json->at == 'E')) {
        json->at++;
        if (json->at < json->end && (*json->at == '+' || *json->at == '-'))
            json->at++;
        return digits(json);
    }
    return true;
}

/* ---- objects and lists ---- */

int cw_json_member(struct cw_json *json, bool *first, struct cw_json_text *key) {
    if (cw_json_has(json, '}')) {
        return 0;
    } else if (!*first) {
        int code = cw_json_take(json, ',');
        if (code)
            return code;
    }
    *first = false;
    int code = cw_json_text(json, key);
    if (code == 0)
        code = cw_json_take(json, ':');
    return code ? code : 1;
}

int cw_json_element(struct cw_json *json, bool *first) {
    if (*first && cw_json_has(json, ']'))
        return 0;
    if (!*first) {
        if (cw_json_has(json, ']'))
            return 0;
        int code = cw_json_take(json, ',');
        if (code)
            return code;
    }
    *first = false;
    return 1;
}

static bool pass_word(struct cw_json *json, const char *word) {
    size_t length = strlen(word);
    if ((size_t)(json->end - json->at) < length || memcmp(json->at, word, length) != 0)
        return false;
    json->at += length;
    return true;
}

/* A value without values in it. */
static int pass_scalar(struct cw_json *json) {
    struct cw_json_text text;
    pass_blanks(json);
    if (json->at == json->end)
        return wrong(json, "ends too early");
    if (*json->at == '"')
        return cw_json_text(json, &text);
    return pass_word(json, "true") || pass_word(json, "false") || pass_word(json, "null") ||
                   pass_number(json)
               ? 0
               : wrong(json, "is no JSON");
}

int cw_json_skip(struct cw_json *json) {
    bool object[CW_JSON_DEPTH], first = false;
    unsigned depth = 0;
    for (;;) {
        bool opens_object = cw_json_has(json, '{'), opens = opens_object || cw_json_has(json, '[');
        if (opens && depth == CW_JSON_DEPTH)
            return wrong(json, "is nested too deeply");
        int code = opens ? 0 : pass_scalar(json);
        if (code)
            return code;
        if (opens) {
            object[depth++] = opens_object;
            first = true;
        }
        for (; depth; depth--, first = false) { /* what ends here */
            struct cw_json_text key;
            code = object[depth - 1] ? cw_json_member(json, &first, &key)
                                     : cw_json_element(json, &first);
            if (code < 0)
                return code;
            if (code == 1)
                break;
        }
        if (!depth)
            return 0;
    }
}

int cw_json_finish(struct cw_json *json) {
    pass_blanks(json);
    return json->at == json->end ? 0 : wrong(json, "goes on behind its end");
}
