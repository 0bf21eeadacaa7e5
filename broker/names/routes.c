/*
 * Links: see routes.h. The loop's thread owns them. If the broker dies the next client measures.
 */
#include "broker/names/routes.h"

#include <stdlib.h>
#include <string.h>

#include "broker/broker.h"
#include "broker/core/table.h"

#define LINKS_MOST 4096u /* pairs: 64 GPUs with each other */
#define KEY_BYTES  (2 * sizeof((struct cw_link){0}.from_uuid))

struct cwd_link {
    struct cw_link link; /* begins with the key, both UUIDs */
    UT_hash_handle hh;
};

static struct cwd_link *find(struct cwd_broker *b, const struct cw_link *wish) {
    struct cwd_link *link;
    HASH_FIND(hh, b->links, wish->from_uuid, KEY_BYTES, link);
    return link;
}

int cwd_link_find(struct cwd_broker *b, const struct cw_link *wish, struct cw_link *out) {
    struct cwd_link *link = find(b, wish);
    if (!link)
        return cw_fail(-ENOENT, "the route between these GPUs has not been measured yet");
    *out = link->link;
    return 0;
}

int cwd_link_keep(struct cwd_broker *b, const struct cw_link *link) {
    struct cwd_link *kept = find(b, link);
    if (link->route < CW_LINK_SAME || link->route > CW_LINK_STAGED || link->reserved)
        return -EBADMSG;
    if (!kept) {
        if (HASH_COUNT(b->links) >= LINKS_MOST)
            return 0;
        kept = calloc(1, sizeof *kept);
        if (!kept)
            return 0; /* the next one measures, and tells it again */
        kept->link = *link;
        HASH_ADD(hh, b->links, link.from_uuid, KEY_BYTES, kept);
        if (!CWD_ADDED(kept)) {
            free(kept);
            return 0;
        }
    }
    kept->link = *link;
    return 0;
}

void cwd_links_deinit(struct cwd_broker *b) {
    struct cwd_link *link, *next;
    HASH_ITER(hh, b->links, link, next) {
        HASH_DEL(b->links, link);
        free(link);
    }
}
