/* Threads of our own, which take no signals (thread.c). */
#ifndef CW_SHM_BASE_THREAD_H
#define CW_SHM_BASE_THREAD_H

#include <pthread.h>

/* Starts a thread that no signal interrupts. attributes may be NULL. 0, or the error number of
 * pthread_create(); *thread is set on success alone. */
int cw_thread_start(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                    void *context);

#endif
