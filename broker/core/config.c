/*
 * Configuration: see config.h. Runs once, before anything else exists; keeps no state.
 */
#include "broker/core/config.h"

#include <ctype.h>
#include <ini.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/roles/remote.h"
#include "shm/base/error.h"

struct reading {
    const char *path;
    FILE *file;
    unsigned line;
    bool in_line; /* more of that line comes */
    struct cwd_limits *limits;
    struct cwd_remote_options *remote;
    int code;
};

/* Of ini_parse_stream(), which does not tell its handler where it is: a line, or a piece of one. */
static char *read_line(char *text, int text_bytes, void *context) {
    struct reading *reading = context;
    if (!fgets(text, text_bytes, reading->file))
        return NULL;
    reading->line += !reading->in_line;
    reading->in_line = !strchr(text, '\n');
    return text;
}

static int bridge_value(struct reading *reading, const char *name, const char *value,
                        const char *where) {
    static const char *const known[] = {"listen", "peer",      "node",   "streams",
                                        "stall",  "link-idle", "fan-out"};
    char option[16];
    for (unsigned i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(name, known[i]) != 0)
            continue;
        snprintf(option, sizeof option, "--%s", name);
        return cwd_remote_option(reading->remote, option, value, where);
    }
    return cw_fail(-EINVAL,
                   "%.300s: [bridge] has no \"%.64s\"; listen, peer, node, streams, stall, "
                   "link-idle and fan-out are what it has",
                   where, name);
}

static int on_value(void *context, const char *section, const char *name, const char *value) {
    struct reading *reading = context;
    char where[300];
    if (reading->code)
        return 1; /* the first error is the one to tell */
    snprintf(where, sizeof where, "%.280s:%u", reading->path, reading->line);
    if (strcmp(section, "bridge") == 0)
        reading->code = bridge_value(reading, name, value, where);
    else if (strcmp(section, "limits") != 0)
        reading->code = cw_fail(-EINVAL,
                                "%.300s: there is no section [%.64s]; [limits] and [bridge] are "
                                "the only ones",
                                where, section);
    else
        reading->code = cwd_limits_set(reading->limits, name, value, where);
    return 1;
}

/* must_exist: the user named it. */
static int read_file(const char *path, bool must_exist, struct cwd_limits *limits,
                     struct cwd_remote_options *remote) {
    FILE *file = fopen(path, "re");
    if (!file) {
        if (errno == ENOENT && !must_exist)
            return 0;
        return cw_fail(-EINVAL, "reading the configuration %.300s failed: %m", path);
    }
    struct reading reading = {.path = path, .file = file, .limits = limits, .remote = remote};
    int line = ini_parse_stream(read_line, &reading, on_value, &reading);
    fclose(file);
    if (reading.code)
        return reading.code;
    if (line > 0)
        return cw_fail(-EINVAL,
                       "%.300s:%d: this is neither [SECTION], nor key = value, nor a comment", path,
                       line);
    return line == 0 ? 0 : cw_fail(-EINVAL, "reading the configuration %.300s failed", path);
}

static int read_environment(struct cwd_limits *limits) {
    for (unsigned i = 0; i < CW_LIMIT_COUNT; i++) {
        char variable[64];
        snprintf(variable, sizeof variable, "CABLEWAY_%s", cw_limit_name(i));
        for (char *at = variable; *at; at++)
            *at = (char)toupper((unsigned char)*at);
        const char *text = secure_getenv(variable);
        int code = text ? cwd_limits_set(limits, cw_limit_name(i), text, variable) : 0;
        if (code)
            return code;
    }
    return 0;
}

int cwd_config_load(const char *file, struct cwd_limits *out, struct cwd_remote_options *remote) {
    struct cwd_limits limits;
    char path[PATH_MAX];
    cwd_limits_init(&limits);
    int code = read_file("/etc/cableway.conf", false, &limits, remote);
    if (code)
        return code;
    const char *named = file ? file : secure_getenv("CABLEWAY_CONFIG");
    const char *home = secure_getenv("HOME"), *config = secure_getenv("XDG_CONFIG_HOME");
    if (named && *named)
        code = read_file(named, true, &limits, remote);
    else if (config && *config == '/' &&
             (size_t)snprintf(path, sizeof path, "%s/cableway/cableway.conf", config) < sizeof path)
        code = read_file(path, false, &limits, remote);
    else if (home && *home == '/' &&
             (size_t)snprintf(path, sizeof path, "%s/.config/cableway/cableway.conf", home) <
                 sizeof path)
        code = read_file(path, false, &limits, remote);
    if (code == 0)
        code = read_environment(&limits);
    if (code == 0)
        *out = limits;
    return code;
}
