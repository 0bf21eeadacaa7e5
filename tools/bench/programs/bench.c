/*
 * What the benchmarks share: see bench.h. One thread; nothing outlives the process.
 */
#include "tools/bench/programs/bench.h"

#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "shm/base/error.h"

void bench_add(struct bench_samples *samples, double value) {
    if (samples->count == samples->capacity) {
        samples->capacity = samples->capacity ? samples->capacity * 2 : 64;
        samples->values = realloc(samples->values, samples->capacity * sizeof(double));
        CW_ASSERT(samples->values);
    }
    samples->values[samples->count++] = value;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_quantile(struct bench_samples *samples, double q) {
    if (!samples->count)
        return 0;
    qsort(samples->values, samples->count, sizeof(double), compare_doubles);
    double place = q * (double)(samples->count - 1);
    size_t below = (size_t)place;
    size_t above = below + 1 < samples->count ? below + 1 : below;
    double part = place - (double)below;
    return samples->values[below] * (1 - part) + samples->values[above] * part;
}

void bench_samples_deinit(struct bench_samples *samples) {
    free(samples->values);
    *samples = (struct bench_samples){0};
}

void bench_report(const char *bench, const char *name, const char *how, const char *unit,
                  struct bench_samples *samples) {
    printf("{\"bench\": \"%s\", \"name\": \"%s\", \"how\": \"%s\", \"unit\": \"%s\", "
           "\"median\": %.6g, \"p10\": %.6g, \"p90\": %.6g, \"samples\": %zu, ",
           bench, name, how, unit, bench_quantile(samples, 0.5), bench_quantile(samples, 0.1),
           bench_quantile(samples, 0.9), samples->count);
    if (samples->cpu_seconds >= 0)
        printf("\"cpu_seconds\": %.3f}\n", samples->cpu_seconds);
    else
        printf("\"cpu_seconds\": null}\n");
    fflush(stdout);
}

void bench_report_value(const char *bench, const char *name, const char *how, const char *unit,
                        double value) {
    struct bench_samples one = {.cpu_seconds = -1};
    bench_add(&one, value);
    bench_report(bench, name, how, unit, &one);
    bench_samples_deinit(&one);
}

double bench_cpu_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

/* schedstat counts in ns; stat's ticks of 10 ms would hide what an idle process takes. */
static double thread_cpu_seconds(int pid, const char *thread) {
    char path[96];
    snprintf(path, sizeof path, "/proc/%d/task/%.20s/schedstat", pid, thread);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    unsigned long long run_ns = 0;
    int fields = fscanf(file, "%llu", &run_ns);
    fclose(file);
    return fields == 1 ? (double)run_ns * 1e-9 : 0;
}

double bench_cpu_seconds_of(int pid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *threads = opendir(path);
    if (!threads)
        return -1;
    double total = 0;
    for (struct dirent *entry; (entry = readdir(threads));) {
        if (entry->d_name[0] != '.')
            total += thread_cpu_seconds(pid, entry->d_name);
    }
    closedir(threads);
    return total;
}

uint64_t bench_resident_bytes(int pid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/statm", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    unsigned long long size = 0, resident = 0;
    int fields = fscanf(file, "%llu %llu", &size, &resident);
    fclose(file);
    return fields == 2 ? resident * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

static int topology(int core, const char *what) {
    char path[128];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/%s", core, what);
    FILE *file = fopen(path, "re");
    int value = -1;
    if (file) {
        if (fscanf(file, "%d", &value) != 1)
            value = -1;
        fclose(file);
    }
    return value;
}

bool bench_two_cores(int cores[2]) {
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed))
        return false;
    int found = 0;
    for (int core = 0; core < CPU_SETSIZE && found < 2; core++) {
        if (!CPU_ISSET(core, &allowed))
            continue;
        /* Not the other thread of the same core, and not the other socket. */
        if (found == 1 && topology(core, "core_id") >= 0 &&
            (topology(core, "core_id") == topology(cores[0], "core_id") ||
             topology(core, "physical_package_id") != topology(cores[0], "physical_package_id")))
            continue;
        cores[found++] = core;
    }
    return found == 2;
}

void bench_pin(int core) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    bench_need(sched_setaffinity(0, sizeof one, &one) ? -errno : 0, "pin to a core");
}

long bench_option(int argc, char **argv, const char *name, long fallback) {
    size_t length = strlen(name);
    for (int i = 1; i < argc; i++) {
        if (!strncmp(argv[i], "--", 2) && !strncmp(argv[i] + 2, name, length) &&
            argv[i][2 + length] == '=')
            return strtol(argv[i] + 3 + length, NULL, 0);
    }
    return fallback;
}

void bench_need(int result, const char *what) {
    if (result >= 0)
        return;
    fprintf(stderr, "benchmark: %s: %s (%s)\n", what, strerror(-result), cw_detail());
    exit(1);
}
