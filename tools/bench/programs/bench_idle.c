/*
 * What a broker takes that nobody asks: CPU over 10 s with a client connected, and resident memory
 * with 100 names in it.
 */
#include <stdio.h>
#include <unistd.h>

#include "shm/base/wait.h"
#include "tools/bench/programs/bench.h"
#include "tools/bench/programs/scratch.h"

int main(int argc, char **argv) {
    unsigned seconds = (unsigned)bench_option(argc, argv, "seconds", 10);
    struct scratch scratch;
    scratch_open(&scratch);
    cw_client *client = scratch.client;
    int pid = cw_client_broker_pid(client);
    int64_t shape = 1000;
    cw_layout layout = {.ndim = 1, .itemsize = 8, .shape = &shape, .dtype = "<f8"};
    for (int i = 0; i < 100; i++) {
        char name[32];
        cw_array *array;
        snprintf(name, sizeof name, "idle/%d", i);
        bench_need(cw_array_new(client, "cpu", &layout, CW_ZERO, &array), "allocate");
        bench_need(cw_array_put(array, name, 0, NULL, 0), "put");
        cw_array_close(array);
    }
    sleep(1); /* what the puts left to do is done by then */
    double before = bench_cpu_seconds_of(pid);
    int64_t begun_ns = cw_now_ns();
    sleep(seconds);
    double passed = (double)(cw_now_ns() - begun_ns) * 1e-9;
    double used = bench_cpu_seconds_of(pid) - before;
    bench_report_value("idle", "broker: CPU over 10 s", "sleeps", "%", 100 * used / passed);
    bench_report_value("idle", "broker: resident, 100 names", "", "MiB",
                       (double)bench_resident_bytes(pid) / (1 << 20));
    scratch_close(&scratch);
    return 0;
}
