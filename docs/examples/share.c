/* Shares an array by name, without a copy: cc share.c -lcableway -o share && ./share
 * The first process puts it and starts a second one, which gets it by its name and writes into it.
 */
#define _POSIX_C_SOURCE 200809L
#include <cableway.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define NAME "examples/squares"

static void check(int code) {
    if (code < 0) {
        fprintf(stderr, "share: %s\n", cw_error());
        exit(1);
    }
}

static void second(cw_client *client) {
    cw_array *squares;
    cw_layout layout;
    check(cw_get(client, NAME, 0, &squares));
    cw_array_layout(squares, &layout);
    double *values = cw_array_data(squares), sum = 0;
    for (int64_t i = 0; i < layout.shape[0]; i++)
        sum += values[i];
    printf("process %d found %lld numbers, their sum is %.0f\n", (int)getpid(),
           (long long)layout.shape[0], sum);
    values[0] = sum;
    cw_array_close(squares);
}

int main(int argc, char **argv) {
    cw_client *client;
    cw_array *squares;
    int status;
    check(cw_connect(NULL, NULL, 0, &client)); /* starts a broker if none runs */
    if (argc > 1) {
        second(client);
    } else {
        const int64_t shape[] = {1000};
        const cw_layout layout = {.ndim = 1, .itemsize = 8, .shape = shape, .dtype = "<f8"};
        check(cw_array_new(client, "cpu", &layout, 0, &squares));
        double *values = cw_array_data(squares);
        for (int i = 0; i < 1000; i++)
            values[i] = (double)i * i;
        check(cw_array_put(squares, NAME, CW_REPLACE, NULL, 0));
        if (fork() == 0)
            execl(argv[0], argv[0], "second", (char *)NULL);
        if (wait(&status) < 0 || status != 0 || values[0] != 332833500)
            return 1;
        printf("process %d reads what the other wrote: %.0f\n", (int)getpid(), values[0]);
        check(cw_remove(client, NAME));
        cw_array_close(squares);
    }
    cw_client_unref(client);
    return 0;
}
