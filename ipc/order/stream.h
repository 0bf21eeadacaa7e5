/*
 * Streams: what this process knows of a CUDA stream that works on arrays, and how the stream waits.
 *
 * A *section* is the work of one stream, on one array or several, between a begin and its end.
 * While it is open, a section has a fence of its own. Its end submits the next value of that fence
 * to the stream, once for all its arrays. So each section is complete by itself, in whatever order
 * the sections of one stream end, and whoever waits for one of them does not wait for the others.
 * The fence of a closed section serves the next section of the same stream: one writer, rising
 * values.
 *
 * The *dependencies* of a stream are the stamps for which it was made to wait, one for each fence
 * (a later value implies the earlier ones). They are kept until they have passed, for two reasons:
 * a write stores them in its record, so that a reader of the result learns of a death behind it;
 * and the driver is not asked again to wait for something for which the stream waits already. When
 * one of them is found dead, every section that is open on the stream gets the error at its own
 * end; if none is open, the next begin on the stream gets it. A caller that has ended its section
 * before has a copy of the dependencies (completion.h).
 *
 * The GPU's part takes most of the time here (a wait or a value is 1 to 3 us of its queue), then
 * the calls of the driver. So a begin collects everything for which the stream must wait and
 * submits it by one call, or none if nothing is left, and an end submits one value.
 *
 * Owner: the fences' lock, never held while anything waits for other processes' work. If this
 * process dies in the middle, its stamps and its turn stay, and the broker takes both out.
 */
#ifndef CW_IPC_ORDER_STREAM_H
#define CW_IPC_ORDER_STREAM_H

#include "ipc/cuda/backend.h"
#include "ipc/order/fence.h"

#define CW_DEPENDENCIES_MAX 64u /* stamps that one stream keeps; for more, the CPU waits */
#define CW_SECTIONS_MAX     64u /* open on one stream at once; on ours one for each thread */

struct cw_section_array { /* what an open section has of one array */
    cw_array *array;
    struct cw_order *order;
    bool writing, whole;
    bool poisoned;  /* at the end: of what the write kept something was incomplete */
    unsigned place; /* of a reading: where its stamp stands, and what stood there before */
    cw_stamp before;
};

struct cw_section {
    struct cw_stream *stream;
    bool open;
    bool several;    /* of cw_work_begin(): no end by its array finds it */
    bool incomplete; /* something that its stream waits for died while it was open */
    uint32_t thread; /* that began it */
    uint32_t number; /* of its fence */
    struct cw_fence *fence;
    CUdeviceptr address; /* of the fence's value, for the GPU */
    uint64_t last;       /* value submitted; the open section's is the next one */
    struct cw_section_array *held;
    uint32_t held_count, held_room;
    struct cw_section *next;
};

struct cw_dependency {
    cw_stamp stamp;
    bool only_read; /* waited for so as not to overwrite what it reads: its death harms nothing */
};

struct cw_stream {
    void *handle; /* CUstream; 0, 1, 2: default streams */
    uint64_t id;  /* of cuStreamGetId, since handles are used again; default streams: the GPU */
    struct cw_gpu *gpu;
    CUcontext context;
    CUstream proxy; /* of a default stream: ours, which waits for its events */
    bool waits;     /* counted among the CW_STREAM_WAITS_MAX */
    bool died;      /* something it waited for: to be told */
    struct cw_section *sections;
    uint32_t dependency_count;
    struct cw_dependency dependencies[CW_DEPENDENCIES_MAX];
    struct cw_stream *next;
};

/* The stamp of an open section: what its end will submit. */
static inline cw_stamp cw_section_stamp(const struct cw_section *section) {
    return cw_stamp_make(section->number, section->last + 1);
}
static inline bool cw_stream_is_default(const struct cw_stream *stream) {
    return (uintptr_t)stream->handle <= 2;
}

/* All of these with the fences' lock held, unless said otherwise. */

/* ---- stream.c ---- */

/* Opens a section on the stream of a handle, with room for so many arrays. -EOWNERDEAD: the stream
 * has waited for somebody who died (told once). -EINVAL: a capture, too many sections. -ENODEV: the
 * GPU's context has failed. gpu: for default streams. */
int cw_section_open(cw_client *client, struct cw_fences *fences, int gpu, void *handle,
                    uint32_t arrays, struct cw_section **out);
/* The open section of a call's end. -EINVAL: there is none. -ENODEV: its context broke meanwhile.
 */
int cw_section_find(struct cw_fences *fences, const cw_array *array, void *handle, bool writing,
                    struct cw_section **out);
/* Ours with that fence and open, or NULL. */
struct cw_section *cw_section_of(struct cw_fences *fences, uint32_t fence);
/* Ends it without work. */
void cw_section_cancel(struct cw_section *section);
/* Submits its value. Where the stream refuses, the fence is poisoned: it is never reached. */
int cw_section_submit(struct cw_section *section);

/* Makes a stream's context current, if it is not; cw_stream_leave() ends that. */
int cw_stream_enter(const struct cw_stream *stream, bool *pushed);
void cw_stream_leave(const struct cw_stream *stream, bool pushed);
/* What the driver said, about this stream. */
int cw_stream_failed(const struct cw_stream *stream, CUresult result, const char *what);
/* The address of a fence's value for GPUs; registers its page. A context is current. */
int cw_fence_address(const struct cw_cuda *cuda, struct cw_page_of_fences *page,
                     struct cw_fence *fence, CUdeviceptr *out);
/* Is nothing of it open or under way? */
bool cw_stream_is_quiet(const struct cw_stream *stream);
uint32_t cw_this_thread(void);

/* ---- dependency.c ---- */

/* What a stream is to wait for, collected for one call of the driver. Zeros but for the list. */
struct cw_waits {
    uint32_t count;
    bool decided, by_gpu;
    struct cw_dependency all[CW_DEPENDENCIES_MAX];
};

/* Is it one of ours on which all threads of this process copy? What one of them has begun there is
 * to be waited for by the others, since none knows in which order they come. */
bool cw_stream_is_shared(const struct cw_stream *stream);
/* -EINVAL: this thread has begun what the stamp stands for, and would wait for itself. */
int cw_stream_check_own_wait(struct cw_fences *fences, cw_stamp stamp);
/* Is that fence one of this stream's? Then the stream's own order is enough. */
bool cw_stream_owns(const struct cw_stream *stream, uint32_t fence);
/* Forgets what has passed, and notes what died: for its open sections, too. */
void cw_stream_prune(cw_client *client, struct cw_fences *fences, struct cw_stream *stream);
/* -EOWNERDEAD when somebody it waited for has died; once. section: that ends now, and has not been
 * told yet; else NULL. */
int cw_stream_tell(cw_client *client, struct cw_fences *fences, struct cw_stream *stream,
                   struct cw_section *section);
/* Somebody it waited for has died: to be told. */
void cw_stream_note_death(struct cw_stream *stream);
/* Of a dead process's stamp: who asked was told, so nobody else need be. */
void cw_stream_forget(struct cw_stream *stream, cw_stamp stamp);
/* It does not count among those that wait any more. */
void cw_stream_stop_waiting(struct cw_stream *stream);
/*
 * A stamp that the stream must wait for: noted in waits, or waited for by the CPU (until it is
 * submitted in any case; until it has passed where the stream cannot wait). 0, -EOWNERDEAD,
 * -ETIMEDOUT, -EINTR, -EINVAL (this thread would wait for itself). Gives the lock up meanwhile.
 * read_of (else NULL): the stamp is that of the read at a place there, found by who has the turn.
 * CW_TAKEN_BACK: the reader has met that turn and waits for it, so its stamp would never be
 * submitted; what stands there now counts.
 */
#define CW_TAKEN_BACK 1
int cw_stream_need(cw_client *client, struct cw_fences *fences, struct cw_stream *stream,
                   struct cw_waits *waits, cw_stamp stamp, struct cw_order *read_of, unsigned place,
                   struct cw_deadline *deadline);
/* Submits what was noted. What dies behind it the stream's end tells. Gives the lock up where the
 * CPU has to wait after all. */
int cw_stream_submit_waits(cw_client *client, struct cw_fences *fences, struct cw_stream *stream,
                           struct cw_waits *waits, struct cw_deadline *deadline);

#endif
