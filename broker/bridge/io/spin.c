/*
 * Awake: see spin.h.
 */
#include "broker/bridge/io/spin.h"

#include "shm/base/wait.h"

void cwb_awake_init(struct cwb_awake *awake, unsigned cores) {
    *awake = (struct cwb_awake){.spare = cores >= CWB_AWAKE_CORES};
}

/* The answer came, or its asker went. */
static void judge(struct cwb_awake *awake, int64_t now_ns) {
    if (now_ns - awake->asked_ns <= CW_SPIN_NS) {
        awake->vain = 0;
    } else {
        awake->naps = awake->vain ? 1u << (awake->vain - 1) : 0;
        awake->vain += awake->vain <= CWB_AWAKE_NAPS;
    }
    awake->asked_ns = 0;
}

void cwb_awake_asked(struct cwb_awake *awake, int64_t now_ns) {
    if (awake->asked_ns && now_ns - awake->asked_ns > CW_SPIN_NS)
        judge(awake, now_ns);
    if (!awake->spare || awake->asked_ns)
        return;
    if (awake->naps) {
        awake->naps--;
        return;
    }
    awake->asked_ns = now_ns;
    awake->until_ns = now_ns + CW_SPIN_NS;
}

void cwb_awake_answered(struct cwb_awake *awake, bool again, int64_t now_ns) {
    if (awake->asked_ns)
        judge(awake, now_ns);
    if (again)
        awake->until_ns = now_ns + CW_SPIN_NS;
}

void cwb_awake_served(struct cwb_awake *awake, int64_t *last_ns, int64_t now_ns) {
    bool again = *last_ns && now_ns - *last_ns <= CW_SPIN_NS;
    *last_ns = now_ns;
    if (awake->spare && again)
        awake->until_ns = now_ns + CW_SPIN_NS;
}

void cwb_awake_end(struct cwb_awake *awake) {
    awake->until_ns = 0;
}
