/*
 * The terminal: opened for a full screen, and given back as it was. Signals are flags that
 * terminal_wait() tells of: nothing is drawn, and nothing waits, in a handler.
 */
#ifndef CW_TOOLS_SCREEN_TERMINAL_H
#define CW_TOOLS_SCREEN_TERMINAL_H

#include <stdbool.h>
#include <stdint.h>

enum terminal_event {
    TERMINAL_TIMEOUT, /* nothing else happened until then */
    TERMINAL_KEYS,    /* getch() has something */
    TERMINAL_CHANGED, /* another size, or it was given back meanwhile: draw all anew */
    TERMINAL_ENDED,   /* it has gone away, or a signal wants an end */
};

/* Returns CLI_OK, or an exit code after the error was printed. */
int terminal_open(void);
/* Gives it back. May be repeated. */
void terminal_close(void);
/* Blocks until something happens, or until_ns (CLOCK_MONOTONIC). Ctrl-Z is served in here. */
enum terminal_event terminal_wait(int64_t until_ns);
/* After TERMINAL_ENDED: dies of the signal that wanted it, so that whoever waits for us sees that.
 * Returns if there was none, or if it was Ctrl-C, which ends us as q does. */
void terminal_die(void);

#endif
