/* Threads of our own, which take no signals (thread.c). */
#ifndef CW_SHM_BASE_THREAD_H
#define CW_SHM_BASE_THREAD_H

#include <pthread.h>

/* Starts a thread that no signal interrupts. attributes may be NULL. 0, or the error number of
 * pthread_create(); *thread is set on success alone. */
int cw_thread_start(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                    void *context);

/* How many threads beside this one would have a processor of their own, most at most. 0 where that
 * cannot be found out: a machine with more than 1,024. */
unsigned cw_thread_spare_cpus(unsigned most);

#endif
