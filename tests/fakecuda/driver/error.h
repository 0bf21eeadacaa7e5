/*
 * Errors of CUDA by number and name.
 */
#ifndef CW_TESTS_FAKECUDA_DRIVER_ERROR_H
#define CW_TESTS_FAKECUDA_DRIVER_ERROR_H

#include <cuda.h>
#include <stdbool.h>

/* The error of a whole name; CUDA_SUCCESS if there is none. */
CUresult fake_error_find(const char *name);
/* Errors after which a context can do nothing more. */
bool fake_error_sticky(CUresult code);

#endif
