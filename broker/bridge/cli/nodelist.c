/*
 * Nodelist: see nodelist.h. A name is expanded from left to right: what stands so far, and the rest
 * of the text behind it.
 */
#include "broker/bridge/cli/nodelist.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/bridge/wire/frame.h"
#include "shm/base/error.h"

#define DIGITS_MOST 9u

struct expansion {
    const char *list; /* for sentences */
    char **names;
    uint32_t count, most;
};

static int wrong(const struct expansion *e, const char *what) {
    return cw_fail(-EINVAL, "the list of nodes \"%.200s\": %s", e->list, what);
}

static int add(struct expansion *e, const char *name) {
    if (!cw_node_valid(name))
        return cw_fail(-EINVAL,
                       "the list of nodes \"%.200s\": \"%.80s\" is no name of a node (1 to %u of "
                       "A-Z a-z 0-9 _ . -)",
                       e->list, name, CW_NODE_MAX);
    if (e->count == e->most)
        return cw_fail(-EINVAL, "the list of nodes \"%.200s\": it has more than %u", e->list,
                       e->most);
    e->names[e->count] = strdup(name);
    CW_ASSERT(e->names[e->count]);
    e->count++;
    return 0;
}

static int expand(struct expansion *e, char *so_far, const char *rest, const char *end);

/* One range, and the rest behind its bracket. */
static int expand_range(struct expansion *e, char *so_far, const char *range, const char *range_end,
                        const char *rest, const char *end) {
    size_t digits = strspn(range, "0123456789"), more = 0, begin = strlen(so_far);
    const char *second = range + digits + 1;
    if (range + digits != range_end)
        more = range[digits] == '-' ? strspn(second, "0123456789") : 0;
    if (digits == 0 || digits > DIGITS_MOST || more > DIGITS_MOST ||
        (range + digits != range_end && (more == 0 || second + more != range_end)))
        return wrong(e, "in brackets stand numbers and ranges like 01-16, with commas");
    unsigned long first = strtoul(range, NULL, 10);
    unsigned long last = more ? strtoul(second, NULL, 10) : first;
    if (last < first)
        return wrong(e, "a range goes backwards");
    int code = 0;
    for (unsigned long at = first; at <= last && code == 0; at++) {
        if (begin + DIGITS_MOST > CW_NODE_MAX)
            return wrong(e, "a name is too long");
        snprintf(so_far + begin, CW_NODE_MAX + 1 - begin, "%0*lu", (int)digits, at);
        code = expand(e, so_far, rest, end);
    }
    so_far[begin] = 0;
    return code;
}

/* so_far has room for CW_NODE_MAX bytes and a NUL; it is as it was on return. */
static int expand(struct expansion *e, char *so_far, const char *rest, const char *end) {
    size_t begin = strlen(so_far), text = 0;
    while (rest + text < end && rest[text] != '[' && rest[text] != ']')
        text++;
    if (begin + text > CW_NODE_MAX)
        return wrong(e, "a name is too long");
    memcpy(so_far + begin, rest, text);
    so_far[begin + text] = 0;
    rest += text;
    int code = 0;
    if (rest == end) {
        code = add(e, so_far);
    } else if (*rest == ']') {
        code = wrong(e, "a bracket ends that did not begin");
    } else {
        const char *close = memchr(rest, ']', (size_t)(end - rest)), *at = rest + 1;
        if (!close)
            code = wrong(e, "a bracket does not end");
        while (code == 0) {
            const char *comma = memchr(at, ',', (size_t)(close - at));
            code = expand_range(e, so_far, at, comma ? comma : close, close + 1, end);
            if (!comma)
                break;
            at = comma + 1;
        }
    }
    so_far[begin] = 0;
    return code;
}

/* Where a name ends: at a comma outside brackets. */
static const char *name_end(const char *at) {
    bool inside = false;
    for (; *at && (inside || *at != ','); at++)
        inside = *at == '[' || (inside && *at != ']');
    return at;
}

int cwb_nodelist_expand(const char *list, uint32_t most, char ***names, uint32_t *count) {
    struct expansion e = {.list = list, .most = most};
    char so_far[CW_NODE_MAX + 1] = "";
    int code = 0;
    e.names = calloc((size_t)most + 1, sizeof *e.names);
    CW_ASSERT(e.names);
    for (const char *at = list; code == 0;) {
        const char *end = name_end(at);
        code = expand(&e, so_far, at, end);
        if (!*end)
            break;
        at = end + 1;
    }
    if (code) {
        cwb_nodelist_free(e.names, e.count);
        return code;
    }
    *names = e.names;
    *count = e.count;
    return 0;
}

void cwb_nodelist_free(char **names, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        free(names[i]);
    free(names);
}
