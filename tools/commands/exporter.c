/*
 * cableway exporter: becomes Python, with the package's module cableway.exporter. HTTP is parsed
 * there: a safe language is the right place for bytes of anybody. The console script of the wheel
 * sets CABLEWAY_PYTHON to the Python that it is installed for.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/error.h"
#include "tools/cli.h"
#include "tools/run/python.h"

/* The folder in which the command is called is no place for modules. */
static const char program[] =
    "import sys\n"
    "if sys.path and not sys.path[0]:\n"
    "    del sys.path[0]\n"
    "try:\n"
    "    from cableway.exporter import main\n"
    "except ImportError as error:\n"
    "    sys.exit(f'cableway: exporter: it is a part of the Python package cableway, which '\n"
    "             f'{sys.executable} cannot import ({error}); install it there, or set '\n"
    "             'CABLEWAY_PYTHON to the Python that has it')\n"
    "main()\n";

int cmd_exporter(const struct cli *cli) {
    static char run_text[] = "-c", text[sizeof program];
    enum { BEFORE = 3 }; /* python -c program */
    char **words = calloc((size_t)cli->count + BEFORE + 1, sizeof *words);
    CW_ASSERT(words);
    memcpy(text, program, sizeof program);
    words[1] = run_text;
    words[2] = text;
    memcpy(words + BEFORE, cli->arguments, (size_t)cli->count * sizeof *words);
    signal(SIGPIPE, SIG_DFL); /* main ignores it; that would be inherited */
    int error = python_become(words);
    free(words);
    return python_refused(CLI_FAILED, "exporter", error);
}
