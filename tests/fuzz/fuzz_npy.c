/*
 * Fuzzes the reader of .npy headers: whatever a file says, it is refused or understood; what is
 * understood is consistent, and formats again to what reads the same.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/base/error.h"
#include "tools/npy/npy.h"

#include "tools/npy/npy.c"
#include "tools/npy/dtype.c"
#include "tools/npy/text.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int read_header(const void *data, size_t size, struct npy *out) {
    int fd = memfd_create("npy", MFD_CLOEXEC);
    CW_ASSERT(fd >= 0 && write(fd, data, size) == (ssize_t)size && lseek(fd, 0, SEEK_SET) == 0);
    int code = npy_read_header(fd, "fuzz.npy", out);
    close(fd);
    return code;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct npy first, second;
    static char text[CW_DTYPE_MAX + 2];
    uint32_t itemsize;
    memcpy(text, data, size < CW_DTYPE_MAX ? size : CW_DTYPE_MAX);
    text[size < CW_DTYPE_MAX ? size : CW_DTYPE_MAX] = 0;
    (void)npy_dtype_itemsize(text, &itemsize);
    if (read_header(data, size, &first) != 0) {
        CW_ASSERT(strlen(cw_detail()) > 0);
        return 0;
    }
    CW_ASSERT(first.ndim <= CW_NDIM_MAX && strlen(first.dtype) <= CW_DTYPE_MAX);
    uint64_t elements = 1;
    for (uint32_t i = 0; i < first.ndim; i++) {
        CW_ASSERT(first.shape[i] >= 0);
        CW_ASSERT(!__builtin_mul_overflow(elements, (uint64_t)first.shape[i], &elements) ||
                  first.nbytes == 0);
    }
    cw_layout layout = {.ndim = first.ndim,
                        .itemsize = first.itemsize,
                        .shape = first.shape,
                        .strides = first.strides,
                        .dtype = first.dtype};
    char *header;
    uint64_t bytes;
    if (npy_format_header(&layout, first.fortran_order, &header, &bytes) == 0) {
        CW_ASSERT(bytes % NPY_ALIGN == 0);
        CW_ASSERT(read_header(header, bytes, &second) == 0);
        CW_ASSERT(second.ndim == first.ndim && second.nbytes == first.nbytes &&
                  second.itemsize == first.itemsize && strcmp(second.dtype, first.dtype) == 0 &&
                  memcmp(second.shape, first.shape, first.ndim * sizeof *first.shape) == 0);
        free(header);
    }
    return 0;
}
