/*
 * Candidates: names, namespaces, limits and devices. One thread; nobody is asked. What a terminal
 * must not see is left out: a shell would write it there.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/error.h"
#include "shm/session/monitor.h"
#include "tools/completion/completion.h"
#include "tools/monitor.h"
#include "tools/output.h"

bool completion_tell(const char *begin, const char *word, const char *description) {
    if (strncmp(word, begin, strlen(begin)) != 0)
        return false;
    char *safe = output_safe(word);
    bool harmless = strcmp(safe, word) == 0;
    free(safe);
    if (!harmless)
        return false;
    printf("%s\t%s\n", word, description ? description : "");
    return true;
}

void completion_tell_files(void) {
    printf("\t\n");
}

void completion_tell_programs(void) {
    printf("\tprograms\n");
}

/* The same of a word that stands behind lead. */
static void tell_behind(const char *lead, const char *begin, const char *word,
                        const char *description) {
    char *whole;
    if (strncmp(word, begin, strlen(begin)) != 0)
        return;
    CW_ASSERT(asprintf(&whole, "%s%s", lead, word) >= 0);
    completion_tell(lead, whole, description);
    free(whole);
}

struct names {
    char **all; /* sorted, as they came */
    size_t count, room;
    bool without_dash;
};

static int add_name(void *context, const char *name_space, const char *name,
                    const struct cw_found *found) {
    struct names *names = context;
    (void)name_space, (void)found;
    if (names->without_dash && *name == '-')
        return 0;
    if (names->count == names->room) {
        names->room = names->room ? 2 * names->room : 256;
        names->all = realloc(names->all, names->room * sizeof *names->all);
        CW_ASSERT(names->all);
    }
    names->all[names->count] = strdup(name);
    CW_ASSERT(names->all[names->count]);
    names->count++;
    return 0;
}

/* Up to and with the next '/', each once. */
static void shorten(struct names *names, size_t begin_bytes) {
    size_t kept = 0;
    for (size_t i = 0; i < names->count; i++) {
        char *name = names->all[i], *slash = strchr(name + begin_bytes, '/');
        if (slash)
            slash[1] = 0;
        if (kept && !strcmp(names->all[kept - 1], name))
            free(name);
        else
            names->all[kept++] = name;
    }
    names->count = kept;
}

/* The end of the characters of text, of which at most count are skipped. */
static size_t skip_characters(const char *text, size_t count) {
    size_t bytes = 0;
    for (; text[bytes] && count; count--)
        do
            bytes++;
        while (((unsigned char)text[bytes] & 0xc0) == 0x80);
    return bytes;
}

/* How many beginnings of `characters` more characters than begin_bytes there are. */
static size_t count_stems(const struct names *names, size_t begin_bytes, size_t characters) {
    size_t stems = 0, last_bytes = 0;
    const char *last = NULL;
    for (size_t i = 0; i < names->count; i++) {
        const char *rest = names->all[i] + begin_bytes;
        size_t bytes = skip_characters(rest, characters);
        stems += !last || bytes != last_bytes || memcmp(last, rest, bytes) != 0;
        last = rest;
        last_bytes = bytes;
    }
    return stems;
}

/* Of too many names the longest beginnings that are few enough, each of which some name has. */
static void tell_stems(const char *lead, const char *begin, struct names *names) {
    size_t begin_bytes = strlen(begin), characters = 1;
    while (count_stems(names, begin_bytes, characters + 1) <= COMPLETION_WORDS_MAX)
        characters++;
    const char *last = NULL;
    for (size_t i = 0; i < names->count; i++) {
        char *name = names->all[i];
        size_t bytes = begin_bytes + skip_characters(name + begin_bytes, characters);
        bool whole = !name[bytes];
        name[bytes] = 0;
        if (!last || strcmp(last, name) != 0)
            tell_behind(lead, begin, name, whole ? NULL : "...");
        last = name;
    }
}

void completion_names(const char *lead, const char *begin, const char *name_space,
                      bool without_dash) {
    struct names names = {.without_dash = without_dash};
    struct monitor monitor;
    if (!strncmp(begin, "//", 2) || monitor_open(&monitor))
        return; /* of other nodes the bridge would have to be asked */
    if (!name_space)
        name_space = secure_getenv("CABLEWAY_NAMESPACE");
    /* A directory that cannot be read has no names to offer; there is nobody to tell why. */
    (void)monitor_names(&monitor, name_space ? name_space : "", begin, add_name, &names);
    monitor_close(&monitor);
    if (names.count > COMPLETION_NAMES_WHOLE)
        shorten(&names, strlen(begin));
    bool few = names.count <= COMPLETION_WORDS_MAX;
    if (!few)
        tell_stems(lead, begin, &names);
    for (size_t i = 0; i < names.count; i++) {
        if (few)
            tell_behind(lead, begin, names.all[i], NULL);
        free(names.all[i]);
    }
    free(names.all);
}

void completion_namespaces(const char *lead, const char *begin) {
    struct monitor monitor;
    char **spaces;
    size_t count;
    if (monitor_open(&monitor))
        return;
    if (monitor_namespaces(&monitor, &spaces, &count) == 0) {
        for (size_t i = 0; i < count; i++) {
            if (*spaces[i])
                tell_behind(lead, begin, spaces[i], NULL);
            free(spaces[i]);
        }
        free(spaces);
    }
    monitor_close(&monitor);
}

void completion_limits(const char *lead, const char *begin) {
    for (unsigned i = 0; i < CW_LIMIT_COUNT; i++)
        tell_behind(lead, begin, cw_limit_name(i), NULL);
}

/* The driver's files say how many there are, without loading it. CUDA_VISIBLE_DEVICES may hide
 * some, and numbers the others from 0. */
static unsigned count_gpus(void) {
    const char *visible = secure_getenv("CUDA_VISIBLE_DEVICES");
    struct dirent *entry;
    unsigned gpus = 0, listed = 0;
    DIR *folder = opendir("/dev");
    while (folder && (entry = readdir(folder)))
        gpus += !strncmp(entry->d_name, "nvidia", 6) && entry->d_name[6] >= '0' &&
                entry->d_name[6] <= '9';
    if (folder)
        closedir(folder);
    if (!visible)
        return gpus;
    for (const char *at = visible; *at; at += strcspn(at, ","), at += *at == ',')
        listed += *at != '-';
    return listed < gpus ? listed : gpus;
}

void completion_devices(const char *lead, const char *begin) {
    unsigned gpus = count_gpus();
    char name[32];
    tell_behind(lead, begin, "cpu", NULL);
    for (unsigned i = 0; i < gpus; i++) {
        snprintf(name, sizeof name, "cuda:%u", i);
        tell_behind(lead, begin, name, NULL);
    }
}
