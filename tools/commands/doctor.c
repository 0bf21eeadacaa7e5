/*
 * cableway doctor: what this machine offers, what is missing, the remedy. The checks are in
 * doctor_*.c.
 */
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/base/error.h"
#include "tools/cli.h"
#include "tools/doctor/doctor.h"

static const char *const level_names[] = {"ok", "info", "warning", "missing"};

void doctor_add(struct doctor *doctor, enum doctor_level level, const char *check,
                const char *remedy, const char *format, ...) {
    char *found;
    va_list arguments;
    va_start(arguments, format);
    CW_ASSERT(vasprintf(&found, format, arguments) >= 0);
    va_end(arguments);
    if ((int)level > doctor->worst)
        doctor->worst = (int)level;
    json_array_append_new(doctor->checks, json_pack("{s:s, s:s, s:o, s:s?}", "check", check,
                                                    "level", level_names[level], "found",
                                                    output_json_text(found), "remedy", remedy));
    free(found);
}

bool doctor_read(const char *path, char *text, size_t text_bytes) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t count = read(fd, text, text_bytes - 1);
    close(fd);
    if (count < 0)
        return false;
    text[count] = 0;
    text[strcspn(text, "\n")] = 0;
    return true;
}

static const char *member(json_t *check, const char *name) {
    return json_string_value(json_object_get(check, name));
}

static void print_text(const struct doctor *doctor) {
    size_t i;
    json_t *check;
    json_array_foreach(doctor->checks, i, check) {
        char *found = output_safe(member(check, "found"));
        printf("%-8s %-16s %s\n", member(check, "level"), member(check, "check"), found);
        if (member(check, "remedy"))
            printf("%25s -> %s\n", "", member(check, "remedy"));
        free(found);
    }
    printf("\n%s\n", doctor->worst == DOCTOR_MISSING
                         ? "cableway does not work here: see what is missing above."
                         : "cableway works here: an array was put and got.");
}

int cmd_doctor(const struct cli *cli) {
    struct doctor doctor = {.checks = json_array()};
    CW_ASSERT(doctor.checks);
    doctor_kernel(&doctor);
    doctor_limits(&doctor);
    doctor_place(&doctor);
    doctor_use(&doctor);
    doctor_bridge(&doctor);
    doctor_environment(&doctor);
    bool works = doctor.worst < DOCTOR_MISSING;
    if (cli->options & CLI_JSON)
        output_json(json_pack("{s:b, s:O}", "works", (int)works, "checks", doctor.checks));
    else
        print_text(&doctor);
    json_decref(doctor.checks);
    return works ? CLI_OK : CLI_FAILED;
}
