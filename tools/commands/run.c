/*
 * cableway run: many processes of one program, each of which knows its rank. This is the front,
 * whose pid the user knows: it makes the keeper, hands signals on to it and exits as it does. Who
 * ends whom: tools/run/job.h.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/base/fd.h"
#include "tools/cli.h"
#include "tools/run/job.h"

#define GRACE_NS 5000000000 /* unless --grace says else */

static uint32_t usable_cpus(void) {
    cpu_set_t cpus;
    int count = sched_getaffinity(0, sizeof cpus, &cpus) ? 1 : CPU_COUNT(&cpus);
    return count < CW_GROUP_RANKS_MAX ? (uint32_t)count : CW_GROUP_RANKS_MAX;
}

static int job_init(struct job *job, const struct cli *cli) {
    uint64_t number;
    *job = (struct job){
        .size = cli->options & CLI_PROCESSES ? cli->processes : usable_cpus(),
        .tag = cli->options & CLI_TAG,
        .keep_going = cli->options & CLI_KEEP_GOING,
        .grace_ns = cli->options & CLI_GRACE ? cli->grace_ns : GRACE_NS,
        .arguments = cli->arguments,
        .front = getpid(),
        .front_alive = -1,
    };
    if (getrandom(&number, sizeof number, 0) != sizeof number)
        return cli_error(CLI_FAILED, "no random number for the name of the group: %m");
    snprintf(job->group, sizeof job->group, "run-%d-%016" PRIx64, (int)job->front, number);
    return CLI_OK;
}

/* Hands signals on, until the keeper has ended; its status. */
static int wait_for_keeper(const sigset_t *signals, pid_t keeper) {
    for (;;) {
        siginfo_t info;
        int status, number = sigwaitinfo(signals, &info);
        if (number < 0)
            continue; /* stopped, and gone on */
        if (number == SIGCHLD && waitpid(keeper, &status, WNOHANG) == keeper)
            return status;
        if (number != SIGCHLD && info.si_code != SI_KERNEL) /* the terminal's reach all */
            kill(keeper, number);
    }
}

/* The child of the front's fork. */
static _Noreturn void keep(struct job *job, const int *alive) {
    close(alive[1]);
    job->front_alive = alive[0];
    int code = job_keep(job);
    fflush(NULL);
    _exit(code);
}

int cmd_run(const struct cli *cli) {
    static struct job job;
    sigset_t signals;
    if (cli->arguments[0] && !*cli->arguments[0])
        return cli_error(127, "there is no program \"\": an argument is empty");
    int alive[2], code = job_init(&job, cli);
    if (code)
        return code;
    /* The keeper reads the end of the pipe when this process is gone: nobody else has that end. */
    if (pipe2(alive, O_CLOEXEC))
        return cli_error(CLI_LIMIT, "no pipe: %m");
    alive[0] = cw_fd_above_stdio(alive[0]);
    alive[1] = cw_fd_above_stdio(alive[1]);
    job_signals(&signals);
    signal(SIGCHLD, SIG_DFL); /* ignored, it would lose us the exit codes */
    sigprocmask(SIG_BLOCK, &signals, &job.mask);
    if (prctl(PR_SET_CHILD_SUBREAPER, 1))
        return cli_error(CLI_FAILED, "PR_SET_CHILD_SUBREAPER failed: %m");
    fflush(NULL);
    pid_t keeper = fork();
    if (keeper == 0)
        keep(&job, alive);
    if (keeper < 0)
        return cli_error(CLI_LIMIT, "no process: %m");
    close(alive[0]);
    int status = wait_for_keeper(&signals, keeper);
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    job_kill_descendants();
    return cli_error(
        128 + WTERMSIG(status),
        "the process that keeps the job (pid %d) was killed by signal %d (%s); the job was ended",
        (int)keeper, WTERMSIG(status), strsignal(WTERMSIG(status)));
}
