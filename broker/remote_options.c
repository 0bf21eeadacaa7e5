/*
 * The bridge's options, of the command line and the configuration, as far as the broker looks at
 * them. They live as long as the broker.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/remote.h"
#include "shm/error.h"

static bool streams_valid(const char *text) {
    char *end;
    unsigned long streams = strtoul(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && streams >= 1 && streams <= CW_STREAMS_MAX;
}

static bool is_port(const char *text) {
    return *text && strspn(text, "0123456789") == strlen(text);
}

/* One that there is: to 65535. Where no number stands, whoever listens says what is wrong. */
static bool port_valid(const char *address) {
    const char *colon = strrchr(address, ':'), *port = colon ? colon + 1 : address;
    return !is_port(port) || (strlen(port) <= 5 && atoi(port) <= UINT16_MAX);
}

int cwd_remote_option(struct cwd_remote_options *options, const char *option, const char *value,
                      const char *where) {
    if (options->count + 2 > 2 * CWD_REMOTE_OPTIONS_MAX)
        return cw_fail(-EINVAL, "%.300s: more than %u addresses and peers", where,
                       CWD_REMOTE_OPTIONS_MAX);
    if (strcmp(option, "--streams") == 0 && !streams_valid(value))
        return cw_fail(-EINVAL,
                       "%.300s: streams = %.32s: it is the number of connections to one node over "
                       "which large arrays go, 1 to %u",
                       where, value, CW_STREAMS_MAX);
    bool listens = strcmp(option, "--listen") == 0, bare = listens && is_port(value);
    if (listens && !bare && !strchr(value, ':'))
        return cw_fail(-EINVAL,
                       "%.300s: listen = %.100s: it is HOST:PORT, [HOST]:PORT, or PORT alone (all "
                       "addresses)",
                       where, value);
    if ((listens || strcmp(option, "--peer") == 0) && !port_valid(value))
        return cw_fail(-EINVAL, "%.300s: %s = %.100s: a port is a number from 0 to %u", where,
                       option + 2, value, UINT16_MAX);
    char *first = strdup(option), *second = NULL;
    CW_ASSERT(first && asprintf(&second, "%s%s", bare ? ":" : "", value) >= 0);
    options->words[options->count++] = first;
    options->words[options->count++] = second;
    return 0;
}
