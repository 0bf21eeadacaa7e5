/*
 * Descriptions of terminals: which one ncurses is to use.
 */
#ifndef CW_TOOLS_SCREEN_TERMINFO_H
#define CW_TOOLS_SCREEN_TERMINFO_H

/* The name under which ncurses finds a description of this terminal: name itself where this machine
 * has one, else that of what is built in, if its name tells that it understands it. NULL: there is
 * none. Sets TERMINFO in this process for what is built in. */
const char *terminfo_find(const char *name);

#endif
