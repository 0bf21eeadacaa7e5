/*
 * Tables: see table.h. One thread. Cells borrow their texts, which whoever fills a table keeps for
 * as long as that.
 */
#include "tools/top/table.h"

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/error.h"

#define PIECE_BYTES  65536u
#define DEVICE_SHOWN 12 /* characters of a UUID, as `cableway ls` has it */

/* ---- texts ---- */

struct top_texts_piece {
    struct top_texts_piece *next;
    size_t used, room;
    char bytes[];
};

static char *texts_room(struct top_texts *texts, size_t bytes) {
    struct top_texts_piece *piece = texts->pieces;
    if (!piece || piece->room - piece->used < bytes) {
        size_t room = bytes > PIECE_BYTES ? bytes : PIECE_BYTES;
        piece = malloc(sizeof *piece + room);
        CW_ASSERT(piece);
        *piece = (struct top_texts_piece){.next = texts->pieces, .room = room};
        texts->pieces = piece;
    }
    char *at = piece->bytes + piece->used;
    piece->used += bytes;
    return at;
}

const char *top_texts_add(struct top_texts *texts, const char *text) {
    size_t bytes = strlen(text) + 1;
    return memcpy(texts_room(texts, bytes), text, bytes);
}

const char *top_texts_addf(struct top_texts *texts, const char *format, ...) {
    char *text;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    CW_ASSERT(length >= 0);
    const char *added = top_texts_add(texts, text);
    free(text);
    return added;
}

void top_texts_free(struct top_texts *texts) {
    while (texts->pieces) {
        struct top_texts_piece *piece = texts->pieces;
        texts->pieces = piece->next;
        free(piece);
    }
}

/* ---- tables ---- */

void top_table_init(struct top_table *table, const struct top_view *view) {
    *table = (struct top_table){.view = view};
    while (table->columns < TOP_COLUMNS_MAX && view->columns[table->columns].key)
        table->columns++;
}

struct top_cell *top_table_add(struct top_table *table) {
    if (table->rows == table->rows_room) {
        table->rows_room = table->rows_room ? 2 * table->rows_room : 64;
        table->cells =
            realloc(table->cells, table->rows_room * table->columns * sizeof *table->cells);
        CW_ASSERT(table->cells);
    }
    struct top_cell *row = table->cells + table->rows++ * table->columns;
    for (unsigned i = 0; i < table->columns; i++)
        row[i] = (struct top_cell){.number = NAN};
    return row;
}

void top_table_deinit(struct top_table *table) {
    free(table->cells);
    *table = (struct top_table){.view = NULL};
}

/* ---- cells ---- */

static bool is_known(const struct top_column *column, const struct top_cell *cell) {
    return top_column_is_text(column) ? cell->text != NULL : !isnan(cell->number);
}

/* Cuts between two characters: safe texts are UTF-8. */
static void copy_text(const char *from, char *text) {
    char *safe = output_safe(from);
    size_t length = strlen(safe);
    if (length >= TOP_CELL_BYTES) {
        length = TOP_CELL_BYTES - 1;
        while (length && ((unsigned char)safe[length] & 0xc0) == 0x80)
            length--;
    }
    memcpy(text, safe, length);
    text[length] = 0;
    free(safe);
}

/* Numbers of GPUs differ between processes; nvidia-smi -L tells which one this is. */
static void copy_devices(const char *from, char *text) {
    size_t used = 0;
    while (*from && used + DEVICE_SHOWN + 2 < TOP_CELL_BYTES) {
        int length = (int)strcspn(from, ",");
        used += (size_t)snprintf(text + used, TOP_CELL_BYTES - used, "%s%.*s", used ? "," : "",
                                 length < DEVICE_SHOWN ? length : DEVICE_SHOWN, from);
        from += length + (from[length] == ',');
    }
}

char *top_cell_text(const struct top_column *column, const struct top_cell *cell, char *text) {
    double number = cell->number;
    if (!is_known(column, cell))
        return strcpy(text, "-");
    switch (column->kind) {
    case TOP_TEXT:
        copy_text(*cell->text ? cell->text : "-", text);
        break;
    case TOP_DEVICES:
        copy_devices(cell->text, text);
        break;
    case TOP_COUNT:
        snprintf(text, TOP_CELL_BYTES, "%.0f", number);
        break;
    case TOP_BYTES:
    case TOP_BYTES_RATE:
        output_size(number > 0 ? (uint64_t)number : 0, text);
        break;
    case TOP_SECONDS:
        output_span(number, text);
        break;
    case TOP_RATE:
        snprintf(text, TOP_CELL_BYTES, number > 0 && number < 99.95 ? "%.1f" : "%.0f", number);
        break;
    case TOP_SHARE:
        snprintf(text, TOP_CELL_BYTES, "%.0f %%", 100 * number);
        break;
    case TOP_KEEP:
        strcpy(text, number > 0 ? "yes" : number < 0 ? "tied" : "no");
        break;
    }
    return text;
}

/* ---- rows ---- */

static bool contains(const struct top_table *table, const struct top_cell *row,
                     const char *filter) {
    char text[TOP_CELL_BYTES];
    for (unsigned i = 0; i < table->columns; i++) {
        const struct top_column *column = &table->view->columns[i];
        if (!is_known(column, &row[i]) ||
            (!top_column_is_text(column) && column->kind != TOP_COUNT))
            continue;
        const char *in =
            top_column_is_text(column) ? row[i].text : top_cell_text(column, &row[i], text);
        if (strcasestr(in, filter))
            return true;
    }
    return false;
}

static struct { /* of qsort's comparison; this program has one thread */
    const struct top_table *table;
    unsigned column;
    bool descending;
} order;

static int compare_rows(const void *a, const void *b) {
    const struct top_column *column = &order.table->view->columns[order.column];
    const size_t *first_row = a, *second_row = b;
    const struct top_cell *first = order.table->cells + *first_row * order.table->columns,
                          *second = order.table->cells + *second_row * order.table->columns;
    first += order.column;
    second += order.column;
    bool knows_first = is_known(column, first), knows_second = is_known(column, second);
    int compared = 0;
    if (!knows_first || !knows_second)
        compared = knows_second - knows_first;
    else if (top_column_is_text(column))
        compared = strcmp(first->text, second->text);
    else
        compared = (first->number > second->number) - (first->number < second->number);
    if (order.descending && knows_first && knows_second)
        compared = -compared;
    /* Equal ones stay in their order, so that rows do not jump. */
    return compared ? compared : (*first_row > *second_row) - (*first_row < *second_row);
}

size_t top_table_pick(const struct top_table *table, const char *filter, unsigned sort,
                      bool descending, size_t *rows) {
    size_t count = 0;
    for (size_t i = 0; i < table->rows; i++) {
        if (!*filter || contains(table, table->cells + i * table->columns, filter))
            rows[count++] = i;
    }
    order.table = table;
    order.column = sort;
    order.descending = descending;
    if (count && sort < table->columns)
        qsort(rows, count, sizeof *rows, compare_rows);
    return count;
}

/* ---- for programs, and as text ---- */

static json_t *cell_json(const struct top_column *column, const struct top_cell *cell) {
    if (!is_known(column, cell))
        return json_null();
    switch (column->kind) {
    case TOP_TEXT:
    case TOP_DEVICES:
        return output_json_text(cell->text);
    case TOP_COUNT:
    case TOP_BYTES:
        return json_integer((json_int_t)cell->number);
    case TOP_KEEP:
        return json_boolean(cell->number > 0);
    default:
        return json_real(cell->number);
    }
}

json_t *top_table_json(const struct top_table *table) {
    json_t *rows = json_array();
    for (size_t i = 0; i < table->rows; i++) {
        json_t *row = json_object();
        for (unsigned c = 0; c < table->columns; c++)
            json_object_set_new(
                row, table->view->columns[c].key,
                cell_json(&table->view->columns[c], &table->cells[i * table->columns + c]));
        json_array_append_new(rows, row);
    }
    return rows;
}

void top_table_print(const struct top_table *table) {
    char titles[TOP_COLUMNS_MAX][32], text[TOP_CELL_BYTES];
    const char *pointers[TOP_COLUMNS_MAX + 1] = {NULL};
    struct output_table output;
    size_t *rows = malloc((table->rows + 1) * sizeof *rows);
    CW_ASSERT(rows);
    for (unsigned c = 0; c < table->columns; c++) {
        const struct top_column *column = &table->view->columns[c];
        snprintf(titles[c], sizeof titles[c], "%s%s", top_column_right(column) ? ">" : "",
                 column->title);
        pointers[c] = titles[c];
    }
    output_table_init(&output, pointers);
    size_t count = top_table_pick(table, "", table->view->sort, table->view->descending, rows);
    for (size_t i = 0; i < count; i++) {
        for (unsigned c = 0; c < table->columns; c++)
            output_table_add(&output,
                             top_cell_text(&table->view->columns[c],
                                           &table->cells[rows[i] * table->columns + c], text));
    }
    printf("\n%s: %zu\n", table->view->title, count);
    if (count)
        output_table_print(&output, "  ");
    else
        printf("  %s\n", table->view->empty);
    if (count && table->view->note)
        printf("  %s\n", table->view->note);
    output_table_deinit(&output);
    free(rows);
}
