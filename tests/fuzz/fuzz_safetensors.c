/*
 * Fuzzes the reader of .safetensors headers: whatever a file says, it is refused or understood;
 * what is understood is consistent, and formats again to what reads the same.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/base/error.h"
#include "tools/safetensors/safetensors.h"

#include "tools/safetensors/safetensors.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A file of these bytes, and so many zeros behind them. */
static int read_header(const void *data, size_t size, uint64_t zeros, struct npy *out) {
    int fd = memfd_create("safetensors", MFD_CLOEXEC);
    CW_ASSERT(fd >= 0 && write(fd, data, size) == (ssize_t)size && lseek(fd, 0, SEEK_SET) == 0);
    CW_ASSERT(ftruncate(fd, (off_t)(size + zeros)) == 0);
    int code = safetensors_read_header(fd, "fuzz.safetensors", out);
    close(fd);
    return code;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct npy first, second;
    uint32_t itemsize;
    if (read_header(data, size, 0, &first) != 0) {
        CW_ASSERT(strlen(cw_detail()) > 0);
        return 0;
    }
    CW_ASSERT(first.ndim <= CW_NDIM_MAX);
    CW_ASSERT(cw_dtype_size(first.dtype, &itemsize) == 0 && itemsize == first.itemsize);
    uint64_t elements = 1;
    for (uint32_t i = 0; i < first.ndim; i++) {
        CW_ASSERT(first.shape[i] >= 0);
        CW_ASSERT(!__builtin_mul_overflow(elements, (uint64_t)first.shape[i], &elements) ||
                  first.nbytes == 0);
    }
    CW_ASSERT(first.nbytes == 0 || first.nbytes == elements * itemsize);
    cw_layout layout = {.ndim = first.ndim,
                        .itemsize = first.itemsize,
                        .shape = first.shape,
                        .strides = first.strides,
                        .dtype = first.dtype};
    char *header;
    uint64_t bytes;
    if (first.nbytes == 0) /* its product may overflow on the way: nobody makes such an array */
        return 0;
    CW_ASSERT(safetensors_format_header("x", &layout, &header, &bytes) == 0);
    CW_ASSERT(bytes % NPY_ALIGN == 0);
    CW_ASSERT(read_header(header, bytes, first.nbytes, &second) == 0);
    CW_ASSERT(second.ndim == first.ndim && second.nbytes == first.nbytes &&
              second.itemsize == first.itemsize && strcmp(second.dtype, first.dtype) == 0 &&
              memcmp(second.shape, first.shape, first.ndim * sizeof *first.shape) == 0);
    free(header);
    return 0;
}
