/*
 * Safetensors files: the header, read and written. To read, files of several arrays are refused:
 * `cableway load` makes a tree of them.
 *
 * A file is input from outside: every field is checked by the format's own rules (one JSON object
 * without repeated keys, of 100 MB at most; the data as long as dtype and shape say, and
 * nothing behind it), and what breaks one is refused with a sentence that says which.
 */
#ifndef CW_TOOLS_SAFETENSORS_SAFETENSORS_H
#define CW_TOOLS_SAFETENSORS_SAFETENSORS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "tools/npy/npy.h"

/* Does the path end so? */
bool safetensors_is_path(const char *path);

/*
 * Reads a header from fd, which then stands at the first byte of the data; out as an .npy file of
 * these data would be told, in C order. path is for messages. Returns 0; -EPROTO: no such file, cut
 * off, or damaged; -ENOTSUP: several arrays, or a dtype that we lack; -EIO and other codes of read.
 */
int safetensors_read_header(int fd, const char *path, struct npy *out);

/*
 * A header to be written is an object of JSON until it is complete. Adds an array in C order, whose
 * data lie behind those that were added before; *data_bytes is how many these are, and grows.
 * -ENOTSUP: the format has no such dtype, or no such name.
 */
int safetensors_add(json_t *header, const char *name, const cw_layout *layout,
                    uint64_t *data_bytes);
/* texts: an object whose values are texts, which is borrowed. -EDQUOT. */
int safetensors_set_metadata(json_t *header, json_t *texts);
/* The header as it stands in the file, as long as a multiple of NPY_ALIGN. The caller frees *out.
 * -ENOTSUP: it is longer than the format allows; -EDQUOT. */
int safetensors_format(const json_t *header, char **out, uint64_t *size_bytes);

/* The same at once for a file of one array. */
int safetensors_format_header(const char *name, const cw_layout *layout, char **out,
                              uint64_t *size_bytes);

#endif
