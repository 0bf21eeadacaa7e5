/*
 * Peers: see peer_list.h. Reading and writing the file; no state of its own. The file is read by a
 * library for INI files, and written by renaming a new one over it.
 */
#include "broker/bridge/link/peer_list.h"

#include <fnmatch.h>
#include <ini.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "broker/bridge/memory.h"
#include "broker/bridge/tls/folder.h"
#include "shm/base/error.h"

#define VALUE_MAX 180u /* the library's lines have at most 200 */

bool cwb_patterns_match(const struct cwb_patterns *patterns, const char *name) {
    for (uint32_t i = 0; i < patterns->count; i++)
        if (fnmatch(patterns->texts[i], name, FNM_NOESCAPE) == 0)
            return true;
    return false;
}

static int add_pattern(struct cwb_patterns *patterns, const char *text, const char *where) {
    if (patterns->count == CWB_PATTERNS_MAX)
        return cw_fail(-EINVAL, "%.300s: more than %u patterns of one kind", where,
                       CWB_PATTERNS_MAX);
    char **texts = realloc(patterns->texts, (patterns->count + 1) * sizeof *texts);
    if (texts)
        patterns->texts = texts;
    char *copy = texts ? strdup(text) : NULL;
    if (!copy)
        return cw_fail(-EDQUOT, "%.300s: there is no memory left for its patterns", where);
    texts[patterns->count++] = copy;
    return 0;
}

int cwb_config_set(struct cwb_peer_config *config, const char *name, const char *value,
                   const char *where) {
    char host[CW_ADDRESS_MAX + 1], port[8];
    if (!*value)
        return cw_fail(-EINVAL, "%.300s: peer %s: %.64s is empty", where, config->name, name);
    if (strlen(value) > VALUE_MAX || strpbrk(value, "\n\r") || strstr(value, " ;"))
        return cw_fail(-EINVAL,
                       "%.300s: peer %s: %.64s is longer than the %u bytes that a line of the file "
                       "takes, or has a line's end or \" ;\" in it, where a comment begins",
                       where, config->name, name, VALUE_MAX);
    if (strcmp(name, "read") == 0)
        return add_pattern(&config->read, value, where);
    if (strcmp(name, "write") == 0)
        return add_pattern(&config->write, value, where);
    if (strcmp(name, "address") == 0) {
        if (strlen(value) > CW_ADDRESS_MAX || !cw_address_split(value, host, port) || !*host)
            return cw_fail(-EINVAL,
                           "%.300s: peer %s: the address \"%.300s\" is not HOST:PORT (of IPv6: "
                           "[HOST]:PORT)",
                           where, config->name, value);
        strcpy(config->address, value);
        return 0;
    }
    if (strcmp(name, "key") == 0) {
        if (cwb_config_known(config))
            return cw_fail(-EINVAL,
                           "%.300s: peer %s has more than one key; it is known by one fingerprint, "
                           "or by the CA (key = ca)",
                           where, config->name);
        config->by_ca = strcmp(value, "ca") == 0;
        config->pinned = !config->by_ca && cwb_print_parse(value, config->print);
        return cwb_config_known(config)
                   ? 0
                   : cw_fail(-EINVAL,
                             "%.300s: peer %s: \"%.100s\" is not \"sha256:\" and 64 hexadecimal "
                             "digits, as `cableway keygen` prints it, nor \"ca\"",
                             where, config->name, value);
    }
    return cw_fail(-EINVAL,
                   "%.300s: peer %s: there is no \"%.64s\"; address, key, read and write "
                   "are what a peer has",
                   where, config->name, name);
}

static void config_deinit(struct cwb_peer_config *config) {
    for (uint32_t i = 0; i < config->read.count; i++)
        free(config->read.texts[i]);
    for (uint32_t i = 0; i < config->write.count; i++)
        free(config->write.texts[i]);
    free(config->read.texts);
    free(config->write.texts);
}

void cwb_configs_free(struct cwb_peer_config *configs, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        config_deinit(&configs[i]);
    free(configs);
}

struct section { /* which one of the list a name is: the list moves when it grows */
    uint32_t number;
    char name[CW_NODE_MAX + 1];
    UT_hash_handle hh;
};

struct reading {
    const char *path;
    struct cwb_peer_config *configs;
    uint32_t count, room;
    struct section *sections; /* by name */
    int code;
};

/* Twice as many each time: an allocator that copies, as a sanitizer's, takes the square of all
 * peers else. */
static bool grow(struct reading *reading) {
    uint32_t room = reading->room ? 2 * reading->room : 16;
    struct cwb_peer_config *configs = realloc(reading->configs, room * sizeof *configs);
    if (!configs)
        return false;
    reading->configs = configs;
    reading->room = room;
    return true;
}

/* A new one; NULL: code says why not. */
static struct section *section_new(struct reading *reading, const char *name) {
    struct section *section = NULL;
    if (!cw_node_valid(name))
        reading->code = cw_fail(-EINVAL,
                                "%.300s: \"%.100s\" is no name of a node (1 to %u of A-Z a-z 0-9 _ "
                                ". -)",
                                reading->path, name, CW_NODE_MAX);
    else if (reading->count == CWB_PEERS_MAX)
        reading->code = cw_fail(-EINVAL,
                                "%.300s: the peer %.100s is one more than the %u (CWB_PEERS_MAX) "
                                "that a node may have: `cableway peers remove` those that it does "
                                "not need",
                                reading->path, name, CWB_PEERS_MAX);
    if (reading->code)
        return NULL;
    if (reading->count < reading->room || grow(reading))
        section = calloc(1, sizeof *section);
    if (section) {
        strcpy(section->name, name);
        section->number = reading->count;
        HASH_ADD(hh, reading->sections, name, strlen(name), section);
    }
    if (!section || !CWD_ADDED(section)) {
        free(section);
        reading->code =
            cw_fail(-EDQUOT, "%.300s: there is no memory left for its peers", reading->path);
        return NULL;
    }
    struct cwb_peer_config *config = &reading->configs[reading->count++];
    memset(config, 0, sizeof *config);
    strcpy(config->name, name);
    return section;
}

static void sections_free(struct section *sections) {
    struct section *section, *next;
    HASH_ITER(hh, sections, section, next) {
        HASH_DEL(sections, section);
        free(section);
    }
}

static int on_value(void *context, const char *name_of_section, const char *name,
                    const char *value) {
    struct reading *reading = context;
    struct section *section;
    if (reading->code)
        return 1;
    HASH_FIND(hh, reading->sections, name_of_section, strlen(name_of_section), section);
    if (!section)
        section = section_new(reading, name_of_section);
    if (section)
        reading->code =
            cwb_config_set(&reading->configs[section->number], name, value, reading->path);
    return 1;
}

bool cwb_config_known(const struct cwb_peer_config *config) {
    return config->pinned || config->by_ca;
}

bool cwb_config_same_identity(const struct cwb_peer_config *a, const struct cwb_peer_config *b) {
    return a->pinned == b->pinned && a->by_ca == b->by_ca &&
           (!a->pinned || memcmp(a->print, b->print, CWB_PRINT_BYTES) == 0);
}

struct pin {
    const struct cwb_peer_config *config;
};

static int compare_keys(const void *one, const void *other) {
    const struct pin *a = one, *b = other;
    return memcmp(a->config->print, b->config->print, CWB_PRINT_BYTES);
}

/* A key is one peer's: else nobody could say who has come. */
static int check_keys(const struct cwb_peer_config *configs, uint32_t count, const char *path) {
    struct pin *pinned = malloc((count + 1) * sizeof *pinned);
    uint32_t pins = 0;
    int code = pinned ? 0 : cw_fail(-EDQUOT, "%.300s: there is no memory left for its peers", path);
    for (uint32_t i = 0; code == 0 && i < count; i++)
        if (configs[i].pinned)
            pinned[pins++].config = &configs[i];
    if (code == 0)
        qsort(pinned, pins, sizeof *pinned, compare_keys);
    for (uint32_t i = 1; code == 0 && i < pins; i++)
        if (compare_keys(&pinned[i - 1], &pinned[i]) == 0) {
            bool in_order = pinned[i - 1].config < pinned[i].config;
            code = cw_fail(-EINVAL, "%.300s: the peers %s and %s have the same key", path,
                           pinned[i - in_order].config->name, pinned[i - !in_order].config->name);
        }
    free(pinned);
    return code;
}

/* In what all nodes have in common stands this one, too: it is not its own peer. */
static void drop_own(struct reading *reading, const char *node) {
    for (uint32_t i = 0; i < reading->count; i++) {
        if (strcmp(reading->configs[i].name, node) != 0)
            continue;
        config_deinit(&reading->configs[i]);
        reading->count--;
        memmove(&reading->configs[i], &reading->configs[i + 1],
                (reading->count - i) * sizeof *reading->configs);
        return;
    }
}

int cwb_peers_read(const char *folder, struct cwb_peer_config **out, uint32_t *count) {
    char path[PATH_MAX];
    struct stat status;
    *out = NULL;
    *count = 0;
    bool common;
    int code = cwb_folder_find(folder, "peers", path, &common);
    if (code)
        return code;
    FILE *file = fopen(path, "re");
    if (!file && errno == ENOENT)
        return 0;
    if (!file || fstat(fileno(file), &status) < 0) {
        code = cw_fail(-EINVAL, "reading %.300s failed: %m", path);
        if (file)
            fclose(file);
        return code;
    }
    if ((status.st_mode & 077) || status.st_uid != geteuid()) {
        fclose(file);
        return cw_fail(-EINVAL,
                       "%.300s says who may come in, and others than its owner may read or change "
                       "it, or it is not ours: chmod 600 it",
                       path);
    }
    struct reading reading = {.path = path};
    int line = ini_parse_file(file, on_value, &reading);
    fclose(file);
    sections_free(reading.sections);
    if (reading.code == 0 && line)
        reading.code = cw_fail(-EINVAL,
                               "%.300s: line %d is neither [NAME], nor key = value, nor a "
                               "comment",
                               path, line);
    if (reading.code == 0)
        reading.code = check_keys(reading.configs, reading.count, path);
    if (reading.code) {
        cwb_configs_free(reading.configs, reading.count);
        return reading.code;
    }
    if (common)
        drop_own(&reading, cwb_folder_job_node(folder));
    *out = reading.configs;
    *count = reading.count;
    return 0;
}

int cwb_peers_write(const char *folder, const struct cwb_peer_config *configs, uint32_t count) {
    char path[PATH_MAX], fresh[PATH_MAX], print[CWB_PRINT_TEXT];
    int code = cwb_folder_path(folder, "peers", path);
    if (code == 0)
        code = cwb_folder_path(folder, "peers.new", fresh);
    if (code == 0)
        code = check_keys(configs, count, path);
    if (code)
        return code;
    unlink(fresh); /* of one that was killed with the lock */
    FILE *file = cwb_folder_create(fresh, 0600);
    if (!file)
        return cw_fail(-errno, "%.300s: %m", fresh);
    for (uint32_t i = 0; i < count; i++) {
        const struct cwb_peer_config *config = &configs[i];
        fprintf(file, "%s[%s]\n", i ? "\n" : "", config->name);
        if (*config->address)
            fprintf(file, "address = %s\n", config->address);
        if (config->pinned) {
            cwb_print_text(config->print, print);
            fprintf(file, "key = %s\n", print);
        } else if (config->by_ca) {
            fputs("key = ca\n", file);
        }
        for (uint32_t k = 0; k < config->read.count; k++)
            fprintf(file, "read = %s\n", config->read.texts[k]);
        for (uint32_t k = 0; k < config->write.count; k++)
            fprintf(file, "write = %s\n", config->write.texts[k]);
    }
    bool ok = fflush(file) == 0 && fsync(fileno(file)) == 0;
    ok = fclose(file) == 0 && ok && rename(fresh, path) == 0;
    if (ok)
        return 0;
    code = cw_fail(-EIO, "writing %.300s failed: %m", path);
    unlink(fresh);
    return code;
}
