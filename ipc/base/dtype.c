/*
 * Dtypes as text: the one grammar of what may stand in a layout, here and in Python's dtypes.py,
 * which asks cw_dtype_size() before it lets NumPy see a text.
 *
 *   dtype    typestr | value | packed | one of the words of ml_dtype.c
 *   typestr  order then b1 | i or u and 1, 2, 4, 8 | f and 2, 4, 8, 16 | c and 8, 16, 32
 *            | S, U or V and a length | M8 or m8, and perhaps [unit]; order: '<' '>' '|' '='
 *   value    'typestr' | [field, ...] | (value, shape) | {members}
 *   field    (name, value) | (name, value, shape); name: a string, or (title, string)
 *   members  'names': [...], 'formats': [value, ...], 'offsets': [...], 'itemsize': n, and perhaps
 *            'titles': [string or None, ...], 'aligned': True or False, 'record': True (elements
 *            are numpy.record, which dtypes.py alone knows); in this order
 *   shape    n | (n, ...); not of '|V0', '|S0', '<U0'
 *   packed   |Vsize of n fields, zlib base85: a value that is too long for a text; dtypes.py
 * unpacks it, and looks that it has this size
 *
 * It is what NumPy writes (dtype.str, dtype.descr as in the NPY format, and the dict for what descr
 * cannot tell); blanks may stand between the words. Objects (O) live in one process only, and are
 * none. Strings are written as Python's repr() does; names and titles of one structure differ, as
 * NumPy wants them, but for fields of a list that have no name and are gaps to it: |V and
 * subarrays. No {members} stand within a list.
 *
 * Pure functions, from any thread. The text may come from another process: nothing is trusted, no
 * product overflows, nothing nests deeper than DEPTH_MAX.
 */
#include <ctype.h>
#include <stdbool.h>
#include <string.h>

#include "ipc/base/layout.h"
#include "ipc/base/ml_dtype.h"
#include "shm/base/error.h"

#define DEPTH_MAX  32
#define FIELDS_MAX (CW_DTYPE_MAX / 5u) /* of all dicts that are open: each takes so much text */
#define SIZE_MAX_  INT32_MAX           /* NumPy counts an element's bytes in 31 bits */

struct parser {
    const char *at;
    uint32_t depth;
    uint32_t count; /* of sizes */
    uint32_t lists; /* that are open: no dict stands in one, NumPy's descr has none */
    bool
        is_empty; /* the value that was read last: '|V0', '|S0', '<U0'; NumPy has no arrays of it */
    bool is_void; /* the value that was read last: NumPy has it as np.void, without fields */
    uint64_t sizes[FIELDS_MAX];
    /* Of all structures that are open: each two bytes for its length, and its text, which is no
     * longer than in quotes. */
    uint8_t names[CW_DTYPE_MAX + 4];
    uint32_t names_end;
};

static bool value(struct parser *parser, uint64_t *size_bytes);

static bool word(struct parser *parser, char wanted) {
    while (*parser->at == ' ')
        parser->at++;
    if (*parser->at != wanted)
        return false;
    parser->at++;
    return true;
}

static bool text(struct parser *parser, const char *wanted) {
    size_t length = strlen(wanted);
    while (*parser->at == ' ')
        parser->at++;
    if (strncmp(parser->at, wanted, length) != 0)
        return false;
    parser->at += length;
    return true;
}

static bool number(struct parser *parser, uint64_t *out) {
    uint64_t found = 0;
    while (*parser->at == ' ')
        parser->at++;
    if (*parser->at < '0' || *parser->at > '9')
        return false;
    for (; *parser->at >= '0' && *parser->at <= '9'; parser->at++) {
        found = found * 10 + (uint64_t)(*parser->at - '0');
        if (found > SIZE_MAX_)
            return false;
    }
    *out = found;
    return true;
}

/* ---- names ---- */

static bool hex(struct parser *parser, int digits, uint32_t *out) {
    for (*out = 0; digits > 0; digits--, parser->at++) {
        char digit = *parser->at;
        if (!isxdigit((unsigned char)digit))
            return false;
        *out = *out * 16 + (uint32_t)(digit <= '9' ? digit - '0' : (digit | 32) - 'a' + 10);
    }
    return *out <= 0x10ffff;
}

/* Behind a backslash. What Python takes beside (\N{NAME}, a line's end, an octal number) is not
 * what its repr() writes. */
static bool escape(struct parser *parser, uint32_t *out) {
    static const char letters[] = "\\'\"nrtabfv", meant[] = "\\'\"\n\r\t\a\b\f\v";
    char letter = *parser->at;
    const char *found = letter ? strchr(letters, letter) : NULL;
    parser->at += letter != 0;
    if (found) {
        *out = (uint8_t)meant[found - letters];
        return true;
    }
    return letter == 'x'   ? hex(parser, 2, out)
           : letter == 'u' ? hex(parser, 4, out)
           : letter == 'U' ? hex(parser, 8, out)
                           : false;
}

/* UTF-8, also of the half of a surrogate pair: repr() writes these by escapes. */
static uint32_t put_utf8(uint8_t *at, uint32_t c) {
    uint32_t bytes = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (uint32_t i = bytes - 1; i > 0; i--, c >>= 6)
        at[i] = (uint8_t)(0x80 | (c & 0x3f));
    at[0] = (uint8_t)(bytes == 1 ? c : (0xf00u >> bytes) | c);
    return bytes;
}

/* A string, which goes to the end of the names. */
static bool string(struct parser *parser) {
    while (*parser->at == ' ')
        parser->at++;
    char quote = *parser->at;
    if (quote != '\'' && quote != '"')
        return false;
    uint8_t *entry = parser->names + parser->names_end, *to = entry + 2;
    for (parser->at++; *parser->at != quote;) {
        uint32_t c;
        if (*parser->at == '\\') {
            parser->at++;
            if (!escape(parser, &c))
                return false;
            to += put_utf8(to, c);
        } else if ((uint8_t)*parser->at < ' ')
            return false; /* its end, or what repr() writes by an escape */
        else
            *to++ = (uint8_t)*parser->at++;
    }
    parser->at++;
    uint32_t length = (uint32_t)(to - entry) - 2;
    entry[0] = (uint8_t)length;
    entry[1] = (uint8_t)(length >> 8);
    parser->names_end = (uint32_t)(to - parser->names);
    return true;
}

static uint32_t entry_bytes(const uint8_t *entry) {
    return 2u + entry[0] + 256u * entry[1];
}

/* Are those from fresh on different from those of the same structure, from first on, and from each
 * other? */
static bool differ(const struct parser *parser, uint32_t first, uint32_t fresh) {
    const uint8_t *names = parser->names;
    for (uint32_t at = fresh; at < parser->names_end; at += entry_bytes(names + at))
        for (uint32_t old = first; old < at; old += entry_bytes(names + old))
            if (entry_bytes(names + old) == entry_bytes(names + at) &&
                memcmp(names + old, names + at, entry_bytes(names + at)) == 0)
                return false;
    return true;
}

/* Behind an item: is there another one? Sets *more; false: neither that nor the end. */
static bool next(struct parser *parser, char end, bool *more) {
    bool comma = word(parser, ',');
    *more = !word(parser, end);
    return comma || !*more;
}

/* ---- typestr ---- */

static bool unit(struct parser *parser) {
    static const char *const units[] = {"Y",  "M",  "W",  "D",  "h",  "m",  "s",
                                        "ms", "us", "ns", "ps", "fs", "as", "generic"};
    uint64_t many;
    if (*parser->at != '[')
        return true;
    parser->at++;
    if (*parser->at != ' ' && number(parser, &many) && many == 0)
        return false;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        size_t length = strlen(units[i]);
        if (strncmp(parser->at, units[i], length) == 0 && parser->at[length] == ']') {
            parser->at += length + 1;
            return true;
        }
    }
    return false;
}

static bool typestr(struct parser *parser, uint64_t *size_bytes) {
    static const struct {
        char kind;
        const char *sizes; /* a bit for each that it has, as characters; NULL: any length */
        uint32_t unit;
    } kinds[] = {{'b', "\1", 1},         {'i', "\1\2\4\10", 1}, {'u', "\1\2\4\10", 1},
                 {'f', "\2\4\10\20", 1}, {'c', "\10\20\40", 1}, {'M', "\10", 1},
                 {'m', "\10", 1},        {'S', NULL, 1},        {'V', NULL, 1},
                 {'U', NULL, 4}};
    if (!*parser->at || !strchr("<>|=", *parser->at))
        return false;
    char kind = *++parser->at;
    if (!kind || *++parser->at == ' ' || !number(parser, size_bytes))
        return false;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (kinds[i].kind != kind)
            continue;
        if (kinds[i].sizes &&
            (!*size_bytes || *size_bytes > 32 || !strchr(kinds[i].sizes, (int)*size_bytes)))
            return false;
        parser->is_void = kind == 'V';
        parser->is_empty = *size_bytes == 0; /* of these three alone */
        *size_bytes *= kinds[i].unit;
        return *size_bytes <= SIZE_MAX_ && ((kind != 'M' && kind != 'm') || unit(parser));
    }
    return false;
}

/* ---- values ---- */

/* Multiplies *size_bytes by the items of a shape. To NumPy () and 1 are none. */
static bool shape(struct parser *parser, uint64_t *size_bytes) {
    uint64_t length;
    bool more = true;
    if (parser->is_empty)
        return false;
    if (!word(parser, '(')) {
        if (!number(parser, &length))
            return false;
        parser->is_void |= length != 1;
        return (*size_bytes *= length) <= SIZE_MAX_;
    }
    if (word(parser, ')'))
        return true;
    parser->is_void = true;
    while (more)
        if (!number(parser, &length) || (*size_bytes *= length) > SIZE_MAX_ ||
            !next(parser, ')', &more))
            return false;
    return true;
}

/* ', shape)' or ')' */
static bool shape_end(struct parser *parser, uint64_t *size_bytes) {
    if (word(parser, ')'))
        return true;
    if (!word(parser, ','))
        return false;
    return word(parser, ')') || (shape(parser, size_bytes) && word(parser, ')'));
}

/* One of a structure whose names begin at first. */
static bool field(struct parser *parser, uint32_t first, uint64_t *size_bytes) {
    uint32_t own = parser->names_end;
    if (!word(parser, '('))
        return false;
    bool titled = word(parser, '(');
    if (titled) {
        if (!string(parser) || !word(parser, ',') || !string(parser) || !word(parser, ')'))
            return false;
    } else if (!string(parser))
        return false;
    bool unnamed = !titled && parser->names_end == own + 2;
    if (!word(parser, ',') || !value(parser, size_bytes) || !shape_end(parser, size_bytes))
        return false;
    if (unnamed && parser->is_void) /* a gap */
        parser->names_end = own;
    return differ(parser, first, own);
}

/* [field, ...] */
static bool fields(struct parser *parser, uint64_t *size_bytes) {
    uint64_t one;
    uint32_t first = parser->names_end;
    bool more = !word(parser, ']');
    *size_bytes = 0;
    parser->lists++;
    while (more)
        if (!field(parser, first, &one) || (*size_bytes += one) > SIZE_MAX_ ||
            !next(parser, ']', &more))
            return false;
    parser->lists--;
    parser->names_end = first;
    return true;
}

static bool string_item(struct parser *parser, uint64_t at) {
    (void)at;
    return string(parser);
}

static bool title_item(struct parser *parser, uint64_t at) {
    (void)at;
    return text(parser, "None") || string(parser);
}

static bool format_item(struct parser *parser, uint64_t at) {
    uint64_t size_bytes;
    if (at >= FIELDS_MAX || !value(parser, &size_bytes))
        return false;
    parser->sizes[at] = size_bytes;
    parser->count = (uint32_t)at + 1;
    return true;
}

/* Where its field ends takes the place of how large it is. */
static bool offset_item(struct parser *parser, uint64_t at) {
    uint64_t offset;
    if (at >= parser->count || !number(parser, &offset))
        return false;
    parser->sizes[at] += offset;
    return true;
}

/* ': [item, ...]': how many, told by number from first on. */
static bool items(struct parser *parser, uint64_t first, bool (*item)(struct parser *, uint64_t),
                  uint64_t *count) {
    bool more;
    *count = 0;
    if (!word(parser, ':') || !word(parser, '['))
        return false;
    for (more = !word(parser, ']'); more; ++*count)
        if (!item(parser, first + *count) || !next(parser, ']', &more))
            return false;
    return true;
}

/* ', name', if that is next. */
static bool member(struct parser *parser, const char *name) {
    const char *before = parser->at;
    if (word(parser, ',') && text(parser, name))
        return true;
    parser->at = before;
    return false;
}

/* {members} */
static bool dict(struct parser *parser, uint64_t *size_bytes) {
    uint64_t names, formats, offsets, titles;
    uint32_t first = parser->count, first_name = parser->names_end;
    if (!text(parser, "'names'") || !items(parser, 0, string_item, &names) ||
        !member(parser, "'formats'") || !items(parser, first, format_item, &formats) ||
        !member(parser, "'offsets'") || !items(parser, first, offset_item, &offsets) ||
        names != formats || names != offsets || !member(parser, "'itemsize'") ||
        !word(parser, ':') || !number(parser, size_bytes))
        return false;
    for (uint64_t i = first; i < first + formats; i++)
        if (parser->sizes[i] > *size_bytes)
            return false;
    parser->count = first;
    if (member(parser, "'titles'") && (!items(parser, 0, title_item, &titles) || titles != names))
        return false;
    if (!differ(parser, first_name, first_name))
        return false;
    parser->names_end = first_name;
    if (member(parser, "'aligned'") &&
        (!word(parser, ':') || (!text(parser, "True") && !text(parser, "False"))))
        return false;
    if (member(parser, "'record'") && (!word(parser, ':') || !text(parser, "True")))
        return false;
    return word(parser, '}');
}

static bool value(struct parser *parser, uint64_t *size_bytes) {
    bool good;
    if (parser->depth == DEPTH_MAX)
        return false;
    parser->depth++;
    if (word(parser, '[')) {
        good = fields(parser, size_bytes);
        parser->is_void = parser->is_empty = false;
    } else if (word(parser, '{')) {
        good = parser->lists == 0 && dict(parser, size_bytes);
        parser->is_void = parser->is_empty = false;
    } else if (word(parser, '('))
        good = value(parser, size_bytes) && word(parser, ',') && shape(parser, size_bytes) &&
               word(parser, ')');
    else {
        char quote = *parser->at;
        good = (quote == '\'' || quote == '"') && (parser->at++, typestr(parser, size_bytes)) &&
               *parser->at == quote;
        parser->at += good; /* never beyond the end */
    }
    parser->depth--;
    return good;
}

/* Behind the typestr of a packed one. */
static bool packed(struct parser *parser) {
    uint64_t fields;
    if (!text(parser, "of") || !number(parser, &fields) || !text(parser, "fields, zlib"))
        return false;
    if (*parser->at != ' ') /* else it is no base85 */
        return false;
    const char *first = ++parser->at;
    while (*parser->at > ' ' && *parser->at < 0x7f)
        parser->at++;
    return parser->at > first;
}

/* Of a typestr of three characters, which most arrays have: '<f8'. 0: of another one, or of none.
 */
static uint32_t plain_size(const char *dtype) {
    if (*dtype != '<' && *dtype != '|')
        return 0;
    const char kind = dtype[1], digit = kind ? dtype[2] : 0;
    if (!digit || dtype[3])
        return 0;
    const bool integer = kind == 'i' || kind == 'u';
    return digit == '8' && (integer || kind == 'f' || kind == 'c') ? 8
           : digit == '4' && (integer || kind == 'f')              ? 4
           : digit == '2' && (integer || kind == 'f')              ? 2
           : digit == '1' && (integer || kind == 'b')              ? 1
                                                                   : 0;
}

int cw_dtype_size(const char *dtype, uint32_t *size_bytes) {
    struct parser parser; /* sizes and names are written before they are read */
    uint64_t found;
    if (!dtype || !size_bytes)
        return cw_needs("a dtype's text and a place for its size");
    uint32_t plain = plain_size(dtype);
    if (plain) {
        *size_bytes = plain;
        return 0;
    }
    if (strnlen(dtype, CW_DTYPE_MAX + 1) > CW_DTYPE_MAX)
        return cw_fail(-EINVAL, "a dtype's text has at most %d bytes, this one has more",
                       CW_DTYPE_MAX);
    const cw_dtype_row *known = cw_dtype_word(dtype);
    if (known) {
        *size_bytes = known->size_bytes;
        return 0;
    }
    parser.at = dtype;
    parser.depth = parser.count = parser.names_end = parser.lists = 0;
    parser.is_void = parser.is_empty = false;
    bool nested = *dtype && strchr("[({", *dtype);
    bool good = nested ? value(&parser, &found) : typestr(&parser, &found);
    if (good && !nested && dtype[1] == 'V' && *parser.at == ' ')
        good = packed(&parser);
    if (!good || *parser.at)
        return cw_fail(-EINVAL,
                       "\"%.200s\" is no dtype that can be shared (at \"%.20s\"): it is NumPy's "
                       "typestr, such as \"<f8\" or \"|V16\", the literal of a structured "
                       "dtype's descr, or a word such as \"bfloat16\"",
                       dtype, parser.at);
    *size_bytes = (uint32_t)found;
    return 0;
}
