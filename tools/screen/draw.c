/*
 * Drawing: see draw.h. One thread. Whatever others wrote comes through output_safe() (as part of a
 * cell's text) and is then laid out character by character: none that the terminal would not show
 * in so many columns is sent.
 */
#include "tools/screen/draw.h"

#include <curses.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <wchar.h>

#include "shm/base/error.h"

#define TEXT_LEAST  6  /* columns that a text is left on a narrow screen */
#define TEXT_AGAIN  12 /* that a text is given which comes back */
#define COLUMNS_MAX 512

/* ---- texts ---- */

/* The columns of a safe text; out: its characters that fit into room columns, terminated. */
static int lay_out(const char *text, int room, wchar_t *out) {
    mbstate_t state = {0};
    int used = 0, count = 0, marks = 0;
    while (*text) {
        wchar_t character;
        size_t length = mbrtowc(&character, text, strlen(text), &state);
        if (length == (size_t)-1 || length == (size_t)-2) { /* not of this locale */
            memset(&state, 0, sizeof state);
            character = L'?';
            length = 1;
        }
        text += length;
        int width = wcwidth(character);
        if (width < 0) {
            character = L'?';
            width = 1;
        }
        /* A mark needs a character to stand on, and ncurses keeps but a few. */
        marks = width ? 0 : marks + 1;
        if (width == 0 && (count == 0 || marks > 3))
            continue;
        if (used + width > room || count >= COLUMNS_MAX * 2 - 2) {
            used = room + 1; /* it does not fit */
            break;
        }
        out[count++] = character;
        used += width;
    }
    out[count] = 0;
    return used;
}

static int width_of(const char *text) {
    wchar_t characters[COLUMNS_MAX * 2];
    int used = lay_out(text, COLUMNS_MAX, characters);
    return used > COLUMNS_MAX ? COLUMNS_MAX : used;
}

/* A text in so many columns, cut with a + where it is longer. */
static void put(int line, int column, int width, bool right, const char *text) {
    wchar_t characters[COLUMNS_MAX * 2];
    if (width < 1 || column >= COLS)
        return;
    if (width > COLS - column)
        width = COLS - column;
    int used = lay_out(text, width, characters);
    bool cut = used > width;
    if (cut)
        used = lay_out(text, width - 1, characters);
    if (cut) { /* lay_out() says one too many of what does not fit */
        used = 0;
        for (const wchar_t *at = characters; *at; at++)
            used += wcwidth(*at);
    }
    move(line, column + (right && !cut ? width - used : 0));
    addwstr(characters);
    if (cut)
        mvaddch(line, column + used, '+');
}

static int put_on(int line, int column, const char *text) {
    int width = width_of(text);
    put(line, column, width, false, text);
    return column + width;
}

/* ---- the head ---- */

static double sum_of(const struct top *top, bool gpu, bool orphan, bool live) {
    double sum = 0;
    for (size_t i = 0; i < top->slab_count; i++) {
        const struct memory_slab *slab = &top->slabs[i].memory;
        if (slab->gpu == gpu && (slab->owner == 0) == orphan)
            sum += (double)(live ? slab->live_bytes : slab->size_bytes - slab->live_bytes);
    }
    return sum;
}

static void draw_broker(const struct screen *screen) {
    const struct top *top = screen->top;
    char text[256], span[OUTPUT_SHORT], clock[16];
    bool well = top->state == MONITOR_IDLE || top->state == MONITOR_RUNNING;
    time_t now = time(NULL);
    struct tm parts;
    localtime_r(&now, &parts);
    strftime(clock, sizeof clock, "%H:%M:%S", &parts);
    int at = put_on(0, 0, "cableway top  ");
    if (*screen->no_broker) {
        attron(A_BOLD);
        put(0, at, COLS - at - 9, false, screen->no_broker);
        attroff(A_BOLD);
    } else {
        snprintf(text, sizeof text, "broker %d ", (int)top->monitor.lock.pid);
        at = put_on(0, at, text);
        snprintf(text, sizeof text, "%s", monitor_state_text(top->state));
        if (top->state == MONITOR_GONE)
            snprintf(text, sizeof text, "GONE: what it said last follows");
        else if (!well)
            snprintf(text, sizeof text, "%s, last heard of %s ago",
                     top->state == MONITOR_STOPPED ? "STOPPED" : "HANGS",
                     output_span(top->still_seconds < 0 ? 0 : top->still_seconds, span));
        if (!well)
            attron(A_BOLD | A_REVERSE);
        at = put_on(0, at, text);
        attroff(A_BOLD | A_REVERSE);
        snprintf(text, sizeof text, "  up %s  clients %zu  names %zu",
                 output_span(output_age_seconds(top->monitor.root->started_ns), span),
                 top->client_count, top->array_count);
        put(0, at, COLS - at - 9, false, text);
    }
    put(0, COLS - 8, 8, true, clock);
}

static void draw_sums(const struct screen *screen, int line, bool gpu) {
    char live[OUTPUT_SHORT], cached[OUTPUT_SHORT], orphan[OUTPUT_SHORT], text[256];
    const struct top *top = screen->top;
    output_size((uint64_t)sum_of(top, gpu, false, true), live);
    output_size((uint64_t)sum_of(top, gpu, false, false), cached);
    output_size((uint64_t)(sum_of(top, gpu, true, true) + sum_of(top, gpu, true, false)), orphan);
    snprintf(text, sizeof text, "%s live %s  cached %s  orphan %s", gpu ? "GPUs" : "host", live,
             cached, orphan);
    put_on(line, 0, text);
}

static bool has_gpus(const struct top *top) {
    for (size_t i = 0; i < top->slab_count; i++) {
        if (top->slabs[i].memory.gpu)
            return true;
    }
    return false;
}

/* Broker, memory, views, titles. */
static int head_lines(const struct screen *screen) {
    return has_gpus(screen->top) ? 5 : 4;
}

static void draw_tabs(const struct screen *screen) {
    char text[64];
    int at = 0, line = head_lines(screen) - 2;
    for (unsigned v = 0; v < TOP_VIEWS; v++) {
        snprintf(text, sizeof text, " %u %s ", v + 1, top_views[v].key);
        if (v == screen->view)
            attron(A_REVERSE);
        at = put_on(line, at, text);
        attroff(A_REVERSE);
    }
    if (screen->paused) {
        attron(A_BOLD);
        put(line, at + 1, COLS - at - 1, true, "PAUSED");
        attroff(A_BOLD);
    }
}

/* ---- the table ---- */

struct layout {
    int widths[TOP_COLUMNS_MAX]; /* 0: not on the screen */
    int natural[TOP_COLUMNS_MAX];
    int gap;       /* between two of them */
    unsigned sort; /* the column by which the rows are sorted: it stays, whatever its rank */
};

static int columns_used(const struct layout *layout, unsigned columns) {
    int used = -layout->gap;
    for (unsigned c = 0; c < columns; c++)
        used += layout->widths[c] ? layout->widths[c] + layout->gap : 0;
    return used;
}

/* The column that goes next where it is narrow, never that by which the rows are sorted; columns:
 * none. */
static unsigned highest_rank(const struct top_table *table, const struct layout *layout) {
    unsigned found = table->columns;
    for (unsigned c = 0; c < table->columns; c++) {
        unsigned rank = table->view->columns[c].rank;
        if (layout->widths[c] && rank > 0 && c != layout->sort &&
            (found == table->columns || rank >= table->view->columns[found].rank))
            found = c;
    }
    return found;
}

static unsigned widest_text(const struct top_table *table, const struct layout *layout) {
    unsigned found = table->columns;
    for (unsigned c = 0; c < table->columns; c++) {
        if (top_column_is_text(&table->view->columns[c]) && layout->widths[c] > TEXT_LEAST &&
            (found == table->columns || layout->widths[c] > layout->widths[found]))
            found = c;
    }
    return found;
}

/* What a column is given at first. */
static int first_width(const struct top_table *table, const struct layout *layout, unsigned c,
                       int cap) {
    bool caps = top_column_is_text(&table->view->columns[c]) && layout->natural[c] > cap;
    return caps ? cap : layout->natural[c];
}

/* Columns that went for the sake of a wide one that went later come back where there is room. */
static void bring_back(const struct top_table *table, struct layout *layout) {
    for (unsigned rank = 1; rank < 16; rank++) {
        for (unsigned c = 0; c < table->columns; c++) {
            if (layout->widths[c] || table->view->columns[c].rank != rank)
                continue;
            int width = first_width(table, layout, c, TEXT_AGAIN);
            if (columns_used(layout, table->columns) + layout->gap + width <= COLS)
                layout->widths[c] = width;
        }
    }
}

/* Texts get a quarter of the screen at first; columns go by their rank until the rest fits, then
 * texts shrink; what is left over is theirs again. */
static void fit(const struct top_table *table, struct layout *layout) {
    unsigned at;
    for (unsigned c = 0; c < table->columns; c++)
        layout->widths[c] = first_width(table, layout, c, COLS / 4 > 12 ? COLS / 4 : 12);
    if (columns_used(layout, table->columns) > COLS)
        layout->gap = 1;
    while (columns_used(layout, table->columns) > COLS &&
           (at = highest_rank(table, layout)) < table->columns)
        layout->widths[at] = 0;
    while (columns_used(layout, table->columns) > COLS &&
           (at = widest_text(table, layout)) < table->columns)
        layout->widths[at]--;
    bring_back(table, layout);
    int left = COLS - columns_used(layout, table->columns);
    for (unsigned c = 0; c < table->columns && left > 0; c++) {
        int more = layout->widths[c] ? layout->natural[c] - layout->widths[c] : 0;
        more = more < left ? more : left;
        layout->widths[c] += more;
        left -= more;
    }
}

static void draw_row(const struct top_table *table, const struct layout *layout, int line,
                     char *const *texts) {
    for (unsigned c = 0, at = 0; c < table->columns; c++) {
        if (!layout->widths[c])
            continue;
        put(line, (int)at, layout->widths[c], top_column_right(&table->view->columns[c]), texts[c]);
        at += (unsigned)(layout->widths[c] + layout->gap);
    }
}

static void draw_titles(const struct screen *screen, const struct top_table *table,
                        const struct layout *layout) {
    int line = head_lines(screen) - 1;
    attron(A_REVERSE);
    mvhline(line, 0, ' ', COLS);
    for (unsigned c = 0, at = 0; c < table->columns; c++) {
        const struct top_column *column = &table->view->columns[c];
        if (!layout->widths[c])
            continue;
        bool sorted = c == screen->views[screen->view].sort;
        if (sorted)
            attron(A_BOLD | A_UNDERLINE);
        put(line, (int)at, layout->widths[c], top_column_right(column), column->title);
        if (sorted)
            attroff(A_BOLD | A_UNDERLINE);
        at += (unsigned)(layout->widths[c] + layout->gap);
    }
    attroff(A_REVERSE);
}

size_t draw_page(const struct screen *screen) {
    int lines = LINES - head_lines(screen) - 1;
    return lines > 1 ? (size_t)lines : 1;
}

static void draw_table(struct screen *screen) {
    const struct top_table *table = &screen->top->tables[screen->view];
    struct view_state *state = &screen->views[screen->view];
    struct layout layout = {.gap = 2, .sort = state->sort};
    char text[TOP_CELL_BYTES];
    size_t page = draw_page(screen);
    if (state->scroll + page > screen->count)
        state->scroll = screen->count > page ? screen->count - page : 0;
    size_t shown = screen->count - state->scroll;
    shown = shown < page ? shown : page;
    char **texts = calloc(shown * table->columns + 1, sizeof *texts);
    CW_ASSERT(texts);
    for (unsigned c = 0; c < table->columns; c++)
        layout.natural[c] = width_of(table->view->columns[c].title);
    for (size_t i = 0; i < shown * table->columns; i++) {
        unsigned c = (unsigned)(i % table->columns);
        size_t row = screen->rows[state->scroll + i / table->columns];
        top_cell_text(&table->view->columns[c], &table->cells[row * table->columns + c], text);
        texts[i] = strdup(text);
        CW_ASSERT(texts[i]);
        int width = width_of(text);
        layout.natural[c] = width > layout.natural[c] ? width : layout.natural[c];
    }
    fit(table, &layout);
    draw_titles(screen, table, &layout);
    for (size_t i = 0; i < shown; i++)
        draw_row(table, &layout, head_lines(screen) + (int)i, texts + i * table->columns);
    for (size_t i = 0; i < shown * table->columns; i++)
        free(texts[i]);
    free(texts);
    if (screen->count)
        return;
    bool filtered = table->rows && *screen->filter;
    put(head_lines(screen), 2, COLS - 2, false,
        filtered ? "no row has what the filter says (/ changes it)" : table->view->empty);
}

/* ---- the last line, and help ---- */

static void draw_foot(const struct screen *screen) {
    const struct top_table *table = &screen->top->tables[screen->view];
    const struct view_state *state = &screen->views[screen->view];
    char text[512];
    int line = LINES - 1;
    if (screen->types_filter) {
        snprintf(text, sizeof text, "Filter: %s_   Enter: keep it   Esc: all rows", screen->filter);
        put(line, 0, COLS, false, text);
        return;
    }
    size_t last = state->scroll + draw_page(screen);
    last = last < screen->count ? last : screen->count;
    snprintf(text, sizeof text, "%zu-%zu of %zu%s%s%s%s", screen->count ? state->scroll + 1 : 0,
             last, screen->count, state->sort < table->columns ? " by " : "",
             state->sort < table->columns ? table->view->columns[state->sort].title : "",
             *screen->filter ? " with " : "", screen->filter);
    int width = width_of(text), at = COLS - 1 - width; /* terminals differ in their last cell */
    put(line, 0, at - 1, false, "q quit  h help  < > sort  r reverse  / filter  p pause");
    put(line, at > 0 ? at : 0, COLS - 1, false, text);
}

static void draw_help(const struct screen *screen) {
    static const char *const lines[] = {
        "Tab, 1 to 7        another view",
        "up, down           a row;  PgUp, PgDn: a screen;  Home, End: to the ends",
        "<  >  or  s        sort by another column;  r: the other way round",
        "/                  only rows with a text in them;  Esc: all rows",
        "p, space           pause: nothing is looked at until it is pressed again",
        "q, Ctrl-C          quit;  Ctrl-Z: stop, fg goes on",
        "",
        "clients  BYTES: of the arrays that it holds; UNREAD: requests that the broker",
        "         has not read; SENT: handles under way; WAITS FOR: if it is seen",
        "memory   live: in arrays; cached: free for the next ones; orphan: the maker",
        "         has ended; context: the rest that the driver counts (- without NVML)",
        "routes   BYTES since the broker began, when it last heard of the clients",
        "",
        "Columns that a narrow screen has no room for are left out; --json has all.",
        "Any key goes back.",
    };
    for (int i = 0; i < (int)(sizeof lines / sizeof *lines); i++)
        put(head_lines(screen) + i, 2, COLS - 2, false, lines[i]);
}

void draw(struct screen *screen) {
    erase();
    draw_broker(screen);
    draw_sums(screen, 1, false);
    if (has_gpus(screen->top))
        draw_sums(screen, 2, true);
    draw_tabs(screen);
    if (screen->help)
        draw_help(screen);
    else
        draw_table(screen);
    draw_foot(screen);
    refresh();
}
