/*
 * The few Python literals that an NPY header is made of, read token by token and never evaluated.
 * Each function returns 0 or -EPROTO with a sentence.
 */
#ifndef CW_TOOLS_NPY_TEXT_H
#define CW_TOOLS_NPY_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct npy_text { /* borrowed bytes; at moves on */
    const char *at, *end;
};

/* The next character that is no white space, without taking it; 0 at the end. */
char npy_text_next(struct npy_text *text);
int npy_text_take(struct npy_text *text, char wanted);
/* '...' or "...", with the escapes that repr() writes. out_bytes counts the terminator. */
int npy_text_string(struct npy_text *text, char *out, size_t out_bytes);
/* 12, and 12L as Python 2 wrote it. */
int npy_text_integer(struct npy_text *text, int64_t *out);
int npy_text_bool(struct npy_text *text, bool *out);
/* (), (3,), (3, 4): at most CW_NDIM_MAX of them. */
int npy_text_tuple(struct npy_text *text, int64_t *out, uint32_t *count);
/* Steps over a string, tuple or list of any content, and says where it began and ended. */
int npy_text_skip(struct npy_text *text, const char **begin, const char **end);

#endif
