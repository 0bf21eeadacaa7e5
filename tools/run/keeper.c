/*
 * The keeper: waits for ranks, signals and the front's end, and ends the job.
 *
 * One thread (and that of tags.c, which has only pipes). All that happens comes through two
 * descriptors and a time: signals by a signalfd, the front's end by a pipe, and when the grace is
 * over. Who owns what, and each death: job.h.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/base/fd.h"
#include "shm/base/wait.h"
#include "tools/cli.h"
#include "tools/run/job.h"
#include "tools/run/tags.h"

#define LOOK_NS 10000000 /* between two looks for what ranks have left behind */

struct keeper {
    struct job *job;
    int signals;
    uint32_t living;
    int status;      /* the exit status: of the first rank that failed */
    int64_t kill_ns; /* when SIGKILL comes; 0: nobody was told to end yet */
};

static void signal_ranks(struct keeper *keeper, int number) {
    for (uint32_t i = 0; i < keeper->job->size; i++) {
        if (keeper->job->pids[i])
            kill(keeper->job->pids[i], number);
    }
}

/* From now on the grace counts. */
static void begin_end(struct keeper *keeper) {
    if (!keeper->kill_ns)
        keeper->kill_ns = cw_end_ns(cw_now_ns(), keeper->job->grace_ns);
}

static void tell_failure(const struct keeper *keeper, uint32_t rank, pid_t pid, int status) {
    const char *then = keeper->living == 0       ? ""
                       : keeper->job->keep_going ? "; the others go on"
                                                 : "; the others are ended";
    if (WIFSIGNALED(status))
        cli_error(0, "rank %u (pid %d) was killed by signal %d (%s)%s", rank, (int)pid,
                  WTERMSIG(status), strsignal(WTERMSIG(status)), then);
    else
        cli_error(0, "rank %u (pid %d) ended with exit code %d%s", rank, (int)pid,
                  WEXITSTATUS(status), then);
}

static void rank_ended(struct keeper *keeper, uint32_t rank, int status) {
    pid_t pid = keeper->job->pids[rank];
    keeper->job->pids[rank] = 0;
    keeper->living--;
    if (status == 0)
        return;
    if (keeper->status == 0)
        keeper->status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    if (keeper->kill_ns)
        return;
    tell_failure(keeper, rank, pid, status);
    if (!keeper->job->keep_going && keeper->living) {
        begin_end(keeper);
        signal_ranks(keeper, SIGTERM);
    }
}

/* Ranks, and what became our child when it lost its parent. */
static void reap(struct keeper *keeper) {
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        for (uint32_t i = 0; i < keeper->job->size; i++) {
            if (keeper->job->pids[i] == pid)
                rank_ended(keeper, i, status);
        }
    }
}

/* A signal of the terminal has reached all of its process group, the ranks among them. One of the
 * front's is handed on. Others' are not for us: what is sent to a process group reaches the front,
 * too. */
static void take_signal(struct keeper *keeper, const struct signalfd_siginfo *info) {
    int number = (int)info->ssi_signo;
    bool of_terminal = info->ssi_code == SI_KERNEL;
    if (number == SIGCHLD || (!of_terminal && info->ssi_pid != (uint32_t)keeper->job->front))
        return;
    if (number != SIGUSR1 && number != SIGUSR2)
        begin_end(keeper);
    if (!of_terminal)
        signal_ranks(keeper, number);
}

/* Waits for something to happen, at most until a moment (0: for ever). */
static void look(struct keeper *keeper, int64_t until_ns) {
    struct signalfd_siginfo info;
    struct pollfd polls[] = {{.fd = keeper->signals, .events = POLLIN},
                             {.fd = keeper->job->front_alive, .events = POLLIN}};
    int ms = -1;
    if (until_ns) {
        int64_t left_ns = until_ns - cw_now_ns();
        ms = cw_poll_ms(left_ns > 0 ? left_ns : 0);
    }
    poll(polls, 2, ms);
    if (polls[1].revents) { /* the front is dead */
        job_kill_descendants();
        _exit(128 + SIGKILL);
    }
    while (read(keeper->signals, &info, sizeof info) == sizeof info)
        take_signal(keeper, &info);
    reap(keeper);
}

static bool grace_is_over(const struct keeper *keeper) {
    return keeper->kill_ns && cw_now_ns() >= keeper->kill_ns;
}

static void wait_for_ranks(struct keeper *keeper) {
    while (keeper->living) {
        look(keeper, keeper->kill_ns);
        if (keeper->living && grace_is_over(keeper)) {
            cli_error(0, "%u ranks had not ended after %.3g s, and are killed", keeper->living,
                      (double)keeper->job->grace_ns / 1e9);
            if (keeper->status == 0)
                keeper->status = 128 + SIGKILL;
            job_kill_descendants(); /* reaps them, too */
            break;
        }
    }
}

/* Ends what the ranks left behind. */
static void end_leftovers(struct keeper *keeper) {
    if (job_signal_descendants(SIGTERM) == 0)
        return;
    keeper->kill_ns = 0;
    begin_end(keeper);
    while (job_signal_descendants(0) > 0) {
        if (grace_is_over(keeper)) {
            job_kill_descendants();
            return;
        }
        look(keeper, cw_now_ns() + LOOK_NS);
    }
}

void job_signals(sigset_t *out) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
    sigemptyset(out);
    sigaddset(out, SIGCHLD);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction now;
        /* nohup, and the shell for what runs in the background, want some to be ignored. */
        if (sigaction(numbers[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
            sigaddset(out, numbers[i]);
    }
}

static int keeper_begin(struct keeper *keeper) {
    sigset_t signals;
    job_signals(&signals); /* the front has blocked them before the fork */
    keeper->signals = cw_fd_above_stdio(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
    if (keeper->signals < 0)
        return cli_error(CLI_LIMIT, "no descriptor for signals: %m");
    if (prctl(PR_SET_CHILD_SUBREAPER, 1))
        return cli_error(CLI_FAILED, "PR_SET_CHILD_SUBREAPER failed: %m");
    return CLI_OK;
}

int job_keep(struct job *job) {
    struct keeper keeper = {.job = job};
    keeper.status = keeper_begin(&keeper);
    if (keeper.status)
        return keeper.status;
    struct tags *tags = job->tag ? tags_new(job->size) : NULL;
    keeper.status = job_start(job, tags);
    for (uint32_t i = 0; i < job->size; i++)
        keeper.living += job->pids[i] != 0;
    if (keeper.status) /* nobody could have computed anything yet */
        job_kill_descendants();
    int error = tags && keeper.status == CLI_OK ? tags_begin(tags) : 0;
    if (error) {
        keeper.status = cli_error(CLI_LIMIT, "no thread for --tag: %s", strerror(-error));
        job_kill_descendants();
    }
    if (keeper.status == CLI_OK) {
        wait_for_ranks(&keeper);
        end_leftovers(&keeper);
        reap(&keeper);
    }
    error = tags_end(tags);
    if (error && keeper.status == CLI_OK)
        keeper.status = cli_error(CLI_FAILED, "writing the output failed: %s", strerror(-error));
    return keeper.status;
}
