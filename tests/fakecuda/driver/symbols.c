/*
 * Names of calls: cuGetProcAddress, and that none is missing of those that cableway uses: the list
 * names them all, so the library does not link without one (-z defs).
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "tests/fakecuda/driver/context.h"

#include "ipc/cuda/calls.h"

typedef void any_call(void);

#define CW_CUDA_CALL(name) (any_call *)name,
#pragma GCC diagnostic ignored "-Wcast-function-type"
any_call *const fake_calls_used[] = {CW_CUDA_CALLS};
#undef CW_CUDA_CALL

/* The newest version of a call that this library has: names come without their version. */
CUresult cuGetProcAddress(const char *name, void **out, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult *result) {
    (void)flags;
    Dl_info self;
    char versioned[128];
    if (!name || !out || version < 2000)
        return CUDA_ERROR_INVALID_VALUE;
    *out = NULL;
    if (!dladdr((void *)(uintptr_t)fake_context_of, &self))
        return CUDA_ERROR_OPERATING_SYSTEM;
    void *library = dlopen(self.dli_fname, RTLD_NOLOAD | RTLD_LAZY);
    for (int i = 4; library && !*out && i > 0; i--) {
        snprintf(versioned, sizeof versioned, i > 1 ? "%s_v%d" : "%s", name, i);
        *out = dlsym(library, versioned);
    }
    if (library)
        dlclose(library);
    if (result)
        *result = *out ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
