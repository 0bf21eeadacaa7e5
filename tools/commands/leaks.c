/*
 * cableway leaks: memory that perhaps nobody needs, and what to do about it.
 *
 * What is looked for, and where, is in watch/leaks.c. What only the broker can tell is null where
 * it does not, the rest is shown, and the exit code says it. Text is made of the same JSON that
 * --json prints.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/error.h"
#include "tools/cli.h"
#include "tools/monitor.h"
#include "tools/output.h"
#include "tools/watch/leaks.h"

#define OLDER_SECONDS 60.0
#define ROWS_SHOWN    20u /* of each part, as text */
#define NAMES_SHOWN   3u  /* of each slab */

enum kind { TEXT, NUMBER, SIZE, SPAN, END, YES_NO, NUMBERS, HOLDERS };

struct column {
    const char *key, *title;
    enum kind kind;
};

struct part {
    const char *key, *title, *advice;
    const char *sorted_by; /* the largest first */
    struct column columns[10];
};

static const struct part parts[LEAKS_PARTS] = {
    [LEAKS_UNHELD] =
        {"unheld",
         "arrays with a name that nobody has open",
         "Remove those that nobody will open, each by the command in its line. Those put with "
         "keep=True stay until then.",
         "bytes",
         {{"name", "NAME", TEXT},
          {"namespace", "NAMESPACE", TEXT},
          {"device", "DEVICE", TEXT},
          {"bytes", ">BYTES", SIZE},
          {"owner_pid", ">PUT BY", NUMBER},
          {"age_seconds", ">AGE", SPAN},
          {"keep", "KEEP", YES_NO},
          {"remove", "TO REMOVE IT", TEXT}}},
    [LEAKS_TRANSITS] =
        {"transits",
         "handles that were sent and not opened by all for whom they are",
         "A queue that nobody reads, a pickle that nobody loads. Read it, or delete it. A pickle "
         "ends by itself after transit_seconds; an item of a queue stays until somebody takes it, "
         "or the queue ends.",
         "age_seconds",
         {{"device", "DEVICE", TEXT},
          {"bytes", ">BYTES", SIZE},
          {"pid", ">SENT BY", NUMBER},
          {"openers", ">TO OPEN", NUMBER},
          {"queued", "IN A QUEUE", YES_NO},
          {"age_seconds", ">AGE", SPAN},
          {"ends_in_seconds", ">ENDS IN", END}}},
    [LEAKS_CACHES] =
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
    [LEAKS_OLD] = {"old_versions",
                   "earlier versions of trees that processes still have open",
                   "Let these processes get the name again and drop the old tree, or end them.",
                   "bytes",
                   {{"name", "NAME", TEXT},
                    {"namespace", "NAMESPACE", TEXT},
                    {"version", ">VERSION", NUMBER},
                    {"bytes", ">BYTES", SIZE},
                    {"pids", "HELD BY", NUMBERS},
                    {"age_seconds", ">AGE", SPAN}}},
    [LEAKS_ORPHANS] =
        {"orphans",
         "memory whose maker has ended",
         "Arrays stay as long as who stands under HELD BY has them: end these processes, or let "
         "them close the arrays; remove the names; open or delete what was sent. The next process "
         "that needs memory takes the rest. nvidia-smi shows no process for it.",
         "bytes",
         {{"slab", ">SLAB", NUMBER},
          {"device", "DEVICE", TEXT},
          {"bytes", ">BYTES", SIZE},
          {"live_bytes", ">IN ARRAYS", SIZE},
          {"arrays", ">ARRAYS", NUMBER},
          {"age_seconds", ">SINCE", SPAN},
          {"holders", "HELD BY", HOLDERS}}},
};

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

/* Who keeps the arrays of a slab: processes, names, and whatever else the broker counts. */
static void add_holders(struct output_table *table, const json_t *row) {
    const json_t *pids = json_object_get(row, "pids"), *names = json_object_get(row, "names");
    long long others = json_integer_value(json_object_get(row, "other_references"));
    long long holders = json_integer_value(json_object_get(row, "holders"));
    size_t at, length;
    json_t *each;
    char *text;
    FILE *to = open_memstream(&text, &length);
    CW_ASSERT(to);
    json_array_foreach(pids, at, each) {
        fprintf(to, "%s%lld", at ? "," : "pid ", (long long)json_integer_value(each));
    }
    if (holders > (long long)json_array_size(pids))
        fprintf(to, ",...");
    json_array_foreach(names, at, each) {
        const char *space = json_string_value(json_object_get(each, "namespace"));
        if (at < NAMES_SHOWN)
            fprintf(to, "%sname %s%s%s%s", ftell(to) ? "; " : "",
                    json_string_value(json_object_get(each, "name")), *space ? " (namespace " : "",
                    space, *space ? ")" : "");
    }
    if (json_array_size(names) > NAMES_SHOWN)
        fprintf(to, "; %zu more names", json_array_size(names) - NAMES_SHOWN);
    if (others)
        fprintf(to, "%s%lld %s", ftell(to) ? "; " : "", others,
                others == 1 ? "handle, fork or part of a tree"
                            : "handles, forks or parts of trees");
    CW_ASSERT(fclose(to) == 0);
    output_table_add(table, *text ? text : "-");
    free(text);
}

static void add_cell(struct output_table *table, const json_t *row, const char *key,
                     enum kind kind) {
    char text[OUTPUT_SHORT];
    const json_t *value = json_object_get(row, key);
    if (kind == END && json_is_null(value))
        output_table_add(table, "with the queue");
    else if (kind == TEXT && json_is_null(value))
        output_table_add(table, "-");
    else if (!value || json_is_null(value))
        output_table_add(table, "?");
    else if (kind == HOLDERS)
        add_holders(table, row);
    else if (kind == TEXT)
        output_table_addf(table, "%s", *json_string_value(value) ? json_string_value(value) : "-");
    else if (kind == NUMBER)
        output_table_addf(table, "%lld", (long long)json_integer_value(value));
    else if (kind == SIZE)
        output_table_add(table, output_size((uint64_t)json_integer_value(value), text));
    else if (kind == SPAN || kind == END)
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
            add_cell(&table, row, part->columns[at].key, part->columns[at].kind);
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

static void print_text(const struct leaks *leaks) {
    size_t all = 0;
    for (int p = 0; p < LEAKS_PARTS; p++) {
        size_t count = json_array_size(leaks->found[p]);
        all += count;
        if (count)
            print_part(&parts[p], leaks->found[p],
                       p == LEAKS_TRANSITS && leaks->transits > count ? leaks->transits : 0);
        else if (!leaks->found[p])
            printf("%s: not known, the broker could not be asked\n\n", parts[p].title);
    }
    if (!all)
        printf("Nothing was found that is older than %g s.\n", leaks->older_seconds);
}

static void print_json(const struct leaks *leaks) {
    json_t *told = json_object(), *advice = json_object();
    for (int p = 0; p < LEAKS_PARTS; p++) {
        json_object_set_new(told, parts[p].key,
                            leaks->found[p] ? json_incref(leaks->found[p]) : json_null());
        json_object_set_new(advice, parts[p].key, json_string(parts[p].advice));
    }
    json_object_set_new(told, "transits_under_way",
                        leaks->found[LEAKS_TRANSITS] ? json_integer((json_int_t)leaks->transits)
                                                     : json_null());
    json_object_set_new(told, "older_seconds", json_real(leaks->older_seconds));
    json_object_set_new(told, "advice", advice);
    output_json(told);
}

int cmd_leaks(const struct cli *cli) {
    struct leaks leaks = {.older_seconds = OLDER_SECONDS};
    struct monitor monitor;
    if (cli->options & CLI_OLDER)
        leaks.older_seconds = (double)cli->older_ns * 1e-9;
    int result = monitor_open(&monitor);
    if (result)
        return result == -ENOENT ? cli_error(CLI_NO_BROKER, "%s", cw_error()) : cli_result(result);
    int code = leaks_find(&leaks, &monitor);
    monitor_close(&monitor);
    for (int p = 0; p < LEAKS_PARTS; p++) {
        if (leaks.found[p])
            sort(leaks.found[p], parts[p].sorted_by);
    }
    if (cli->options & CLI_JSON)
        print_json(&leaks);
    else
        print_text(&leaks);
    leaks_deinit(&leaks);
    return code;
}
