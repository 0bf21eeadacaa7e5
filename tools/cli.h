/*
 * The cableway command: what its subcommands share. One file a subcommand (in commands/), one table
 * (main.c), one parser for the options of all of them (cli.c).
 *
 * Results: a subcommand returns an exit code (enum cli_exit), documented in --help and cableway(1).
 * What people asked for goes to stdout, everything else (errors, notes, questions) to stderr.
 * No subcommand but `put`, `load` and `doctor` (and `broker` itself) ever starts a broker.
 */
#ifndef CW_TOOLS_CLI_H
#define CW_TOOLS_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/cableway.h"

enum cli_exit {
    CLI_OK = 0,
    CLI_FAILED = 1,
    CLI_USAGE = 2,
    CLI_NO_BROKER = 3, /* none runs, or it was lost on the way */
    CLI_NO_NAME = 4,   /* none, or what it means is gone */
    CLI_TIMEOUT = 5,
    CLI_NAME_TAKEN = 6, /* put and cp with --no-replace; load: it means something else */
    CLI_LIMIT = 7,      /* a limit of the broker, or no memory left */
    CLI_DIFFERS = 8,    /* verify: the tree is not what was published, or what lies in the files */
};

enum cli_option { /* which options a subcommand takes; --help goes without saying */
                  CLI_JSON = 1,
                  CLI_NAMESPACE = 2,
                  CLI_ALL = 4,
                  CLI_TIMEOUT_OPTION = 8,
                  CLI_YES = 16,
                  CLI_FORCE = 32,
                  CLI_KEEP = 64,
                  CLI_NO_REPLACE = 128,
                  CLI_RAW_ARGUMENTS = 256, /* all arguments belong to another program */
                  CLI_DEVICE = 512,
                  CLI_REPLACE = 1024,
                  CLI_LEAVES = 2048,
                  CLI_AFTER = 4096,
                  CLI_OLD = 8192,
                  CLI_PROCESSES = 16384, /* the first argument ends the options: it is a program */
                  CLI_TAG = 32768,
                  CLI_KEEP_GOING = 65536,
                  CLI_GRACE = 131072,
                  CLI_OLDER = 262144,
                  CLI_ONCE = 524288,
                  CLI_DELAY = 1048576,
                  CLI_FIRST_ENDS = 2097152, /* the first argument ends the options */
                  CLI_SECONDS = 4194304,
                  CLI_OUTPUT = 8388608,
};

#define CLI_DEVICES_MAX    64
#define CLI_DELAY_LEAST_NS 100000000

struct cli {                              /* a parsed command line */
    unsigned options;                     /* of enum cli_option: those that were given */
    const char *name_space;               /* NULL: not given */
    const char *device;                   /* the same */
    const char *devices[CLI_DEVICES_MAX]; /* each that was given */
    uint32_t device_count;
    int64_t timeout_ns; /* < 0: for ever */
    uint64_t after;     /* a version of a tree */
    uint32_t processes; /* 1 to CW_GROUP_RANKS_MAX; 0: not given */
    int64_t grace_ns;
    int64_t older_ns;
    int64_t delay_ns;
    int64_t seconds_ns;
    const char *output; /* a file; NULL: not given */
    int count;
    char **arguments;
};

struct cli_command {
    const char *name;
    const char *arguments; /* as the usage line shows them */
    const char *summary;   /* one line */
    const char *details;   /* further lines of --help, or NULL */
    unsigned options;      /* of enum cli_option: those that it takes */
    int least, most;       /* how many arguments; most < 0: any number */
    int (*run)(const struct cli *cli);
};

struct cli_option_row {
    const char *name;
    unsigned bit;      /* of enum cli_option */
    const char *value; /* what stands for its value, NULL when it takes none */
    const char *help;
};

/* All commands (main.c) and all options (cli.c), in the order in which --help shows them. */
const struct cli_command *cli_commands(size_t *count);
const struct cli_option_row *cli_option_rows(size_t *count);

int cmd_broker(const struct cli *cli);
int cmd_status(const struct cli *cli);
int cmd_ls(const struct cli *cli);
int cmd_stat(const struct cli *cli);
int cmd_put(const struct cli *cli);
int cmd_get(const struct cli *cli);
int cmd_rm(const struct cli *cli);
int cmd_wait(const struct cli *cli);
int cmd_stop(const struct cli *cli);
int cmd_topo(const struct cli *cli);
int cmd_cp(const struct cli *cli);
int cmd_keygen(const struct cli *cli);
int cmd_peers(const struct cli *cli);
int cmd_doctor(const struct cli *cli);
int cmd_load(const struct cli *cli);
int cmd_verify(const struct cli *cli);
int cmd_run(const struct cli *cli);
int cmd_top(const struct cli *cli);
int cmd_metrics(const struct cli *cli);
int cmd_leaks(const struct cli *cli);
int cmd_limit(const struct cli *cli);
int cmd_log(const struct cli *cli);
int cmd_completion(const struct cli *cli);
int cmd_exporter(const struct cli *cli);
int cmd_trace(const struct cli *cli);

/*
 * Parses arguments (argv[0] is the subcommand's name). Returns -1 and *out, or the exit code with
 * which to end: CLI_OK after --help was printed, CLI_USAGE after the mistake was.
 */
int cli_parse(const struct cli_command *command, int argc, char **argv, struct cli *out);

/* Prints "cableway: " and the sentence to stderr, control characters made harmless. Returns code.
 */
int cli_error(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same for a note that is no error. */
void cli_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A name that nobody's client keeps alive is gone soon: says so. */
void cli_note_lifetime(const struct cli *cli, const char *name);
/* Prints cw_error() and returns the exit code that belongs to a result of cableway.h. */
int cli_result(int result);
/* What the command has changed, as a sentence without its end. If the output then cannot be
 * written, the error says that it is done all the same. */
void cli_changed(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Flushes stdout. A reader that went away (`| head`) is no error: it had enough. */
int cli_finish(int code);

/* Connects to the broker that runs; start: starts one if none does. namespace as the options say.
 * Waits a moment (2 s) for one that is stopped or hangs, and says so. Returns CLI_OK and *out
 * (cw_client_unref), or the exit code after the error was printed. */
int cli_connect(const struct cli *cli, bool start, cw_client **out);
/* The same with a namespace of its own (NULL: the environment's). */
int cli_connect_to(const char *name_space, bool start, cw_client **out);

/* Connects to a broker that answers, if there is one, also where max_clients is reached: the broker
 * has places for who looks for what to do then (broker/session/hello.c). Where these are taken,
 * too, it waits for one, 5 s at most. as: CLI_AS_ADMIN or CLI_AS_LIMIT; the caller is done within
 * milliseconds, and waits for nobody while it is connected. 0 and *out, or a negative code. */
#define CLI_AS_ADMIN "cableway-admin"
#define CLI_AS_LIMIT "cableway-limit"
int cli_connect_beyond(const char *as, const char *name_space, cw_client **out);
/* cli_connect_to() by these places, as CLI_AS_ADMIN. */
int cli_connect_admin(const char *name_space, cw_client **out);

/* Is there a broker that answers, now or within 2 s? Its page tells, where connecting would time
 * out. start: none may run. CLI_OK, or the exit code after the error was printed. */
int cli_check_broker(bool start);

/* What lies under a name: an array, read-only, or a tree; the other one is NULL. As cw_get() and
 * cw_tree_get(). */
int cli_open(cw_client *client, const char *name, cw_array **array, cw_tree **tree);

/* The cablewayd that this command runs: $CABLEWAY_BROKER, beside this program, ../bin, then PATH. 0
 * or -ENOENT. */
int cli_broker_path(char *path, size_t path_bytes);

/* The cableway-bridge that the broker runs: $CABLEWAY_BRIDGE, else beside cablewayd. path: PATH_MAX
 * bytes. 0, or -ENOENT with the sentence. */
int cli_bridge_path(char *path);

#endif
