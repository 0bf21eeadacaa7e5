/*
 * JSON, read value by value where it stands: for headers of files, which anybody may have written.
 *
 * The text is the caller's own copy, UTF-8 that was checked. Texts are decoded in place, since no
 * escape is shorter than what it means; so nothing is allocated, and no depth of nesting costs any
 * stack. Each function returns 0, or -EPROTO with json->what saying what was expected; after that
 * the place does not matter. What JSON's grammar (RFC 8259) does not allow is refused, escapes of
 * half a character too.
 */
#ifndef CW_IPC_LOAD_JSON_H
#define CW_IPC_LOAD_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CW_JSON_DEPTH 127u /* of values in what is passed over; the reference's */

struct cw_json {
    char *at, *end;
    const char *what; /* is wrong; a sentence's end: "its header ..." */
};
struct cw_json_text { /* terminated, where the text allowed it: length tells of zeros in it */
    char *text;
    size_t length;
};

/* Is it UTF-8, without surrogates and without detours? */
bool cw_json_utf8(const char *text, size_t length);
/* Takes this character if it is the next one, blanks before it apart. */
bool cw_json_has(struct cw_json *json, char wanted);
int cw_json_take(struct cw_json *json, char wanted);
int cw_json_text(struct cw_json *json, struct cw_json_text *out);
/* A whole number from 0 to INT64_MAX, written as such. */
int cw_json_whole(struct cw_json *json, uint64_t *out);
/* Steps over one value of any kind. */
int cw_json_skip(struct cw_json *json);
/* Nothing but blanks is left. */
int cw_json_finish(struct cw_json *json);
/*
 * The members of an object, one call each: 1 and the key, and the value comes next; 0 behind the
 * last one. *first: true at the beginning, behind the brace.
 */
int cw_json_member(struct cw_json *json, bool *first, struct cw_json_text *key);
/* The same of a list. */
int cw_json_element(struct cw_json *json, bool *first);

#endif
