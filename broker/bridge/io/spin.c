/*
 * The spin policy: see spin.h.
 */
#include "broker/bridge/io/spin.h"

#include "shm/base/wait.h"

void cwb_spin_init(struct cwb_spin *spin, unsigned cores) {
    *spin = (struct cwb_spin){.spare = cores >= CWB_SPIN_CORES};
}

/* The answer came, or its asker went. */
static void judge(struct cwb_spin *spin, int64_t now_ns) {
    if (now_ns - spin->asked_ns <= CW_SPIN_NS) {
        spin->misses = 0;
    } else {
        spin->backoff = spin->misses ? 1u << (spin->misses - 1) : 0;
        spin->misses += spin->misses <= CWB_SPIN_BACKOFF_MAX;
    }
    spin->asked_ns = 0;
}

void cwb_spin_asked(struct cwb_spin *spin, int64_t now_ns) {
    if (spin->asked_ns && now_ns - spin->asked_ns > CW_SPIN_NS)
        judge(spin, now_ns);
    if (!spin->spare || spin->asked_ns)
        return;
    if (spin->backoff) {
        spin->backoff--;
        return;
    }
    spin->asked_ns = now_ns;
    spin->until_ns = now_ns + CW_SPIN_NS;
}

void cwb_spin_answered(struct cwb_spin *spin, bool again, int64_t now_ns) {
    if (spin->asked_ns)
        judge(spin, now_ns);
    if (again)
        spin->until_ns = now_ns + CW_SPIN_NS;
}

void cwb_spin_served(struct cwb_spin *spin, int64_t *last_ns, int64_t now_ns) {
    bool again = *last_ns && now_ns - *last_ns <= CW_SPIN_NS;
    *last_ns = now_ns;
    if (spin->spare && again)
        spin->until_ns = now_ns + CW_SPIN_NS;
}

void cwb_spin_end(struct cwb_spin *spin) {
    spin->until_ns = 0;
}
