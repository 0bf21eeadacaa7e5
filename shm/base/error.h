/*
 * Errors: one doctrine.
 *
 * A function returns 0 (or a count) or a negative errno value, and on failure leaves a sentence in
 * the calling thread's detail text: what was asked, what was found, what to do. Outcomes a caller
 * can act on are codes; a breach of our own invariants is an assertion, always on. What another
 * process, a socket or a device can write is never asserted on: it is an outcome.
 *
 *   -ENOENT      no such name                       -EEXIST      the name is taken
 *   -ESTALE      the array behind a handle is gone  -EDQUOT      a limit, or no memory left
 *   -ECONNRESET  the broker is lost                 -ETIMEDOUT   a timeout ran out
 *   -EINVAL      a bad argument                     -ENODEV      no such device
 *   -EOWNERDEAD  the producer died                  -EPROTO      protocol breach or other version
 *   -EPERM       refused                            -EINTR       a signal came while waiting
 */
#ifndef CW_SHM_BASE_ERROR_H
#define CW_SHM_BASE_ERROR_H

#include <errno.h>

#define CW_DETAIL_MAX 512

/* A variable of each thread, of a few bytes. It lies in memory that each thread has from its
 * beginning, also where the library came by dlopen(): else the first look at it takes some, and for
 * want of memory the C library ends the process. */
#define CW_THREAD_LOCAL _Thread_local __attribute__((tls_model("initial-exec")))

/* Stores the formatted sentence as this thread's detail text and returns code, which is negative.
 */
int cw_fail_detail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same of a sentence that stands as it is, and stays: costs a store, for what only says "not
 * now" and may be met often. */
int cw_fail_plain(int code, const char *sentence);
/* A macro, so that compilers and analysers see which code comes back. */
#define cw_fail(code, ...)                                                                         \
    ({                                                                                             \
        int cw_fail_code = (code);                                                                 \
        cw_fail_detail(cw_fail_code, __VA_ARGS__);                                                 \
        cw_fail_code;                                                                              \
    })
/* -EINVAL: the caller gave NULL for what ("an array"). */
#define cw_needs(what) cw_fail(-EINVAL, "%s is needed, NULL was given", what)
/* The detail text of this thread's last failure; never NULL. */
const char *cw_detail(void);

/* What to do when no descriptor could be made: the error tells whose limit it was. */
const char *cw_descriptor_remedy(int error);
/* This process is the broker: who reads the remedy is another one, and hears whose limit it was. */
void cw_descriptors_are_the_brokers(void);

/* An assertion on our own state: never compiled out. Prints the place and aborts. */
_Noreturn void cw_assert_failed(const char *expression, const char *file, int line);
#define CW_ASSERT(expr) ((expr) ? (void)0 : cw_assert_failed(#expr, __FILE__, __LINE__))

#endif
