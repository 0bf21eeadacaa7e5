/*
 * Host memory of ours for NumPy's arrays: see numpy_memory.h, and NumPy's NEP 49 for the handler.
 *
 * A large array lies in a block of ours from the beginning. Once nobody in this process can write
 * to it any more, because the array itself is gone, the block can be what others open: nothing is
 * copied. Whoever asks for the block's array here (cwpy_numpy_array()) opens the block, and lets go
 * of NumPy's array before he tells anybody.
 *
 * Invariants
 *   M1  A piece is in the table (NumPy has it), or its array is closed.
 *   M2  After a fork a piece's bytes here may be others than in its block: it is private, and its
 *       array is never given out.
 *   M3  Who is refused gets memory of the handler beneath. What we gave is told from what that gave
 *       by the table alone, never by a size.
 *
 * A fork makes all pieces private first, here and so in the child: as with ordinary memory neither
 * sees what the other writes. The child has no memory of ours to give, but gives back what it
 * inherited. If this process dies its leases go; what others opened stays. If the broker dies
 * memory stays as it is, and new arrays come from beneath.
 *
 * Owner: the lock, which is not held while the broker is asked. NumPy calls from any thread, mostly
 * with the GIL, so nothing here takes long: pages come as they are written, when NumPy holds it no
 * more.
 */
#include "numpy_memory.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BUCKETS      1024u
#define LEAST_BYTES  (1ull << 20) /* of an array with CW_OWN_PAGES */
#define PAGE         4096u
#define ZEROS_BYTES  (64ull << 20) /* of a calloc(): used memory is cleared at once, some 6 ms */
#define REFUSED_NS   1000000000ll  /* for which nothing is asked for after that was refused */
#define HANDLER_NAME "cableway"
#define API_VERSION  1

/* As in numpy/ndarraytypes.h, which stays so (NEP 49). */
struct allocator {
    void *context;
    void *(*malloc)(void *context, size_t size);
    void *(*calloc)(void *context, size_t count, size_t size);
    void *(*realloc)(void *context, void *memory, size_t size);
    void (*free)(void *context, void *memory, size_t size);
};
struct handler {
    char name[127];
    uint8_t version;
    struct allocator allocator;
};

struct piece {
    void *memory;
    uint64_t size_bytes;
    cw_array *array;
    bool private; /* M2 */
    struct piece *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cw_client *client; /* one reference */
static pid_t owner;       /* the process that this is about */
static uint64_t least_bytes;
static bool allowed = true;
static uint32_t reused; /* CW_REUSED, or 0 */
static struct piece *table[BUCKETS];
static uint64_t bytes;     /* of pieces that are not private */
static int64_t refused_ns; /* when something was refused last */
static const struct allocator *beneath;

static struct piece **bucket(const void *memory) {
    return &table[((uintptr_t)memory / PAGE) * 2654435769u % BUCKETS];
}

/* The lock is held. */
static struct piece **find(const void *memory) {
    struct piece **at = bucket(memory);
    while (*at && (*at)->memory != memory)
        at = &(*at)->next;
    return at;
}

static void enter(struct piece *piece) {
    piece->next = *bucket(piece->memory);
    *bucket(piece->memory) = piece;
    bytes += piece->size_bytes;
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

/* A new piece; NULL: it was refused. */
static struct piece *make(uint64_t size_bytes, uint32_t flags) {
    int64_t shape = (int64_t)size_bytes;
    const cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &shape, .dtype = "|u1"};
    struct piece *piece = malloc(sizeof *piece);
    pthread_mutex_lock(&lock);
    cw_client *with = refused_ns && now_ns() - refused_ns < REFUSED_NS ? NULL : client;
    if (with)
        cw_client_ref(with);
    pthread_mutex_unlock(&lock);
    if (!piece || !with) {
        free(piece);
        if (with)
            cw_client_unref(with);
        return NULL;
    }
    *piece = (struct piece){.size_bytes = size_bytes};
    int code = cw_array_new(with, "cpu", &layout, flags | reused | CW_OWN_PAGES, &piece->array);
    cw_client_unref(with);
    bool fits = code == 0 && (uintptr_t)cw_array_data(piece->array) % PAGE == 0;
    if (code == 0 && !fits)
        cw_array_close(piece->array);
    pthread_mutex_lock(&lock);
    if (fits) {
        piece->memory = cw_array_data(piece->array);
        enter(piece);
    } else if (code != -EAGAIN)
        refused_ns = now_ns();
    pthread_mutex_unlock(&lock);
    if (fits)
        return piece;
    free(piece);
    return NULL;
}

static bool is_ours(uint64_t size_bytes) {
    return size_bytes >= least_bytes && size_bytes < INT64_MAX / 2 && allowed && owner == getpid();
}

static void *numpy_malloc(void *context, size_t size) {
    (void)context;
    struct piece *piece = is_ours(size) ? make(size, 0) : NULL;
    return piece ? piece->memory : beneath->malloc(beneath->context, size);
}

static void *numpy_calloc(void *context, size_t number, size_t size) {
    (void)context;
    size_t whole;
    if (__builtin_mul_overflow(number, size, &whole) || !is_ours(whole) || whole > ZEROS_BYTES)
        return beneath->calloc(beneath->context, number, size);
    struct piece *piece = make(whole, CW_ZERO);
    return piece ? piece->memory : beneath->calloc(beneath->context, number, size);
}

/* Takes a piece from NumPy, and ends it. False: it is none of ours. */
static bool give(void *memory) {
    if ((uintptr_t)memory % PAGE)
        return false;
    pthread_mutex_lock(&lock);
    struct piece **at = find(memory), *piece = *at;
    if (piece) {
        *at = piece->next;
        if (!piece->private)
            bytes -= piece->size_bytes;
    }
    pthread_mutex_unlock(&lock);
    if (!piece)
        return false;
    cw_array_close(piece->array);
    free(piece);
    return true;
}

static void numpy_free(void *context, void *memory, size_t size) {
    (void)context;
    if (memory && !give(memory))
        beneath->free(beneath->context, memory, size);
}

static void *numpy_realloc(void *context, void *memory, size_t size) {
    uint64_t had = 0;
    if (memory && (uintptr_t)memory % PAGE == 0) {
        pthread_mutex_lock(&lock);
        struct piece *piece = *find(memory);
        had = piece ? piece->size_bytes : 0;
        pthread_mutex_unlock(&lock);
    }
    if (!had)
        return beneath->realloc(beneath->context, memory, size);
    void *moved = numpy_malloc(context, size ? size : 1);
    if (moved) {
        memcpy(moved, memory, had < size ? had : size);
        give(memory);
    }
    return moved;
}

/* ---- fork ---- */

static void before_fork(void) {
    pthread_mutex_lock(&lock);
    if (owner != getpid())
        return;
    for (unsigned i = 0; i < BUCKETS; i++)
        for (struct piece *piece = table[i]; piece; piece = piece->next)
            if (!piece->private && cw_array_make_private(piece->array) == 0) {
                piece->private = true;
                bytes -= piece->size_bytes;
            }
}

static void after_fork(void) {
    pthread_mutex_unlock(&lock);
}

static void in_child(void) {
    pthread_mutex_init(&lock, NULL);
}

/* ---- the package's side ---- */

void *cwpy_numpy_handler(cw_client *with, uint64_t least, int only_reused, const void *below) {
    static struct handler handler = {
        .name = HANDLER_NAME,
        .version = API_VERSION,
        .allocator = {NULL, numpy_malloc, numpy_calloc, numpy_realloc, numpy_free}};
    static bool has_handlers;
    if (owner && owner != getpid())
        return NULL;
    cw_client_ref(with);
    pthread_mutex_lock(&lock);
    cw_client *before = client;
    bool can = has_handlers || pthread_atfork(before_fork, after_fork, in_child) == 0;
    if (can) {
        has_handlers = true;
        client = with;
        owner = getpid();
        least_bytes = least < LEAST_BYTES ? LEAST_BYTES : least;
        refused_ns = 0;
        reused = only_reused ? CW_REUSED : 0;
        if (!beneath)
            beneath = &((const struct handler *)below)->allocator;
    }
    pthread_mutex_unlock(&lock);
    if (!can)
        cw_client_unref(with);
    else if (before)
        cw_client_unref(before);
    return can ? &handler : NULL;
}

cw_array *cwpy_numpy_array(cw_client *with, const void *memory, uint64_t size_bytes) {
    cw_array *found = NULL;
    if (owner != getpid() || (uintptr_t)memory % PAGE)
        return NULL;
    pthread_mutex_lock(&lock);
    struct piece *piece = *find(memory);
    if (piece && !piece->private && piece->size_bytes == size_bytes &&
        cw_array_client(piece->array) == with)
        found = piece->array;
    pthread_mutex_unlock(&lock);
    return found;
}

void cwpy_numpy_allow(int now) {
    allowed = now;
}

uint64_t cwpy_numpy_bytes(void) {
    pthread_mutex_lock(&lock);
    uint64_t now = bytes;
    pthread_mutex_unlock(&lock);
    return now;
}
