/*
 * cableway leaks: memory that perhaps nobody needs, and what to do about it.
 *
 * What processes keep free, and memory whose maker is dead, comes from the monitor page and the
 * block tables: nobody is asked. Names, handles under way and old versions only the broker can
 * tell; where it does not, these parts are null, the rest is shown, and the exit code says it. Text
 * is made of the same JSON that --json prints.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shm/base/error.h"
#include "shm/base/wait.h"
#include "tools/cli.h"
#include "tools/monitor.h"
#include "tools/output.h"
#include "tools/watch/clients.h"
#include "tools/watch/memory.h"

#define OLDER_SECONDS  60.0
#define CACHE_LEAST    (1u << 20) /* bytes: less is not worth a line */
#define TRANSITS_SHOWN 96u
#define ROWS_SHOWN     20u /* of each part, as text */

enum kind { TEXT, NUMBER, SIZE, SPAN, YES_NO, NUMBERS };

struct column {
    const char *key, *title;
    enum kind kind;
};

struct part {
    const char *key, *title, *advice;
    const char *sorted_by; /* the largest first */
    struct column columns[9];
};

enum { UNHELD, TRANSITS, CACHES, OLD_VERSIONS, ORPHANS, PARTS };

static const struct part parts[PARTS] = {
    [UNHELD] =
        {"unheld",
         "arrays with a name that nobody has open",
         "`cableway rm NAME` removes those that nobody will open. Those put with keep=True stay "
         "until then.",
         "bytes",
         {{"name", "NAME", TEXT},
          {"namespace", "NAMESPACE", TEXT},
          {"device", "DEVICE", TEXT},
          {"bytes", ">BYTES", SIZE},
          {"owner_pid", ">PUT BY", NUMBER},
          {"age_seconds", ">AGE", SPAN},
          {"keep", "KEEP", YES_NO}}},
    [TRANSITS] =
        {"transits",
         "handles that were sent and not opened by all for whom they are",
         "A queue that nobody reads, a pickle that nobody loads. Read it, or delete it; else "
         "each ends by itself after transit_seconds, in a queue with the queue.",
         "age_seconds",
         {{"device", "DEVICE", TEXT},
          {"bytes", ">BYTES", SIZE},
          {"pid", ">SENT BY", NUMBER},
          {"openers", ">TO OPEN", NUMBER},
          {"queued", "IN A QUEUE", YES_NO},
          {"age_seconds", ">AGE", SPAN},
          {"ends_in_seconds", ">ENDS IN", SPAN}}},
    [CACHES] =
        {"caches",
         "memory that an idle process keeps free for its next arrays",
         "Host memory is taken back when others need it. CABLEWAY_CACHE_BYTES and "
         "CABLEWAY_GPU_CACHE_BYTES say how much a process keeps; it goes when the process ends.",
         "free_bytes",
         {{"pid", ">PID", NUMBER},
          {"command", "COMMAND", TEXT},
          {"device", "DEVICE", TEXT},
          {"free_bytes", ">FREE", SIZE},
          {"live_bytes", ">IN ARRAYS", SIZE},
          {"idle_seconds", ">IDLE", SPAN}}},
    [OLD_VERSIONS] = {"old_versions",
                      "earlier versions of trees that processes still have open",
                      "Let these processes get the name again and drop the old tree, or end them.",
                      "bytes",
                      {{"name", "NAME", TEXT},
                       {"namespace", "NAMESPACE", TEXT},
                       {"version", ">VERSION", NUMBER},
                       {"bytes", ">BYTES", SIZE},
                       {"pids", "HELD BY", NUMBERS},
                       {"age_seconds", ">AGE", SPAN}}},
    [ORPHANS] =
        {"orphans",
         "memory whose maker has ended",
         "What is in arrays stays until nobody has them open and no name means them; the rest "
         "the next process takes that needs memory. nvidia-smi shows no process for it.",
         "bytes",
         {{"slab", ">SLAB", NUMBER},
          {"device", "DEVICE", TEXT},
          {"bytes", ">BYTES", SIZE},
          {"live_bytes", ">IN ARRAYS", SIZE},
          {"arrays", ">ARRAYS", NUMBER}}},
};

struct search {
    double older_seconds;
    json_t *found[PARTS]; /* arrays; NULL: could not be asked for */
    uint64_t transits;    /* all that there are */
};

/* ---- what shared memory tells ---- */

/* Free memory of one client on one device. */
static void find_cache(struct search *search, const struct client_row *row,
                       const struct memory_slab *slabs, size_t count, const char *device) {
    uint64_t free_bytes = 0, live_bytes = 0;
    double idle_seconds = (double)(cw_now_ns() - (int64_t)row->heard_ns) * 1e-9;
    for (size_t i = 0; i < count; i++) {
        if (slabs[i].owner != row->session || strcmp(slabs[i].device, device) != 0)
            continue;
        free_bytes += slabs[i].size_bytes - slabs[i].live_bytes;
        live_bytes += slabs[i].live_bytes;
    }
    if (free_bytes < CACHE_LEAST || idle_seconds < search->older_seconds)
        return;
    json_array_append_new(search->found[CACHES],
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

static void find_caches(struct search *search, const struct monitor *monitor,
                        const struct memory_slab *slabs, size_t count) {
    struct client_row row;
    for (unsigned i = 0; i < CW_MONITOR_CLIENTS; i++) {
        if (!clients_copy(monitor->root, i, &row))
            continue;
        for (size_t s = 0; s < count; s++) {
            if (slabs[s].owner == row.session && is_first(slabs, s))
                find_cache(search, &row, slabs, count, slabs[s].device);
        }
    }
}

static int look_at_memory(struct search *search, const struct monitor *monitor) {
    struct memory_slab *slabs;
    size_t count;
    int result = memory_slabs(monitor, &slabs, &count);
    if (result)
        return result;
    search->found[CACHES] = json_array();
    search->found[ORPHANS] = json_array();
    find_caches(search, monitor, slabs, count);
    for (size_t i = 0; i < count; i++) {
        if (slabs[i].owner == 0)
            json_array_append_new(
                search->found[ORPHANS],
                json_pack("{s:I, s:s, s:I, s:I, s:I}", "slab", (json_int_t)slabs[i].slab, "device",
                          slabs[i].device, "bytes", (json_int_t)slabs[i].size_bytes, "live_bytes",
                          (json_int_t)slabs[i].live_bytes, "arrays", (json_int_t)slabs[i].blocks));
    }
    free(slabs);
    return 0;
}

/* ---- what the broker tells ---- */

struct names {
    struct search *search;
    const char *name_space;
};

static int find_unheld(void *context, const cw_name_info *info) {
    struct names *names = context;
    double age_seconds = output_age_seconds(info->created_ns);
    /* One reference is that of the name: any other is a handle or a fork that may still open it. */
    if (!*info->device || info->holders > 0 || info->references > 1 ||
        age_seconds < names->search->older_seconds)
        return 0;
    json_array_append_new(
        names->search->found[UNHELD],
        json_pack("{s:o, s:o, s:s, s:s, s:I, s:I, s:I, s:f, s:b}", "name",
                  output_json_text(info->name), "namespace", output_json_text(names->name_space),
                  "device", *info->device_uuid ? info->device_uuid : info->device, "kind",
                  strcmp(info->dtype, "tree") == 0 ? "tree" : "array", "bytes",
                  (json_int_t)info->nbytes, "owner_pid", (json_int_t)info->owner_pid, "created_ns",
                  (json_int_t)info->created_ns, "age_seconds", age_seconds, "keep",
                  info->keep != 0));
    return 0;
}

static int find_old_versions(struct search *search, cw_client *client, const char *name_space) {
    cw_version_info info = {.version = 0};
    int result;
    while ((result = cw_version_next(client, "", 1, info.version, &info)) == 0) {
        double age_seconds = output_age_seconds(info.created_ns);
        if (info.latest || !info.holders || age_seconds < search->older_seconds)
            continue;
        json_t *pids = json_array();
        for (uint32_t i = 0; i < info.listed; i++)
            json_array_append_new(pids, json_integer(info.pids[i]));
        json_array_append_new(
            search->found[OLD_VERSIONS],
            json_pack("{s:o, s:o, s:I, s:I, s:I, s:o, s:f}", "name", output_json_text(info.name),
                      "namespace", output_json_text(name_space), "version",
                      (json_int_t)info.version, "bytes", (json_int_t)info.total_bytes, "holders",
                      (json_int_t)info.holders, "pids", pids, "age_seconds", age_seconds));
    }
    return result == -ENOENT ? 0 : result;
}

static int find_transits(struct search *search, cw_client *client) {
    cw_transit_info oldest[TRANSITS_SHOWN];
    uint32_t count;
    int result = cw_transits_oldest(client, oldest, TRANSITS_SHOWN, &count, &search->transits);
    for (uint32_t i = 0; result == 0 && i < count; i++) {
        const cw_transit_info *at = &oldest[i];
        if ((double)at->age_ns * 1e-9 < search->older_seconds)
            continue;
        json_array_append_new(
            search->found[TRANSITS],
            json_pack("{s:s, s:I, s:o, s:o, s:b, s:b, s:f, s:f}", "device",
                      *at->device_uuid ? at->device_uuid : at->device, "bytes",
                      (json_int_t)at->nbytes, "pid",
                      at->pid ? json_integer((json_int_t)at->pid) : json_null(), "openers",
                      at->openers ? json_integer((json_int_t)at->openers) : json_null(), "opened",
                      (int)at->opened, "queued", (int)at->tied, "age_seconds",
                      (double)at->age_ns * 1e-9, "ends_in_seconds", (double)at->left_ns * 1e-9));
    }
    return result;
}

static int ask_of_names(struct search *search, const char *name_space) {
    struct names names = {search, name_space};
    cw_client *client;
    int code = cli_connect_to(name_space, false, &client);
    if (code)
        return code;
    int result = cw_names_stat(client, "", find_unheld, &names);
    if (result == 0)
        result = find_old_versions(search, client, name_space);
    code = cli_result(result);
    cw_client_unref(client);
    return code;
}

static int ask(struct search *search, struct monitor *monitor) {
    static const int asked[] = {UNHELD, TRANSITS, OLD_VERSIONS};
    char **spaces = NULL;
    size_t count = 0;
    cw_client *client;
    int code = cli_connect_to("", false, &client);
    if (code)
        return code;
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
        search->found[asked[i]] = json_array();
    code = cli_result(find_transits(search, client));
    cw_client_unref(client);
    if (code == CLI_OK)
        code = cli_result(monitor_namespaces(monitor, &spaces, &count));
    for (size_t i = 0; i < count; i++) {
        if (code == CLI_OK)
            code = ask_of_names(search, spaces[i]);
        free(spaces[i]);
    }
    free(spaces);
    /* Half of it would be taken for all. */
    for (size_t i = 0; code && i < sizeof asked / sizeof *asked; i++) {
        json_decref(search->found[asked[i]]);
        search->found[asked[i]] = NULL;
    }
    return code;
}

/* ---- output ---- */

static const char *sort_key; /* of qsort's comparison; this program has one thread */

static int largest_first(const void *a, const void *b) {
    double first = json_number_value(json_object_get(*(json_t *const *)a, sort_key)),
           second = json_number_value(json_object_get(*(json_t *const *)b, sort_key));
    return (first < second) - (first > second);
}

static void sort(json_t *found, const char *key) {
    size_t count = json_array_size(found), at;
    json_t **rows = calloc(count + 1, sizeof(void *)), *row;
    CW_ASSERT(rows);
    json_array_foreach(found, at, row) {
        rows[at] = json_incref(row);
    }
    sort_key = key;
    qsort(rows, count, sizeof(void *), largest_first);
    json_array_clear(found);
    for (at = 0; at < count; at++)
        json_array_append_new(found, rows[at]);
    free(rows);
}

static void add_cell(struct output_table *table, const json_t *value, enum kind kind) {
    char text[OUTPUT_SHORT];
    if (!value || json_is_null(value))
        output_table_add(table, "?");
    else if (kind == TEXT)
        output_table_addf(table, "%s", *json_string_value(value) ? json_string_value(value) : "-");
    else if (kind == NUMBER)
        output_table_addf(table, "%lld", (long long)json_integer_value(value));
    else if (kind == SIZE)
        output_table_add(table, output_size((uint64_t)json_integer_value(value), text));
    else if (kind == SPAN)
        output_table_add(table, output_span(json_number_value(value), text));
    else if (kind == YES_NO)
        output_table_add(table, json_is_true(value) ? "yes" : "no");
    else {
        char *list = json_dumps(value, JSON_COMPACT);
        CW_ASSERT(list);
        output_table_addf(table, "%.*s", (int)strlen(list) - 2, list + 1);
        free(list);
    }
}

static void print_part(const struct part *part, const json_t *found, uint64_t more) {
    const char *titles[sizeof part->columns / sizeof *part->columns + 1] = {NULL};
    struct output_table table;
    size_t count = json_array_size(found), at;
    const json_t *row;
    for (at = 0; part->columns[at].key; at++)
        titles[at] = part->columns[at].title;
    output_table_init(&table, titles);
    for (size_t r = 0; r < count && r < ROWS_SHOWN; r++) {
        row = json_array_get(found, r);
        for (at = 0; part->columns[at].key; at++)
            add_cell(&table, json_object_get(row, part->columns[at].key), part->columns[at].kind);
    }
    printf("%s: %zu\n", part->title, count);
    output_table_print(&table, "  ");
    if (count > ROWS_SHOWN)
        printf("  and %zu more (--json lists all)\n", count - ROWS_SHOWN);
    if (more)
        printf("  of %llu under way in all\n", (unsigned long long)more);
    printf("  What to do: %s\n\n", part->advice);
    output_table_deinit(&table);
}

static void print_text(const struct search *search) {
    size_t all = 0;
    for (int p = 0; p < PARTS; p++) {
        size_t count = json_array_size(search->found[p]);
        all += count;
        if (count)
            print_part(&parts[p], search->found[p],
                       p == TRANSITS && search->transits > count ? search->transits : 0);
        else if (!search->found[p])
            printf("%s: not known, the broker could not be asked\n\n", parts[p].title);
    }
    if (!all)
        printf("Nothing was found that is older than %g s.\n", search->older_seconds);
}

static void print_json(const struct search *search) {
    json_t *told = json_object(), *advice = json_object();
    for (int p = 0; p < PARTS; p++) {
        json_object_set_new(told, parts[p].key,
                            search->found[p] ? json_incref(search->found[p]) : json_null());
        json_object_set_new(advice, parts[p].key, json_string(parts[p].advice));
    }
    json_object_set_new(told, "transits_under_way",
                        search->found[TRANSITS] ? json_integer((json_int_t)search->transits)
                                                : json_null());
    json_object_set_new(told, "older_seconds", json_real(search->older_seconds));
    json_object_set_new(told, "advice", advice);
    output_json(told);
}

int cmd_leaks(const struct cli *cli) {
    struct search search = {.older_seconds = OLDER_SECONDS};
    struct monitor monitor;
    if (cli->options & CLI_OLDER)
        search.older_seconds = (double)cli->older_ns * 1e-9;
    int result = monitor_open(&monitor);
    if (result)
        return result == -ENOENT ? cli_error(CLI_NO_BROKER, "%s", cw_error()) : cli_result(result);
    int code = cli_result(look_at_memory(&search, &monitor));
    if (code == CLI_OK)
        code = ask(&search, &monitor);
    monitor_close(&monitor);
    for (int p = 0; p < PARTS; p++) {
        if (search.found[p])
            sort(search.found[p], parts[p].sorted_by);
    }
    if (cli->options & CLI_JSON)
        print_json(&search);
    else
        print_text(&search);
    for (int p = 0; p < PARTS; p++)
        json_decref(search.found[p]);
    return code;
}
