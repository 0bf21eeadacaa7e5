/*
 * cableway-bridge: reaches other nodes (bridge.h), for the broker that starts it with `run`; makes
 * keys and keeps the list of peers, for people (`cableway keygen`, `cableway peers`).
 */
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/cli/doctor.h"
#include "broker/bridge/cli/keygen.h"
#include "broker/bridge/cli/peers.h"
#include "broker/bridge/link/idle.h"
#include "broker/bridge/relay/fan_out.h"
#include "broker/bridge/tls/folder.h"
#include "broker/roles/verdict.h"

static int usage(void) {
    fputs("cableway-bridge is started by cablewayd; for people: cableway keygen, cableway peers\n",
          stderr);
    return 2;
}

/* The broker has checked it; who starts us by hand is told too. */
static int parse_streams(const char *text, uint32_t *out) {
    char *end;
    unsigned long streams = strtoul(text, &end, 10);
    if (*end || streams < 1 || streams > CW_STREAMS_MAX)
        return cw_fail(-EINVAL, "--streams %.32s: it is 1 to %u", text, CW_STREAMS_MAX);
    *out = (uint32_t)streams;
    return 0;
}

static int parse_stall(const char *text, int64_t *out_ns) {
    char *end;
    unsigned long seconds = strtoul(text, &end, 10);
    if (*end || seconds > CW_STALL_MAX_S)
        return cw_fail(-EINVAL, "--stall %.32s: it is 0 to %u", text, CW_STALL_MAX_S);
    *out_ns = (int64_t)seconds * 1000000000;
    return 0;
}

static int parse_idle(const char *text, int64_t *out_ns) {
    char *end;
    double seconds = strtod(text, &end);
    if (*end || end == text || !(seconds >= 0 && seconds <= CW_IDLE_MAX_S))
        return cw_fail(-EINVAL, "--link-idle %.32s: it is 0 to %u", text, CW_IDLE_MAX_S);
    *out_ns = (int64_t)(seconds * 1e9);
    return 0;
}

static int parse_fan_out(const char *text, uint32_t *out) {
    char *end;
    unsigned long nodes = strtoul(text, &end, 10);
    if (*end || end == text || nodes > CW_FAN_OUT_MAX)
        return cw_fail(-EINVAL, "--fan-out %.32s: it is 0 to %u", text, CW_FAN_OUT_MAX);
    *out = (uint32_t)nodes;
    return 0;
}

/* The broker waits for how our start went (broker/roles/verdict.h); one write, with its end. */
static void say(bool tell, const char *kind, const char *text) {
    char line[CW_DETAIL_MAX + 8];
    if (!tell)
        return;
    int length = snprintf(line, sizeof line, "%s%s", kind, text);
    if (write(CWD_TELL_FD, line, (size_t)length + 1) < 0)
        cwb_log("the broker does not wait any more: %m");
    close(CWD_TELL_FD);
}

static int refused(void) {
    cwb_log("cannot run: %s", cw_detail());
    return 2;
}

static int parse_run(int argc, char **argv, struct cwb_options *options, long *parent, bool *tell) {
    static const struct option names[] = {
        {"socket", required_argument, NULL, 's'},  {"parent", required_argument, NULL, 'P'},
        {"listen", required_argument, NULL, 'l'},  {"peer", required_argument, NULL, 'p'},
        {"node", required_argument, NULL, 'n'},    {"streams", required_argument, NULL, 'S'},
        {"stall", required_argument, NULL, 'T'},   {"link-idle", required_argument, NULL, 'i'},
        {"fan-out", required_argument, NULL, 'f'}, {"epoll", no_argument, NULL, 'e'},
        {"tell", no_argument, NULL, 't'},          {NULL, 0, NULL, 0},
    };
    int found;
    while ((found = getopt_long(argc, argv, "", names, NULL)) >= 0) {
        switch (found) {
        case 's':
            options->broker_socket = optarg;
            break;
        case 'P':
            *parent = atol(optarg);
            break;
        case 'l':
            if (options->listens == CWB_LISTEN_MAX)
                return usage();
            options->listen[options->listens++] = optarg;
            break;
        case 'p':
            if (options->peer_count == CWB_PEERS_MAX)
                return usage();
            options->peers[options->peer_count++] = optarg;
            break;
        case 'n':
            options->node = optarg;
            break;
        case 'S':
            if (parse_streams(optarg, &options->streams) != 0)
                return refused();
            break;
        case 'T':
            if (parse_stall(optarg, &options->stall_ns) != 0)
                return refused();
            break;
        case 'i':
            if (parse_idle(optarg, &options->idle_ns) != 0)
                return refused();
            break;
        case 'f':
            if (parse_fan_out(optarg, &options->fan_out) != 0)
                return refused();
            break;
        case 'e':
            options->use_epoll = true;
            break;
        case 't':
            *tell = true;
            break;
        default:
            return usage();
        }
    }
    return optind == argc ? 0 : usage();
}

static int run(int argc, char **argv) {
    struct cwb_bridge bridge;
    struct cwb_options options = {.stall_ns = CWB_STALL_S * 1000000000LL,
                                  .idle_ns = CWB_IDLE_S * 1000000000LL,
                                  .fan_out = CWB_FAN_OUT};
    char folder[PATH_MAX];
    long parent = 0;
    bool tell = false;
    int code = parse_run(argc, argv, &options, &parent, &tell);
    if (code)
        return code;
    options.strict = tell;
    if (tell)
        fcntl(CWD_TELL_FD, F_SETFD, FD_CLOEXEC);
    const char *engine = secure_getenv("CABLEWAY_BRIDGE_EPOLL");
    options.folder = cwb_node_folder(folder);
    options.use_epoll = options.use_epoll || (engine && *engine);
    const char *rekey = secure_getenv("CABLEWAY_BRIDGE_REKEY");
    options.rekey_records = rekey ? (uint32_t)strtoul(rekey, NULL, 10) : 0;
    /* Nobody needs a bridge without its broker: the kernel ends it with that. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (parent && getppid() != parent)
        return 0;
    signal(SIGPIPE, SIG_IGN);
    /* Buffers of a burst come and go: their pages stay, else each get would fault them in anew. */
    mallopt(M_MMAP_THRESHOLD, 4 << 20);
    mallopt(M_TRIM_THRESHOLD, 16 << 20);
    prctl(PR_SET_NAME, "cableway-bridge");
    if (cwb_bridge_init(&bridge, &options) != 0) {
        char why[CW_DETAIL_MAX];
        strcpy(why, cw_error());
        cwb_log("cannot run: %s", why);
        say(tell, "", why);
        return 1;
    }
    if (bridge.tls)
        say(tell, "", "");
    else
        say(tell, "key: ", bridge.no_key);
    cwb_bridge_run(&bridge);
    return 1;
}

int main(int argc, char **argv) {
    if (argc < 2)
        return usage();
    if (strcmp(argv[1], "run") == 0)
        return run(argc - 1, argv + 1);
    if (strcmp(argv[1], "doctor") == 0)
        return cwb_command_doctor(argc > 3 && strcmp(argv[2], "running") == 0 ? atoi(argv[3]) : 0);
    if (strcmp(argv[1], "keygen") == 0)
        return cwb_command_keygen(argc - 1, argv + 1);
    if (strcmp(argv[1], "peers") == 0)
        return cwb_command_peers(argc - 1, argv + 1);
    return usage();
}
