/*
 * OpenMetrics text: see openmetrics.h. The family that was begun last is all there is of state. One
 * thread.
 */
#include "tools/watch/openmetrics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/error.h"
#include "tools/output.h"

static struct {
    char name[96];
    enum openmetrics_type type;
} family;

static void print_escaped(const char *text) {
    for (; *text; text++) {
        if (*text == '\\' || *text == '"')
            putchar('\\');
        putchar(*text);
    }
}

void openmetrics_family(const char *name, enum openmetrics_type type, const char *unit,
                        const char *help) {
    CW_ASSERT(strlen(name) < sizeof family.name);
    CW_ASSERT(!unit ||
              (strlen(name) > strlen(unit) && !strcmp(name + strlen(name) - strlen(unit), unit)));
    strcpy(family.name, name);
    family.type = type;
    printf("# TYPE %s %s\n", name, type == OPENMETRICS_COUNTER ? "counter" : "gauge");
    if (unit)
        printf("# UNIT %s %s\n", name, unit);
    printf("# HELP %s ", name);
    print_escaped(help);
    putchar('\n');
}

static void print_name(const char *const *labels) {
    printf("%s%s", family.name, family.type == OPENMETRICS_COUNTER ? "_total" : "");
    if (!labels || !*labels)
        return;
    for (char before = '{'; *labels; labels += 2, before = ',') {
        char *safe = output_safe(labels[1]);
        printf("%c%s=\"", before, labels[0]);
        print_escaped(safe);
        putchar('"');
        free(safe);
    }
    putchar('}');
}

void openmetrics_sample(const char *const *labels, uint64_t value) {
    print_name(labels);
    printf(" %llu\n", (unsigned long long)value);
}

void openmetrics_sample_real(const char *const *labels, double value) {
    print_name(labels);
    printf(isinf(value) ? " +Inf\n" : " %.9f\n", value);
}

void openmetrics_end(void) {
    puts("# EOF");
}
