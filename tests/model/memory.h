/*
 * The memory of the model: words with their history, and what each thread has seen of them.
 *
 * A word is the list of its changes in their one order (modification order). A thread's view says,
 * for each word, the oldest change that it may still read. A message (one change) carries the view
 * that its writer released with it; an acquire load joins that view into the reader's. So a thread
 * that reads an old value is one that a store buffer, a cache or the compiler has kept behind.
 */
#ifndef CW_TESTS_MODEL_MEMORY_H
#define CW_TESTS_MODEL_MEMORY_H

#include "model.h"

#define MEMORY_WORDS    120u /* words and the shadows of plain words */
#define MEMORY_MESSAGES 40u

struct memory_view {
    uint8_t at[MEMORY_WORDS];
};

struct memory_message {
    uint64_t value;
    bool rmw;   /* made by a read-modify-write: nothing may come between it and the one before */
    bool plain; /* written without an atomic */
    struct memory_view released;
};

struct memory_word {
    const volatile void *ptr; /* NULL: a shadow, which counts reads of one thread */
    unsigned size_bytes;
    unsigned count;
    unsigned seq_cst; /* latest message that a seq_cst operation wrote or read */
    unsigned shadow;  /* plain words: index of the first shadow, else 0 */
    struct memory_message messages[MEMORY_MESSAGES];
};

struct memory_op {
    enum memory_kind { MEMORY_LOAD, MEMORY_STORE, MEMORY_XCHG, MEMORY_ADD, MEMORY_CAS } kind;
    unsigned word;
    int order; /* enum cw_model_order, weakened already */
    uint64_t value, expected;
};

extern struct memory_view memory_views[MODEL_THREADS];

/* Forgets every word: another scenario. */
void memory_forget(void);
/* Begins an execution: every known word has one message, its value in real memory. */
void memory_reset(void);
unsigned memory_word(const volatile void *ptr, unsigned size_bytes);
void memory_declare_plain(const volatile void *ptr);

/* In how many ways this operation can act now; then does it in way number alternative (the first
 * one is the one that an ordinary machine would take). Returns the value read; *stored: CAS. */
unsigned memory_alternatives(unsigned thread, const struct memory_op *op);
uint64_t memory_act(unsigned thread, const struct memory_op *op, unsigned alternative,
                    bool *stored);
uint64_t memory_plain_read(unsigned thread, const volatile void *ptr);
void memory_plain_write(unsigned thread, volatile void *ptr, uint64_t value);
uint64_t memory_latest(unsigned word);
/* The thread has seen this word's latest value, without acquiring anything. */
void memory_catch_up(unsigned thread, unsigned word);
/* All that thread from did comes before what thread into does next. */
void memory_join(unsigned into, unsigned from);
/* The state, for recognising it again. running: bit t, thread t may still act. */
uint64_t memory_hash(uint64_t seed, unsigned running);

static inline uint64_t memory_mix(uint64_t hash, uint64_t value) {
    __uint128_t product =
        (__uint128_t)(hash ^ value ^ 0x9e3779b97f4a7c15ull) * 0xd6e8feb86659fd93ull;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

#endif
