/*
 * cableway stat: all that is known about one name, here or on another node, which tells less.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "shm/base/error.h"
#include "tools/cli.h"
#include "tools/names.h"
#include "tools/output.h"

static void print_line(const char *title, const char *text) {
    char *safe = output_safe(text);
    printf("%-12s %s\n", title, safe);
    free(safe);
}

static void print_info(const char *name, const cw_name_info *info, const char *name_space) {
    char text[256], size[OUTPUT_SHORT], age[OUTPUT_SHORT], moment[OUTPUT_SHORT];
    char *shape = output_shape(info->ndim, info->shape);
    bool here = *info->device; /* another node does not tell where it lies and who holds it */
    print_line("name", name);
    print_line("namespace", *name_space ? name_space : "-");
    if (here)
        print_line("device", *info->device_uuid ? info->device_uuid : info->device);
    print_line("shape", shape);
    print_line("dtype", info->dtype);
    output_size(info->nbytes, size);
    if (info->nbytes < 1024)
        snprintf(text, sizeof text, "%s", size);
    else
        snprintf(text, sizeof text, "%llu (%s)", (unsigned long long)info->nbytes, size);
    print_line("bytes", text);
    if (here) {
        snprintf(text, sizeof text, "pid %u", info->owner_pid);
        print_line("owner", text);
        snprintf(text, sizeof text, "%u client%s; references of the broker: %u", info->holders,
                 info->holders == 1 ? "" : "s", info->references);
        print_line("holders", text);
    }
    snprintf(text, sizeof text, "%s (%s ago)", output_time(info->created_ns, moment),
             output_span(output_age_seconds(info->created_ns), age));
    print_line("created", text);
    print_line("keep",
               info->keep ? "yes: until it is removed" : "no: goes with the user's last client");
    snprintf(text, sizeof text, "%u", info->slab);
    if (here)
        print_line("slab", text);
    free(shape);
}

int cmd_stat(const struct cli *cli) {
    cw_client *client;
    int code = cli_connect(cli, false, &client);
    if (code)
        return code;
    cw_name_info *info = malloc(sizeof *info);
    CW_ASSERT(info);
    code = cli_result(cw_name_stat(client, cli->arguments[0], info));
    if (code == CLI_OK && (cli->options & CLI_JSON))
        output_json(names_json(cli->arguments[0], info, cw_client_namespace(client)));
    else if (code == CLI_OK)
        print_info(cli->arguments[0], info, cw_client_namespace(client));
    free(info);
    cw_client_unref(client);
    return code;
}
