/*
 * Detaching: makes the broker a process of its own that keeps nothing of the process that started
 * it.
 */
#ifndef CW_BROKER_CORE_DETACH_H
#define CW_BROKER_CORE_DETACH_H

/*
 * In the starter: waits until the broker listens or failed, prints what it says to standard error,
 * and does not return (exit code as the broker's). In the broker: returns with its own session, no
 * inherited descriptors but the one returned, where the verdict is to go. < 0 on failure.
 */
int cwd_detach(void);
/* Tells the starter how it went; text is a sentence, or "" . Closes fd. */
void cwd_detach_tell(int fd, int exit_code, const char *text);

#endif
