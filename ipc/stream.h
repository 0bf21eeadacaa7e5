/*
 * Streams: what this process knows of a CUDA stream that works on arrays, and how it waits.
 *
 * A *section* is what lies between a begin and its end: work of one stream on one array. A section
 * has a fence of its own while it is open; its end submits the next value of that fence to the
 * stream. So each section is complete by itself, in whatever order the ends of one stream come, and
 * who waits for one of them does not wait for the others. A closed section's fence serves the next
 * one of the same stream: one writer, values only rise.
 *
 * What a stream was made to wait for (its *dependencies*) is kept until it has passed: a write
 * tells it in its record, so that whoever reads the result hears of a death behind it.
 *
 * Owner: the fences' lock, never held while anything waits for other processes' work. If this
 * process dies in the middle its stamps stay, its turn too, and the broker takes both out.
 */
#ifndef CW_IPC_STREAM_H
#define CW_IPC_STREAM_H

#include "ipc/cuda_backend.h"
#include "ipc/fence.h"

#define CW_DEPENDENCIES_MAX 64u /* stamps that one stream keeps; for more, the CPU waits */
#define CW_SECTIONS_MAX     64u /* open on one stream at once */

struct cw_section {
    struct cw_stream *stream;
    const cw_array *array; /* NULL: not open */
    bool writing;
    uint32_t thread; /* that began it */
    uint32_t number; /* of its fence */
    struct cw_fence *fence;
    CUdeviceptr address; /* of the fence's value, for the GPU */
    uint64_t last;       /* value submitted; the open section's is the next one */
    struct cw_section *next;
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
    cw_stamp dependencies[CW_DEPENDENCIES_MAX];
    struct cw_stream *next;
};

/* The stamp of an open section: what its end will submit. */
static inline cw_stamp cw_section_stamp(const struct cw_section *section) {
    return cw_stamp_make(section->number, section->last + 1);
}

/* All of these with the fences' lock held, unless said otherwise. */

/* Opens a section on the stream of a handle. -EOWNERDEAD: the stream has waited for somebody who
 * died (told once). -EINVAL: a capture, too many sections. gpu: for default streams. */
int cw_section_open(cw_client *client, struct cw_fences *fences, cw_array *array, void *handle,
                    bool writing, struct cw_section **out);
/* The open section of a call's end. -EINVAL: there is none. */
int cw_section_find(struct cw_fences *fences, const cw_array *array, void *handle, bool writing,
                    struct cw_section **out);
/* Ours with that fence and open, or NULL. */
struct cw_section *cw_section_of(struct cw_fences *fences, uint32_t fence);
/* Ends it without work. */
void cw_section_cancel(struct cw_section *section);
/* Submits its value. Where the stream refuses, the fence is poisoned: it is never reached. */
int cw_section_submit(struct cw_section *section);

/* Is that fence one of this stream's? Then the stream's own order is enough. */
bool cw_stream_owns(const struct cw_stream *stream, uint32_t fence);
/* Forgets what has passed, and notes what died. */
void cw_stream_prune(cw_client *client, struct cw_fences *fences, struct cw_stream *stream);
/* -EOWNERDEAD when somebody it waited for has died; once. */
int cw_stream_tell(cw_client *client, struct cw_fences *fences, struct cw_stream *stream);
/* Lets the stream, or the CPU, wait for a stamp. 0, -EOWNERDEAD, -ETIMEDOUT, -EINTR, -EINVAL (this
 * thread would wait for itself). Without the lock. */
int cw_stream_wait_for(cw_client *client, struct cw_fences *fences, struct cw_stream *stream,
                       cw_stamp stamp, struct cw_patience *patience);
uint32_t cw_this_thread(void);

#endif
