/*
 * A checkpoint: one or several .safetensors files, opened and checked before anything else is done.
 *
 * A path names a file; or a folder; or an index (model.safetensors.index.json), which says in which
 * file of its folder each tensor is. Of a folder its index counts, or where it has none, all of its
 * .safetensors files. What an index names must be there, and of its files nothing else is taken.
 *
 * Invariants:
 *   - All descriptors stay open until the end: whoever renames files over these changes nothing
 *     of what is read. Who writes into them is found out by fstat(), which is compared before and
 *     after all is read (cw_checkpoint_unchanged).
 *   - Every tensor lies in its file, as the file was when it was opened.
 *   - The identity tells files apart by path, device, inode, size, time of the last change, and
 *     their headers' hash: so two models with equal headers differ.
 *
 * Owner: the caller; it does not change after it was opened, so any thread may read it. Its process
 * dies: descriptors, no more.
 */
#include "ipc/load/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ipc/load/folder.h"
#include "ipc/load/safetensors.h"
#include "shm/base/error.h"

#define TICK_NS      20000000 /* two of the slowest clock's */
#define SETTLE_TRIES 50u

static int no_memory(const char *path) {
    return cw_fail(-EDQUOT, "no memory to open %.300s", path);
}

/* ---- one file ---- */

static int read_at(const struct cw_checkpoint_file *file, void *to, uint64_t size_bytes,
                   uint64_t offset_bytes) {
    for (uint64_t done = 0; done < size_bytes;) {
        ssize_t count =
            pread(file->fd, (char *)to + done, size_bytes - done, (off_t)(offset_bytes + done));
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return cw_fail(-errno, "reading %.300s failed: %m", file->path);
        if (count == 0)
            return cw_fail(-EPROTO,
                           "%.300s is no .safetensors file, or was cut off: fetch it again",
                           file->path);
        done += (uint64_t)count;
    }
    return 0;
}

static int read_header(struct cw_checkpoint_file *file) {
    uint8_t length[CW_SAFETENSORS_LENGTH_BYTES];
    uint64_t header_bytes, size_bytes = (uint64_t)file->status.st_size;
    int code = read_at(file, length, sizeof length, 0);
    if (code == 0)
        code = cw_safetensors_length(file->path, length, &header_bytes);
    if (code)
        return code;
    if (size_bytes < sizeof length || header_bytes > size_bytes - sizeof length)
        return cw_fail(-EPROTO, "%.300s was cut off in its header of %llu bytes: fetch it again",
                       file->path, (unsigned long long)header_bytes);
    char *header = malloc(header_bytes);
    if (!header)
        return no_memory(file->path);
    code = read_at(file, header, header_bytes, sizeof length);
    file->data_at = sizeof length + header_bytes;
    if (code == 0)
        code = cw_safetensors_parse(file->path, header, header_bytes, size_bytes - file->data_at,
                                    &file->header);
    free(header);
    return code;
}

/*
 * The file as it is, once a write from now on will show in its time: that is the kernel's tick, and
 * two writes within one have the same. Who goes on writing is refused after a second.
 */
static int look_at(struct cw_checkpoint_file *file) {
    const struct timespec pause = {.tv_nsec = TICK_NS};
    for (unsigned tries = 0; tries < SETTLE_TRIES; tries++) {
        struct timespec now;
        if (tries)
            nanosleep(&pause, NULL);
        if (fstat(file->fd, &file->status))
            return cw_fail(-errno, "looking at %.300s failed: %m", file->path);
        clock_gettime(CLOCK_REALTIME_COARSE, &now);
        const struct timespec *then = &file->status.st_mtim;
        int64_t age_ns =
            (int64_t)(now.tv_sec - then->tv_sec) * 1000000000 + now.tv_nsec - then->tv_nsec;
        if (llabs((long long)(now.tv_sec - then->tv_sec)) > 1 || llabs(age_ns) > TICK_NS)
            return 0;
    }
    return cw_fail(-EPROTO, "%.300s is being written to: load it when it is complete", file->path);
}

/* O_NONBLOCK: else a pipe would be waited for. */
static int open_file(const char *path, struct cw_checkpoint_file *file) {
    *file =
        (struct cw_checkpoint_file){.fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK)};
    if (file->fd < 0)
        return cw_fail(errno == EMFILE || errno == ENFILE ? -EDQUOT : -errno,
                       "opening %.300s failed: %m", path);
    file->path = realpath(path, NULL);
    if (!file->path)
        return cw_fail(-errno, "finding %.300s failed: %m", path);
    int code = look_at(file);
    if (code == 0 && !S_ISREG(file->status.st_mode))
        code = cw_fail(-EINVAL, "%.300s is neither a file nor a folder", path);
    return code ? code : read_header(file);
}

static void close_file(struct cw_checkpoint_file *file) {
    cw_safetensors_free(file->header);
    free(file->path);
    if (file->fd >= 0)
        close(file->fd);
}

/* ---- all of them ---- */

/* Adds the tensors of a file that the list takes from it. */
static int add_tensors(struct cw_checkpoint *c, const struct cw_folder *folder, uint32_t number) {
    const struct cw_checkpoint_file *file = &c->files[number];
    for (uint32_t i = 0; i < cw_safetensors_count(file->header); i++) {
        cw_tensor *tensor = &c->tensors[c->tensor_count];
        int code = cw_safetensors_tensor(file->header, i, tensor);
        if (code)
            return code;
        if (!cw_folder_takes(folder, tensor->name, number))
            continue;
        tensor->offset_bytes += file->data_at;
        tensor->file = number;
        c->total_bytes += tensor->size_bytes;
        c->tensor_count++;
    }
    return 0;
}

static int by_name(const void *a, const void *b) {
    const cw_tensor *const *one = a, *const *other = b;
    return strcmp((*one)->name, (*other)->name);
}

/* The first tensor that an index names and no file has; sorted: those that are there. */
static int missing(const struct cw_checkpoint *c, const struct cw_folder *folder,
                   const cw_tensor *const *sorted) {
    const char *name = "", *file = "", *first = "", *its_file = "";
    uint32_t lacking = 0;
    for (uint32_t i = 0; i < cw_folder_tensors(folder); i++) {
        cw_folder_tensor(folder, i, &name, &file);
        const cw_tensor wanted = {.name = name}, *key = &wanted;
        if (bsearch(&key, sorted, c->tensor_count, sizeof(void *), by_name) || lacking++)
            continue;
        first = name;
        its_file = file;
    }
    return cw_fail(-EPROTO,
                   "%.150s names %u tensors; %u are not in its files, the first: \"%.100s\" is not "
                   "in %.100s: fetch the files again",
                   c->path, cw_folder_tensors(folder), lacking, first, its_file);
}

/* No name in two files; and each that the index has is there. */
static int check_names(const struct cw_checkpoint *c, const struct cw_folder *folder) {
    const cw_tensor **sorted = malloc((c->tensor_count + 1) * sizeof(void *));
    int code = sorted ? 0 : no_memory(c->path);
    for (uint32_t i = 0; i < c->tensor_count && code == 0; i++)
        sorted[i] = &c->tensors[i];
    if (code == 0 && c->tensor_count)
        qsort(sorted, c->tensor_count, sizeof(void *), by_name);
    for (uint32_t i = 1; i < c->tensor_count && code == 0; i++)
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
            code =
                cw_fail(-EPROTO,
                        "the tensor \"%.100s\" is in %.150s and in %.150s: load one of the files, "
                        "or write an index",
                        sorted[i]->name, c->files[sorted[i - 1]->file].path,
                        c->files[sorted[i]->file].path);
    uint32_t wanted = cw_folder_tensors(folder);
    if (code == 0 && wanted && wanted != c->tensor_count)
        code = missing(c, folder, sorted);
    free(sorted);
    return code;
}

static int make_identity(struct cw_checkpoint *c) {
    size_t size_bytes = 0;
    FILE *out = open_memstream(&c->identity, &size_bytes);
    if (!out)
        return no_memory(c->path);
    fputc('[', out);
    for (uint32_t i = 0; i < c->file_count; i++) {
        const struct cw_checkpoint_file *file = &c->files[i];
        fprintf(out, "%s{\"path\": ", i ? ", " : "");
        cw_folder_quote(out, file->path);
        fprintf(out,
                ", \"device\": %llu, \"inode\": %llu, \"size\": %lld, \"mtime_ns\": %lld, "
                "\"header\": \"%016llx\"}",
                (unsigned long long)file->status.st_dev, (unsigned long long)file->status.st_ino,
                (long long)file->status.st_size,
                (long long)file->status.st_mtim.tv_sec * 1000000000 + file->status.st_mtim.tv_nsec,
                (unsigned long long)cw_safetensors_hash(file->header));
    }
    fputc(']', out);
    if (fclose(out)) {
        free(c->identity);
        c->identity = NULL;
        return no_memory(c->path);
    }
    return 0;
}

static int open_files(struct cw_checkpoint *c, const struct cw_folder *folder) {
    uint64_t tensors = 0;
    uint32_t count = cw_folder_files(folder);
    c->files = calloc(count + 1, sizeof *c->files);
    int code = c->files ? 0 : no_memory(c->path);
    for (uint32_t i = 0; i < count && code == 0; i++) {
        c->file_count++;
        code = open_file(cw_folder_file(folder, i), &c->files[i]);
        if (code == 0)
            tensors += cw_safetensors_count(c->files[i].header);
    }
    if (code == 0 && tensors > CW_LEAVES_MAX)
        code = cw_fail(-ENOTSUP,
                       "%.300s has %llu tensors, %u are possible: load some of its files under "
                       "another name",
                       c->path, (unsigned long long)tensors, CW_LEAVES_MAX);
    if (code == 0 && !(c->tensors = calloc(tensors + 1, sizeof *c->tensors)))
        code = no_memory(c->path);
    for (uint32_t i = 0; i < count && code == 0; i++)
        code = add_tensors(c, folder, i);
    if (code == 0)
        code = check_names(c, folder);
    return code ? code : make_identity(c);
}

int cw_checkpoint_open(const char *path, cw_checkpoint **out) {
    struct cw_folder *folder;
    if (!path || !*path || !out)
        return cw_needs("a path and a place for the checkpoint");
    struct cw_checkpoint *c = calloc(1, sizeof *c);
    if (c)
        c->path = strdup(path);
    if (!c || !c->path) {
        free(c);
        return no_memory(path);
    }
    int code = cw_folder_open(path, &folder);
    if (code == 0) {
        code = open_files(c, folder);
        cw_folder_close(folder);
    }
    if (code)
        cw_checkpoint_close(c);
    else
        *out = c;
    return code;
}

void cw_checkpoint_close(cw_checkpoint *c) {
    if (!c)
        return;
    for (uint32_t i = 0; i < c->file_count; i++)
        close_file(&c->files[i]);
    free(c->files);
    free(c->tensors);
    free(c->identity);
    free(c->path);
    free(c);
}

static int check_unchanged(const struct cw_checkpoint_file *file) {
    const struct stat *then = &file->status;
    struct stat now;
    if (fstat(file->fd, &now))
        return cw_fail(-errno, "looking at %.300s failed: %m", file->path);
    if (now.st_size != then->st_size || now.st_mtim.tv_sec != then->st_mtim.tv_sec ||
        now.st_mtim.tv_nsec != then->st_mtim.tv_nsec)
        return cw_fail(-EPROTO, "%.300s was written to while it was read: load it again",
                       file->path);
    return 0;
}

int cw_checkpoint_unchanged(const cw_checkpoint *c) {
    int code = 0;
    for (uint32_t i = 0; i < c->file_count && code == 0; i++)
        code = check_unchanged(&c->files[i]);
    return code;
}

int cw_checkpoint_read(const cw_checkpoint *c, uint32_t number, uint64_t skip_bytes, void *to,
                       uint64_t size_bytes) {
    if (!c || (!to && size_bytes))
        return cw_needs("a checkpoint and memory");
    if (number >= c->tensor_count)
        return cw_fail(-EINVAL, "tensor %u of %u", number, c->tensor_count);
    const cw_tensor *tensor = &c->tensors[number];
    if (skip_bytes > tensor->size_bytes || size_bytes > tensor->size_bytes - skip_bytes)
        return cw_fail(-EINVAL, "what is read goes beyond its tensor of %llu bytes",
                       (unsigned long long)tensor->size_bytes);
    const struct cw_checkpoint_file *file = &c->files[tensor->file];
    int code = read_at(file, to, size_bytes, tensor->offset_bytes + skip_bytes);
    return code ? code : check_unchanged(file);
}

uint32_t cw_checkpoint_count(const cw_checkpoint *c) {
    return c ? c->tensor_count : 0;
}

int cw_checkpoint_tensor(const cw_checkpoint *c, uint32_t number, cw_tensor *out) {
    if (!c || !out)
        return cw_needs("a checkpoint and a place for the tensor");
    if (number >= c->tensor_count)
        return cw_fail(-EINVAL, "tensor %u of %u", number, c->tensor_count);
    *out = c->tensors[number];
    return 0;
}

int cw_checkpoint_note(const cw_checkpoint *c, uint32_t number, const char **key,
                       const char **value) {
    if (!c || !key || !value)
        return cw_needs("a checkpoint, and places for key and value");
    return c->file_count ? cw_safetensors_note(c->files[0].header, number, key, value) : -ENOENT;
}

const char *cw_checkpoint_identity(const cw_checkpoint *c) {
    return c ? c->identity : NULL;
}
