/*
 * What the test double pretends to be: read once from the environment, at the first cuInit.
 *
 * Devices are counted in two ways: by *index*, 0 to device_count-1, the same in all processes; and
 * by *ordinal*, the process's own order after CUDA_VISIBLE_DEVICES. CUdevice is an ordinal, all
 * else here is an index.
 */
#ifndef CW_TESTS_FAKECUDA_DRIVER_CONFIG_H
#define CW_TESTS_FAKECUDA_DRIVER_CONFIG_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#define FAKE_DEVICES_MAX  65 /* one more than CW_GPUS_MAX */
#define FAKE_GRANULARITY  (2u << 20)
#define FAKE_VARIABLE_MAX 4096

struct fake_config {
    int device_count;
    CUuuid uuid[FAKE_DEVICES_MAX];
    bool peer[FAKE_DEVICES_MAX][FAKE_DEVICES_MAX]; /* true: a can reach b's memory */
    uint64_t memory_bytes;                         /* of each device */
    uint64_t context_bytes;                        /* taken by each context */
    bool fd_export;                                /* memory can be exported as a descriptor */
    bool batch;                                    /* there is a call for many copies */
    bool wait64;                                   /* streams can wait for 64-bit words */
    bool mig;                                      /* each device is an instance of MIG */
    int mode;           /* CU_COMPUTEMODE_DEFAULT, _PROHIBITED or _EXCLUSIVE_PROCESS */
    int driver;         /* as cuDriverGetVersion has it: 13000 */
    int waits;          /* this many waiting streams of a context freeze its other streams */
    uint64_t late_ms;   /* see late.h; 0: nothing is written after a death */
    bool late_keeps;    /* who writes late also keeps the dead process's descriptors */
    const char *folder; /* of the card's file */
    int visible[FAKE_DEVICES_MAX]; /* index by ordinal */
    int visible_count;
};

extern struct fake_config fake_config;

/* Reads the environment. A value that makes no sense: a sentence on stderr, and an error. */
CUresult fake_config_load(void);
/* The ordinal of an index in this process; -1 if it is masked out. */
int fake_config_ordinal(int index);
/* A sentence about a wrong variable; returns CUDA_ERROR_INVALID_VALUE. */
CUresult fake_config_wrong(const char *variable, const char *value, const char *should);

#endif
