/*
 * The part of the walk with children: see walk.c. A child that inherits an array and renews it, and
 * one that dies with arrays of its own, one of them named: its slab is adopted.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/faults/walk.h"

#define INHERITED 4096
#define LEFT      (4 << 20)

static void await(pid_t child) {
    int status;
    pid_t ended;
    do
        ended = waitpid(child, &status, 0);
    while (ended < 0 && errno == EINTR);
    MUST(ended == child && WIFEXITED(status));
    if (WEXITSTATUS(status))
        _exit(WEXITSTATUS(status)); /* it said why */
}

static void inherit(cw_client *client, cw_array *array) {
    pid_t child = fork();
    MUST(child >= 0);
    if (child > 0) {
        await(child);
        return;
    }
    MUST(cw_client_forked(client) && cw_array_inherited(array) && walk_filled(array, 21));
    cw_client *own = walk_connect();
    STEP(cw_array_renew(array, own));
    STEP(cw_array_put(array, "faults/renewed", CW_REPLACE, NULL, 0));
    STEP(cw_remove(own, "faults/renewed"));
    MUST(walk_filled(array, 21));
    cw_array_close(array);
    cw_client_unref(own);
    _exit(0);
}

static void die_with_arrays(void) {
    pid_t child = fork();
    MUST(child >= 0);
    if (child > 0) {
        await(child);
        return;
    }
    cw_client *own = walk_connect();
    cw_array *named = walk_array(own, LEFT, 31, 0);
    walk_array(own, LEFT, 32, 0);
    STEP(cw_array_put(named, "faults/left", CW_REPLACE, NULL, 0));
    _exit(0);
}

void walk_children(cw_client *client) {
    cw_array *array = walk_array(client, INHERITED, 21, 0), *left, *made;
    inherit(client, array);
    cw_array_close(array);
    die_with_arrays();
    STEP(cw_get(client, "faults/left", 0, &left));
    MUST(walk_filled(left, 31));
    made = walk_array(client, 2 * LEFT, 33, 0);
    MUST(walk_filled(made, 33) && walk_filled(left, 31));
    cw_array_close(made);
    STEP(cw_remove(client, "faults/left"));
    cw_array_close(left);
}
