/*
 * cableway-mover: does the copies that clients cannot (broker/roles/copy_jobs.h,
 * broker/roles/mover.h).
 *
 * A client with a role. Each of its threads asks the broker for a job, opens both blocks as any
 * client opens a handle, copies (ipc/array/copy.c, ipc/cuda/staging.h), closes them, and says that
 * it is done. The broker holds both blocks until then. Nothing is kept between jobs but mappings
 * and contexts; mappings of GPU memory only while jobs follow each other, those of host memory,
 * which cost milliseconds to register, until its owner gives it up, which is looked for: a slab
 * that is given up is not to live on here.
 *
 * Deaths: killed at any moment, the broker gives its jobs to the next one, which begins them anew.
 * A context that a job broke (a lost GPU, an error that CUDA keeps) ends it too: the job hears the
 * error, the others are done again by the next one. It ends with the broker (the kernel kills it
 * with its parent, and its socket ends), and by itself after --idle seconds without a job.
 */
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "ipc/client.h"
#include "broker/mover/copy.h"
#include "shm/base/wait.h"

#define THREADS         4
#define IDLE_DEFAULT_S  60
#define IDLE_MOST_S     (366 * 86400)
#define MAPPINGS_NS     200000000  /* so long without a job, and mappings of GPU memory go */
#define LOOK_NS         1000000000 /* between looks at whether memory that it made came back */
#define EXIT_USAGE      2
#define EXIT_NO_BROKER  3
#define EXIT_BAD_DEVICE 4

struct mover {
    cw_client *client;
    int64_t idle_ns;
    pthread_mutex_t lock;
    bool failed;       /* a context is: one thread tells of its job and ends the process */
    unsigned busy;     /* threads with a job */
    int64_t worked_ns; /* when the last job ended */
};

_Noreturn static void end(struct mover *mover, int exit_code, const char *why) {
    if (why)
        fprintf(stderr, "cableway-mover[%d]: %s\n", (int)getpid(), why);
    else
        (void)cw_channel_post(mover->client, CW_OP_BYE, NULL, 0);
    _exit(exit_code); /* threads wait for the broker: nothing of theirs is to be put in order */
}

static int ask(struct mover *mover, int64_t timeout_ns, struct cw_job *job) {
    uint32_t bytes = sizeof *job;
    int code = cw_channel_call(mover->client, CW_OP_MOVER_NEXT, NULL, 0, job, &bytes, CW_CALL_LONG,
                               timeout_ns);
    if (code == 0 && bytes != sizeof *job)
        code = cw_fail(-EPROTO, "the broker sent a job of %u bytes", bytes);
    return code;
}

static void set_busy(struct mover *mover, bool busy) {
    pthread_mutex_lock(&mover->lock);
    mover->busy += busy ? 1 : -1u;
    mover->worked_ns = cw_now_ns();
    pthread_mutex_unlock(&mover->lock);
}

static bool is_idle(struct mover *mover) {
    pthread_mutex_lock(&mover->lock);
    bool idle = !mover->busy && cw_now_ns() - mover->worked_ns >= mover->idle_ns;
    pthread_mutex_unlock(&mover->lock);
    return idle;
}

/* A job for this thread. */
static void next_job(struct mover *mover, struct cw_job *job) {
    int code = ask(mover, MAPPINGS_NS, job);
    if (code == -ETIMEDOUT)
        cw_mover_rest(mover->client);
    while (code == -ETIMEDOUT || code == -EINTR) {
        code = ask(mover, mover->idle_ns < LOOK_NS ? mover->idle_ns : LOOK_NS, job);
        if (code == -ETIMEDOUT && is_idle(mover))
            end(mover, EXIT_SUCCESS, NULL);
        if (code == -ETIMEDOUT)
            cw_mover_rest(mover->client);
    }
    if (code)
        end(mover, EXIT_NO_BROKER, cw_error());
}

/* made: NULL, or what is told where status is 0. */
static void answer(struct mover *mover, uint64_t job, int status, const struct cw_made *made) {
    struct {
        struct cw_job_end head;
        char text[CW_DETAIL_MAX + 32];
    } message = {.head = {.job = job, .status = status}};
    if (status == 0 && made) {
        memcpy(message.text, made, sizeof *made);
        message.head.text_bytes = sizeof *made;
    }
    if (status)
        message.head.text_bytes =
            (uint32_t)snprintf(message.text, sizeof message.text, "cableway-mover: %s", cw_error());
    if (cw_channel_post(mover->client, CW_OP_MOVER_DONE, &message,
                        (uint32_t)sizeof message.head + message.head.text_bytes) != 0)
        end(mover, EXIT_NO_BROKER, cw_error());
}

/* After a job, code: may this thread answer it? Not where another one has found that a context
 * failed: the process ends, and the broker gives the job to the next mover. */
static bool may_answer(struct mover *mover, int code, bool *failed) {
    pthread_mutex_lock(&mover->lock);
    bool first = !mover->failed;
    *failed = mover->failed = !first || (code && !cw_mover_is_sound());
    pthread_mutex_unlock(&mover->lock);
    return first;
}

static void *work(void *context) {
    struct mover *mover = context;
    for (;;) {
        struct cw_job job;
        next_job(mover, &job);
        set_busy(mover, true);
        struct cw_made made;
        bool makes = job.make.size_bytes > 0;
        int code = makes ? cw_mover_make(mover->client, &job.make, &made)
                         : cw_mover_copy(mover->client, &job.copy);
        bool failed;
        while (!may_answer(mover, code, &failed))
            pause(); /* until the process ends */
        answer(mover, job.job, code, makes ? &made : NULL);
        if (failed)
            end(mover, EXIT_BAD_DEVICE, "a context is broken: the next mover makes new ones");
        set_busy(mover, false);
    }
    return NULL;
}

static void print_help(void) {
    puts(
        "Usage: cableway-mover --socket PATH [--parent PID] [--idle SECONDS]\n"
        "Copies arrays that their users cannot reach, between GPUs that have no way to each other\n"
        "and from GPUs that a process does not see. cablewayd starts it when it is needed, and\n"
        "again when it was killed; it is of no use by itself.\n"
        "\n"
        "  --socket PATH   the broker's socket\n"
        "  --parent PID    end when this process ends, which started it\n"
        "  --idle SECONDS  end after so long without a job (default: $CABLEWAY_MOVER_IDLE, else\n"
        "                  60): its contexts take GPU memory\n"
        "  --version       print the version and end\n"
        "  --help          print this and end\n"
        "\n"
        "CABLEWAY_ROUTE=staged or mover in its environment: GPUs that could reach each other are\n"
        "copied between through host memory all the same.\n"
        "\n"
        "Exit codes: 0 idle; 2 wrong arguments; 3 the broker is gone, or refuses it; 4 a GPU's\n"
        "context is broken.");
}

static int parse_seconds(const char *text, int64_t *out_ns) {
    char *rest;
    long long seconds = strtoll(text, &rest, 10);
    if (rest == text || *rest || seconds < 1 || seconds > IDLE_MOST_S) {
        fprintf(stderr, "cableway-mover: idle time is 1 to %d whole seconds, not \"%.64s\"\n",
                IDLE_MOST_S, text);
        return EXIT_USAGE;
    }
    *out_ns = seconds * 1000000000;
    return 0;
}

/* The kernel kills us when the thread that started us ends; it may have ended already. */
static void die_with(long parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != (pid_t)parent)
        _exit(EXIT_NO_BROKER);
}

/* 0, or the exit code in *exit_code and -1. */
static int parse_arguments(int argc, char **argv, const char **socket, int64_t *idle_ns,
                           int *exit_code) {
    static const struct option names[] = {
        {"socket", required_argument, NULL, 's'}, {"parent", required_argument, NULL, 'p'},
        {"idle", required_argument, NULL, 'i'},   {"version", no_argument, NULL, 'V'},
        {"help", no_argument, NULL, 'h'},         {NULL, 0, NULL, 0}};
    const char *idle = secure_getenv("CABLEWAY_MOVER_IDLE");
    int found;
    *exit_code = EXIT_SUCCESS;
    while ((found = getopt_long(argc, argv, "", names, NULL)) >= 0) {
        if (found == 's')
            *socket = optarg;
        else if (found == 'p')
            die_with(strtol(optarg, NULL, 10));
        else if (found == 'i')
            idle = optarg;
        else if (found == 'V' || found == 'h') {
            if (found == 'V')
                printf("cableway-mover %s (protocol %u)\n", CW_VERSION, CW_PROTOCOL_VERSION);
            else
                print_help();
            return -1;
        } else {
            *exit_code = EXIT_USAGE;
            return -1;
        }
    }
    if (!*socket || optind < argc) {
        fprintf(stderr, "cableway-mover: it takes --socket PATH, and no other arguments; cablewayd "
                        "starts it; see --help\n");
        *exit_code = EXIT_USAGE;
    } else if (idle && *idle)
        *exit_code = parse_seconds(idle, idle_ns);
    return *exit_code ? -1 : 0;
}

int main(int argc, char **argv) {
    static struct mover mover = {.idle_ns = IDLE_DEFAULT_S * 1000000000LL,
                                 .lock = PTHREAD_MUTEX_INITIALIZER};
    const char *socket = NULL;
    int exit_code;
    pthread_t thread;
    if (parse_arguments(argc, argv, &socket, &mover.idle_ns, &exit_code) != 0)
        return exit_code;
    /* Whatever the broker held open is not ours to keep: it may be a slab's. */
    (void)syscall(SYS_close_range, 3u, ~0u, 0u);
    prctl(PR_SET_NAME, "cableway-mover");
    if (cw_connect(socket, "", CW_CONNECT_NO_START, &mover.client) != 0)
        end(&mover, EXIT_NO_BROKER, cw_error());
    mover.worked_ns = cw_now_ns();
    for (int i = 1; i < THREADS; i++) {
        if (pthread_create(&thread, NULL, work, &mover) != 0)
            end(&mover, EXIT_NO_BROKER, "no thread could be made");
        pthread_setname_np(thread, "cw-copies");
    }
    work(&mover);
    return EXIT_SUCCESS;
}
