/*
 * The screen of `cableway top`, on the terminal that stdin and stdout are.
 */
#ifndef CW_TOOLS_TOP_SCREEN_H
#define CW_TOOLS_TOP_SCREEN_H

#include <stdint.h>

/* Runs until the user ends it, or the terminal goes away. delay_ns: between two looks. Returns an
 * exit code (enum cli_exit), after the error was printed; the terminal is as it was. */
int top_screen(int64_t delay_ns);

#endif
