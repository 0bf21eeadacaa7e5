/*
 * The start of the ranks: environment, standard streams, and the program.
 *
 * The keeper forks each from its only thread that forks, to which PR_SET_PDEATHSIG holds; a keeper
 * that died before this was set is seen by the parent's pid. A program that cannot be run is told
 * through a pipe that exec closes, so the keeper says it once.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/base/fd.h"
#include "tools/cli.h"
#include "tools/run/job.h"
#include "tools/run/python.h"
#include "tools/run/tags.h"

struct start { /* of one rank */
    uint32_t rank;
    pid_t keeper;
    int refusal;  /* where the errno of exec goes; closed at exec */
    int outs[2];  /* its stdout and stderr; -1: as ours */
    char **words; /* program and arguments */
};

static void set_number(const char *name, uint32_t value) {
    char text[16];
    snprintf(text, sizeof text, "%u", value);
    setenv(name, text, 1);
}

static int set_streams(const struct start *start) {
    if (start->rank > 0) {
        int nothing = open("/dev/null", O_RDONLY);
        if (nothing < 0 || (nothing != 0 && dup2(nothing, 0) < 0))
            return -1;
        if (nothing > 0)
            close(nothing);
    }
    for (int i = 0; i < 2; i++) {
        if (start->outs[i] >= 0 && dup2(start->outs[i], i + 1) < 0)
            return -1;
    }
    return 0;
}

/* Returns errno. */
static int run_program(char **words) {
    if (strcmp(words[0], "") == 0) /* a .py file follows */
        return python_become(words);
    execvp(words[0], words);
    return errno;
}

static _Noreturn void become(const struct job *job, const struct start *start) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != start->keeper)
        _exit(128 + SIGKILL);
    signal(SIGPIPE, SIG_DFL); /* main ignores it; that would be inherited */
    sigprocmask(SIG_SETMASK, &job->mask, NULL);
    setenv("CABLEWAY_GROUP", job->group, 1);
    set_number("CABLEWAY_RANK", start->rank);
    set_number("CABLEWAY_SIZE", job->size);
    int error = set_streams(start) == 0 ? run_program(start->words) : errno;
    if (write(start->refusal, &error, sizeof error) < 0) {
        /* the keeper is gone, and so are we */
    }
    _exit(127);
}

/* The words of the command line, with room for a python before a .py file. */
static char **words_of(const struct job *job) {
    static char none[] = "";
    size_t count = 0, length = strlen(job->arguments[0]);
    bool script = length > 3 && strcmp(job->arguments[0] + length - 3, ".py") == 0;
    while (job->arguments[count])
        count++;
    char **words = calloc(count + 2, sizeof *words);
    if (words) {
        words[0] = none;
        memcpy(words + script, job->arguments, count * sizeof *words);
    }
    return words;
}

static int not_run(const struct start *start, int error) {
    bool is_python = strcmp(start->words[0], "") == 0;
    bool lacks = error == EMFILE || error == ENFILE || error == ENOMEM || error == EAGAIN;
    int code = lacks ? CLI_LIMIT : error == ENOENT ? 127 : 126; /* the latter as shells do */
    if (is_python)
        return python_refused(code, start->words[1], error);
    return cli_error(code, "%s cannot be run: %s", start->words[0], strerror(error));
}

static int start_one(struct job *job, struct start *start) {
    int ends[2], error = 0;
    if (pipe2(ends, O_CLOEXEC))
        return cli_error(CLI_LIMIT, "no pipe for rank %u of %u: %m", start->rank, job->size);
    ends[0] = cw_fd_above_stdio(ends[0]);
    ends[1] = cw_fd_above_stdio(ends[1]);
    start->refusal = ends[1];
    pid_t pid = fork();
    if (pid == 0)
        become(job, start);
    int fork_error = errno;
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return cli_error(CLI_LIMIT,
                         "no process for rank %u of %u: %s; a limit of processes (ulimit -u, "
                         "pids.max of the cgroup), or no memory",
                         start->rank, job->size, strerror(fork_error));
    }
    job->pids[start->rank] = pid;
    ssize_t got;
    while ((got = read(ends[0], &error, sizeof error)) < 0 && errno == EINTR) {
    }
    close(ends[0]);
    return got == sizeof error ? not_run(start, error) : CLI_OK;
}

int job_start(struct job *job, struct tags *tags) {
    int code = CLI_OK;
    struct start start = {.keeper = getpid(), .words = words_of(job)};
    if (!start.words)
        return cli_error(CLI_LIMIT, "no memory for the command line");
    for (; start.rank < job->size && code == CLI_OK; start.rank++) {
        for (int i = 0; i < 2; i++) {
            start.outs[i] = tags ? tags_pipe(tags, start.rank, i + 1) : -1;
            if (tags && start.outs[i] < 0)
                code = cli_error(CLI_LIMIT, "no pipe for the output of rank %u of %u: %s",
                                 start.rank, job->size, strerror(-start.outs[i]));
        }
        if (code == CLI_OK)
            code = start_one(job, &start);
        for (int i = 0; i < 2; i++) {
            if (start.outs[i] >= 0)
                close(start.outs[i]);
        }
    }
    free(start.words);
    return code;
}
