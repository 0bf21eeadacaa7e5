/*
 * The word under the cursor: which command and which place of its usage it stands in. Usage lines
 * say what an argument is: NAME, PREFIX (names), FILE, PATH, PROGRAM (files), or words in small
 * letters, which stand for themselves. The commands that are other programs' (CLI_RAW_ARGUMENTS)
 * have their options in the help of these, which is run for it. One thread.
 */
#include <ctype.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/base/error.h"
#include "tools/completion/completion.h"

#define TOKEN_BYTES      128
#define TOKENS_MAX       64
#define HELP_BYTES       16384
#define DESCRIPTION_HELP "print this"

struct line {
    const struct cli_command *command;
    int count; /* of words, the last is under the cursor */
    char *const *words;
    const char *current;
    char *help;             /* of a command that is another program's, else NULL */
    const char *name_space; /* that is given before the cursor, or NULL */
    const char *pending; /* what stands for the value that the word under the cursor is, or NULL */
    const char *given[TOKENS_MAX]; /* arguments before the cursor */
    int arguments;                 /* how many; more than TOKENS_MAX are not looked at */
    bool options_end;
    bool in_usage; /* help is a usage line alone */
};

/* ---- another program's help ---- */

/* What `cableway help NAME` prints; the caller frees it. "" where it fails. */
static char *help_of(const char *name) {
    char *text = calloc(1, HELP_BYTES);
    size_t length = 0;
    int ends[2], status;
    CW_ASSERT(text);
    if (pipe(ends))
        return text;
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* when the time is over */
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        execl("/proc/self/exe", "cableway", "help", name, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    while (child > 0 && length < HELP_BYTES - 1) {
        ssize_t got = read(ends[0], text + length, HELP_BYTES - 1 - length);
        if (got <= 0)
            break;
        length += (size_t)got;
    }
    close(ends[0]);
    if (child > 0)
        waitpid(child, &status, 0);
    return text;
}

/* Of peers, only the usage of the subcommand: from its name to the next one's, or to the text. */
static void keep_usage_of(char *help, const char *subcommand) {
    char mark[TOKEN_BYTES];
    snprintf(mark, sizeof mark, "cableway peers %s", subcommand);
    char *at = strstr(help, mark);
    if (!at) {
        snprintf(mark, sizeof mark, "cableway peers [%s]", subcommand);
        at = strstr(help, mark);
    }
    memmove(help, at ? at : "", at ? strlen(at) + 1 : 1);
    char *next = strstr(help + (*help != 0), "cableway peers");
    if (next)
        *next = 0;
    for (char *end = help; (end = strchr(end, '\n')); end++) {
        if (end[1] && end[1] != ' ') {
            *end = 0;
            break;
        }
    }
}

/* The next --option in a help text at *at, which is moved behind it: in a usage each that stands
 * there, else those of the list, whose lines begin with them. value: what stands for its value, ""
 * where it takes none. Both hold TOKEN_BYTES. */
static bool next_option(const struct line *line, const char **at, char *option, char *value) {
    const char *mark = line->in_usage ? "--" : "\n  --", *found = strstr(*at, mark);
    if (!found)
        return false;
    found += strlen(mark) - 2;
    size_t length = 2;
    while (islower((unsigned char)found[length]) || found[length] == '-')
        length++;
    snprintf(option, TOKEN_BYTES, "%.*s", (int)length, found);
    *at = found + length;
    *value = 0;
    if ((*at)[0] == ' ' && isupper((unsigned char)(*at)[1]))
        snprintf(value, TOKEN_BYTES, "%.*s", (int)strcspn(*at + 1, " \n]"), *at + 1);
    return true;
}

/* ---- options ---- */

/* The short form of an option, or NULL. */
static const char *letter_of(const struct cli_option_row *row) {
    return row->bit == CLI_PROCESSES ? "-n" : row->bit == CLI_DELAY ? "-d" : NULL;
}

/* The value that an option takes, "" for none, NULL: there is no such option. value: TOKEN_BYTES,
 * where it is copied to if need be. word has no '='. */
static const char *value_of(const struct line *line, const char *word, char *value) {
    size_t count;
    const struct cli_option_row *rows = cli_option_rows(&count);
    char option[TOKEN_BYTES];
    for (size_t i = 0; i < count; i++) {
        const char *short_one = letter_of(&rows[i]);
        bool letter = short_one && !strcmp(word, short_one);
        bool same = !strncmp(word, "--", 2) && !strcmp(word + 2, rows[i].name);
        if (line->command->options & rows[i].bit && (letter || same))
            return rows[i].value ? rows[i].value : "";
    }
    for (const char *at = line->help; at && next_option(line, &at, option, value);) {
        if (!strcmp(option, word))
            return value;
    }
    return NULL;
}

static void tell_options(const struct line *line) {
    size_t count;
    const struct cli_option_row *rows = cli_option_rows(&count);
    char option[TOKEN_BYTES], value[TOKEN_BYTES], seen[TOKENS_MAX][TOKEN_BYTES];
    size_t known = 0;
    bool help = false;
    for (size_t i = 0; i < count; i++) {
        snprintf(option, sizeof option, "--%s", rows[i].name);
        if (line->command->options & rows[i].bit) {
            completion_tell(line->current, option, rows[i].help);
            if (letter_of(&rows[i]))
                completion_tell(line->current, letter_of(&rows[i]), rows[i].help);
        }
    }
    for (const char *at = line->help; at && next_option(line, &at, option, value);) {
        bool again = known == TOKENS_MAX || !option[2];
        for (size_t i = 0; i < known && !again; i++)
            again = !strcmp(seen[i], option);
        if (again)
            continue;
        strcpy(seen[known++], option);
        help |= !strcmp(option, "--help");
        completion_tell(line->current, option, NULL);
    }
    if (!help)
        completion_tell(line->current, "--help", DESCRIPTION_HELP);
}

/* ---- values and arguments ---- */

/* What may stand where the usage says kind (NAME, FILE.npy, bash|zsh, ...). */
static void tell_kind(const struct line *line, const char *kind, const char *lead,
                      const char *begin) {
    bool raw = line->command->options & CLI_RAW_ARGUMENTS;
    if (islower((unsigned char)*kind)) {
        char words[TOKEN_BYTES], *at = words, *word;
        snprintf(words, sizeof words, "%s", kind);
        while ((word = strsep(&at, "|")))
            completion_tell(begin, word, NULL);
    } else if (!strcmp(kind, "NS")) {
        completion_namespaces(lead, begin);
    } else if (!strcmp(kind, "DEVICE")) {
        completion_devices(lead, begin);
    } else if (!strncmp(kind, "FILE", 4) || !strcmp(kind, "PATH") || !strcmp(kind, "FOLDER") ||
               (!strcmp(kind, "ARGUMENTS") && !raw)) {
        completion_tell_files();
    } else if (!strcmp(kind, "PROGRAM")) {
        completion_tell_programs();
    } else if (!strcmp(line->command->name, "limit") && !strcmp(kind, "NAME")) {
        completion_limits(lead, begin);
    } else if (!raw && (!strcmp(kind, "NAME") || !strcmp(kind, "PREFIX"))) {
        completion_names(lead, begin, line->name_space, !line->options_end && !line->pending);
    }
}

/* One of a usage's alternatives: what may stand behind the arguments that are given. */
static void tell_alternative(const struct line *line, char *usage) {
    char *token, *rest = usage, *kind = NULL;
    for (int at = 0; at <= line->arguments && (token = strtok_r(NULL, " ", &rest)); at++) {
        token += *token == '[';
        kind = token;
        bool repeats = strstr(token, "...") != NULL;
        char *end = strpbrk(token, "].");
        if (end && (*end == ']' || repeats))
            *end = 0;
        if (islower((unsigned char)*token) && at < line->arguments && !strchr(token, '|') &&
            at < TOKENS_MAX && strcmp(token, line->given[at]) != 0)
            return; /* another alternative's */
        if (at < line->arguments && !repeats)
            kind = NULL;
        if (repeats)
            break;
    }
    if (kind)
        tell_kind(line, kind, "", line->current);
}

static void tell_arguments(const struct line *line) {
    char usage[2 * TOKEN_BYTES], *at = usage, *end;
    snprintf(usage, sizeof usage, "%s", line->command->arguments);
    while ((end = strstr(at, " | "))) {
        *end = 0;
        tell_alternative(line, at);
        at = end + 3;
    }
    tell_alternative(line, at);
}

/* ---- the line ---- */

/* Of a word before the cursor: an option, its value, or an argument. value: TOKEN_BYTES, which
 * line->pending may point to. */
static void take_word(struct line *line, const char *word, char *value) {
    bool first_ends = line->command->options & (CLI_PROCESSES | CLI_FIRST_ENDS);
    if (line->pending) {
        if (!strcmp(line->pending, "NS"))
            line->name_space = word;
        line->pending = NULL;
    } else if (line->options_end || word[0] != '-' || !word[1]) {
        if (line->arguments < TOKENS_MAX)
            line->given[line->arguments] = word;
        line->arguments++;
        line->options_end |= first_ends;
    } else if (!strcmp(word, "--")) {
        line->options_end = true;
    } else if (!strncmp(word, "--namespace=", 12)) {
        line->name_space = word + 12;
    } else if (!strchr(word, '=')) {
        const char *takes = value_of(line, word, value);
        line->pending = takes && *takes ? takes : NULL;
    }
}

/* --option=VALUE under the cursor. */
static void tell_joined(const struct line *line, const char *equals) {
    char option[TOKEN_BYTES], lead[TOKEN_BYTES], value[TOKEN_BYTES];
    int length = (int)(equals - line->current);
    snprintf(option, sizeof option, "%.*s", length, line->current);
    snprintf(lead, sizeof lead, "%.*s", length + 1, line->current);
    const char *takes = value_of(line, option, value);
    if (takes && *takes)
        tell_kind(line, takes, lead, equals + 1);
}

static void tell_of_command(struct line *line, int first) {
    char value[TOKEN_BYTES];
    bool raw = line->command->options & CLI_RAW_ARGUMENTS;
    bool told =
        raw && strstr(line->command->arguments, "--"); /* by the row itself: starts nobody */
    if (raw)
        line->help = told ? strdup(line->command->arguments) : help_of(line->command->name);
    line->in_usage = told || (raw && !strcmp(line->command->name, "peers"));
    if (line->in_usage && !told)
        keep_usage_of(line->help, first < line->count - 1 ? line->words[first] : "list");
    for (int i = first; i < line->count - 1; i++)
        take_word(line, line->words[i], value);
    const char *equals = strncmp(line->current, "--", 2) ? NULL : strchr(line->current, '=');
    if (line->pending)
        tell_kind(line, line->pending, "", line->current);
    else if (line->options_end || line->current[0] != '-')
        tell_arguments(line);
    else if (equals)
        tell_joined(line, equals);
    else
        tell_options(line);
    free(line->help);
}

static void tell_commands(const char *begin, bool with_help) {
    size_t count;
    const struct cli_command *commands = cli_commands(&count);
    for (size_t i = 0; i < count; i++)
        completion_tell(begin, commands[i].name, commands[i].summary);
    if (!with_help)
        return;
    completion_tell(begin, "help", "Show the options of a command.");
    if (*begin == '-') {
        completion_tell(begin, "--help", "Show the commands.");
        completion_tell(begin, "--version", "Show the version.");
    }
}

void completion_print(int count, char *const *words) {
    size_t commands;
    struct line line = {.count = count, .words = words, .current = words[count - 1]};
    const struct cli_command *all = cli_commands(&commands);
    const char *slash = strrchr(words[0], '/');
    bool daemon = !strcmp(slash ? slash + 1 : words[0], "cablewayd");
    const char *name = daemon ? "broker" : count > 2 ? words[1] : NULL;
    if (!name) {
        tell_commands(line.current, true);
        return;
    }
    if (!strcmp(name, "help")) {
        if (count == 3)
            tell_commands(line.current, false);
        return;
    }
    for (size_t i = 0; i < commands; i++) {
        if (!strcmp(all[i].name, name))
            line.command = &all[i];
    }
    if (line.command)
        tell_of_command(&line, daemon ? 1 : 2);
}
