/*
 * Error texts: one buffer a thread, and the assertion that never returns.
 * Owner: each thread its own buffer; nothing is shared.
 */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static _Thread_local char detail_text[CW_DETAIL_MAX];

int cw_fail_detail(int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(detail_text, sizeof detail_text, format, arguments);
    va_end(arguments);
    return code;
}

const char *cw_detail(void) {
    return detail_text;
}

_Noreturn void cw_assert_failed(const char *expression, const char *file, int line) {
    fprintf(stderr, "cableway: assertion failed: %s (%s:%d)\n", expression, file, line);
    abort();
}

const char *cw_descriptor_remedy(int error) {
    switch (error) {
    case EMFILE:
        return "raise the process's limit on open files (ulimit -n) and start it again";
    case ENFILE:
        return "the whole machine has none left: raise sysctl fs.file-max";
    default:
        return "the kernel has no memory left for it";
    }
}
