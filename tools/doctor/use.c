/*
 * Doctor: does it work? What users do is done, by the library that they use: a broker is started or
 * reached, an array put, got and removed, under a namespace of our own. A broker that was started
 * for this ends when it is idle, as any.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shm/base/error.h"
#include "tools/cli.h"
#include "tools/doctor/doctor.h"
#include "tools/monitor.h"

#define NAMESPACE "cableway-doctor"
#define BYTES     (64u << 10)

/* One that is stopped, or hangs, would be waited for in vain. */
static bool stands(void) {
    struct monitor monitor;
    double still_seconds;
    if (monitor_open(&monitor) != 0)
        return false;
    enum monitor_state state = monitor_look(&monitor, &still_seconds);
    monitor_close(&monitor);
    return state == MONITOR_STOPPED || state == MONITOR_HANGS;
}

/* The array comes back as it was put, to a second client that maps it anew. */
static int put_and_get(cw_client *client, const char *name) {
    static uint8_t sent[BYTES], got[BYTES];
    int64_t shape = BYTES;
    cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &shape, .dtype = "|u1"};
    cw_client *reader = NULL;
    cw_array *array = NULL, *seen = NULL;
    for (uint32_t i = 0; i < BYTES; i++)
        sent[i] = (uint8_t)(i * 2654435761u >> 24);
    int code = cw_array_new(client, "cpu", &layout, 0, &array);
    if (code == 0)
        code = cw_array_write(array, 0, sent, BYTES);
    if (code == 0)
        code = cw_array_put(array, name, CW_REPLACE, NULL, 0);
    if (code == 0)
        code = cw_connect(NULL, NAMESPACE, CW_CONNECT_NO_START, &reader);
    if (code == 0)
        code = cw_get(reader, name, CW_READONLY, &seen);
    if (code == 0)
        code = cw_array_read(seen, 0, got, BYTES);
    if (code == 0 && memcmp(sent, got, BYTES) != 0)
        code = cw_fail(-EIO, "the array that was got is not the one that was put");
    if (code == 0)
        code = cw_remove(client, name);
    cw_array_close(seen);
    cw_array_close(array);
    cw_client_unref(reader);
    return code;
}

static const char *remedy_of(int code) {
    switch (code) {
    case -EDQUOT:
        return "a limit or no memory left: cableway status shows the limits, man cablewayd how "
               "they are raised";
    default:
        return "do what the sentence says; the broker's log may tell more (cableway status names "
               "it)";
    }
}

void doctor_use(struct doctor *doctor) {
    cw_client *client;
    char name[32];
    if (stands()) {
        doctor_add(doctor, DOCTOR_MISSING, "put and get", NULL,
                   "not tried: the broker does not answer (see above)");
        return;
    }
    int code = cw_connect(NULL, NAMESPACE, 0, &client);
    if (code) {
        doctor_add(doctor, DOCTOR_MISSING, "put and get", remedy_of(code),
                   "no broker can be reached or started: %s", cw_error());
        return;
    }
    snprintf(name, sizeof name, "doctor-%d", (int)getpid());
    code = put_and_get(client, name);
    if (code)
        doctor_add(doctor, DOCTOR_MISSING, "put and get", remedy_of(code), "failed: %s",
                   cw_error());
    else
        doctor_add(
            doctor, DOCTOR_OK, "put and get", NULL,
            "an array of 64 KiB was put, got by another client, and removed (broker: pid %d)",
            cw_client_broker_pid(client));
    cw_client_unref(client);
}
