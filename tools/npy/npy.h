/*
 * NPY files (NEP 1), versions 1.0, 2.0 and 3.0: the header, read and written.
 *
 * A file is input from outside: every field is checked, and a file that is none, that was cut off
 * or that holds Python objects is refused with a sentence that says so. Nothing is ever unpickled
 * or evaluated.
 */
#ifndef CW_TOOLS_NPY_NPY_H
#define CW_TOOLS_NPY_NPY_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/cableway.h"

#define NPY_HEADER_MAX (64u << 10) /* bytes of a header; NumPy itself stops at 10,000 */
#define NPY_ALIGN      64u

struct npy {          /* what a header says, checked */
    unsigned version; /* 1, 2, 3 */
    bool fortran_order;
    uint32_t ndim;
    uint32_t itemsize;
    uint64_t nbytes; /* of the data behind the header */
    int64_t shape[CW_NDIM_MAX];
    int64_t strides[CW_NDIM_MAX]; /* in bytes, as fortran_order says */
    char dtype[CW_DTYPE_MAX + 1]; /* "<f8", or the literal of a structured type, UTF-8 */
};

/*
 * Reads a header from fd, which then stands at the first byte of the data. path is for messages.
 * Returns 0; -EPROTO: no NPY file, cut off, or damaged; -ENOTSUP: objects, or a type we cannot
 * hold; -EIO and other codes of read. Blocks as fd does.
 */
int npy_read_header(int fd, const char *path, struct npy *out);

/* Formats the header of an array (version 1.0, or 3.0 where the dtype needs UTF-8), its length a
 * multiple of NPY_ALIGN. The caller frees *out. -ENOTSUP: NPY has no such form of a dtype. */
int npy_format_header(const cw_layout *layout, bool fortran_order, char **out,
                      uint64_t *size_bytes);

/* Bytes of one element of a dtype (typestr or structured literal). 0 and *itemsize; -EPROTO: no
 * such type; -ENOTSUP: objects. Whitespace around it is allowed. */
int npy_dtype_itemsize(const char *dtype, uint32_t *itemsize);

#endif
