/*
 * Options, errors and the connection: what every subcommand needs. One thread; nothing outlives the
 * process.
 */
#include "tools/cli.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "shm/base/wait.h"
#include "tools/monitor.h"
#include "tools/output.h"

static const struct cli_option_row option_rows[] = {
    {"json", CLI_JSON, NULL, "print JSON"},
    {"namespace", CLI_NAMESPACE, "NS", "the namespace (default: $CABLEWAY_NAMESPACE, else none)"},
    {"all", CLI_ALL, NULL, "the names of all namespaces"},
    {"timeout", CLI_TIMEOUT_OPTION, "SECONDS", "give up after so long (default: never)"},
    {"yes", CLI_YES, NULL, "do not ask"},
    {"force", CLI_FORCE, NULL, "also end a broker that does not answer"},
    {"keep", CLI_KEEP, NULL, "keep the name until it is removed"},
    {"no-replace", CLI_NO_REPLACE, NULL, "fail if the name is taken"},
    {"device", CLI_DEVICE, "DEVICE", "where it shall lie: cpu or cuda:N"},
    {"replace", CLI_REPLACE, NULL, "replace what the name means"},
    {"leaves", CLI_LEAVES, NULL, "list the leaves of a tree"},
    {"old", CLI_OLD, NULL, "the earlier versions of trees that processes still have open"},
    {"after", CLI_AFTER, "VERSION", "until the name means a later version than this one"},
    {"processes", CLI_PROCESSES, "N", "how many, also -n N (default: one for each CPU)"},
    {"tag", CLI_TAG, NULL, "put [RANK] before each line of output"},
    {"keep-going", CLI_KEEP_GOING, NULL, "do not end the others when one fails"},
    {"older", CLI_OLDER, "SECONDS",
     "only what is older, or has been idle for longer (default: 60)"},
    {"once", CLI_ONCE, NULL, "print everything once, as text"},
    {"delay", CLI_DELAY, "SECONDS", "between two looks, also -d SECONDS (default: 1)"},
    {"seconds", CLI_SECONDS, "SECONDS", "only the last so many (default: all that is there)"},
    {"output", CLI_OUTPUT, "FILE", "write to this file (default: standard output)"},
    {"grace", CLI_GRACE, "SECONDS", "between SIGTERM and SIGKILL (default: 5)"},
};
#define OPTION_ROWS (sizeof option_rows / sizeof *option_rows)
#define HELP_VALUE  1000
#define OPEN_TRIES  1000u

/* How long a command waits for a broker that is stopped or hangs, and after how long it says so. */
#define ANSWER_SECONDS      2.0
#define ANSWER_NOTE_SECONDS 0.2
#define ANSWER_NAP_NS       10000000
#define BEYOND_WAIT_NS      5000000000 /* for a place that the broker keeps */
#define BEYOND_NAP_NS       5000000

const struct cli_option_row *cli_option_rows(size_t *count) {
    *count = OPTION_ROWS;
    return option_rows;
}

static void print_help(const struct cli_command *command) {
    bool has = command->options & ~(unsigned)(CLI_RAW_ARGUMENTS | CLI_FIRST_ENDS);
    printf("Usage: cableway %s %s%s%s\n\n%s\n", command->name, has ? "[OPTIONS]" : "",
           has && *command->arguments ? " " : "", command->arguments, command->summary);
    if (command->details)
        printf("\n%s", command->details);
    printf("\nOptions:\n");
    for (size_t i = 0; i < OPTION_ROWS; i++) {
        const struct cli_option_row *row = &option_rows[i];
        char text[40];
        if (!(command->options & row->bit))
            continue;
        snprintf(text, sizeof text, "--%s%s%s", row->name, row->value ? " " : "",
                 row->value ? row->value : "");
        printf("  %-20s %s\n", text, row->help);
    }
    printf("  %-20s %s\n\nExit codes: see cableway --help.\n", "--help", "print this");
}

/* Seconds, as people write them. Returns false for what is none. */
static bool parse_seconds(const char *text, int64_t *out_ns) {
    char *end;
    errno = 0;
    double seconds = strtod(text, &end);
    if (end == text || *end || errno || !isfinite(seconds) || seconds < 0 || seconds > 1e9)
        return false;
    *out_ns = (int64_t)(seconds * 1e9);
    return true;
}

/* The number of a version: digits alone. */
static bool parse_version(const char *text, uint64_t *out) {
    char *end;
    errno = 0;
    unsigned long long version = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || version > INT64_MAX)
        return false;
    *out = version;
    return true;
}

/* A number of processes. -1, or the exit code after the mistake was printed. */
static int parse_processes(const char *text, uint32_t *out) {
    char *end;
    errno = 0;
    long count = strtol(text, &end, 10);
    if (end == text || *end || (errno && errno != ERANGE) || count < 1)
        return cli_error(CLI_USAGE, "-n takes a number of processes from 1 to %d, not '%s'",
                         CW_GROUP_RANKS_MAX, text);
    if (count > CW_GROUP_RANKS_MAX)
        return cli_error(CLI_USAGE,
                         "-n %s: a group has at most %d processes; run several jobs, or let each "
                         "process do more",
                         text, CW_GROUP_RANKS_MAX);
    *out = (uint32_t)count;
    return -1;
}

static int take_option(const struct cli_option_row *row, const char *value, struct cli *out) {
    out->options |= row->bit;
    if (row->bit == CLI_NAMESPACE)
        out->name_space = value;
    if (row->bit == CLI_DEVICE) {
        if (out->device_count == CLI_DEVICES_MAX)
            return cli_error(CLI_USAGE, "more than %d devices", CLI_DEVICES_MAX);
        out->device = out->devices[out->device_count++] = value;
    }
    if (row->bit == CLI_TIMEOUT_OPTION && !parse_seconds(value, &out->timeout_ns))
        return cli_error(CLI_USAGE, "--timeout takes a number of seconds, not '%s'", value);
    if (row->bit == CLI_GRACE && !parse_seconds(value, &out->grace_ns))
        return cli_error(CLI_USAGE, "--grace takes a number of seconds, not '%s'", value);
    if (row->bit == CLI_OUTPUT)
        out->output = value;
    if (row->bit == CLI_SECONDS && !parse_seconds(value, &out->seconds_ns))
        return cli_error(CLI_USAGE, "--seconds takes a number of seconds, not '%s'", value);
    if (row->bit == CLI_OLDER && !parse_seconds(value, &out->older_ns))
        return cli_error(CLI_USAGE, "--older takes a number of seconds, not '%s'", value);
    if (row->bit == CLI_DELAY &&
        (!parse_seconds(value, &out->delay_ns) || out->delay_ns < CLI_DELAY_LEAST_NS))
        return cli_error(CLI_USAGE, "-d takes a number of seconds from %g on, not '%s'",
                         (double)CLI_DELAY_LEAST_NS * 1e-9, value);
    if (row->bit == CLI_PROCESSES)
        return parse_processes(value, &out->processes);
    if (row->bit == CLI_AFTER && !parse_version(value, &out->after))
        return cli_error(CLI_USAGE,
                         "--after takes the number of a version, as `cableway stat` shows it, not "
                         "'%s'",
                         value);
    return -1;
}

static int check_count(const struct cli_command *command, const struct cli *cli) {
    if (cli->count >= command->least && (command->most < 0 || cli->count <= command->most))
        return -1;
    return cli_error(CLI_USAGE, "%s: %d argument%s given, too %s; usage: cableway %s %s",
                     command->name, cli->count, cli->count == 1 ? "" : "s",
                     cli->count < command->least ? "few" : "many", command->name,
                     command->arguments);
}

int cli_parse(const struct cli_command *command, int argc, char **argv, struct cli *out) {
    *out = (struct cli){.timeout_ns = -1};
    if (command->options & CLI_RAW_ARGUMENTS) {
        out->count = argc - 1;
        out->arguments = argv + 1;
        return -1;
    }
    struct option options[OPTION_ROWS + 2] = {0};
    int used = 0;
    for (size_t i = 0; i < OPTION_ROWS; i++) {
        if (command->options & option_rows[i].bit)
            options[used++] = (struct option){
                option_rows[i].name, option_rows[i].value ? required_argument : no_argument, NULL,
                (int)i + 1};
    }
    const char *letters = command->options & CLI_PROCESSES    ? "+:hn:"
                          : command->options & CLI_FIRST_ENDS ? "+:h"
                          : command->options & CLI_DELAY      ? ":hd:"
                                                              : ":h";
    options[used] = (struct option){"help", no_argument, NULL, HELP_VALUE};
    opterr = 0;
    optind = 1;
    for (;;) {
        int at = optind, found = getopt_long(argc, argv, letters, options, NULL);
        if (found == -1)
            break;
        if (found == 'h' || found == HELP_VALUE) {
            print_help(command);
            return CLI_OK;
        }
        if (found == ':')
            return cli_error(CLI_USAGE, "%s: option %s needs a value", command->name,
                             argv[optind - 1]);
        if (found == '?')
            return cli_error(CLI_USAGE, "%s: no such option: %s (see cableway %s --help)",
                             command->name, argv[optind > at ? optind - 1 : at], command->name);
        const struct cli_option_row *row = option_rows;
        while (found == 'n'   ? row->bit != CLI_PROCESSES
               : found == 'd' ? row->bit != CLI_DELAY
                              : row != &option_rows[found - 1])
            row++;
        int code = take_option(row, optarg, out);
        if (code >= 0)
            return code;
    }
    out->count = argc - optind;
    out->arguments = argv + optind;
    return check_count(command, out);
}

static void print_message(const char *prefix, const char *format, va_list arguments) {
    char text[2048];
    vsnprintf(text, sizeof text, format, arguments);
    char *safe = output_safe(text);
    fflush(stdout);
    fprintf(stderr, "%s%s\n", prefix, safe);
    free(safe);
}

int cli_error(int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    print_message("cableway: ", format, arguments);
    va_end(arguments);
    return code;
}

void cli_note(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    print_message("", format, arguments);
    va_end(arguments);
}

void cli_note_lifetime(const struct cli *cli, const char *name) {
    struct monitor monitor;
    if ((cli->options & CLI_KEEP) || monitor_open(&monitor))
        return;
    uint64_t clients = monitor_word(&monitor.root->gauges[CW_GAUGE_clients]);
    uint64_t linger = monitor_word(&monitor.root->limits[CW_LIMIT_names_linger_seconds]);
    if (clients <= 1)
        cli_note("note: no other client is connected; %s goes %llu s after the last client ends "
                 "(--keep keeps it)",
                 name, (unsigned long long)linger);
    monitor_close(&monitor);
}

static int exit_code_of(int result) {
    switch (-result) {
    case ECONNRESET:
        return CLI_NO_BROKER;
    case ENOENT:
    case ESTALE:
        return CLI_NO_NAME;
    case ETIMEDOUT:
        return CLI_TIMEOUT;
    case EEXIST:
        return CLI_NAME_TAKEN;
    case EDQUOT:
        return CLI_LIMIT;
    default:
        return CLI_FAILED;
    }
}

int cli_result(int result) {
    if (result >= 0)
        return CLI_OK;
    return cli_error(exit_code_of(result), "%s", cw_error());
}

static char changed[256]; /* what this command has done, whatever becomes of its output */

void cli_changed(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(changed, sizeof changed, format, arguments);
    va_end(arguments);
}

int cli_finish(int code) {
    errno = 0;
    if (!fflush(stdout) && !ferror(stdout))
        return code;
    if (errno == EPIPE || errno == 0)
        return code;
    if (*changed)
        return cli_error(CLI_FAILED, "%s; that is done, only writing it to the output failed: %s",
                         changed, strerror(errno));
    return cli_error(CLI_FAILED, "writing the output failed: %s", strerror(errno));
}

int cli_connect(const struct cli *cli, bool start, cw_client **out) {
    return cli_connect_to(cli->name_space, start, out);
}

static void nap(void) {
    struct timespec time = {.tv_nsec = ANSWER_NAP_NS};
    nanosleep(&time, NULL);
}

/* It has not answered for so long: what that is, and first of all what loses nothing. */
static int no_answer(int pid, enum monitor_state state, char letter, double still_seconds) {
    if (state == MONITOR_STOPPED)
        return cli_error(CLI_FAILED,
                         "the broker (pid %d) does not answer; it is stopped (state %c). Let it go "
                         "on, nothing is lost by that: `kill -CONT %d`",
                         pid, letter, pid);
    return cli_error(CLI_FAILED,
                     "the broker (pid %d) does not answer; it hangs (state %c), for %.0f s in one "
                     "turn of its loop. Try again later: a machine short of memory or CPU makes it "
                     "slow. `cableway status` shows how it is; if it never comes back, `cableway "
                     "stop --force` ends it, and all names are lost",
                     pid, letter, still_seconds);
}

int cli_check_broker(bool start) {
    struct monitor monitor;
    double still_seconds;
    int code = monitor_open(&monitor);
    if (code == -ENOENT && !start)
        return cli_error(CLI_NO_BROKER, "%s", cw_error());
    if (code)
        return CLI_OK; /* connecting will say more */
    int pid = (int)monitor.lock.pid;
    bool told = false;
    enum monitor_state state;
    for (int64_t begun_ns = cw_now_ns();; nap()) {
        double waited = (double)(cw_now_ns() - begun_ns) * 1e-9;
        state = monitor_look(&monitor, &still_seconds);
        code = CLI_OK;
        if (state != MONITOR_STOPPED && state != MONITOR_HANGS)
            break;
        if (waited >= ANSWER_SECONDS) {
            code = no_answer(pid, state, monitor_process_state(&monitor), still_seconds);
            break;
        }
        if (!told && waited >= ANSWER_NOTE_SECONDS)
            cli_note("cableway: the broker (pid %d) %s; waiting %g s for it", pid,
                     state == MONITOR_STOPPED ? "is stopped" : "does not answer", ANSWER_SECONDS);
        told |= waited >= ANSWER_NOTE_SECONDS;
    }
    monitor_close(&monitor);
    return code;
}

int cli_connect_to(const char *name_space, bool start, cw_client **out) {
    int code = cli_check_broker(start);
    if (code)
        return code;
    return cli_result(cw_connect(NULL, name_space, start ? 0 : CW_CONNECT_NO_START, out));
}

int cli_connect_beyond(const char *as, const char *name_space, cw_client **out) {
    const struct timespec pause = {.tv_nsec = BEYOND_NAP_NS};
    int64_t end_ns = cw_now_ns() + BEYOND_WAIT_NS;
    int result;
    prctl(PR_SET_NAME, as); /* at once: a refusal would stand among the errors of `cableway log` */
    while ((result = cw_connect(NULL, name_space, CW_CONNECT_NO_START, out)) == -EDQUOT &&
           cw_now_ns() < end_ns)
        nanosleep(&pause, NULL);
    return result;
}

int cli_connect_admin(const char *name_space, cw_client **out) {
    int code = cli_check_broker(false);
    return code ? code : cli_result(cli_connect_beyond(CLI_AS_ADMIN, name_space, out));
}

int cli_open(cw_client *client, const char *name, cw_array **array, cw_tree **tree) {
    int result = -EISDIR;
    *array = NULL;
    *tree = NULL;
    /* It may become the other one between two looks: then it is looked at again. */
    for (unsigned tries = 0; tries < OPEN_TRIES; tries++) {
        result = cw_get(client, name, CW_READONLY, array);
        if (result != -EISDIR)
            return result;
        result = cw_tree_get(client, name, 0, tree);
        if (result != -ENOTDIR)
            return result;
    }
    return result;
}
