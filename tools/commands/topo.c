/*
 * cableway topo: the GPUs that this process sees, the routes between them with their measured
 * speed (measured by whoever asks first, and kept by the broker; without one each time), and the
 * bytes that went by each route since the broker began.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/error.h"
#include "tools/cli.h"
#include "tools/monitor.h"
#include "tools/output.h"

#define GPUS_MAX 64

static const struct {
    enum cw_counter counter;
    const char *route;
} routes[] = {
    {CW_COUNTER_bytes_same_gpu, "within a GPU"},
    {CW_COUNTER_bytes_peer, "GPU to GPU"},
    {CW_COUNTER_bytes_to_gpu, "host to GPU"},
    {CW_COUNTER_bytes_from_gpu, "GPU to host"},
    {CW_COUNTER_bytes_staged, "GPU to GPU through the host"},
};

static const char *route_name(const cw_link_info *link) {
    static const char *const names[] = {"unknown", "same", "peer", "staged"};
    return names[link->route > 0 && link->route <= 3 ? link->route : 0];
}

/* Asks for every link. links: count * count. client NULL: no broker runs. */
static int look(cw_client *client, int count, cw_device_info *devices, cw_link_info *links) {
    char name[16];
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "cuda:%d", i);
        int result = cw_device_stat(name, &devices[i]);
        for (int j = 0; j < count && result == 0; j++)
            result = client ? cw_link_known(client, i, j, &links[i * count + j])
                            : cw_link_stat(i, j, 1, &links[i * count + j]);
        if (result)
            return result;
    }
    return 0;
}

static json_t *json_bytes(struct monitor *monitor) {
    json_t *object = json_object();
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
        json_object_set_new(
            object, cw_counter_name(routes[i].counter),
            json_integer((json_int_t)monitor_word(&monitor->root->counters[routes[i].counter])));
    return object;
}

static void print_json(int count, const cw_device_info *devices, const cw_link_info *links,
                       struct monitor *monitor) {
    json_t *gpus = json_array(), *list = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(gpus, json_pack("{s:i, s:o, s:o, s:I, s:I}", "gpu", i, "name",
                                              output_json_text(devices[i].name), "uuid",
                                              output_json_text(devices[i].uuid), "memory_bytes",
                                              (json_int_t)devices[i].memory_bytes, "free_bytes",
                                              (json_int_t)devices[i].free_bytes));
    for (int i = 0; i < count * count; i++)
        json_array_append_new(list,
                              json_pack("{s:i, s:i, s:s, s:i, s:b, s:I}", "from", i / count, "to",
                                        i % count, "route", route_name(&links[i]), "rank",
                                        links[i].rank, "atomics", links[i].atomics,
                                        "bytes_per_second", (json_int_t)links[i].bytes_per_second));
    output_json(json_pack("{s:o, s:o, s:o}", "gpus", gpus, "links", list, "bytes",
                          monitor ? json_bytes(monitor) : json_null()));
}

static void print_matrix(int count, const cw_device_info *devices, const cw_link_info *links) {
    static const char *const begin[] = {"FROM", "UUID", ">FREE"};
    char headings[GPUS_MAX][16], size[OUTPUT_SHORT];
    const char *titles[GPUS_MAX + 4];
    struct output_table table;
    memcpy(titles, begin, sizeof begin);
    for (int i = 0; i < count; i++) {
        snprintf(headings[i], sizeof headings[i], ">cuda:%d", i);
        titles[3 + i] = headings[i];
    }
    titles[3 + count] = NULL;
    output_table_init(&table, titles);
    for (int i = 0; i < count; i++) {
        output_table_addf(&table, "cuda:%d", i);
        output_table_add(&table, devices[i].uuid);
        output_table_add(&table, output_size(devices[i].free_bytes, size));
        for (int j = 0; j < count; j++) {
            const cw_link_info *link = &links[i * count + j];
            output_table_addf(&table, "%s %.0f GB/s", route_name(link),
                              (double)link->bytes_per_second / 1e9);
        }
    }
    output_table_print(&table, "");
    output_table_deinit(&table);
}

static void print_bytes(struct monitor *monitor) {
    char size[OUTPUT_SHORT];
    printf("\nbytes since the broker began\n");
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
        printf("  %-28s %12s\n", routes[i].route,
               output_size(monitor_word(&monitor->root->counters[routes[i].counter]), size));
}

int cmd_topo(const struct cli *cli) {
    char *names;
    uint64_t listed;
    int result = cw_devices(&names, &listed);
    if (result == 0)
        cw_free(names);
    if (result == 0 && listed < 2)
        result = cw_device_check("cuda:0"); /* says why there is none */
    if (result || listed < 2)
        return cli_result(result);
    int count = listed - 1 > GPUS_MAX ? GPUS_MAX : (int)(listed - 1);
    cw_device_info *devices = calloc((size_t)count, sizeof *devices);
    cw_link_info *links = calloc((size_t)count * (size_t)count, sizeof *links);
    CW_ASSERT(devices && links);
    cw_client *client = NULL;
    if (cw_connect(NULL, NULL, CW_CONNECT_NO_START, &client) != 0)
        client = NULL;
    result = look(client, count, devices, links);
    cw_client_unref(client);
    struct monitor monitor;
    bool runs =
        result == 0 && monitor_open(&monitor) == 0; /* without a broker there are no bytes */
    if (result == 0 && (cli->options & CLI_JSON))
        print_json(count, devices, links, runs ? &monitor : NULL);
    else if (result == 0) {
        print_matrix(count, devices, links);
        if (runs)
            print_bytes(&monitor);
    }
    if (runs)
        monitor_close(&monitor);
    free(links);
    free(devices);
    return cli_result(result);
}
