/*
 * The dtypes that array libraries share: one table of what each of them calls them.
 *
 * Its rows are NumPy's plain numbers ("<f4") and the words, which stand for what no typestr of
 * NumPy's can tell ("bfloat16"). The list of words is closed: a text that begins with a letter and
 * is not in it is no dtype. cw_dtype_table() of cableway.h gives the whole table.
 */
#ifndef CW_IPC_BASE_ML_DTYPE_H
#define CW_IPC_BASE_ML_DTYPE_H

#include "ipc/cableway.h"

/* The row of a dtype's text; NULL: it has none (big endian, structured, dates, no dtype at all). */
const cw_dtype_row *cw_dtype_find(const char *dtype);
/* The row of a word; NULL: it is no word. */
const cw_dtype_row *cw_dtype_word(const char *dtype);
/* The row of what the header of a safetensors file calls it ("BF16"); NULL: none of it. Of F4 each
 * element of ours is two of the file's, the last axis being twice as long there. */
const cw_dtype_row *cw_dtype_of_safetensors(const char *name);

#endif
