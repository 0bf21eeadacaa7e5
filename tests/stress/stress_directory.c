/*
 * The directory under threads: a writer that puts, replaces, removes and grows; readers that look
 * up and walk. A name that stands is found at every moment, also while it is replaced; what is
 * found is whole; a walk meets each standing name exactly once. Clean under ThreadSanitizer.
 */
#include <pthread.h>

#include "shm/names/directory.h"
#include "shm/base/error.h"
#include "tests/support.h"

#define READERS  2
#define STANDING 8    /* names that are always there, replaced again and again */
#define PASSING  200  /* names that come and go */
#define CROWD    1500 /* names that come once in a while and force a new index */

static struct cw_directory_root root;
static struct cw_directory_writer *writer;
static pthread_mutex_t writer_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool stop;
static cw_a64 found_count, walk_count, missed_count;

/* What a client's request to the broker does: the broker answers between two of its steps. */
static int fetch(void *context, uint32_t kind, uint64_t which, struct cw_segment *out) {
    (void)context;
    const struct cw_segment *segment;
    int fd = -1;
    uint64_t size_bytes = 0;
    pthread_mutex_lock(&writer_lock);
    int code = cw_directory_segment(writer, kind, which, &segment);
    if (code == 0) {
        fd = dup(segment->fd);
        size_bytes = segment->size_bytes;
    }
    pthread_mutex_unlock(&writer_lock);
    return code ? code : cw_segment_open(fd, size_bytes, kind, false, 0, out);
}

static size_t key_of(char *key, uint64_t number) {
    return (size_t)sprintf(key, "name/%llu", (unsigned long long)number);
}

static void put(uint64_t number, uint64_t version) {
    char key[CW_KEY_MAX];
    uint8_t meta[CW_META_MAX];
    size_t meta_bytes = version * 37 % 900;
    memset(meta, (int)(number + version), meta_bytes);
    struct cw_entry entry = {.slab = (uint32_t)number, .gen = version, .size_bytes = meta_bytes},
                    old;
    bool replaced;
    CW_ASSERT(cw_directory_put(writer, key, key_of(key, number), &entry, meta, meta_bytes, true,
                               &replaced, &old) == 0);
}

static void check(const struct cw_found *found, uint64_t number) {
    char key[CW_KEY_MAX];
    size_t key_bytes = key_of(key, number);
    CW_ASSERT(found->entry.slab == number && found->entry.key_bytes == key_bytes);
    CW_ASSERT(memcmp(found->key, key, key_bytes) == 0);
    CW_ASSERT(found->entry.meta_bytes == found->entry.gen * 37 % 900);
    for (unsigned i = 0; i < found->entry.meta_bytes; i++)
        CW_ASSERT(found->meta[i] == (uint8_t)(number + found->entry.gen));
}

static void walk(struct cw_directory_reader *reader, struct cw_found *found) {
    uint8_t seen[STANDING] = {0};
    uint64_t cursor = 0;
    int code;
    while ((code = cw_directory_next(reader, &cursor, found)) == 1) {
        check(found, found->entry.slab);
        if (found->entry.slab < STANDING)
            CW_ASSERT(seen[found->entry.slab]++ == 0);
    }
    CW_ASSERT(code == 0 || code == -EAGAIN);
    for (int i = 0; code == 0 && i < STANDING; i++)
        CW_ASSERT(seen[i] == 1);
    if (code == 0)
        atomic_fetch_add(&walk_count, 1);
}

static void *read_all_the_time(void *stream) {
    struct cw_directory_reader reader;
    struct cw_found *found = malloc(sizeof *found);
    struct chance chance = chance_init((uintptr_t)stream);
    uint64_t hits = 0, misses = 0, last[STANDING] = {0};
    cw_directory_reader_init(&reader, &root, fetch, NULL);
    while (!atomic_load(&stop)) {
        char key[CW_KEY_MAX];
        uint64_t number = chance_below(&chance, chance_below(&chance, 2) ? STANDING : PASSING);
        int code = cw_directory_find(&reader, key, key_of(key, number), found);
        if (code == 0) {
            check(found, number);
            hits++;
        }
        CW_ASSERT(code == 0 || (code == -ENOENT && number >= STANDING));
        misses += code != 0;
        if (number < STANDING) {
            CW_ASSERT(found->entry.id >= last[number]); /* never an older one than before */
            last[number] = found->entry.id;
        }
        if (chance_below(&chance, 500) == 0)
            walk(&reader, found);
    }
    cw_directory_reader_deinit(&reader);
    free(found);
    atomic_fetch_add(&found_count, hits);
    atomic_fetch_add(&missed_count, misses);
    return NULL;
}

static void change(uint64_t round, struct chance *chance) {
    char key[CW_KEY_MAX];
    struct cw_entry old;
    uint64_t number = chance_below(chance, PASSING);
    if (number < STANDING || chance_below(chance, 3))
        put(number < STANDING || chance_below(chance, 2) ? number : chance_below(chance, STANDING),
            round);
    else
        (void)cw_directory_remove(writer, key, key_of(key, number), &old);
    const uint64_t crowd = PASSING + round / 20000 * CROWD; /* other names each time */
    if (round % 20000 == 10000) /* a crowd comes: the index is built anew, larger */
        for (uint64_t i = 0; i < CROWD; i++)
            put(crowd + i, round);
    if (round % 20000 == 15000) /* and leaves its tombstones */
        for (uint64_t i = 0; i < CROWD; i++)
            (void)cw_directory_remove(writer, key, key_of(key, crowd + i), &old);
}

int main(void) {
    const uint64_t rounds = test_rounds(1500000);
    struct chance chance = chance_init(1);
    pthread_t threads[READERS];
    CW_ASSERT(cw_directory_writer_new(&root, 100000, 1, &writer) == 0);
    for (uint64_t i = 0; i < STANDING; i++)
        put(i, 0);
    for (uintptr_t i = 0; i < READERS; i++)
        CW_ASSERT(pthread_create(&threads[i], NULL, read_all_the_time, (void *)(i + 2)) == 0);
    for (uint64_t round = 1; round <= rounds; round++) {
        pthread_mutex_lock(&writer_lock);
        change(round, &chance);
        pthread_mutex_unlock(&writer_lock);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < READERS; i++)
        pthread_join(threads[i], NULL);
    uint64_t indexes = atomic_load(&root.index_id);
    cw_directory_writer_free(writer);
    CW_ASSERT(found_count > 0);
    printf("stress_directory: %llu found whole, %llu true misses, %llu whole walks, %llu indexes\n",
           (unsigned long long)found_count, (unsigned long long)missed_count,
           (unsigned long long)walk_count, (unsigned long long)indexes);
    return 0;
}
