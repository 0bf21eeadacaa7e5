/*
 * Tracks: where each event is drawn. A track is a thread of a process; copies of GPU memory have
 * tracks of their own, one for each way. On a track, events lie within one another or apart; one
 * that would overlap goes to the next lane, which is drawn as a track below.
 */
#ifndef CW_TOOLS_TRACE_TRACKS_H
#define CW_TOOLS_TRACE_TRACKS_H

#include "tools/trace/find.h"

#define TRACKS_MOMENT_NS 100 /* how wide a moment is drawn */
#define TRACKS_LANES_MAX 64u /* what would overlap in more is left out */
#define TRACKS_NEST_MAX  64u
#define TRACKS_NO_LANE   UINT32_MAX

bool tracks_is_gpu_copy(const struct cw_trace_record *record);
/* How long it is drawn. */
int64_t tracks_width_ns(const struct cw_trace_record *record);
/* The same number for events of one track: process and thread, or the way of a copy. */
uint64_t tracks_key(const struct trace_event *event);

/* One wait may be several calls, each with a limit, so that signals are served between them: puts
 * those together. */
#define TRACKS_GAP_NS 1000000 /* the longest time between two of them */
void tracks_join(struct traces *traces);
/* Sorts events by track, lane and begin, and sets their lanes. Returns how many got none. */
size_t tracks_assign(struct traces *traces);
/* Sets flow where an event of a task has others of the same task, in one process or several. */
void tracks_link(struct traces *traces);

#endif
