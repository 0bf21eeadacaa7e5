/*
 * The elements of an array, as bytes of a file: as they lie, or gathered in C order.
 */
#ifndef CW_TOOLS_ELEMENTS_H
#define CW_TOOLS_ELEMENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/cableway.h"

/* Writes all bytes to fd. 0 or the code of write(), with a sentence. */
int elements_write_bytes(int fd, const void *from, uint64_t size_bytes);

/* How many bytes all elements have together. */
uint64_t elements_nbytes(const cw_layout *layout);
/* Do they lie one behind the other, in C or in Fortran order? */
bool elements_are_contiguous(const cw_layout *layout, bool fortran);

/*
 * Writes the elements that lie in an array, from offset_bytes behind its lowest byte on: as they
 * lie if they are contiguous in C order, or in Fortran order where that is allowed; else in C
 * order, gathered piece by piece. layout has strides. What lies on a GPU is read from there.
 * -EDQUOT: no memory for a copy; the codes of write() and of cw_array_read().
 */
int elements_write(int fd, const cw_array *array, uint64_t offset_bytes, const cw_layout *layout,
                   bool fortran);

#endif
