/*
 * Which files a path names: see folder.h. An index is input from outside: of what it says file
 * names alone are used, and none leads out of its folder.
 *
 * Owner: the caller; it does not change after it was opened.
 */
#include "ipc/load/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/load/json.h"
#include "shm/base/error.h"

#define INDEX_BYTES_MAX (256u << 20)
#define FILES_MAX       65536u

static const char FILE_END[] = ".safetensors", INDEX_END[] = ".safetensors.index.json";

struct mapped { /* of an index: a tensor, and in which file it is */
    const char *name, *file_name;
};

struct cw_folder {
    char *text; /* of the index: names point into it */
    struct mapped *mapped;
    uint32_t mapped_count, mapped_room;
    char **paths; /* sorted */
    uint32_t count, room;
};

static int no_memory(const char *path) {
    return cw_fail(-EDQUOT, "no memory to look through %.300s", path);
}

static bool ends(const char *name, const char *end) {
    size_t length = strlen(name), ending = strlen(end);
    return length > ending && strcmp(name + length - ending, end) == 0;
}

static int add_path(struct cw_folder *f, const char *folder, const char *name) {
    if (f->count == FILES_MAX)
        return cw_fail(-ENOTSUP,
                       "%.300s has more than %u files: load parts of it under several names",
                       folder, FILES_MAX);
    if (f->count == f->room) {
        uint32_t room = f->room ? 2 * f->room : 16;
        char **paths = realloc(f->paths, room * sizeof *paths);
        if (!paths)
            return no_memory(folder);
        f->paths = paths;
        f->room = room;
    }
    char *path;
    if (asprintf(&path, "%s%s%s", folder, *folder ? "/" : "", name) < 0)
        return no_memory(folder);
    f->paths[f->count++] = path;
    return 0;
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* ---- an index ---- */

static int read_whole(const char *path, char **text, uint64_t *size_bytes) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK), code = 0;
    struct stat status;
    if (fd < 0)
        return cw_fail(-errno, "opening %.300s failed: %m", path);
    if (fstat(fd, &status) || !S_ISREG(status.st_mode) || status.st_size > INDEX_BYTES_MAX)
        code = cw_fail(-EPROTO, "%.300s is no index of .safetensors files: %s", path,
                       S_ISREG(status.st_mode) ? "it is too large" : "it is no file");
    char *made = code ? NULL : malloc((size_t)status.st_size + 1);
    if (code == 0 && !made)
        code = no_memory(path);
    uint64_t done = 0;
    while (code == 0 && done < (uint64_t)status.st_size) {
        ssize_t count = read(fd, made + done, (size_t)status.st_size - done);
        if (count < 0 && errno != EINTR)
            code = cw_fail(-errno, "reading %.300s failed: %m", path);
        if (count == 0)
            break;
        done += count > 0 ? (uint64_t)count : 0;
    }
    close(fd);
    if (code) {
        free(made);
        return code;
    }
    *text = made;
    *size_bytes = done;
    return 0;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct mapped *)a)->name, ((const struct mapped *)b)->name);
}

static int damaged(const char *path, const char *what) {
    return cw_fail(-EPROTO, "the index %.300s %s", path, what);
}

/* What the JSON says is wrong, or that there is no more of it. */
static int no_json(const char *path, const struct cw_json *json) {
    return damaged(path, json->at >= json->end ? "ends where more must come: was it cut off?"
                                               : json->what);
}

static int read_map(struct cw_folder *f, struct cw_json *json, const char *path) {
    struct cw_json_text name, file;
    bool first = true;
    int code = cw_json_take(json, '{');
    if (code && json->at < json->end)
        return damaged(path, "has a weight_map that is no object of tensors and files");
    while (code == 0 && (code = cw_json_member(json, &first, &name)) == 1) {
        code = cw_json_text(json, &file);
        if (code && json->at < json->end)
            return cw_fail(-EPROTO, "the index %.200s names no file for the tensor \"%.100s\"",
                           path, name.text);
        if (code)
            break;
        if (strlen(name.text) != name.length || strlen(file.text) != file.length ||
            strchr(file.text, '/') || !ends(file.text, FILE_END))
            return damaged(path, "names a file that is no .safetensors file in its folder");
        if (f->mapped_count == f->mapped_room) {
            uint32_t room = f->mapped_room ? 2 * f->mapped_room : 256;
            struct mapped *grown = realloc(f->mapped, room * sizeof *grown);
            if (!grown)
                return no_memory(path);
            f->mapped = grown;
            f->mapped_room = room;
        }
        f->mapped[f->mapped_count++] = (struct mapped){.name = name.text, .file_name = file.text};
    }
    return code < 0 ? no_json(path, json) : 0;
}

static int read_json(struct cw_folder *f, uint64_t size_bytes, const char *path) {
    struct cw_json json = {.at = f->text, .end = f->text + size_bytes};
    struct cw_json_text key;
    bool first = true;
    if (size_bytes == 0)
        return damaged(path, "is empty");
    if (!cw_json_utf8(f->text, size_bytes))
        return damaged(path, "is no UTF-8");
    int code = cw_json_take(&json, '{');
    while (code == 0 && (code = cw_json_member(&json, &first, &key)) == 1) {
        if (strcmp(key.text, "weight_map") == 0 && !f->mapped) {
            code = read_map(f, &json, path);
            if (code)
                return code;
        } else {
            code = cw_json_skip(&json);
        }
    }
    if (code == 0)
        code = cw_json_finish(&json);
    return code < 0 ? no_json(path, &json) : 0;
}

/* The files that it names, each once. */
static int add_mapped(struct cw_folder *f, const char *folder, const char *path) {
    char **names = malloc((f->mapped_count + 1) * sizeof *names);
    int code = names ? 0 : no_memory(path);
    for (uint32_t i = 0; i < f->mapped_count && code == 0; i++)
        names[i] = (char *)(uintptr_t)f->mapped[i].file_name;
    if (code == 0)
        qsort(names, f->mapped_count, sizeof *names, by_text);
    for (uint32_t i = 0; i < f->mapped_count && code == 0; i++)
        if (i == 0 || strcmp(names[i - 1], names[i]) != 0)
            code = add_path(f, folder, names[i]);
    free(names);
    return code;
}

static int read_index(struct cw_folder *f, const char *path) {
    uint64_t size_bytes = 0;
    const char *slash = strrchr(path, '/');
    int code = read_whole(path, &f->text, &size_bytes);
    if (code == 0)
        code = read_json(f, size_bytes, path);
    if (code == 0 && !f->mapped_count)
        code = damaged(path, "has no weight_map, or an empty one");
    if (code)
        return code;
    qsort(f->mapped, f->mapped_count, sizeof *f->mapped, by_name);
    for (uint32_t i = 1; i < f->mapped_count; i++)
        if (strcmp(f->mapped[i - 1].name, f->mapped[i].name) == 0)
            return damaged(path, "names a tensor twice");
    char *folder = slash ? strndup(path, (size_t)(slash - path) + (slash == path)) : strdup(".");
    if (!folder)
        return no_memory(path);
    code = add_mapped(f, folder, path);
    free(folder);
    return code;
}

/* ---- a folder ---- */

static int list(struct cw_folder *f, const char *path, const char *end) {
    DIR *dir = opendir(path);
    const struct dirent *entry;
    int code = 0;
    if (!dir)
        return cw_fail(-errno, "opening the folder %.300s failed: %m", path);
    while (code == 0 && (errno = 0, entry = readdir(dir)))
        if (*entry->d_name != '.' && ends(entry->d_name, end))
            code = add_path(f, path, entry->d_name);
    if (code == 0 && errno)
        code = cw_fail(-errno, "reading the folder %.300s failed: %m", path);
    closedir(dir);
    if (f->count)
        qsort(f->paths, f->count, sizeof *f->paths, by_text);
    return code;
}

static void forget_paths(struct cw_folder *f) {
    while (f->count)
        free(f->paths[--f->count]);
}

static int read_folder(struct cw_folder *f, const char *path) {
    int code = list(f, path, INDEX_END);
    if (code)
        return code;
    if (f->count > 1)
        return cw_fail(-EINVAL, "%.200s has several indexes, such as %.200s: load one of them",
                       path, strrchr(f->paths[0], '/') + 1);
    if (f->count == 1) {
        char *index = f->paths[--f->count];
        code = read_index(f, index);
        free(index);
        return code;
    }
    code = list(f, path, FILE_END);
    if (code == 0 && !f->count)
        code = cw_fail(-ENOENT, "the folder %.300s has no .safetensors files", path);
    return code;
}

int cw_folder_open(const char *path, struct cw_folder **out) {
    struct stat status;
    if (stat(path, &status))
        return cw_fail(-errno, "opening %.300s failed: %m", path);
    struct cw_folder *f = calloc(1, sizeof *f);
    if (!f)
        return no_memory(path);
    int code = S_ISDIR(status.st_mode) ? read_folder(f, path)
               : ends(path, ".json")   ? read_index(f, path)
                                       : add_path(f, "", path);
    if (code)
        cw_folder_close(f);
    else
        *out = f;
    return code;
}

void cw_folder_close(struct cw_folder *f) {
    forget_paths(f);
    free(f->paths);
    free(f->mapped);
    free(f->text);
    free(f);
}

uint32_t cw_folder_files(const struct cw_folder *f) {
    return f->count;
}

const char *cw_folder_file(const struct cw_folder *f, uint32_t number) {
    return f->paths[number];
}

uint32_t cw_folder_tensors(const struct cw_folder *f) {
    return f->mapped_count;
}

void cw_folder_tensor(const struct cw_folder *f, uint32_t number, const char **name,
                      const char **file) {
    *name = f->mapped[number].name;
    *file = f->mapped[number].file_name;
}

bool cw_folder_takes(const struct cw_folder *f, const char *name, uint32_t file) {
    const struct mapped wanted = {.name = name}, *found;
    if (!f->mapped_count)
        return true;
    found = bsearch(&wanted, f->mapped, f->mapped_count, sizeof *f->mapped, by_name);
    return found && strcmp(found->file_name, strrchr(f->paths[file], '/') + 1) == 0;
}

void cw_folder_quote(FILE *out, const char *text) {
    fputc('"', out);
    for (const char *at = text; *at; at++) {
        size_t length = 1;
        while (length < 4 && at[length] && ((uint8_t)at[length] >> 6) == 2)
            length++;
        if (!cw_json_utf8(at, length)) {
            fputs("\\ufffd", out);
        } else if (*at == '"' || *at == '\\') {
            fprintf(out, "\\%c", *at);
        } else if ((uint8_t)*at < 0x20) {
            fprintf(out, "\\u%04x", (uint8_t)*at);
        } else {
            fwrite(at, 1, length, out);
            at += length - 1;
        }
    }
    fputc('"', out);
}
