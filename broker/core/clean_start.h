/*
 * A clean start: a detached broker serves all processes of its user, so it keeps nothing of the
 * process that happened to start it.
 */
#ifndef CW_BROKER_CORE_CLEAN_START_H
#define CW_BROKER_CORE_CLEAN_START_H

/* Gives up limits, priority, affinity and the rest of what this process inherited, as far as the
 * kernel lets it; mover and bridge, its children, then have none of it either. Once, and before
 * anything is made that depends on limits. */
void cwd_clean(void);
/* Logs what could not be given up, and would end the broker or refuse its clients. */
void cwd_clean_tell(void);

#endif
