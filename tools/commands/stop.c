/*
 * cableway stop: ends the broker, after saying what goes with it. What that is comes from the
 * monitor page. A broker that does not answer is ended by signals, with --force alone; the pidfd
 * was taken before the page proved that it is the broker, so no other process is ever hit.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tools/cli.h"
#include "tools/watch/clients.h"
#include "tools/monitor.h"
#include "tools/output.h"

#define END_WAIT_MS  10000
#define TERM_WAIT_MS 2000

struct stop {
    struct monitor monitor;
    uint64_t names, bytes, clients;
    enum monitor_state state;
    bool forced;
};

static void look(struct stop *stop) {
    struct cw_root *root = stop->monitor.root;
    double still_seconds;
    struct client_row row;
    stop->names = monitor_word(&root->gauges[CW_GAUGE_names]);
    stop->bytes = monitor_word(&root->gauges[CW_GAUGE_bytes]);
    stop->clients = monitor_word(&root->gauges[CW_GAUGE_clients]);
    /* Its mover and its bridge go with it. */
    for (unsigned i = 0; i < CW_MONITOR_CLIENTS && stop->clients; i++)
        stop->clients -= clients_copy(root, i, &row) && row.role != CLIENT_USER;
    stop->state = monitor_look(&stop->monitor, &still_seconds);
}

static void print_clients(struct cw_root *root) {
    for (unsigned i = 0; i < CW_MONITOR_CLIENTS; i++) {
        struct client_row row;
        if (clients_copy(root, i, &row) && row.role == CLIENT_USER)
            cli_note("  pid %u  %s", row.pid, row.comm);
    }
}

static void say_loss(struct stop *stop) {
    char size[OUTPUT_SHORT];
    int pid = (int)stop->monitor.lock.pid;
    output_size(stop->bytes, size);
    if (stop->names)
        cli_note("stopping the broker (pid %d) loses %llu array%s that %s under a name, for good "
                 "(%s of shared memory in all)",
                 pid, (unsigned long long)stop->names, stop->names == 1 ? "" : "s",
                 stop->names == 1 ? "stands" : "stand", size);
    else
        cli_note(
            "stopping the broker (pid %d) loses no array: none has a name (%s of shared memory "
            "%s)",
            pid, size, stop->clients ? "in use or spare" : "that nobody uses");
    if (stop->clients)
        cli_note("%llu program%s connected, and would get BrokerLost at the next call; what %s "
                 "mapped stays readable:",
                 (unsigned long long)stop->clients, stop->clients == 1 ? " is" : "s are",
                 stop->clients == 1 ? "it has" : "they have");
    print_clients(stop->monitor.root);
}

/* CLI_OK: go on. */
static int confirm(const struct cli *cli, const struct stop *stop) {
    char answer[16];
    if ((cli->options & CLI_YES) || !(stop->names || stop->clients))
        return CLI_OK;
    if (!isatty(STDIN_FILENO))
        return cli_error(CLI_FAILED, "not stopped: there is something to lose; --yes stops it");
    fprintf(stderr, "Stop it? [y/N] ");
    if (!fgets(answer, sizeof answer, stdin) || (answer[0] != 'y' && answer[0] != 'Y'))
        return cli_error(CLI_FAILED, "not stopped");
    return CLI_OK;
}

/* Has the process ended within so long? */
static bool ended_within(const struct stop *stop, int timeout_ms) {
    struct pollfd end = {.fd = stop->monitor.pidfd, .events = POLLIN};
    int result;
    do
        result = poll(&end, 1, timeout_ms);
    while (result < 0 && errno == EINTR);
    return result > 0;
}

static void send_signal(const struct stop *stop, int signal) {
    syscall(SYS_pidfd_send_signal, stop->monitor.pidfd, signal, NULL, 0);
}

static int end_by_force(struct stop *stop) {
    stop->forced = true;
    if (stop->state != MONITOR_STOPPED) { /* one that is stopped would not take it */
        send_signal(stop, SIGTERM);
        if (ended_within(stop, TERM_WAIT_MS))
            return CLI_OK;
    }
    send_signal(stop, SIGKILL);
    if (ended_within(stop, END_WAIT_MS))
        return CLI_OK;
    return cli_error(CLI_FAILED, "the broker (pid %d) does not end, not even by SIGKILL",
                     (int)stop->monitor.lock.pid);
}

static int end(const struct cli *cli, struct stop *stop) {
    bool force = (cli->options & CLI_FORCE) != 0;
    int pid = (int)stop->monitor.lock.pid;
    cw_client *client;
    if (stop->state == MONITOR_STOPPED || stop->state == MONITOR_HANGS) {
        if (force)
            return end_by_force(stop);
        return cli_error(CLI_FAILED, "the broker (pid %d) does not answer, it %s; --force ends it",
                         pid, stop->state == MONITOR_STOPPED ? "is stopped by a signal" : "hangs");
    }
    int result = cli_connect_beyond(CLI_AS_ADMIN, NULL, &client);
    if (result == 0) {
        result = cw_broker_stop(client);
        cw_client_unref(client);
    }
    /* Lost while it was asked: it ends, or did already. */
    if ((result == 0 || result == -ECONNRESET) && ended_within(stop, END_WAIT_MS))
        return CLI_OK;
    if (force)
        return end_by_force(stop);
    if (result)
        return cli_result(result);
    return cli_error(CLI_TIMEOUT, "the broker (pid %d) did not end within %d s; --force ends it",
                     pid, END_WAIT_MS / 1000);
}

int cmd_stop(const struct cli *cli) {
    struct stop stop = {0};
    int result = monitor_open(&stop.monitor);
    if (result)
        return result == -ENOENT ? cli_error(CLI_NO_BROKER, "%s", cw_error()) : cli_result(result);
    if (stop.monitor.pidfd < 0) {
        monitor_close(&stop.monitor);
        return cli_error(CLI_FAILED, "%s; or end the broker with kill %d", stop.monitor.no_pidfd,
                         (int)stop.monitor.lock.pid);
    }
    look(&stop);
    say_loss(&stop);
    int code = confirm(cli, &stop);
    if (code == CLI_OK)
        code = end(cli, &stop);
    if (code == CLI_OK && (cli->options & CLI_JSON))
        output_json(json_pack("{s:i, s:I, s:I, s:I, s:b}", "pid", (int)stop.monitor.lock.pid,
                              "names", (json_int_t)stop.names, "bytes", (json_int_t)stop.bytes,
                              "clients", (json_int_t)stop.clients, "forced", (int)stop.forced));
    else if (code == CLI_OK)
        printf("stopped%s\n", stop.forced ? " by force" : "");
    monitor_close(&stop.monitor);
    return code;
}
