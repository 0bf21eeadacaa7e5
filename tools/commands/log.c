/*
 * cableway log: the errors that the broker met, or told clients of, each kind once, with how often
 * and when. From the monitor page alone: nobody is asked, and it shows them also where nobody read
 * the broker's standard error, or its log left lines out.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "tools/cli.h"
#include "tools/monitor.h"
#include "tools/output.h"
#include "tools/watch/errors.h"

static void print_json(const struct monitor *monitor, const struct error_row *rows,
                       unsigned count) {
    json_t *told = json_array();
    cw_a64 *counters = monitor->root->counters;
    for (unsigned i = 0; i < count; i++)
        json_array_append_new(told, json_pack("{s:I, s:I, s:I, s:o, s:o}", "count",
                                              (json_int_t)rows[i].count, "first_ns",
                                              (json_int_t)rows[i].first_ns, "last_ns",
                                              (json_int_t)rows[i].last_ns, "pid",
                                              rows[i].pid ? json_integer(rows[i].pid) : json_null(),
                                              "error", output_json_text(rows[i].text)));
    output_json(json_pack("{s:o, s:I, s:I, s:I, s:o}", "errors", told, "count",
                          (json_int_t)monitor_word(&counters[CW_COUNTER_errors]), "forgotten",
                          (json_int_t)monitor_word(&counters[CW_COUNTER_errors_forgotten]),
                          "log_lines_left_out",
                          (json_int_t)monitor_word(&counters[CW_COUNTER_log_lines_left_out]), "log",
                          output_json_text(monitor->address.log_path)));
}

static void print_text(const struct monitor *monitor, const struct error_row *rows,
                       unsigned count) {
    static const char *const titles[] = {">COUNT", "FIRST", "LAST", ">BY PID", "ERROR", NULL};
    cw_a64 *counters = monitor->root->counters;
    uint64_t forgotten = monitor_word(&counters[CW_COUNTER_errors_forgotten]),
             left_out = monitor_word(&counters[CW_COUNTER_log_lines_left_out]);
    struct output_table table;
    char time[OUTPUT_SHORT];
    output_table_init(&table, titles);
    for (unsigned i = 0; i < count; i++) {
        output_table_addf(&table, "%llu", (unsigned long long)rows[i].count);
        output_table_add(&table, output_time(rows[i].first_ns, time));
        output_table_add(&table, output_time(rows[i].last_ns, time));
        if (rows[i].pid)
            output_table_addf(&table, "%u", rows[i].pid);
        else
            output_table_add(&table, "-");
        output_table_add(&table, rows[i].text);
    }
    if (count)
        output_table_print(&table, "");
    else
        printf("The broker (pid %d) has met no error since it started.\n", (int)monitor->lock.pid);
    output_table_deinit(&table);
    if (forgotten)
        printf("%llu errors of other kinds, met longer ago, are forgotten.\n",
               (unsigned long long)forgotten);
    if (left_out)
        printf("%llu lines were left out of the log.\n", (unsigned long long)left_out);
}

int cmd_log(const struct cli *cli) {
    struct monitor monitor;
    int result = monitor_open(&monitor);
    if (result)
        return result == -ENOENT ? cli_error(CLI_NO_BROKER, "%s", cw_error()) : cli_result(result);
    struct error_row *rows = calloc(CW_ERRORS_KEPT, sizeof *rows);
    CW_ASSERT(rows);
    unsigned count = errors_copy(monitor.root, rows);
    if (cli->options & CLI_JSON)
        print_json(&monitor, rows, count);
    else
        print_text(&monitor, rows, count);
    free(rows);
    monitor_close(&monitor);
    return CLI_OK;
}
