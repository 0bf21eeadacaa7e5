/*
 * Drawing: what stands on the screen, from a look that was made.
 */
#ifndef CW_TOOLS_SCREEN_DRAW_H
#define CW_TOOLS_SCREEN_DRAW_H

#include <stdbool.h>

#include "tools/top/look.h"

#define FILTER_BYTES 128

struct view_state { /* of each view */
    unsigned sort;
    bool descending;
    size_t scroll; /* the first row that is shown */
};

struct screen {
    struct top *top;
    char no_broker[CW_DETAIL_MAX]; /* the sentence while none runs; "": one does, or did */
    int64_t remains_ns;            /* when it was last looked who has memory of dead ones */
    enum top_views view;
    struct view_state views[TOP_VIEWS];
    char filter[FILTER_BYTES]; /* "": all rows */
    bool types_filter;         /* keys go into the filter */
    bool paused, help;
    size_t *rows; /* of the view's table, as they are shown */
    size_t count, room;
};

/* How many rows of a table fit on the screen; at least 1. */
size_t draw_page(const struct screen *screen);
/* Draws all and shows it. */
void draw(struct screen *screen);

#endif
