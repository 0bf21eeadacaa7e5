/*
 * What cableway leaks looks for: see leaks.h. One thread.
 */
#include "tools/watch/leaks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/cableway.h"
#include "shm/base/error.h"
#include "shm/base/wait.h"
#include "tools/cli.h"
#include "tools/output.h"
#include "tools/watch/clients.h"
#include "tools/watch/memory.h"

#define CACHE_LEAST    (1u << 20) /* bytes: less is not worth a line */
#define TRANSITS_SHOWN 96u

/* ---- what shared memory tells ---- */

/* Free memory of one client on one device. */
static void find_cache(struct leaks *leaks, const struct client_row *row,
                       const struct memory_slab *slabs, size_t count, const char *device) {
    uint64_t free_bytes = 0, live_bytes = 0;
    double idle_seconds = (double)(cw_now_ns() - (int64_t)row->heard_ns) * 1e-9;
    for (size_t i = 0; i < count; i++) {
        if (slabs[i].owner != row->session || strcmp(slabs[i].device, device) != 0)
            continue;
        free_bytes += slabs[i].size_bytes - slabs[i].live_bytes;
        live_bytes += slabs[i].live_bytes;
    }
    if (free_bytes < CACHE_LEAST || idle_seconds < leaks->older_seconds)
        return;
    json_array_append_new(leaks->found[LEAKS_CACHES],
                          json_pack("{s:I, s:I, s:o, s:s, s:I, s:I, s:f}", "pid",
                                    (json_int_t)row->pid, "session", (json_int_t)row->session,
                                    "command", output_json_text(row->comm), "device", device,
                                    "free_bytes", (json_int_t)free_bytes, "live_bytes",
                                    (json_int_t)live_bytes, "idle_seconds", idle_seconds));
}

/* Of its owner's slabs on its device? */
static bool is_first(const struct memory_slab *slabs, size_t at) {
    for (size_t i = 0; i < at; i++) {
        if (slabs[i].owner == slabs[at].owner && strcmp(slabs[i].device, slabs[at].device) == 0)
            return false;
    }
    return true;
}

static void find_caches(struct leaks *leaks, const struct monitor *monitor,
                        const struct memory_slab *slabs, size_t count) {
    struct client_row row;
    for (unsigned i = 0; i < CW_MONITOR_CLIENTS; i++) {
        if (!clients_copy(monitor->root, i, &row))
            continue;
        for (size_t s = 0; s < count; s++) {
            if (slabs[s].owner == row.session && is_first(slabs, s))
                find_cache(leaks, &row, slabs, count, slabs[s].device);
        }
    }
}

/* Slabs of dead makers, with what of them other parts have listed. */
struct orphans {
    struct orphan {
        struct memory_slab slab;
        double age_seconds;
        uint64_t listed_bytes, listed; /* arrays of it that are listed by their names */
        uint64_t names_found;          /* names that mean something in it, listed or not */
        json_t *names;                 /* those that are not listed elsewhere */
        cw_holders_info holders;
        bool gone;
    } * all;
    size_t count;
};

static void find_orphans(const struct leaks *leaks, const struct memory_slab *slabs, size_t count,
                         struct orphans *out) {
    out->all = calloc(count + 1, sizeof *out->all);
    CW_ASSERT(out->all);
    for (size_t i = 0; i < count; i++) {
        double age_seconds = (double)(cw_now_ns() - (int64_t)slabs[i].orphan_ns) * 1e-9;
        if (slabs[i].owner || age_seconds < leaks->older_seconds)
            continue;
        out->all[out->count++] =
            (struct orphan){.slab = slabs[i], .age_seconds = age_seconds, .names = json_array()};
    }
}

static struct orphan *orphan_of(struct orphans *orphans, uint32_t slab) {
    for (size_t i = 0; i < orphans->count; i++) {
        if (orphans->all[i].slab.slab == slab)
            return &orphans->all[i];
    }
    return NULL;
}

/* asked: the broker has told of names and holders. */
static void add_orphan(struct leaks *leaks, const struct orphan *orphan, bool asked) {
    const struct memory_slab *slab = &orphan->slab;
    uint64_t arrays =
        slab->blocks - (orphan->listed < slab->blocks ? orphan->listed : slab->blocks);
    uint64_t listed_bytes = arrays ? orphan->listed_bytes : slab->live_bytes;
    if (orphan->listed == 0)
        listed_bytes = 0;
    if (listed_bytes > slab->live_bytes)
        listed_bytes = slab->live_bytes;
    uint64_t bytes = slab->size_bytes - listed_bytes;
    if (orphan->gone || (arrays == 0 && bytes < CACHE_LEAST))
        return;
    json_t *pids = json_array();
    for (uint32_t i = 0; i < orphan->holders.listed; i++)
        json_array_append_new(pids, json_integer(orphan->holders.pids[i]));
    uint64_t others = orphan->holders.references;
    others -= orphan->names_found < others ? orphan->names_found : others;
    json_array_append_new(
        leaks->found[LEAKS_ORPHANS],
        json_pack("{s:I, s:s, s:I, s:I, s:I, s:f, s:o, s:o, s:o, s:o}", "slab",
                  (json_int_t)slab->slab, "device", slab->device, "bytes", (json_int_t)bytes,
                  "live_bytes", (json_int_t)(slab->live_bytes - listed_bytes), "arrays",
                  (json_int_t)arrays, "age_seconds", orphan->age_seconds, "holders",
                  asked ? json_integer(orphan->holders.holders) : json_null(), "pids",
                  asked ? json_incref(pids) : json_null(), "names",
                  asked ? json_incref(orphan->names) : json_null(), "other_references",
                  asked ? json_integer((json_int_t)others) : json_null()));
    json_decref(pids);
}

static void add_orphans(struct leaks *leaks, struct orphans *orphans, bool asked) {
    for (size_t i = 0; i < orphans->count; i++) {
        struct orphan *orphan = &orphans->all[i];
        if (!asked)
            orphan->listed = orphan->listed_bytes = 0;
        add_orphan(leaks, orphan, asked);
        json_decref(orphan->names);
    }
    free(orphans->all);
}

static int look_at_memory(struct leaks *leaks, const struct monitor *monitor,
                          struct orphans *orphans) {
    struct memory_slab *slabs;
    size_t count;
    int result = memory_slabs(monitor, &slabs, &count);
    if (result)
        return result;
    leaks->found[LEAKS_CACHES] = json_array();
    leaks->found[LEAKS_ORPHANS] = json_array();
    find_caches(leaks, monitor, slabs, count);
    find_orphans(leaks, slabs, count, orphans);
    free(slabs);
    return 0;
}

/* ---- what the broker tells ---- */

struct names {
    struct leaks *leaks;
    struct orphans *orphans;
    const char *name_space;
};

/* The command that removes a name, as it is typed into a shell that has this command's environment:
 * whatever the name holds, and in whichever namespace it is. */
static json_t *removal(const char *name, const char *name_space) {
    const char *ours = secure_getenv("CABLEWAY_NAMESPACE");
    char *word = output_word(name), *space = output_word(name_space), *text;
    bool same = strcmp(name_space, ours ? ours : "") == 0;
    CW_ASSERT(asprintf(&text, "cableway rm %s%s%s%s%s", same ? "" : "--namespace ",
                       same ? "" : space, same ? "" : " ", *name == '-' ? "-- " : "", word) >= 0);
    json_t *value = json_string(text);
    free(text);
    free(space);
    free(word);
    return value;
}

static bool is_unheld(const struct leaks *leaks, const cw_name_info *info, double age_seconds) {
    /* One reference is that of the name: any other is a handle or a fork that may still open it. */
    return info->holders == 0 && info->references <= 1 && age_seconds >= leaks->older_seconds;
}

static int look_at_name(void *context, const cw_name_info *info) {
    struct names *names = context;
    double age_seconds = output_age_seconds(info->created_ns);
    bool tree = strcmp(info->dtype, "tree") == 0,
         unheld = is_unheld(names->leaks, info, age_seconds);
    struct orphan *orphan = orphan_of(names->orphans, info->slab);
    if (orphan) {
        orphan->names_found++;
        /* Of a tree the index lies here; which slabs its parts are in, a name does not tell. */
        orphan->listed += unheld && !tree;
        orphan->listed_bytes += unheld && !tree ? info->nbytes : 0;
        if (!unheld || tree)
            json_array_append_new(orphan->names,
                                  json_pack("{s:o, s:o}", "name", output_json_text(info->name),
                                            "namespace", output_json_text(names->name_space)));
    }
    if (!unheld)
        return 0;
    json_array_append_new(
        names->leaks->found[LEAKS_UNHELD],
        json_pack("{s:o, s:o, s:s?, s:s, s:I, s:I, s:I, s:f, s:b, s:o}", "name",
                  output_json_text(info->name), "namespace", output_json_text(names->name_space),
                  "device",
                  *info->device_uuid ? info->device_uuid
                  : *info->device    ? info->device
                                     : NULL,
                  "kind", tree ? "tree" : "array", "bytes", (json_int_t)info->nbytes, "owner_pid",
                  (json_int_t)info->owner_pid, "created_ns", (json_int_t)info->created_ns,
                  "age_seconds", age_seconds, "keep", info->keep != 0, "remove",
                  removal(info->name, names->name_space)));
    return 0;
}

static int find_old_versions(struct leaks *leaks, cw_client *client, const char *name_space) {
    cw_version_info info = {.version = 0};
    int result;
    while ((result = cw_version_next(client, "", 1, info.version, &info)) == 0) {
        double age_seconds = output_age_seconds(info.created_ns);
        if (info.latest || !info.holders || age_seconds < leaks->older_seconds)
            continue;
        json_t *pids = json_array();
        for (uint32_t i = 0; i < info.listed; i++)
            json_array_append_new(pids, json_integer(info.pids[i]));
        json_array_append_new(
            leaks->found[LEAKS_OLD],
            json_pack("{s:o, s:o, s:I, s:I, s:I, s:o, s:f}", "name", output_json_text(info.name),
                      "namespace", output_json_text(name_space), "version",
                      (json_int_t)info.version, "bytes", (json_int_t)info.total_bytes, "holders",
                      (json_int_t)info.holders, "pids", pids, "age_seconds", age_seconds));
    }
    return result == -ENOENT ? 0 : result;
}

static int find_transits(struct leaks *leaks, cw_client *client) {
    cw_transit_info oldest[TRANSITS_SHOWN];
    uint32_t count;
    int result = cw_transits_oldest(client, oldest, TRANSITS_SHOWN, &count, &leaks->transits);
    for (uint32_t i = 0; result == 0 && i < count; i++) {
        const cw_transit_info *at = &oldest[i];
        if ((double)at->age_ns * 1e-9 < leaks->older_seconds)
            continue;
        json_array_append_new(
            leaks->found[LEAKS_TRANSITS],
            json_pack(
                "{s:s, s:I, s:o, s:o, s:b, s:b, s:f, s:o}", "device",
                *at->device_uuid ? at->device_uuid : at->device, "bytes", (json_int_t)at->nbytes,
                "pid", at->pid ? json_integer((json_int_t)at->pid) : json_null(), "openers",
                at->openers ? json_integer((json_int_t)at->openers) : json_null(), "opened",
                (int)at->opened, "queued", (int)at->tied, "age_seconds", (double)at->age_ns * 1e-9,
                "ends_in_seconds", at->tied ? json_null() : json_real((double)at->left_ns * 1e-9)));
    }
    return result;
}

static int ask_of_names(struct leaks *leaks, struct orphans *orphans, const char *name_space) {
    struct names names = {leaks, orphans, name_space};
    cw_client *client;
    int code = cli_connect_admin(name_space, &client);
    if (code)
        return code;
    int result = cw_names_stat(client, "", look_at_name, &names);
    if (result == 0)
        result = find_old_versions(leaks, client, name_space);
    code = cli_result(result);
    cw_client_unref(client);
    return code;
}

static int ask_of_orphans(cw_client *client, struct orphans *orphans) {
    for (size_t i = 0; i < orphans->count; i++) {
        struct orphan *orphan = &orphans->all[i];
        int result = cw_slab_holders(client, orphan->slab.slab, &orphan->holders);
        orphan->gone = result == -ESTALE || (result == 0 && orphan->holders.owner_pid);
        if (result && result != -ESTALE)
            return result;
    }
    return 0;
}

static int ask(struct leaks *leaks, struct monitor *monitor, struct orphans *orphans) {
    char **spaces = NULL;
    size_t count = 0;
    cw_client *client;
    int code = cli_connect_admin("", &client);
    if (code)
        return code;
    code = cli_result(find_transits(leaks, client));
    if (code == CLI_OK)
        code = cli_result(ask_of_orphans(client, orphans));
    cw_client_unref(client);
    if (code == CLI_OK)
        code = cli_result(monitor_namespaces(monitor, &spaces, &count));
    for (size_t i = 0; i < count; i++) {
        if (code == CLI_OK)
            code = ask_of_names(leaks, orphans, spaces[i]);
        free(spaces[i]);
    }
    free(spaces);
    return code;
}

int leaks_find(struct leaks *leaks, struct monitor *monitor) {
    static const int asked[] = {LEAKS_UNHELD, LEAKS_TRANSITS, LEAKS_OLD};
    struct orphans orphans = {.all = NULL};
    int code = cli_result(look_at_memory(leaks, monitor, &orphans));
    if (code)
        return code;
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
        leaks->found[asked[i]] = json_array();
    code = ask(leaks, monitor, &orphans);
    /* Half of it would be taken for all. */
    for (size_t i = 0; code && i < sizeof asked / sizeof *asked; i++) {
        json_decref(leaks->found[asked[i]]);
        leaks->found[asked[i]] = NULL;
    }
    add_orphans(leaks, &orphans, code == CLI_OK);
    return code;
}

void leaks_deinit(struct leaks *leaks) {
    for (int part = 0; part < LEAKS_PARTS; part++)
        json_decref(leaks->found[part]);
}
