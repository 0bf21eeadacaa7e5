/*
 * Messages: see message.h. Owner: the thread that is in an operation; the list of kept messages is
 * this process's. What comes out of a queue was written by another process: head and sizes are
 * checked.
 */
#include "ipc/group/message.h"

#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "ipc/array/array.h"
#include "ipc/client.h"
#include "ipc/group/window.h"
#include "ipc/request/socket.h"
#include "shm/base/error.h"
#include "shm/base/task.h"

#define ITEM_BYTES  (256u << 10) /* larger messages go in an array */
#define LOOK_AT_ALL 32           /* members; a look at one takes some microseconds */

struct head {
    uint32_t epoch, slot; /* of the sender, whose rank may be another one after a reform() */
    int32_t tag;
    uint32_t kind;
    uint64_t size_bytes;
    uint64_t reserved;
};

struct group_kept { /* a message that came, and was not asked for yet */
    struct group_kept *next;
    struct head head;
    uint64_t arrival;
    cw_item item;
};

/* ---- inboxes ---- */

int cw_inbox_make(cw_group *group, cw_handle *handle) {
    int code = cw_queue_new(group->client, CW_GROUP_MESSAGES_MAX, 0, &group->inbox_array);
    if (code == 0)
        code = cw_queue_open(group->inbox_array, &group->inbox);
    if (code == 0)
        code = cw_array_export(group->inbox_array, 0, handle);
    return code;
}

static void outbox_close(struct group_member *member) {
    cw_queue_close(member->outbox);
    cw_array_close(member->outbox_array);
    member->outbox = NULL;
    member->outbox_array = NULL;
}

void cw_inboxes_forget(cw_group *group) {
    for (uint32_t i = 0; i < CW_GROUP_RANKS_MAX; i++)
        outbox_close(&group->members[i]);
}

static void kept_end(struct group_kept *kept) {
    cw_item_deinit(&kept->item);
    free(kept);
}

void cw_inboxes_close(cw_group *group) {
    cw_inboxes_forget(group);
    while (group->kept) {
        struct group_kept *kept = group->kept;
        group->kept = kept->next;
        kept_end(kept);
    }
    cw_queue_close(group->inbox);
    cw_array_close(group->inbox_array);
    group->inbox = NULL;
    group->inbox_array = NULL;
}

static int outbox_open(cw_group *group, struct group_member *member) {
    if (member->outbox)
        return 0;
    cw_handle handle = *(const volatile cw_handle *)&member->slot->inbox;
    int64_t size = (int64_t)handle.size_bytes;
    cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &size, .dtype = "|u1"};
    handle.token = 0;
    if (size < 0)
        return cw_fail(-EPROTO, "a member of group \"%s\" names an inbox of no size", group->name);
    int64_t before = cw_socket_limit(cw_group_broker_ns(group));
    int code = cw_array_open(group->client, &handle, &layout, 0, &member->outbox_array);
    cw_socket_unlimit(before);
    if (code)
        return code;
    code = cw_queue_open(member->outbox_array, &member->outbox);
    if (code)
        outbox_close(member);
    return code;
}

/* ---- waiting at a queue ---- */

/* Who is gone, so that waiting for a message makes no sense: its rank; size: nobody. That is
 * anybody who died, and the peer (size: all others) that left. Of many members half are looked at,
 * and the others next time if nobody is missed: a death is found by the second look. */
static uint32_t gone(cw_group *group, uint32_t peer, bool *left) {
    uint32_t last = group->size, there = 0, half = group->size > LOOK_AT_ALL ? group->looks % 2 : 2;
    for (uint32_t i = 0; i < group->size; i++) {
        struct group_member *member = &group->members[i];
        bool asked = peer == i || peer >= group->size;
        if (i == group->rank)
            continue;
        if (cw_group_claim(member->slot) != member->claim) {
            last = asked ? i : last;
            continue;
        }
        there += asked;
        if ((peer == i || half != i % 2) && !cw_task_process_runs(member->claim)) {
            *left = cw_group_claim(member->slot) != member->claim; /* and ended then */
            if (!*left || asked)
                return i;
        }
    }
    *left = true;
    last = there ? group->size : last;
    group->looks += last == group->size;
    return last;
}

/* After a wait that brought nothing: 0: wait on, for *limit_ns at most. *suspect: somebody is gone;
 * what it did before is looked for once more, and only then is the group broken. */
static int may_go_on(cw_group *group, uint32_t peer, int64_t *limit_ns, bool *suspect) {
    bool left = false;
    *limit_ns = group->nap_ns = group_longer(group->nap_ns);
    int code = cw_group_may_wait(group, limit_ns);
    uint32_t rank = code ? group->size : gone(group, peer, &left);
    if (rank < group->size && *suspect)
        cw_group_break_by(group, left ? CW_GROUP_LEFT : CW_GROUP_DIED, rank);
    else if (rank < group->size)
        *limit_ns = 0;
    *suspect = rank < group->size;
    return code ? code : cw_group_told(group);
}

/* ---- sending ---- */

/* Puts an item, for as long as it takes; -EAGAIN: there is no room, and it does not wait. */
static int put(cw_group *group, uint32_t to, const void *item, uint64_t bytes,
               const cw_handle *handle, bool waits) {
    bool suspect = false;
    for (int64_t limit_ns = group->nap_ns = GROUP_NAP_NS;;) {
        int code = cw_group_may_wait(group, &limit_ns);
        if (code == -ETIMEDOUT || (code == 0 && !waits))
            code = 0, limit_ns = 0; /* it may go at once */
        if (code == 0)
            code = cw_queue_put(group->members[to].outbox, item, bytes, handle, handle != NULL,
                                handle ? handle->size_bytes : 0, limit_ns);
        if (code != -ETIMEDOUT && code != -EBUSY && code != -EINTR)
            return code;
        if (!waits && code != -EINTR)
            return cw_fail_plain(-EAGAIN, "the receiver has no room");
        code = may_go_on(group, to, &limit_ns, &suspect);
        if (code == -ETIMEDOUT)
            return cw_fail(-ETIMEDOUT,
                           "%.3f s ran out in group \"%s\": rank %u has not received %d messages "
                           "that wait for it, and no more are taken",
                           (double)group->timeout_ns / 1e9, group->name, to, CW_GROUP_MESSAGES_MAX);
        if (code)
            return code;
    }
}

static int send_array(cw_group *group, uint32_t to, const struct head *head, const void *data,
                      bool waits) {
    cw_array *array;
    cw_handle handle;
    int code = cw_window_bytes_new(group, head->size_bytes, 0, &array);
    if (code)
        return code;
    code = cw_array_write(array, 0, data, head->size_bytes);
    if (code == 0)
        code = cw_array_export(array, 1, &handle);
    if (code == 0) {
        code = put(group, to, head, sizeof *head, &handle, waits);
        if (code)
            cw_handle_discard(group->client, &handle);
    }
    cw_array_close(array);
    return code;
}

static int send_item(cw_group *group, uint32_t to, const struct head *head, const void *data,
                     bool waits) {
    uint8_t small[512];
    uint64_t bytes = sizeof *head + head->size_bytes;
    uint8_t *item = bytes <= sizeof small ? small : malloc(bytes);
    if (!item)
        return cw_fail(-EDQUOT, "no memory for a message of %llu bytes",
                       (unsigned long long)head->size_bytes);
    memcpy(item, head, sizeof *head);
    if (head->size_bytes)
        memcpy(item + sizeof *head, data, head->size_bytes);
    int code = put(group, to, item, bytes, NULL, waits);
    if (item != small)
        free(item);
    return code;
}

static int check_tag(int32_t tag, int32_t least) {
    return tag >= least ? 0
                        : cw_fail(-EINVAL, "tag %d: a tag is 0 or more%s", tag,
                                  least < 0 ? ", or -1 for any" : "");
}

static int send_message(cw_group *group, const void *data, uint64_t size_bytes, uint32_t kind,
                        uint32_t to, int32_t tag, bool waits) {
    int code = check_tag(tag, 0);
    if (code == 0 && !data && size_bytes)
        code = cw_needs("what is to be sent");
    if (code == 0 && size_bytes > INT64_MAX)
        code = cw_fail(-EINVAL, "%llu bytes are more than memory holds",
                       (unsigned long long)size_bytes);
    if (code == 0)
        code = cw_group_begin(group);
    if (code)
        return code;
    struct head head = {.epoch = group->epoch,
                        .slot = (uint32_t)(group->own - group->page->slots),
                        .tag = tag,
                        .kind = kind,
                        .size_bytes = size_bytes};
    if (to >= group->size)
        code = cw_fail(-EINVAL, "rank %u: group \"%s\" has ranks 0 to %u", to, group->name,
                       group->size - 1);
    /* If it has left, its inbox may be there for a while. */
    bool left = code == 0 && cw_group_claim(group->members[to].slot) != group->members[to].claim;
    if (code == 0 && !left)
        code = outbox_open(group, &group->members[to]);
    uint32_t rank = code == -ESTALE ? gone(group, to, &left) : left ? to : group->size;
    if (rank < group->size) {
        cw_group_break_by(group, left ? CW_GROUP_LEFT : CW_GROUP_DIED, rank);
        code = cw_group_told(group);
    }
    struct cw_trace_span span;
    cw_group_span(&span, group, GROUP_TRACE_SEND);
    if (code == 0)
        code = size_bytes + sizeof head <= ITEM_BYTES ? send_item(group, to, &head, data, waits)
                                                      : send_array(group, to, &head, data, waits);
    cw_trace_leave(&span, code < 0);
    cw_group_leave_call(group);
    return code;
}

int cw_group_send(cw_group *group, const void *data, uint64_t size_bytes, uint32_t kind,
                  uint32_t to, int32_t tag) {
    return send_message(group, data, size_bytes, kind, to, tag, true);
}

int cw_group_send_now(cw_group *group, const void *data, uint64_t size_bytes, uint32_t kind,
                      uint32_t to, int32_t tag) {
    return send_message(group, data, size_bytes, kind, to, tag, false);
}

/* ---- receiving ---- */

/* The rank of the sender now; CW_GROUP_RANKS_MAX: it is no member any more. */
static uint32_t source_of(const cw_group *group, const struct head *head) {
    return head->slot < CW_GROUP_RANKS_MAX ? group->rank_of[head->slot] : CW_GROUP_RANKS_MAX;
}

/* Is it to be dropped? What is of an epoch to come is for later. */
static bool is_old(const cw_group *group, const struct head *head) {
    return (int32_t)(head->epoch - group->epoch) <= 0 &&
           ((int32_t)(head->epoch - group->oldest) < 0 ||
            source_of(group, head) == CW_GROUP_RANKS_MAX);
}

static bool matches(const cw_group *group, const struct head *head, int32_t source, int32_t tag) {
    return (int32_t)(head->epoch - group->epoch) <= 0 && !is_old(group, head) &&
           (source < 0 || source_of(group, head) == (uint32_t)source) &&
           (tag < 0 || head->tag == tag);
}

/* A kept message that matches; what is old goes. The place of the pointer to it; NULL: none. */
static struct group_kept **find_kept(cw_group *group, int32_t source, int32_t tag) {
    struct group_kept **at = &group->kept;
    while (*at && !matches(group, &(*at)->head, source, tag)) {
        struct group_kept *kept = *at;
        if (is_old(group, &kept->head)) {
            *at = kept->next;
            kept_end(kept);
        } else
            at = &kept->next;
    }
    return *at ? at : NULL;
}

/* Is what came a message? */
static bool is_message(const cw_item *item, const struct head *head) {
    if (item->size_bytes < sizeof *head || item->count > 1)
        return false;
    uint64_t beside = item->size_bytes - sizeof *head;
    return item->count ? beside == 0 && cw_array_nbytes(item->arrays[0]) == head->size_bytes
                       : beside == head->size_bytes;
}

/* Takes the next item and keeps it, last. */
static int keep_next(cw_group *group, int64_t limit_ns) {
    struct group_kept *kept = calloc(1, sizeof *kept), **end = &group->kept;
    if (!kept)
        return cw_fail(-EDQUOT, "no memory for a message");
    int code = cw_queue_get(group->inbox, &kept->item, limit_ns);
    if (code < 0) {
        kept_end(kept);
        return code;
    }
    if (kept->item.size_bytes >= sizeof kept->head)
        memcpy(&kept->head, kept->item.data, sizeof kept->head);
    if (!is_message(&kept->item, &kept->head)) {
        kept_end(kept);
        return cw_fail(-EPROTO, "what came into the inbox of rank %u of group \"%s\" is no message",
                       group->rank, group->name);
    }
    while (*end)
        end = &(*end)->next;
    kept->arrival = ++group->arrivals;
    *end = kept;
    return 0;
}

/* "rank 3", or "any rank". */
static const char *number_text(const char *what, int32_t number, char *text, size_t room) {
    if (number < 0)
        snprintf(text, room, "any %s", what);
    else
        snprintf(text, room, "%s %d", what, number);
    return text;
}

static int nothing_came(const cw_group *group, int32_t source, int32_t tag) {
    char from[24], with[24];
    return cw_fail(-ETIMEDOUT,
                   "%.3f s ran out in group \"%s\": no message from %s with %s came to rank %u",
                   (double)group->timeout_ns / 1e9, group->name,
                   number_text("rank", source, from, sizeof from),
                   number_text("tag", tag, with, sizeof with), group->rank);
}

static int await_message(cw_group *group, int32_t source, int32_t tag, struct group_kept ***found) {
    int64_t limit_ns = group->nap_ns = GROUP_NAP_NS;
    bool suspect = false;
    if ((*found = find_kept(group, source, tag)))
        return 0;
    int code = cw_group_may_wait(group, &limit_ns);
    if (code && code != -ETIMEDOUT)
        return code;
    if (code)
        limit_ns = 0; /* what is there */
    for (;;) {
        if ((*found = find_kept(group, source, tag)))
            return 0;
        code = keep_next(group, limit_ns);
        if (code == 0)
            continue;
        if (code != -ETIMEDOUT && code != -EBUSY && code != -EINTR)
            return code;
        uint32_t peer = source < 0 ? group->size : (uint32_t)source;
        code = may_go_on(group, peer, &limit_ns, &suspect);
        if (code == -ETIMEDOUT)
            return nothing_came(group, source, tag);
        if (code)
            return code;
    }
}

static void fill(const cw_group *group, cw_group_message *out, struct group_kept *kept) {
    void *data = kept->item.count ? cw_array_data(kept->item.arrays[0])
                                  : (uint8_t *)kept->item.data + sizeof kept->head;
    *out = (cw_group_message){.source = source_of(group, &kept->head),
                              .tag = kept->head.tag,
                              .kind = kept->head.kind,
                              .size_bytes = kept->head.size_bytes,
                              .arrival = kept->arrival,
                              .data = data,
                              .owner = kept};
}

static int check_source(const cw_group *group, int32_t source) {
    return source >= -1 && source < (int32_t)group->size
               ? 0
               : cw_fail(-EINVAL, "source %d: group \"%s\" has ranks 0 to %u", source, group->name,
                         group->size - 1);
}

/* What has come, without waiting; that is kept in its order. */
static int keep_all(cw_group *group) {
    int code = keep_next(group, 0);
    while (code == 0)
        code = keep_next(group, 0);
    return code == -ETIMEDOUT || code == -EBUSY || code == -EINTR ? 0 : code;
}

/* For who asks again and again: now and then, whether those who could send it are there. What one
 * that is gone did before is looked for once more. */
static int look_for_the_gone(cw_group *group, int32_t source) {
    uint32_t peer = source < 0 ? group->size : (uint32_t)source;
    bool left = false;
    int64_t now_ns = cw_now_ns();
    if (now_ns - group->looked_ns < GROUP_LOOK_NS)
        return 0;
    group->looked_ns = now_ns;
    uint32_t rank = gone(group, peer, &left);
    return rank == group->size ? 0 : left ? CW_GROUP_LEFT : CW_GROUP_DIED;
}

int cw_group_probe(cw_group *group, int32_t source, int32_t tag, enum cw_group_wait wait,
                   cw_group_message *out) {
    struct group_kept **found = NULL;
    int code = check_tag(tag, -1);
    if (code == 0 && !out)
        code = cw_needs("a place for what is told of the message");
    if (code == 0)
        code = cw_group_begin(group);
    if (code)
        return code;
    code = check_source(group, source);
    struct cw_trace_span span;
    cw_group_span(&span, group, GROUP_TRACE_RECEIVE);
    if (code == 0 && wait == CW_GROUP_WAIT)
        code = await_message(group, source, tag, &found);
    else if (code == 0) {
        int reason = wait == CW_GROUP_LOOK ? look_for_the_gone(group, source) : 0;
        if (wait == CW_GROUP_LOOK)
            code = keep_all(group);
        found = code ? NULL : find_kept(group, source, tag);
        if (code == 0 && !found && reason) {
            bool left;
            cw_group_break_by(group, (uint32_t)reason,
                              gone(group, source < 0 ? group->size : (uint32_t)source, &left));
            code = cw_group_told(group);
        }
    }
    cw_trace_leave(&span, code < 0);
    if (code == 0 && found) {
        fill(group, out, *found);
        out->data = out->owner = NULL; /* it is not the caller's */
    }
    cw_group_leave_call(group);
    return code ? code : found != NULL;
}

int cw_group_receive(cw_group *group, int32_t source, int32_t tag, cw_group_message *out) {
    struct group_kept **found;
    int code = check_tag(tag, -1);
    if (code == 0 && !out)
        code = cw_needs("a place for the message");
    if (code == 0)
        code = cw_group_begin(group);
    if (code)
        return code;
    code = check_source(group, source);
    struct cw_trace_span span;
    cw_group_span(&span, group, GROUP_TRACE_RECEIVE);
    if (code == 0)
        code = await_message(group, source, tag, &found);
    cw_trace_leave(&span, code < 0);
    if (code == 0) {
        struct group_kept *kept = *found;
        *found = kept->next;
        fill(group, out, kept);
    }
    cw_group_leave_call(group);
    return code;
}

int cw_group_unreceive(cw_group *group, cw_group_message *message) {
    if (!group || !message || !message->owner)
        return cw_needs("a group and a message of its own");
    struct group_kept *kept = message->owner, **at = &group->kept;
    while (*at && (*at)->arrival < kept->arrival)
        at = &(*at)->next;
    kept->next = *at;
    *at = kept;
    *message = (cw_group_message){.owner = NULL};
    return 0;
}

int cw_group_drop_messages(cw_group *group) {
    int code = cw_group_enter(group);
    if (code)
        return code;
    group->oldest = group->epoch;
    cw_group_leave_call(group);
    return 0;
}

void cw_group_message_end(cw_group_message *message) {
    if (!message || !message->owner)
        return;
    kept_end(message->owner);
    *message = (cw_group_message){.owner = NULL};
}
