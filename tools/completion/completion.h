/*
 * Completion: what the word under the cursor of a shell may become. The tables of the commands and
 * of the options say it (../cli.h), so it cannot differ from what the command takes.
 *
 * It runs at each Tab: nobody is asked and no broker is started, names are read from shared memory,
 * and after COMPLETION_LIMIT_NS the process ends without a word.
 */
#ifndef CW_TOOLS_COMPLETION_H
#define CW_TOOLS_COMPLETION_H

#include <stdbool.h>

#include "tools/cli.h"

#define COMPLETION_LIMIT_NS    250000000
#define COMPLETION_NAMES_WHOLE 100  /* more names than that are offered up to their next '/' */
#define COMPLETION_WORDS_MAX   1000 /* of more, beginnings are offered that they have in common */

/* A line of output: the whole word, a tab, what it is (or nothing; "...": the word goes on).
 * description may be NULL. Only what begins with begin is told; false: it does not. */
bool completion_tell(const char *begin, const char *word, const char *description);
/* The line that says: names of files, too, which the shell knows. */
void completion_tell_files(void);
/* The same of programs that the shell finds in PATH, and of files. */
void completion_tell_programs(void);

/* lead is told before each word (of --option=VALUE what stands before the value); begin is what
 * stands there of the word itself. */
/* without_dash: names that begin with '-' are left out, which a command would take for options. */
void completion_names(const char *lead, const char *begin, const char *name_space,
                      bool without_dash);
void completion_namespaces(const char *lead, const char *begin);
void completion_limits(const char *lead, const char *begin);
void completion_devices(const char *lead, const char *begin);

/* words: a command line from its program's name to the word under the cursor, which is the last and
 * may be empty, without quotes. Prints the candidates. */
void completion_print(int count, char *const *words);

#endif
