/*
 * Faults on demand: see fault.h. One table for the process, under its own lock.
 */
#include "tests/fakecuda/driver/fault.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/fakecuda/driver/config.h"
#include "tests/fakecuda/driver/error.h"

#define VARIABLE   "CABLEWAY_FAKECUDA_FAULTS"
#define FAULTS_MAX 64

struct entry {
    char name[64];
    uint64_t from, to; /* inclusive */
    uint64_t count;
    struct fake_fault fault;
};

static struct entry entries[FAULTS_MAX];
static _Atomic int entry_count; /* looked at without the lock: nearly always 0 */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static bool parse_action(const char *text, struct fake_fault *out) {
    char name[FAKE_FILE_BYTES + 32];
    int used = 0;
    unsigned long long delay_us;
    if (strcmp(text, "hang") == 0)
        *out = (struct fake_fault){.action = FAKE_HANG};
    else if (strcmp(text, "lose") == 0)
        *out = (struct fake_fault){.action = FAKE_LOSE};
    else if (strcmp(text, "kill") == 0)
        *out = (struct fake_fault){.action = FAKE_KILL};
    else if (sscanf(text, "delay:%llu%n", &delay_us, &used) == 1 && !text[used])
        *out = (struct fake_fault){.action = FAKE_DELAY, .delay_us = delay_us};
    else if (strncmp(text, "until:/", 7) == 0) {
        *out = (struct fake_fault){.action = FAKE_UNTIL};
        snprintf(out->file, sizeof out->file, "%s", text + 6);
    } else {
        snprintf(name, sizeof name, "CUDA_ERROR_%s", text);
        *out = (struct fake_fault){.action = FAKE_ERROR, .error = fake_error_find(name)};
        return out->error != CUDA_SUCCESS;
    }
    return true;
}

static bool parse_entry(const char *text, size_t length, struct entry *out) {
    char item[96 + FAKE_FILE_BYTES], action[FAKE_FILE_BYTES + 6];
    int used = 0;
    if (length >= sizeof item)
        return false;
    snprintf(item, sizeof item, "%.*s", (int)length, text);
    *out = (struct entry){.from = 1, .to = UINT64_MAX};
    if (sscanf(item, "%63[A-Za-z0-9_]%n", out->name, &used) != 1)
        return false;
    const char *at = item + used;
    if (*at == '@') {
        char *end;
        out->from = out->to = strtoull(at + 1, &end, 10);
        if (end == at + 1 || !out->from)
            return false;
        at = end;
        if (*at == '+') {
            out->to = UINT64_MAX;
            at++;
        }
    }
    return sscanf(at, "=%261s", action) == 1 && parse_action(action, &out->fault);
}

CUresult fakecuda_faults(const char *text) {
    struct entry parsed[FAULTS_MAX];
    int count = 0;
    while (text && *text) {
        size_t length = strcspn(text, ",");
        if (count == FAULTS_MAX || !parse_entry(text, length, &parsed[count++]))
            return fake_config_wrong(VARIABLE, text, "NAME[@N[+]]=ACTION, at most 64 times");
        text += length + (text[length] == ',');
    }
    pthread_mutex_lock(&mutex);
    memcpy(entries, parsed, (size_t)count * sizeof *parsed);
    atomic_store(&entry_count, count);
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

CUresult fake_fault_load(void) {
    return fakecuda_faults(getenv(VARIABLE));
}

struct fake_fault fake_fault_next(const char *name) {
    struct fake_fault out = {.action = FAKE_NOTHING};
    if (!atomic_load(&entry_count))
        return out;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < entry_count; i++) {
        struct entry *entry = &entries[i];
        if (strcmp(entry->name, name) != 0)
            continue;
        entry->count++;
        if (entry->count >= entry->from && entry->count <= entry->to && !out.action)
            out = entry->fault;
    }
    pthread_mutex_unlock(&mutex);
    if (out.action == FAKE_KILL)
        kill(getpid(), SIGKILL);
    return out;
}

void fake_delay_us(uint64_t delay_us) {
    struct timespec left = {(time_t)(delay_us / 1000000), (long)(delay_us % 1000000 * 1000)};
    while (nanosleep(&left, &left) < 0)
        ;
}
