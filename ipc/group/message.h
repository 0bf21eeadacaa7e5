/*
 * Messages from one member to another.
 *
 * Each member has an inbox: a queue (ipc/tasks/queue.c) in an array of its own, which it makes
 * before it joins, and whose handle is in its slot. A message is an item with a head; what is
 * larger than an item goes in an array that travels with it, which the queue keeps, whoever dies.
 * Who receives takes items in their order and keeps those that are not asked for yet, by source and
 * tag.
 *
 * The queue says what each death leaves behind: a message is there whole, or not at all.
 *
 * The head has the epoch and the slot of its sender. A slot is its member's as long as the group
 * runs, also over a reform(), which gives new ranks: so a message of before is received under the
 * rank that its sender has now. It is dropped if its sender is no member any more, since there is
 * no rank to name, or if its receiver wants none of before (cw_group_drop_messages()). A message of
 * an epoch that its receiver has not come to yet is kept for then.
 *
 * Who waits for a message, or asks again and again, looks after all members: a death breaks the
 * group, as it does for who waits at a meeting. Who leaves is missed by those alone who wait for
 * him.
 */
#ifndef CW_IPC_GROUP_MESSAGE_H
#define CW_IPC_GROUP_MESSAGE_H

#include "ipc/group/page.h"

/* Makes our inbox; its handle: cw_handle of instance 0 means none. */
int cw_inbox_make(cw_group *group, cw_handle *handle);
/* Closes ours and those of others, and what was kept. */
void cw_inboxes_close(cw_group *group);
/* Closes those of others: they may be of other members now. */
void cw_inboxes_forget(cw_group *group);

#endif
