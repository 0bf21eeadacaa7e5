/*
 * cablewayd: the broker. Reads its arguments, detaches unless told not to, builds the broker
 * (broker.c), runs its loop (loop.c), unwinds. --help tells arguments, limits and exit codes.
 */
#include <ctype.h>
#include <getopt.h>
#include <limits.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "broker/broker.h"
#include "broker/core/clean_start.h"
#include "broker/core/detach.h"
#include "broker/core/log.h"
#include "broker/core/loop.h"
#include "ipc/cableway.h"
#include "ipc/wire.h"
#include "shm/base/error.h"
#include "shm/base/trace.h"
#include "shm/session/variable.h"

#define IDLE_EXIT_DETACHED_NS 60000000000
#define IDLE_EXIT_MOST_S      (10 * 366 * 86400)

static void print_help(void) {
    puts(
        "Usage: cablewayd [OPTION]...\n"
        "Keeps shared arrays of one user: memory, names, leases. Clients start one when they need\n"
        "it. Without --foreground it detaches, and returns when it listens, with --listen also "
        "for\n"
        "other nodes, or says why it cannot.\n"
        "\n"
        "  --foreground         stay in the foreground, log to standard error\n"
        "  --idle-exit SECONDS  end when for so long no client was connected and no name, no\n"
        "                       handle under way and no forked child held anything\n"
        "                       (default: 60 when detached, never in the foreground or with\n"
        "                       --listen)\n"
        "  --dir FOLDER         socket folder, or the path of a socket, FOLDER/NAME.sock\n"
        "                       (default: $CABLEWAY_DIR, else $XDG_RUNTIME_DIR/cableway,\n"
        "                       else /tmp/cableway-UID)\n"
        "  --listen HOST:PORT   let nodes that are known here connect (any number of these; PORT "
        "or\n"
        "                       :PORT: at all addresses; see cableway peers --help)\n"
        "  --peer NAME=HOST:PORT  where a known node is reached, over what the file of peers says\n"
        "  --node NAME          this node's name (default: the host's)\n"
        "  --streams N          connections to each node over which large arrays go, at most 16\n"
        "                       (default: as there are cores, at most 4)\n"
        "  --stall SECONDS      how long nothing may come of what another node that is heard was\n"
        "                       asked for (default: 60; 0: for ever)\n"
        "  --link-idle SECONDS  close a connection to another node that nobody used for so long\n"
        "                       (default: 60; 0: never, and all are made at the start)\n"
        "  --fan-out N          send a sealed array to so many nodes, and refer others to them\n"
        "                       (default: 16; 0: send it to all)\n"
        "  --config FILE        configuration (default: $CABLEWAY_CONFIG, else\n"
        "                       ~/.config/cableway/cableway.conf; /etc/cableway.conf is read\n"
        "                       before it)\n"
        "  --version            print the version and end\n"
        "  --help               print this and end\n"
        "\n"
        "Limits, as KEY = NUMBER under [limits] in the configuration, or in the environment as\n"
        "CABLEWAY_KEY in capitals, which is the stronger. Bytes may end in KiB, MiB, GiB or TiB\n"
        "(0 bytes: half of the memory):\n");
    for (unsigned i = 0; i < CW_LIMIT_COUNT; i++)
        printf("  %-22s %-9llu %s\n", cw_limit_name(i), (unsigned long long)cw_limit_default(i),
               cw_limit_what(i));
    puts("\n"
         "Exit codes: 0 ended as asked (or detached and listening); 1 it could not run; 2 wrong\n"
         "arguments or configuration; 3 a broker runs already, its pid is told; 4 the socket\n"
         "folder cannot be trusted or made. SIGTERM and SIGINT end it cleanly.");
}

static int parse_seconds(const char *text, int64_t *out_ns) {
    char *end;
    errno = 0;
    long long seconds = strtoll(text, &end, 10);
    if (!isdigit((unsigned char)*text) || errno || *end || seconds > IDLE_EXIT_MOST_S)
        return cw_fail(-EINVAL, "--idle-exit takes whole seconds, not \"%.64s\"", text);
    *out_ns = seconds * 1000000000;
    return 0;
}

static const struct option names[] = {
    {"foreground", no_argument, NULL, 'f'},    {"idle-exit", required_argument, NULL, 'i'},
    {"dir", required_argument, NULL, 'd'},     {"config", required_argument, NULL, 'c'},
    {"listen", required_argument, NULL, 'l'},  {"peer", required_argument, NULL, 'p'},
    {"node", required_argument, NULL, 'n'},    {"streams", required_argument, NULL, 'S'},
    {"stall", required_argument, NULL, 'T'},   {"link-idle", required_argument, NULL, 'I'},
    {"fan-out", required_argument, NULL, 'F'}, {"version", no_argument, NULL, 'V'},
    {"help", no_argument, NULL, 'h'},          {NULL, 0, NULL, 0},
};

/* Returns 1 when the program is to go on, else its exit code in *exit_code. */
static int parse_arguments(int argc, char **argv, struct cwd_options *options, int *exit_code) {
    bool idle_given = false, listens = false;
    int found;
    options->bridge = false;
    *exit_code = CWD_EXIT_OK;
    while ((found = getopt_long(argc, argv, "", names, NULL)) >= 0) {
        switch (found) {
        case 'f':
            options->foreground = true;
            break;
        case 'i':
            idle_given = true;
            if (parse_seconds(optarg, &options->idle_exit_ns) != 0) {
                fprintf(stderr, "cablewayd: %s\n", cw_detail());
                *exit_code = CWD_EXIT_USAGE;
                return 0;
            }
            break;
        case 'd':
            options->place = optarg;
            break;
        case 'c':
            options->config_file = optarg;
            break;
        case 'l':
            listens = true; /* others count on it: it does not end when this node is idle */
            /* fall through */
        case 'p':
        case 'n':
        case 'S':
        case 'T':
        case 'I':
        case 'F':
            options->bridge = true;
            if (cwd_remote_option(&options->remote,
                                  found == 'l'   ? "--listen"
                                  : found == 'p' ? "--peer"
                                  : found == 'n' ? "--node"
                                  : found == 'T' ? "--stall"
                                  : found == 'I' ? "--link-idle"
                                  : found == 'F' ? "--fan-out"
                                                 : "--streams",
                                  optarg, "the command line") != 0) {
                fprintf(stderr, "cablewayd: %s\n", cw_detail());
                *exit_code = CWD_EXIT_USAGE;
                return 0;
            }
            break;
        case 'V':
            printf("cablewayd %s (protocol %u)\n", CW_VERSION, CW_PROTOCOL_VERSION);
            return 0;
        case 'h':
            print_help();
            return 0;
        default:
            *exit_code = CWD_EXIT_USAGE;
            return 0;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "cablewayd: \"%.64s\" is no argument of cablewayd; see --help\n",
                argv[optind]);
        *exit_code = CWD_EXIT_USAGE;
        return 0;
    }
    if (!idle_given)
        options->idle_exit_ns = options->foreground || listens ? -1 : IDLE_EXIT_DETACHED_NS;
    return 1;
}

/* Paths are the caller's: the detached broker has another working directory. */
static const char *absolute(const char *path) {
    char folder[PATH_MAX], *joined;
    if (!path || *path == '/' || !*path || !getcwd(folder, sizeof folder))
        return path;
    return asprintf(&joined, "%s/%s", folder, path) < 0 ? path : joined;
}

/* A setting that is misspelt would else pass in silence. Names that are like none of ours are
 * others' business: of later versions, or of whoever tests or starts us. */
static void tell_misspelt_variables(void) {
    char name[CW_VARIABLE_MAX], meant[CW_VARIABLE_MAX];
    for (char **at = environ; at && *at; at++) {
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*at, "="), *at);
        if (cw_variable_meant(name, meant))
            cwd_log_error(0, "the variable %s is set, and nothing reads it: did you mean %s?", name,
                          meant);
    }
}

int main(int argc, char **argv) {
    static struct cwd_broker broker;
    struct cwd_options options = {.idle_exit_ns = -1};
    enum cwd_exit code;
    int exit_code, verdict_fd = -1;
    if (!parse_arguments(argc, argv, &options, &exit_code))
        return exit_code;
    cw_trace_off();          /* it only answers others, who have traces of their own */
    mallopt(M_ARENA_MAX, 1); /* one thread allocates: arenas for more would only take memory */
    if (!options.foreground) {
        options.place = absolute(options.place);
        options.config_file = absolute(options.config_file);
        const char *config = secure_getenv("CABLEWAY_CONFIG");
        if (config && *config && setenv("CABLEWAY_CONFIG", absolute(config), 1) < 0)
            return CWD_EXIT_FAILED;
        verdict_fd = cwd_detach();
        if (verdict_fd < 0) {
            fprintf(stderr, "cablewayd: %s\n", cw_detail());
            return CWD_EXIT_FAILED;
        }
        cwd_clean(); /* in the foreground its starter's wish holds */
    }
    if (cwd_broker_init(&broker, &options, &code) != 0) {
        if (options.foreground)
            fprintf(stderr, "cablewayd: %s\n", cw_detail());
        cwd_detach_tell(verdict_fd, code, cw_detail());
        return code;
    }
    tell_misspelt_variables();
    if (options.bridge)
        cwd_verdict_await(&broker, verdict_fd);
    else
        cwd_detach_tell(verdict_fd, CWD_EXIT_OK, "");
    cwd_clean_tell();
    cwd_loop_run(&broker);
    cwd_log("ends: %s", broker.stop_reason ? broker.stop_reason : "no reason");
    exit_code = broker.exit_code;
    cwd_broker_deinit(&broker);
    return exit_code;
}
