/*
 * Faults on demand. A specification is a list of NAME[@N[+]]=ACTION, separated by commas.
 *
 * NAME is a call, by its name in cuda.h (cuMemCreate), or a kind of work on streams as it begins to
 * run: copy, fill, write, wait, kernel, host, record. N counts from 1 and means the N-th such call
 * or work of this process; N+ that and all later; without it every one.
 * ACTION:
 *   ERROR     the name of a CUDA error without CUDA_ERROR_ (OUT_OF_MEMORY): a call returns it and
 *             does nothing; work fails with it, asynchronously. An error that is sticky on the real
 *             driver (ILLEGAL_ADDRESS, LAUNCH_FAILED, UNKNOWN ...) breaks the context in both cases
 *   hang      work: it never ends; its thread is called FAKE_HANGS from then on, for others to see
 *   delay:US  it begins so many microseconds later; of work: its thread is called FAKE_WAITS
 *   until:F   work: it begins once there is a file F (a path without a comma); called so, too
 *   lose      the device is lost, for all processes
 *   kill      the process kills itself here, by SIGKILL
 */
#ifndef CW_TESTS_FAKECUDA_DRIVER_FAULT_H
#define CW_TESTS_FAKECUDA_DRIVER_FAULT_H

#include <cuda.h>
#include <stdint.h>

#define FAKE_FILE_BYTES 256
#define FAKE_HANGS      "fakecuda-hangs" /* at most 15 bytes */
#define FAKE_WAITS      "fakecuda-waits"

enum fake_action {
    FAKE_NOTHING,
    FAKE_ERROR,
    FAKE_HANG,
    FAKE_DELAY,
    FAKE_UNTIL,
    FAKE_LOSE,
    FAKE_KILL
};

struct fake_fault {
    enum fake_action action;
    CUresult error;
    uint64_t delay_us;
    char file[FAKE_FILE_BYTES];
};

/* Replaces all faults. Also for tests, by dlsym, in the midst of a run; counts begin anew. */
CUresult fakecuda_faults(const char *specification);
/* Reads CABLEWAY_FAKECUDA_FAULTS. */
CUresult fake_fault_load(void);
/* Counts one more NAME, and tells what shall happen. kill has happened already. */
struct fake_fault fake_fault_next(const char *name);
void fake_delay_us(uint64_t delay_us);

#endif
