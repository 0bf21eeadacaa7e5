/*
 * Which files a path names, and which tensors are taken from each. See folder.c.
 */
#ifndef CW_IPC_LOAD_FOLDER_H
#define CW_IPC_LOAD_FOLDER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct cw_folder;

/* 0; -ENOENT, -EPROTO (an index that is none), -EINVAL (none, or several to choose from), and what
 * open() says. */
int cw_folder_open(const char *path, struct cw_folder **out);
void cw_folder_close(struct cw_folder *folder);
/* Its files, in the order of their names; path. */
uint32_t cw_folder_files(const struct cw_folder *folder);
const char *cw_folder_file(const struct cw_folder *folder, uint32_t number);
/* How many tensors an index names; 0: there is none. */
uint32_t cw_folder_tensors(const struct cw_folder *folder);
/* One of those, and the file in which it should be. */
void cw_folder_tensor(const struct cw_folder *folder, uint32_t number, const char **name,
                      const char **file);
/* Is a tensor that is in that file taken from it? */
bool cw_folder_takes(const struct cw_folder *folder, const char *name, uint32_t file);

/* Writes a text as JSON has it, also one that is no UTF-8, as a path may be: such bytes become
 * U+FFFD. */
void cw_folder_quote(FILE *out, const char *text);

#endif
