/*
 * The bridge's options, of the command line and the configuration, as far as the broker looks at
 * them. They live as long as the broker.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/roles/remote.h"
#include "ipc/base/node.h"
#include "shm/base/error.h"

static bool number_valid(const char *text, unsigned long least, unsigned long most) {
    char *end;
    unsigned long number = strtoul(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && number >= least && number <= most;
}

static bool seconds_valid(const char *text, unsigned most) {
    char *end;
    double seconds = strtod(text, &end);
    return *text >= '0' && *text <= '9' && !*end && seconds >= 0 && seconds <= most;
}

/* NAME=HOST:PORT? */
static bool peer_valid(const char *value) {
    char name[CW_NODE_MAX + 1], host[CW_ADDRESS_MAX + 1], port[8];
    const char *equals = strchr(value, '=');
    if (!equals || equals - value > CW_NODE_MAX)
        return false;
    snprintf(name, sizeof name, "%.*s", (int)(equals - value), value);
    return cw_node_valid(name) && cw_address_split(equals + 1, host, port) && *host &&
           atoi(port) > 0;
}

static bool is_port(const char *text) {
    return *text && strspn(text, "0123456789") == strlen(text);
}

/* One that there is: to 65535. Where no number stands, the form is what is wrong. */
static bool port_valid(const char *address) {
    const char *colon = strrchr(address, ':'), *port = colon ? colon + 1 : address;
    return !is_port(port) || (strlen(port) <= 5 && atoi(port) <= UINT16_MAX);
}

int cwd_remote_option(struct cwd_remote_options *options, const char *option, const char *value,
                      const char *where) {
    if (options->count + 2 > 2 * CWD_REMOTE_OPTIONS_MAX)
        return cw_fail(-EINVAL, "%.300s: more than %u addresses and peers", where,
                       CWD_REMOTE_OPTIONS_MAX);
    if (strcmp(option, "--streams") == 0 && !number_valid(value, 1, CW_STREAMS_MAX))
        return cw_fail(-EINVAL,
                       "%.300s: streams = %.32s: it is the number of connections to one node over "
                       "which large arrays go, 1 to %u",
                       where, value, CW_STREAMS_MAX);
    if (strcmp(option, "--stall") == 0 && !number_valid(value, 0, CW_STALL_MAX_S))
        return cw_fail(-EINVAL,
                       "%.300s: stall = %.32s: it is for how many seconds nothing may come of what "
                       "another node was asked for, 0 (for ever) to %u",
                       where, value, CW_STALL_MAX_S);
    if (strcmp(option, "--link-idle") == 0 && !seconds_valid(value, CW_IDLE_MAX_S))
        return cw_fail(
            -EINVAL,
            "%.300s: link-idle = %.32s: it is for how many seconds a connection to another "
            "node is kept that nobody uses, 0 (for ever) to %u",
            where, value, CW_IDLE_MAX_S);
    if (strcmp(option, "--fan-out") == 0 && !number_valid(value, 0, CW_FAN_OUT_MAX))
        return cw_fail(-EINVAL,
                       "%.300s: fan-out = %.32s: it is to how many nodes this one sends a sealed "
                       "array itself, 0 (all) to %u",
                       where, value, CW_FAN_OUT_MAX);
    char host[CW_ADDRESS_MAX + 1], port[8];
    bool listens = strcmp(option, "--listen") == 0, bare = listens && is_port(value);
    if (listens && !bare && port_valid(value) && !cw_address_split(value, host, port))
        return cw_fail(-EINVAL,
                       "%.300s: listen = %.100s: it is HOST:PORT, [HOST]:PORT, or PORT alone (all "
                       "addresses)",
                       where, value);
    if ((listens || strcmp(option, "--peer") == 0) && !port_valid(value))
        return cw_fail(-EINVAL, "%.300s: %s = %.100s: a port is a number from 0 to %u", where,
                       option + 2, value, UINT16_MAX);
    if (strcmp(option, "--peer") == 0 && !peer_valid(value))
        return cw_fail(-EINVAL,
                       "%.300s: peer = %.100s: it is NAME=HOST:PORT or NAME=[HOST]:PORT, the port "
                       "a number",
                       where, value);
    if (strcmp(option, "--node") == 0 && !cw_node_valid(value))
        return cw_fail(-EINVAL,
                       "%.300s: node = %.100s: 1 to %u of the characters A-Z a-z 0-9 _ . -, the "
                       "first no . or -",
                       where, value, CW_NODE_MAX);
    char *first = strdup(option), *second = NULL;
    if (!first || asprintf(&second, "%s%s", bare ? ":" : "", value) < 0) {
        free(first);
        return cw_fail(-EDQUOT, "no memory for the option %s", option);
    }
    options->words[options->count++] = first;
    options->words[options->count++] = second;
    return 0;
}
