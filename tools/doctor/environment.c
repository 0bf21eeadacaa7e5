/*
 * Doctor: variables that look as if they were meant for cableway, and that nobody reads.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shm/session/variable.h"
#include "tools/doctor/doctor.h"

#define NAMES_BYTES 512

void doctor_environment(struct doctor *doctor) {
    char meant[CW_VARIABLE_MAX], remedy[CW_VARIABLE_MAX + 64], name[CW_VARIABLE_MAX];
    char others[NAMES_BYTES] = "";
    size_t used = 0;
    for (char **at = environ; at && *at; at++) {
        if (strncmp(*at, CW_VARIABLE_PREFIX, strlen(CW_VARIABLE_PREFIX)) != 0)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*at, "="), *at);
        if (cw_variable_is_known(name))
            continue;
        if (cw_variable_meant(name, meant)) {
            snprintf(remedy, sizeof remedy, "did you mean %s?", meant);
            doctor_add(doctor, DOCTOR_WARNING, "environment", remedy,
                       "%s is set, and nothing reads it", name);
        } else if (used + strlen(name) + 3 < sizeof others)
            used += (size_t)snprintf(others + used, sizeof others - used, "%s%s", used ? ", " : "",
                                     name);
    }
    if (used)
        doctor_add(doctor, DOCTOR_INFO, "environment", NULL, "not read by this version: %s",
                   others);
}
