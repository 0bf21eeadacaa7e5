/*
 * The memory of the model: see memory.h, and docs/MEMORY-MODEL.md for why it is the language's.
 *
 * Owned by the search; one execution at a time. Positions in views are positions in a word's list
 * of messages; a store that takes an earlier place moves the later ones up, in every view.
 */
#include "memory.h"

#include <stdlib.h>
#include <string.h>

#include "shm/base/atomic.h"

static struct memory_word words[MEMORY_WORDS];
static unsigned word_count;
struct memory_view memory_views[MODEL_THREADS];

static bool acquires(int order) {
    return order == CW_MO_acquire || order == CW_MO_acq_rel || order == CW_MO_seq_cst;
}

static bool releases(int order) {
    return order == CW_MO_release || order == CW_MO_acq_rel || order == CW_MO_seq_cst;
}

static void view_join(struct memory_view *into, const struct memory_view *from) {
    for (unsigned i = 0; i < word_count; i++)
        if (into->at[i] < from->at[i])
            into->at[i] = from->at[i];
}

static uint64_t real_value(const struct memory_word *word) {
    return word->size_bytes == 4 ? *(const volatile uint32_t *)word->ptr
                                 : *(const volatile uint64_t *)word->ptr;
}

/* Real memory follows the latest value: for code that reads plainly what it alone writes, and for
 * what is looked at in the end. */
static void real_write(const struct memory_word *word) {
    uint64_t value = word->messages[word->count - 1].value;
    if (word->size_bytes == 4)
        *(volatile uint32_t *)(uintptr_t)word->ptr = (uint32_t)value;
    else
        *(volatile uint64_t *)(uintptr_t)word->ptr = value;
}

static void word_reset(struct memory_word *word) {
    word->count = 1;
    word->seq_cst = 0;
    word->messages[0] = (struct memory_message){.value = word->ptr ? real_value(word) : 0};
}

void memory_forget(void) {
    word_count = 0;
}

void memory_reset(void) {
    memset(memory_views, 0, sizeof memory_views);
    for (unsigned i = 0; i < word_count; i++)
        word_reset(&words[i]);
}

static unsigned word_add(const volatile void *ptr, unsigned size_bytes) {
    if (word_count == MEMORY_WORDS) {
        fprintf(stderr, "model: more than %u words\n", MEMORY_WORDS);
        exit(2);
    }
    words[word_count].ptr = ptr;
    words[word_count].size_bytes = size_bytes;
    words[word_count].shadow = 0;
    word_reset(&words[word_count]);
    return word_count++;
}

unsigned memory_word(const volatile void *ptr, unsigned size_bytes) {
    for (unsigned i = 0; i < word_count; i++) {
        if (words[i].ptr != ptr)
            continue;
        if (words[i].size_bytes != size_bytes) {
            fprintf(stderr, "model: one word is accessed in two sizes\n");
            exit(2);
        }
        return i;
    }
    return word_add(ptr, size_bytes);
}

/* A plain word has two shadows a thread: how often it read the word plainly, and atomically. */
void memory_declare_plain(const volatile void *ptr) {
    unsigned word = memory_word(ptr, 8);
    if (words[word].shadow)
        return;
    unsigned first = word_count;
    for (unsigned i = 0; i < 2 * MODEL_THREADS; i++)
        word_add(NULL, 0);
    words[word].shadow = first;
}

static bool saw_reads(unsigned thread, unsigned first_shadow, unsigned stride_start) {
    for (unsigned t = 0; t < MODEL_THREADS; t++) {
        unsigned shadow = first_shadow + stride_start * MODEL_THREADS + t;
        if (t != thread && memory_views[thread].at[shadow] + 1u < words[shadow].count)
            return false;
    }
    return true;
}

static void note_read(unsigned thread, unsigned word, unsigned stride_start) {
    unsigned shadow = words[word].shadow;
    if (!shadow)
        return;
    shadow += stride_start * MODEL_THREADS + thread;
    if (words[shadow].count < 250)
        memory_views[thread].at[shadow] = (uint8_t)words[shadow].count++;
}

static void check_race(unsigned thread, unsigned index, bool writes) {
    const struct memory_word *word = &words[index];
    if (!word->shadow)
        return;
    for (unsigned m = memory_views[thread].at[index] + 1u; m < word->count; m++)
        if (word->messages[m].plain)
            model_fail("data race: an atomic meets a plain write that does not come before it");
    if (writes && !saw_reads(thread, word->shadow, 0))
        model_fail("data race: an atomic write meets a plain read that does not come before it");
}

uint64_t memory_plain_read(unsigned thread, const volatile void *ptr) {
    unsigned index = memory_word(ptr, 8);
    const struct memory_word *word = &words[index];
    if (memory_views[thread].at[index] + 1u < word->count)
        model_fail("data race: a plain read meets a write that does not come before it");
    note_read(thread, index, 0);
    return word->messages[word->count - 1].value;
}

/* Makes room for a message at this position; later ones move up, in every view. */
static struct memory_message *insert(unsigned index, unsigned position) {
    struct memory_word *word = &words[index];
    if (word->count == MEMORY_MESSAGES)
        model_fail("model: more than %u changes of one word", MEMORY_MESSAGES);
    if (position < word->count) {
        memmove(&word->messages[position + 1], &word->messages[position],
                (word->count - position) * sizeof word->messages[0]);
        for (unsigned t = 0; t < MODEL_THREADS; t++)
            memory_views[t].at[index] += memory_views[t].at[index] >= position;
        for (unsigned w = 0; w < word_count; w++)
            for (unsigned m = 0; words[w].ptr && m < words[w].count + (w == index); m++)
                if (w != index || m != position)
                    words[w].messages[m].released.at[index] +=
                        words[w].messages[m].released.at[index] >= position;
        word->seq_cst += word->seq_cst >= position;
    }
    word->count++;
    struct memory_message *message = &word->messages[position];
    memset(message, 0, sizeof *message);
    return message;
}

void memory_plain_write(unsigned thread, volatile void *ptr, uint64_t value) {
    unsigned index = memory_word(ptr, 8);
    struct memory_word *word = &words[index];
    if (memory_views[thread].at[index] + 1u < word->count)
        model_fail("data race: a plain write meets a write that does not come before it");
    if (!saw_reads(thread, word->shadow, 0) || !saw_reads(thread, word->shadow, 1))
        model_fail("data race: a plain write meets a read that does not come before it");
    unsigned position = word->count;
    struct memory_message *message = insert(index, position);
    message->value = value;
    message->plain = true;
    real_write(word);
    memory_views[thread].at[index] = (uint8_t)position;
    message->released.at[index] = (uint8_t)position;
}

/* Alternatives are told by the message that is read, or after which the store comes: newest first.
 */
static bool possible(unsigned thread, const struct memory_op *op, unsigned m) {
    const struct memory_word *word = &words[op->word];
    bool sc = op->order == CW_MO_seq_cst,
         free_after = m + 1 == word->count || !word->messages[m + 1].rmw;
    switch (op->kind) {
    case MEMORY_LOAD:
        return m >= memory_views[thread].at[op->word] && (!sc || m >= word->seq_cst);
    case MEMORY_CAS:
        if (word->messages[m].value != op->expected) /* the failing CAS is an acquire load */
            return m >= memory_views[thread].at[op->word];
        break;
    default:
        break;
    }
    return m >= memory_views[thread].at[op->word] && (!sc || m >= word->seq_cst) && free_after;
}

unsigned memory_alternatives(unsigned thread, const struct memory_op *op) {
    unsigned count = 0;
    for (unsigned m = memory_views[thread].at[op->word]; m < words[op->word].count; m++)
        count += possible(thread, op, m);
    return count;
}

static void read_message(unsigned thread, const struct memory_op *op, unsigned m, bool acquire,
                         bool sc) {
    struct memory_view *view = &memory_views[thread];
    view->at[op->word] = (uint8_t)m;
    if (acquire)
        view_join(view, &words[op->word].messages[m].released);
    if (sc && words[op->word].seq_cst < m)
        words[op->word].seq_cst = m;
}

static void write_message(unsigned thread, const struct memory_op *op, unsigned after,
                          uint64_t value) {
    struct memory_word *word = &words[op->word];
    struct memory_message *message = insert(op->word, after + 1);
    struct memory_view *view = &memory_views[thread];
    message->value = word->size_bytes == 4 ? (uint32_t)value : value;
    real_write(word);
    message->rmw = op->kind != MEMORY_STORE;
    view->at[op->word] = (uint8_t)(after + 1);
    message->released.at[op->word] = (uint8_t)(after + 1);
    if (releases(op->order))
        message->released = *view;
    if (message->rmw) /* a read-modify-write continues what the message before it released */
        view_join(&message->released, &word->messages[after].released);
    if (op->order == CW_MO_seq_cst && word->seq_cst < after + 1)
        word->seq_cst = after + 1;
}

uint64_t memory_act(unsigned thread, const struct memory_op *op, unsigned alternative,
                    bool *stored) {
    unsigned m = words[op->word].count;
    do
        m--;
    while (!possible(thread, op, m) || alternative-- > 0);
    uint64_t value = words[op->word].messages[m].value;
    bool sc = op->order == CW_MO_seq_cst, fails = op->kind == MEMORY_CAS && value != op->expected;
    *stored = !fails && op->kind != MEMORY_LOAD;
    check_race(thread, op->word, *stored);
    if (op->kind != MEMORY_STORE) {
        read_message(thread, op, m, fails || acquires(op->order), sc && !fails);
        note_read(thread, op->word, 1);
    }
    if (*stored)
        write_message(thread, op, m, op->kind == MEMORY_ADD ? value + op->value : op->value);
    return value;
}

uint64_t memory_latest(unsigned word) {
    return words[word].messages[words[word].count - 1].value;
}

void memory_catch_up(unsigned thread, unsigned word) {
    memory_views[thread].at[word] = (uint8_t)(words[word].count - 1);
}

void memory_join(unsigned into, unsigned from) {
    view_join(&memory_views[into], &memory_views[from]);
}

static uint64_t view_hash(uint64_t hash, const struct memory_view *view, const uint8_t *base) {
    uint64_t piece = 0;
    for (unsigned i = 0; i < word_count; i++) {
        uint8_t at = view->at[i] > base[i] ? (uint8_t)(view->at[i] - base[i]) : 0;
        piece = piece << 8 | at;
        if ((i & 7) == 7 || i + 1 == word_count) {
            hash = memory_mix(hash, piece);
            piece = 0;
        }
    }
    return hash;
}

/* Messages that nobody can read any more are left out, so that states that differ in the past alone
 * are one. */
uint64_t memory_hash(uint64_t hash, unsigned running) {
    uint8_t base[MEMORY_WORDS];
    for (unsigned i = 0; i < word_count; i++) {
        base[i] = (uint8_t)(words[i].count - 1);
        for (unsigned t = 0; t < MODEL_THREADS; t++)
            if ((running >> t & 1) && memory_views[t].at[i] < base[i])
                base[i] = memory_views[t].at[i];
    }
    for (unsigned t = 0; t < MODEL_THREADS; t++)
        hash = view_hash(hash, &memory_views[t], base);
    for (unsigned i = 0; i < word_count; i++) {
        const struct memory_word *word = &words[i];
        unsigned sc = word->seq_cst > base[i] ? word->seq_cst - base[i] : 0;
        hash = memory_mix(hash, (uint64_t)(word->count - base[i]) << 8 | sc);
        for (unsigned m = base[i]; word->ptr && m < word->count; m++) {
            const struct memory_message *message = &word->messages[m];
            hash = memory_mix(hash, message->value);
            hash = memory_mix(hash, (unsigned)message->rmw << 1 | (unsigned)message->plain);
            hash = view_hash(hash, &message->released, base);
        }
    }
    return hash;
}
