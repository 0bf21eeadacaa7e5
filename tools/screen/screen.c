/*
 * The screen: the loop, and what keys do. One thread: it sleeps in terminal_wait(), until the next
 * look is due or a key comes. A broker that has died stays on the screen as it last was, until
 * another one runs.
 */
#include "tools/top/screen.h"

#include <ctype.h>
#include <curses.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/error.h"
#include "shm/base/wait.h"
#include "tools/cli.h"
#include "tools/screen/draw.h"
#include "tools/screen/terminal.h"

#define KEY_ESCAPE 27
#define REMAINS_NS 5000000000
#define CTRL(key)  ((key)&0x1f)

/* ---- looks ---- */

static void pick(struct screen *screen) {
    const struct top_table *table = &screen->top->tables[screen->view];
    const struct view_state *state = &screen->views[screen->view];
    if (table->rows > screen->room) {
        screen->room = table->rows;
        free(screen->rows);
        screen->rows = malloc(screen->room * sizeof *screen->rows);
        CW_ASSERT(screen->rows);
    }
    screen->count =
        top_table_pick(table, screen->filter, state->sort, state->descending, screen->rows);
}

/* Another broker in place of none, or of one that has died. */
static void find_broker(struct screen *screen) {
    struct monitor other;
    if (screen->top->opened) {
        if (monitor_open(&other))
            return; /* none yet: what the dead one last said stays */
        monitor_close(&other);
        top_close(screen->top);
    }
    int result = top_open(screen->top);
    snprintf(screen->no_broker, sizeof screen->no_broker, "%s", result ? cw_error() : "");
    /* That walks through all processes. */
    if (result && cw_now_ns() >= screen->remains_ns) {
        top_look_at_remains(screen->top);
        screen->remains_ns = cw_now_ns() + REMAINS_NS;
    }
}

static void look(struct screen *screen) {
    if (!screen->top->opened || screen->top->state == MONITOR_GONE)
        find_broker(screen);
    if (screen->top->opened)
        top_look(screen->top); /* what it returns is its state, which is drawn */
    pick(screen);
}

/* ---- keys ---- */

static void show_view(struct screen *screen, int number) {
    screen->view = (enum top_views)((number + TOP_VIEWS) % TOP_VIEWS);
}

static void sort_by(struct screen *screen, int step) {
    struct view_state *state = &screen->views[screen->view];
    const struct top_table *table = &screen->top->tables[screen->view];
    int columns = (int)table->columns;
    if (!columns)
        return;
    int now = state->sort < table->columns ? (int)state->sort : step > 0 ? -1 : 0;
    state->sort = (unsigned)((now + step + columns) % columns);
    state->descending = top_column_right(&table->view->columns[state->sort]);
}

static void scroll_to(struct screen *screen, int64_t row) {
    int64_t most = (int64_t)screen->count - (int64_t)draw_page(screen);
    row = row > most ? most : row;
    screen->views[screen->view].scroll = row > 0 ? (size_t)row : 0;
}

/* False: it is none that moves. */
static bool move_by(struct screen *screen, int key) {
    int64_t at = (int64_t)screen->views[screen->view].scroll, page = (int64_t)draw_page(screen);
    switch (key) {
    case KEY_UP:
    case 'k':
        scroll_to(screen, at - 1);
        return true;
    case KEY_DOWN:
    case 'j':
        scroll_to(screen, at + 1);
        return true;
    case KEY_PPAGE:
        scroll_to(screen, at - page);
        return true;
    case KEY_NPAGE:
        scroll_to(screen, at + page);
        return true;
    case KEY_HOME:
    case 'g':
        scroll_to(screen, 0);
        return true;
    case KEY_END:
    case 'G':
        scroll_to(screen, (int64_t)screen->count);
        return true;
    default:
        return false;
    }
}

/* A key while the filter is typed. */
static void type_filter(struct screen *screen, int key) {
    size_t length = strlen(screen->filter);
    if (key == KEY_ESCAPE || key == CTRL('u'))
        *screen->filter = 0;
    if (key == KEY_ESCAPE || key == '\r' || key == '\n' || key == KEY_ENTER)
        screen->types_filter = false;
    else if (key == KEY_BACKSPACE || key == 127 || key == '\b') {
        /* The whole of the last character. */
        while (length && ((unsigned char)screen->filter[length - 1] & 0xc0) == 0x80)
            length--;
        screen->filter[length ? length - 1 : 0] = 0;
    } else if (key < 256 && !iscntrl(key) && length + 1 < FILTER_BYTES) {
        screen->filter[length] = (char)key;
        screen->filter[length + 1] = 0;
    }
    screen->views[screen->view].scroll = 0;
}

/* False: quit. */
static bool obey(struct screen *screen, int key) {
    if (screen->types_filter) {
        type_filter(screen, key);
        return true;
    }
    if (screen->help) {
        screen->help = false;
        return key != 'q';
    }
    if (move_by(screen, key))
        return true;
    if (key >= '1' && key < '1' + (int)TOP_VIEWS) {
        show_view(screen, key - '1');
        return true;
    }
    switch (key) {
    case 'q':
        return false;
    case 'h':
    case '?':
    case KEY_F(1):
        screen->help = true;
        break;
    case '\t':
    case KEY_RIGHT:
        show_view(screen, (int)screen->view + 1);
        break;
    case KEY_BTAB:
    case KEY_LEFT:
        show_view(screen, (int)screen->view - 1);
        break;
    case '>':
    case 's':
        sort_by(screen, 1);
        break;
    case '<':
    case 'S':
        sort_by(screen, -1);
        break;
    case 'r':
        screen->views[screen->view].descending ^= true;
        break;
    case '/':
        screen->types_filter = true;
        break;
    case KEY_ESCAPE:
        *screen->filter = 0;
        break;
    case 'p':
    case ' ':
        screen->paused ^= true;
        break;
    case CTRL('l'):
        clearok(curscr, TRUE);
        break;
    default:
        break;
    }
    return true;
}

/* All keys that are there. False: quit. */
static bool obey_all(struct screen *screen) {
    for (int key; (key = getch()) != ERR;) {
        if (!obey(screen, key))
            return false;
        pick(screen); /* the next key may move in what this one has changed */
    }
    return true;
}

/* ---- the loop ---- */

static void run(struct screen *screen, int64_t delay_ns) {
    int64_t next_ns = cw_now_ns();
    for (;;) {
        if (!screen->paused && cw_now_ns() >= next_ns) {
            look(screen);
            next_ns = cw_end_ns(cw_now_ns(), delay_ns);
        }
        draw(screen);
        switch (terminal_wait(screen->paused ? INT64_MAX : next_ns)) {
        case TERMINAL_TIMEOUT:
            break;
        case TERMINAL_KEYS:
            if (!obey_all(screen))
                return;
            break;
        case TERMINAL_CHANGED:
            clearok(curscr, TRUE);
            break;
        case TERMINAL_ENDED:
            return;
        }
    }
}

int top_screen(int64_t delay_ns) {
    struct screen screen = {.top = calloc(1, sizeof *screen.top)};
    CW_ASSERT(screen.top);
    for (unsigned v = 0; v < TOP_VIEWS; v++)
        screen.views[v] = (struct view_state){top_views[v].sort, top_views[v].descending, 0};
    int code = terminal_open();
    if (code == CLI_OK)
        run(&screen, delay_ns);
    terminal_close();
    top_close(screen.top);
    free(screen.top);
    free(screen.rows);
    terminal_die();
    return code;
}
