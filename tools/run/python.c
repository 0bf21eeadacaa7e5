/*
 * Becoming a Python: see python.h. One thread.
 */
#include "tools/run/python.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/cli.h"

/* $CABLEWAY_PYTHON; NULL: not set, or empty. */
static const char *chosen_python(void) {
    const char *chosen = secure_getenv("CABLEWAY_PYTHON");
    return chosen && *chosen ? chosen : NULL;
}

int python_become(char **words) {
    static char python3[] = "python3", python[] = "python";
    const char *chosen = chosen_python();
    if (chosen) {
        words[0] = (char *)(uintptr_t)chosen;
        execvp(words[0], words);
        return errno;
    }
    words[0] = python3;
    execvp(words[0], words);
    words[0] = python;
    if (errno == ENOENT)
        execvp(words[0], words);
    return errno;
}

int python_refused(int code, const char *what, int error) {
    const char *chosen = chosen_python();
    if (chosen)
        return cli_error(code, "CABLEWAY_PYTHON names %s, which cannot be run: %s", chosen,
                         strerror(error));
    return cli_error(code,
                     "%s needs a python, and no python3 or python of PATH can be run: %s; set "
                     "CABLEWAY_PYTHON to its path",
                     what, strerror(error));
}
