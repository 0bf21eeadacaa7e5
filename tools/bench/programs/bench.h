/*
 * What the benchmarks share: samples, quantiles, pinning, CPU time, and one JSON line a
 * measurement.
 *
 * Output: each measurement is one line of JSON on stdout, so that run.py and people read the same.
 * Times of single operations are in ns; a sample is the mean over one short batch, and a row is the
 * median of the samples with p10 and p90. Batches of the candidates alternate, so that a slow
 * moment of the machine hits all of them.
 */
#ifndef CW_BENCH_H
#define CW_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bench_samples {
    double *values;
    size_t count, capacity;
    double cpu_seconds; /* of all samples together; < 0: not measured */
};

void bench_add(struct bench_samples *samples, double value);
/* The q-quantile (0..1) of the samples; 0 without samples. Sorts them. */
double bench_quantile(struct bench_samples *samples, double q);
void bench_samples_deinit(struct bench_samples *samples);

/* Prints one row. how says how the two sides wait: "spins", "adaptive", "sleeps", or "" where
 * nobody waits. */
void bench_report(const char *bench, const char *name, const char *how, const char *unit,
                  struct bench_samples *samples);
/* Prints one row of a single figure. */
void bench_report_value(const char *bench, const char *name, const char *how, const char *unit,
                        double value);

/* CPU seconds (user and system) of this process so far. */
double bench_cpu_seconds(void);
/* CPU seconds of all threads that another process has now; < 0 when it cannot be read. */
double bench_cpu_seconds_of(int pid);
/* Resident bytes of a process; 0 when they cannot be read. */
uint64_t bench_resident_bytes(int pid);

/* Two different physical cores that this process may use. Returns false if there is only one. */
bool bench_two_cores(int cores[2]);
void bench_pin(int core);

/* The value of --NAME=N among the arguments, else fallback. */
long bench_option(int argc, char **argv, const char *name, long fallback);
/* Ends the program with a message when result is negative. */
void bench_need(int result, const char *what);

#endif
