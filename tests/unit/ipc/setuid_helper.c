/*
 * A program that test_setuid.c runs with the setuid bit and an environment of its caller's making:
 * setuid_helper ADDRESS. Says what it was led to, a word and a value on each line. It uses
 * cableway.h alone: it is built with the static library and, as setuid_shared, with the shared one.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ipc/cableway.h"

static int is_mapped(const char *what) {
    char line[512];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        found |= strstr(line, what) != NULL;
    if (maps)
        fclose(maps);
    return found;
}

static const char *sentence(int code) {
    return code < 0 ? cw_error() : "";
}

int main(int argc, char **argv) {
    cw_client *client;
    cw_array *array;
    const int64_t shape[] = {10};
    const cw_layout layout = {.ndim = 1, .itemsize = 8, .shape = shape, .dtype = "<f8"};
    if (argc < 2)
        return 2;
    printf("uid %d\neuid %d\n", (int)getuid(), (int)geteuid());
    int code = cw_connect(NULL, NULL, CW_CONNECT_NO_START, &client);
    printf("default %s\n", code ? cw_error() : cw_client_address(client));
    if (code == 0)
        cw_client_unref(client);
    code = cw_device_check("cuda:0");
    printf("double %d\n", is_mapped("libcuda-double"));
    code = cw_connect(argv[1], NULL, 0, &client);
    printf("connect %d %s\n", code, sentence(code));
    if (code)
        return 0;
    printf("namespace \"%s\"\nbroker %d\n", cw_client_namespace(client),
           cw_client_broker_pid(client));
    code = cw_array_new(client, "cpu", &layout, CW_ZERO, &array);
    if (code == 0)
        code = cw_array_put(array, "setuid/x", CW_REPLACE, NULL, 0);
    printf("put %d %s\n", code, sentence(code));
    return 0;
}
