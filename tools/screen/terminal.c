/*
 * The terminal: see terminal.h. One thread. Handlers set flags and ring an eventfd, at which
 * terminal_wait() sleeps together with stdin.
 *
 * Who ends how: a signal for an end is a flag first, so that the terminal is given back by what
 * runs outside of handlers. If that hangs (Ctrl-S stops all output), the next such signal gives the
 * modes back in its handler and kills us. A terminal that has gone away is an end of file, a
 * hang-up or an error at stdin: each ends the program, none is read again.
 */
#include "tools/screen/terminal.h"

#include <curses.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "shm/base/wait.h"
#include "tools/cli.h"
#include "tools/screen/terminfo.h"

static struct {
    SCREEN *screen;
    int bell; /* eventfd */
    struct termios before;
    volatile sig_atomic_t ends;  /* a signal */
    volatile sig_atomic_t stops; /* Ctrl-Z */
    volatile sig_atomic_t continued, resized;
} terminal = {.bell = -1};

/* ---- signals ---- */

static void ring(void) {
    const uint64_t one = 1;
    int error = errno;
    ssize_t done = write(terminal.bell, &one, sizeof one);
    (void)done; /* full: it is rung already */
    errno = error;
}

static void on_end(int number) {
    if (terminal.ends) {
        tcsetattr(STDIN_FILENO, TCSANOW, &terminal.before);
        signal(number, SIG_DFL);
        raise(number);
    }
    terminal.ends = number;
    ring();
}

static void on_stop(int number) {
    (void)number;
    terminal.stops = 1;
    ring();
}

static void on_change(int number) {
    if (number == SIGCONT)
        terminal.continued = 1;
    else
        terminal.resized = 1;
    ring();
}

static void handle(int number, void handler(int)) {
    struct sigaction action = {.sa_handler = handler}, old;
    sigemptyset(&action.sa_mask);
    /* Whoever started us may want one to be ignored (nohup). */
    if (sigaction(number, NULL, &old) == 0 && old.sa_handler == SIG_IGN && number != SIGWINCH)
        return;
    sigaction(number, &action, NULL);
}

static void handle_all(void) {
    handle(SIGINT, on_end);
    handle(SIGTERM, on_end);
    handle(SIGHUP, on_end);
    handle(SIGQUIT, on_end);
    handle(SIGTSTP, on_stop);
    handle(SIGCONT, on_change);
    handle(SIGWINCH, on_change);
}

/* ---- opening and closing ---- */

static void fit(void) {
    struct winsize size;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0)
        resizeterm(size.ws_row, size.ws_col);
}

/* Keys that a terminal may send in two ways, and its description tells one of. */
static void define_keys(void) {
    static const struct {
        char end;
        int key;
    } keys[] = {{'A', KEY_UP},   {'B', KEY_DOWN}, {'C', KEY_RIGHT},
                {'D', KEY_LEFT}, {'H', KEY_HOME}, {'F', KEY_END}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char ways[2][4] = {{'\33', '[', keys[i].end, 0}, {'\33', 'O', keys[i].end, 0}};
        define_key(ways[0], keys[i].key);
        define_key(ways[1], keys[i].key);
    }
}

int terminal_open(void) {
    const char *name = secure_getenv("TERM");
    if (!name || !*name || strcmp(name, "dumb") == 0)
        return cli_error(CLI_FAILED,
                         "top: TERM is %s, a terminal without a screen: --once prints "
                         "everything once",
                         name && *name ? name : "not set");
    if (tcgetattr(STDIN_FILENO, &terminal.before))
        return cli_error(CLI_FAILED, "top: the modes of the terminal cannot be read: %s",
                         strerror(errno));
    terminal.bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (terminal.bell < 0)
        return cli_error(CLI_FAILED, "top: no descriptor for a bell: %s", strerror(errno));
    const char *described = terminfo_find(name);
    terminal.screen = described ? newterm(described, stdout, stdin) : NULL;
    if (!terminal.screen) {
        close(terminal.bell);
        return cli_error(CLI_FAILED,
                         "top: this machine has no description of the terminal \"%s\" (TERM): set "
                         "TERM to one that it has, such as xterm, or TERMINFO_DIRS to where they "
                         "lie; --once prints everything once",
                         name);
    }
    handle_all(); /* in the place of ncurses' own, which act within handlers */
    set_escdelay(25);
    cbreak();
    noecho();
    nonl();
    keypad(stdscr, TRUE);
    define_keys();
    nodelay(stdscr, TRUE);
    curs_set(0);
    if (has_colors() && start_color() == OK)
        use_default_colors();
    fit();
    return CLI_OK;
}

void terminal_close(void) {
    if (!terminal.screen)
        return;
    endwin();
    delscreen(terminal.screen);
    terminal.screen = NULL;
    close(terminal.bell);
    terminal.bell = -1;
}

void terminal_die(void) {
    int number = terminal.ends;
    if (!number || number == SIGINT)
        return;
    signal(number, SIG_DFL);
    raise(number);
}

/* ---- waiting ---- */

/* Gives the terminal back, stops, and takes it again when we go on. */
static void stop(void) {
    terminal.stops = 0;
    endwin();
    signal(SIGTSTP, SIG_DFL);
    raise(SIGTSTP);
    handle(SIGTSTP, on_stop);
}

/* Of stdin, when poll() has something: is there anything to be read? */
static bool has_keys(short events) {
    int bytes = 0;
    return (events & POLLIN) && ioctl(STDIN_FILENO, FIONREAD, &bytes) == 0 && bytes > 0;
}

enum terminal_event terminal_wait(int64_t until_ns) {
    for (;;) {
        struct pollfd both[] = {{.fd = STDIN_FILENO, .events = POLLIN},
                                {.fd = terminal.bell, .events = POLLIN}};
        int64_t left_ns = until_ns - cw_now_ns();
        struct timespec left = {.tv_sec = left_ns > 0 ? left_ns / 1000000000 : 0,
                                .tv_nsec = left_ns > 0 ? left_ns % 1000000000 : 0};
        int found = ppoll(both, 2, &left, NULL);
        if (found < 0 && errno != EINTR)
            return TERMINAL_ENDED;
        uint64_t rings;
        while (read(terminal.bell, &rings, sizeof rings) > 0)
            continue;
        if (terminal.ends)
            return TERMINAL_ENDED;
        if (terminal.stops) {
            stop();
            terminal.continued = 1;
        }
        if (terminal.continued || terminal.resized) {
            if (terminal.continued)
                endwin(); /* what is drawn next takes it again, with its modes */
            terminal.continued = terminal.resized = 0;
            fit();
            return TERMINAL_CHANGED;
        }
        if (found > 0 && both[0].revents)
            return has_keys(both[0].revents) ? TERMINAL_KEYS : TERMINAL_ENDED;
        if (found == 0)
            return TERMINAL_TIMEOUT;
    }
}
