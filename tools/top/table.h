/*
 * Tables: what `cableway top` shows, the same for its screen, for --once and for --json. A view
 * says which columns a table has; a cell is a number or a text, or nothing where it is not known.
 */
#ifndef CW_TOOLS_TOP_TABLE_H
#define CW_TOOLS_TOP_TABLE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "tools/output.h"

enum top_kind {
    TOP_TEXT,
    TOP_DEVICES, /* a text: "cpu" and UUIDs of GPUs, with commas between; people see their
                    beginnings */
    TOP_COUNT,   /* a whole number */
    TOP_BYTES,
    TOP_SECONDS,
    TOP_RATE,       /* a second */
    TOP_BYTES_RATE, /* bytes a second */
    TOP_SHARE,      /* 1: all of it */
    TOP_KEEP,       /* 1: yes, 0: no, -1: tied; true or false as JSON */
};

struct top_column {
    const char *key;   /* in JSON; it ends with the unit */
    const char *title; /* on the screen */
    enum top_kind kind;
    unsigned char rank; /* 0: always on the screen; the highest goes first where it is narrow */
};

#define TOP_COLUMNS_MAX 16u
#define TOP_UNSORTED    TOP_COLUMNS_MAX /* rows stay in their order */

struct top_view {
    const char *key, *title;
    const char *empty; /* what is said where it has no row */
    const char *note;  /* of one line, above its rows; NULL: none */
    unsigned sort;     /* the column by which it is sorted at first */
    bool descending;
    struct top_column columns[TOP_COLUMNS_MAX]; /* up to one without a key */
};

struct top_cell {
    double number;    /* NAN: not known */
    const char *text; /* of a text; NULL: not known. As others wrote it: not safe for a terminal */
};

struct top_table {
    const struct top_view *view;
    unsigned columns;
    struct top_cell *cells; /* rows * columns */
    size_t rows, rows_room;
};

/* Texts that go all at once. Zeros are an empty one. */
struct top_texts {
    struct top_texts_piece *pieces;
};
const char *top_texts_add(struct top_texts *texts, const char *text);
const char *top_texts_addf(struct top_texts *texts, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void top_texts_free(struct top_texts *texts);

void top_table_init(struct top_table *table, const struct top_view *view);
/* A further row of unknown cells; valid until the next one is added. */
struct top_cell *top_table_add(struct top_table *table);
void top_table_deinit(struct top_table *table);

/* A cell as text, safe for a terminal, "-" where it is not known; at most room - 1 bytes of whole
 * characters. Returns text. */
#define TOP_CELL_BYTES 512
char *top_cell_text(const struct top_column *column, const struct top_cell *cell, char *text);
static inline bool top_column_is_text(const struct top_column *column) {
    return column->kind == TOP_TEXT || column->kind == TOP_DEVICES;
}
/* Is it to stand at the right? */
static inline bool top_column_right(const struct top_column *column) {
    return !top_column_is_text(column) && column->kind != TOP_KEEP;
}

/* The table's rows in which the filter stands (in a text or a count, upper and lower case alike; ""
 * in all of them), sorted by a column. rows: room for all; returns how many. Unknown comes last. */
size_t top_table_pick(const struct top_table *table, const char *filter, unsigned sort,
                      bool descending, size_t *rows);

json_t *top_table_json(const struct top_table *table);
/* As text, sorted as the view has it. */
void top_table_print(const struct top_table *table);

#endif
