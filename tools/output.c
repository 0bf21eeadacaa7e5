/*
 * Output: see output.h. Names and process names come from others: nothing of them reaches a
 * terminal before it was made safe. One thread.
 */
#include "tools/output.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <wchar.h>

#include "shm/base/error.h"

/* Decodes one character of UTF-8. Returns its length, or 0 if it is none. */
static size_t decode(const unsigned char *at, uint32_t *out) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t length = at[0] < 0x80 ? 1 : at[0] >= 0xf0 && at[0] < 0xf5 ? 4 : at[0] >= 0xe0 ? 3 : 2;
    if (length == 1) {
        *out = at[0];
        return 1;
    }
    if (at[0] < 0xc2 || at[0] >= 0xf5)
        return 0;
    uint32_t value = at[0] & (0xffu >> (length + 1));
    for (size_t i = 1; i < length; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
        value = value << 6 | (at[i] & 0x3f);
    }
    if (value < least[length] || value > 0x10ffff || (value >= 0xd800 && value < 0xe000))
        return 0;
    *out = value;
    return length;
}

/* What shows nothing, or an ordinary blank's place, or changes how its neighbours are shown:
 * Unicode's control and format characters, line and paragraph separators, blanks but the ordinary
 * one, and what its tables call ignorable (fillers, variation selectors, tags). */
static const struct {
    uint32_t first, last;
} invisible[] = {
    {0x80, 0xa0},       {0xad, 0xad},       {0x34f, 0x34f},     {0x600, 0x605},
    {0x61c, 0x61c},     {0x6dd, 0x6dd},     {0x70f, 0x70f},     {0x890, 0x891},
    {0x8e2, 0x8e2},     {0x115f, 0x1160},   {0x1680, 0x1680},   {0x17b4, 0x17b5},
    {0x180b, 0x180f},   {0x2000, 0x200f},   {0x2028, 0x202f},   {0x205f, 0x206f},
    {0x3000, 0x3000},   {0x3164, 0x3164},   {0xfdd0, 0xfdef},   {0xfe00, 0xfe0f},
    {0xfeff, 0xfeff},   {0xffa0, 0xffa0},   {0xfff0, 0xfffb},   {0x110bd, 0x110bd},
    {0x110cd, 0x110cd}, {0x13430, 0x1343f}, {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a},
    {0xe0000, 0xe0fff},
};

/* A name must not look like another, nor like none. */
static bool harmful(uint32_t character) {
    if (character < 0x80)
        return character < 0x20 || character == 0x7f;
    for (size_t i = 0; i < sizeof invisible / sizeof *invisible; i++) {
        if (character >= invisible[i].first && character <= invisible[i].last)
            return true;
    }
    return (character & 0xfffe) == 0xfffe; /* no character, in each plane */
}

char *output_safe(const char *text) {
    char *safe = malloc(strlen(text) * 4 + 1), *to = safe;
    CW_ASSERT(safe);
    const unsigned char *at = (const unsigned char *)text;
    while (*at) {
        uint32_t character;
        size_t length = decode(at, &character);
        if (length && !harmful(character)) {
            memcpy(to, at, length);
            to += length;
            at += length;
            continue;
        }
        for (size_t i = 0; i < (length ? length : 1); i++)
            to += sprintf(to, "\\x%02x", *at++);
    }
    *to = 0;
    return safe;
}

static bool is_plain(char character) {
    return (character >= 'a' && character <= 'z') || (character >= 'A' && character <= 'Z') ||
           (character >= '0' && character <= '9') || (character && strchr("_./:@%+,-", character));
}

/* A format of printf, in double quotes: all that is not plain in octal. */
static char *printf_word(const char *text) {
    char *word = malloc(4 * strlen(text) + 16), *to = word;
    CW_ASSERT(word);
    to += sprintf(to, "\"$(printf '");
    for (; *text; text++)
        to += is_plain(*text) && *text != '%' && *text != '-'
                  ? sprintf(to, "%c", *text)
                  : sprintf(to, "\\%03o", (unsigned char)*text);
    strcpy(to, "')\"");
    return word;
}

char *output_word(const char *text) {
    char *safe = output_safe(text), *word = safe, *to;
    size_t plain = 0;
    bool harmless = strcmp(safe, text) == 0;
    while (is_plain(text[plain]))
        plain++;
    if (harmless && *text && !text[plain])
        return word;
    free(safe);
    if (!harmless)
        return printf_word(text);
    word = to = malloc(4 * strlen(text) + 3);
    CW_ASSERT(word);
    *to++ = '\'';
    for (; *text; text++) {
        if (*text == '\'')
            to += sprintf(to, "'\\'");
        *to++ = *text;
    }
    strcpy(to, "'");
    return word;
}

/* How many columns of a terminal a safe text takes. */
static size_t width(const char *text) {
    size_t columns = 0;
    const unsigned char *at = (const unsigned char *)text;
    while (*at) {
        uint32_t character;
        size_t length = decode(at, &character);
        int cells = length ? wcwidth((wchar_t)character) : 1;
        columns += cells < 0 ? 1 : (size_t)cells;
        at += length ? length : 1;
    }
    return columns;
}

char *output_size(uint64_t size_bytes, char *text) {
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (size_bytes < 1024) {
        snprintf(text, OUTPUT_SHORT, "%u B", (unsigned)size_bytes);
        return text;
    }
    double value = (double)size_bytes / 1024;
    size_t unit = 0;
    while (value >= 1023.95 && unit + 1 < sizeof units / sizeof *units) {
        value /= 1024;
        unit++;
    }
    snprintf(text, OUTPUT_SHORT, "%.1f %s", value, units[unit]);
    return text;
}

char *output_span(double seconds, char *text) {
    unsigned long whole = (unsigned long)seconds;
    if (seconds < 10)
        snprintf(text, OUTPUT_SHORT, "%.1f s", seconds);
    else if (whole < 120)
        snprintf(text, OUTPUT_SHORT, "%lu s", whole);
    else if (whole < 7200)
        snprintf(text, OUTPUT_SHORT, "%lu min", whole / 60);
    else if (whole < 172800)
        snprintf(text, OUTPUT_SHORT, "%lu h %lu min", whole / 3600, whole / 60 % 60);
    else
        snprintf(text, OUTPUT_SHORT, "%lu d %lu h", whole / 86400, whole / 3600 % 24);
    return text;
}

char *output_time(uint64_t realtime_ns, char *text) {
    time_t seconds = (time_t)(realtime_ns / 1000000000);
    struct tm parts;
    if (!localtime_r(&seconds, &parts) ||
        !strftime(text, OUTPUT_SHORT, "%Y-%m-%d %H:%M:%S", &parts))
        snprintf(text, OUTPUT_SHORT, "%llu ns", (unsigned long long)realtime_ns);
    return text;
}

double output_age_seconds(uint64_t realtime_ns) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    double age = (double)now.tv_sec + (double)now.tv_nsec * 1e-9 - (double)realtime_ns * 1e-9;
    return age > 0 ? age : 0;
}

char *output_shape(uint32_t ndim, const int64_t *shape) {
    char *text = malloc(4 + 24 * (size_t)ndim), *to = text;
    CW_ASSERT(text);
    *to++ = '(';
    for (uint32_t i = 0; i < ndim; i++)
        to += sprintf(to, i ? ", %lld" : "%lld", (long long)shape[i]);
    strcpy(to, ndim == 1 ? ",)" : ")");
    return text;
}

void output_table_init(struct output_table *table, const char *const *titles) {
    *table = (struct output_table){.titles = titles};
    while (titles[table->columns])
        table->columns++;
}

void output_table_add(struct output_table *table, const char *cell) {
    if (table->cell_count == table->cell_room) {
        table->cell_room = table->cell_room ? table->cell_room * 2 : 64;
        table->cells = realloc(table->cells, table->cell_room * sizeof *table->cells);
        CW_ASSERT(table->cells);
    }
    table->cells[table->cell_count++] = output_safe(cell);
}

void output_table_addf(struct output_table *table, const char *format, ...) {
    char *text;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    CW_ASSERT(length >= 0);
    output_table_add(table, text);
    free(text);
}

static void print_row(const struct output_table *table, char *const *row, const size_t *widths,
                      const char *indent) {
    fputs(indent, stdout);
    for (size_t i = 0; i < table->columns; i++) {
        bool right = table->titles[i][0] == '>', last = i + 1 == table->columns;
        const char *text = row ? row[i] : table->titles[i] + right;
        int padding = (int)(widths[i] - width(text));
        if (right)
            printf("%*s%s", padding, "", text);
        else
            printf("%s%*s", text, last ? 0 : padding, "");
        fputs(last ? "\n" : "  ", stdout);
    }
}

void output_table_print(const struct output_table *table, const char *indent) {
    size_t widths[16] = {0};
    CW_ASSERT(table->columns <= 16 && table->cell_count % table->columns == 0);
    for (size_t i = 0; i < table->columns; i++)
        widths[i] = width(table->titles[i] + (table->titles[i][0] == '>'));
    for (size_t i = 0; i < table->cell_count; i++) {
        size_t cell = width(table->cells[i]);
        if (cell > widths[i % table->columns])
            widths[i % table->columns] = cell;
    }
    bool titled = false;
    for (size_t i = 0; i < table->columns; i++)
        titled |= table->titles[i][table->titles[i][0] == '>'] != 0;
    if (titled)
        print_row(table, NULL, widths, indent);
    for (size_t i = 0; i < table->cell_count; i += table->columns)
        print_row(table, table->cells + i, widths, indent);
}

void output_table_deinit(struct output_table *table) {
    for (size_t i = 0; i < table->cell_count; i++)
        free(table->cells[i]);
    free(table->cells);
    *table = (struct output_table){0};
}

json_t *output_json_limit(uint64_t limit) {
    return limit == INT64_MAX ? json_null() : json_integer((json_int_t)limit);
}

json_t *output_json_text(const char *text) {
    json_t *value = json_string(text);
    if (value)
        return value;
    char *safe = output_safe(text);
    value = json_string(safe);
    free(safe);
    return value;
}

void output_json(json_t *value) {
    json_dumpf(value, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(value);
}
