/*
 * Output for people: text that cannot harm a terminal, sizes, ages, aligned tables. And JSON for
 * programs.
 */
#ifndef CW_TOOLS_OUTPUT_H
#define CW_TOOLS_OUTPUT_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* A copy of text in which invalid UTF-8 and characters that show nothing, or change how others are
 * shown, are written as \xNN: control and format characters, blanks but the ordinary one. The
 * caller frees it. */
char *output_safe(const char *text);

/* text as one word of sh, which pasted into a shell means these very bytes: as it stands, in single
 * quotes, or, with what a terminal must not see, by printf. It holds no line end. The caller frees
 * it.
 */
char *output_word(const char *text);

/* "512 B", "1.5 KiB", "256.0 MiB"; text holds at least OUTPUT_SHORT bytes. Returns text. */
#define OUTPUT_SHORT 64
char *output_size(uint64_t size_bytes, char *text);
/* A span of time: "0.4 s", "12 s", "3 min", "2 h 5 min", "3 d 4 h". */
char *output_span(double seconds, char *text);
/* A moment of CLOCK_REALTIME as local time: "2026-01-31 12:00:00". */
char *output_time(uint64_t realtime_ns, char *text);
/* Seconds since a moment of CLOCK_REALTIME; 0 if it lies in the future. */
double output_age_seconds(uint64_t realtime_ns);
/* "(3, 4)", as NumPy prints it. The caller frees it. */
char *output_shape(uint32_t ndim, const int64_t *shape);

/* A table. Cells are copied and made safe; columns are as wide as their widest cell. */
struct output_table {
    size_t columns;
    const char *const *titles; /* a title that begins with '>' is set to the right */
    char **cells;
    size_t cell_count, cell_room;
};
/* titles ends with NULL and is borrowed; where all are empty, no line of titles is printed. */
void output_table_init(struct output_table *table, const char *const *titles);
void output_table_add(struct output_table *table, const char *cell);
void output_table_addf(struct output_table *table, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void output_table_print(const struct output_table *table, const char *indent);
void output_table_deinit(struct output_table *table);

/* A limit as a JSON number; null: none is set (INT64_MAX on the monitor page). */
json_t *output_json_limit(uint64_t limit);
/* A JSON string of text; invalid UTF-8 is written as in output_safe. */
json_t *output_json_text(const char *text);
/* Prints value and a line end to stdout, and releases it. */
void output_json(json_t *value);

#endif
