/*
 * Threads of our own take no signals: these are for the threads of the program that we are in, or
 * for the loop of a daemon. A new thread has its maker's mask, so that one is full for the moment.
 */
#include "shm/base/thread.h"

#include <sched.h>
#include <signal.h>

int cw_thread_start(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                    void *context) {
    sigset_t all, before;
    pthread_t made;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&made, attributes, run, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0)
        *thread = made;
    return error;
}

unsigned cw_thread_spare_cpus(unsigned most) {
    cpu_set_t cpus;
    if (sched_getaffinity(0, sizeof cpus, &cpus) != 0)
        return 0;
    unsigned others = (unsigned)CPU_COUNT(&cpus) - 1;
    return others < most ? others : most;
}
