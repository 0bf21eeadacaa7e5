/*
 * Atomic operations on shared words, each with a label.
 *
 * Every atomic in shared memory goes through these macros. The label (R1, L2, ...) is the row of
 * the operation in docs/MEMORY-MODEL.md and says with which other row it pairs. In a normal build
 * the label vanishes. With CW_MODEL defined (tests/model) the same source runs under an exhaustive
 * scheduler with store buffers, which may weaken one label at a time and must then find a failure.
 *
 * Orders: relaxed, acquire, release, acq_rel, seq_cst. seq_cst stands on BOTH sides wherever each
 * side stores and then looks at the other; operations are used rather than fences, since
 * ThreadSanitizer does not see fences.
 */
#ifndef CW_SHM_BASE_ATOMIC_H
#define CW_SHM_BASE_ATOMIC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef _Atomic uint32_t cw_a32;
typedef _Atomic uint64_t cw_a64;

#ifndef CW_MODEL

#define CW_LOAD(label, ptr, order)       atomic_load_explicit((ptr), memory_order_##order)
#define CW_STORE(label, ptr, val, order) atomic_store_explicit((ptr), (val), memory_order_##order)
#define CW_XCHG(label, ptr, val, order)  atomic_exchange_explicit((ptr), (val), memory_order_##order)
#define CW_ADD(label, ptr, val, order)   atomic_fetch_add_explicit((ptr), (val), memory_order_##order)
/* Strong compare-and-swap; *expected is updated on failure. The failure order is acquire. */
#define CW_CAS(label, ptr, expected, val, order)                                                   \
    atomic_compare_exchange_strong_explicit((ptr), (expected), (val), memory_order_##order,        \
                                            memory_order_acquire)
#define CW_PAUSE() __builtin_ia32_pause()
/* Asks for a line of the cache that we are about to read and then to write, and does not wait. */
#define CW_BRING(address) __asm__ volatile("prefetchw %0" ::"m"(*(const char *)(address)))

#else

enum cw_model_order { CW_MO_relaxed, CW_MO_acquire, CW_MO_release, CW_MO_acq_rel, CW_MO_seq_cst };

uint64_t cw_model_load(const char *label, const volatile void *ptr, unsigned size_bytes,
                       enum cw_model_order order);
void cw_model_store(const char *label, volatile void *ptr, unsigned size_bytes, uint64_t val,
                    enum cw_model_order order);
uint64_t cw_model_xchg(const char *label, volatile void *ptr, unsigned size_bytes, uint64_t val,
                       enum cw_model_order order);
uint64_t cw_model_add(const char *label, volatile void *ptr, unsigned size_bytes, uint64_t val,
                      enum cw_model_order order);
bool cw_model_cas(const char *label, volatile void *ptr, unsigned size_bytes, void *expected,
                  uint64_t val, enum cw_model_order order);
void cw_model_pause(void);

#define CW_LOAD(label, ptr, order)                                                                 \
    ((__typeof__(*(ptr) + 0))cw_model_load(#label, (ptr), sizeof *(ptr), CW_MO_##order))
#define CW_STORE(label, ptr, val, order)                                                           \
    cw_model_store(#label, (ptr), sizeof *(ptr), (uint64_t)(val), CW_MO_##order)
#define CW_XCHG(label, ptr, val, order)                                                            \
    ((__typeof__(*(ptr) + 0))cw_model_xchg(#label, (ptr), sizeof *(ptr), (uint64_t)(val),          \
                                           CW_MO_##order))
#define CW_ADD(label, ptr, val, order)                                                             \
    ((__typeof__(*(ptr) + 0))cw_model_add(#label, (ptr), sizeof *(ptr), (uint64_t)(val),           \
                                          CW_MO_##order))
#define CW_CAS(label, ptr, expected, val, order)                                                   \
    cw_model_cas(#label, (ptr), sizeof *(ptr), (expected), (uint64_t)(val), CW_MO_##order)
#define CW_PAUSE()        cw_model_pause()
#define CW_BRING(address) ((void)(address))

#endif
#endif
