/*
 * What a loaded tree says of where it came from: its metadata are
 *
 *   {"source": {"path": ..., "files": [...]}, "metadata": {...}, and what the caller adds}
 *
 * with the files as cw_checkpoint_identity() writes them. We write them in one form alone, so that
 * the same files are the same text; what others have put under "source" is any other text. They may
 * be anything: a copy is looked through, whatever it is.
 *
 * Pure functions; no state.
 */
#include "ipc/load/origin.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ipc/load/folder.h"
#include "ipc/load/json.h"
#include "shm/base/error.h"

int cw_origin_write(const cw_checkpoint *c, const char *members, char **meta,
                    uint64_t *meta_bytes) {
    const char *key, *value;
    size_t size_bytes = 0;
    char *text = NULL;
    FILE *out = open_memstream(&text, &size_bytes);
    if (!out)
        return cw_fail(-EDQUOT, "no memory for the metadata of %.300s", c->path);
    fputs("{\"source\": {\"path\": ", out);
    cw_folder_quote(out, c->path);
    fprintf(out, ", \"files\": %s}, \"metadata\": {", c->identity);
    for (uint32_t i = 0; cw_checkpoint_note(c, i, &key, &value) == 0; i++) {
        fputs(i ? ", " : "", out);
        cw_folder_quote(out, key);
        fputs(": ", out);
        cw_folder_quote(out, value);
    }
    fprintf(out, "}%s%s}", members && *members ? ", " : "", members ? members : "");
    if (fclose(out)) {
        free(text);
        return cw_fail(-EDQUOT, "no memory for the metadata of %.300s", c->path);
    }
    *meta = text;
    *meta_bytes = size_bytes;
    return 0;
}

/* Goes to the value of a key of the object that comes next. */
static bool find(struct cw_json *json, const char *wanted) {
    struct cw_json_text key;
    bool first = true;
    if (cw_json_take(json, '{'))
        return false;
    while (cw_json_member(json, &first, &key) == 1) {
        if (strcmp(key.text, wanted) == 0)
            return true;
        if (cw_json_skip(json))
            return false;
    }
    return false;
}

static bool is_text(const char *copy, uint64_t size_bytes) {
    return cw_json_utf8(copy, size_bytes);
}

static int no_object(const char *what) {
    return cw_fail(-EINVAL, "metadata for a load are a JSON object; these: %s", what);
}

/* All of an object is looked at; its copy is decoded meanwhile. */
static int check_members(struct cw_json *json) {
    struct cw_json_text key;
    bool first = true;
    int more, code = cw_json_take(json, '{');
    while (code == 0 && (more = cw_json_member(json, &first, &key)) != 0) {
        code = more < 0 ? more : 0;
        if (code == 0 && strlen(key.text) == key.length &&
            (strcmp(key.text, "source") == 0 || strcmp(key.text, "metadata") == 0))
            return cw_fail(-EINVAL, "\"%s\" of the metadata is what a load writes there itself",
                           key.text);
        code = code ? code : cw_json_skip(json);
    }
    code = code ? code : cw_json_finish(json);
    return code ? no_object(json->what) : 0;
}

int cw_origin_members(const char *object, uint64_t size_bytes, char **members) {
    char *copy = malloc(size_bytes + 1), *made = malloc(size_bytes + 1);
    int code = copy && made ? 0 : cw_fail(-EDQUOT, "no memory for the metadata of a load");
    if (code == 0) {
        memcpy(copy, object, size_bytes);
        struct cw_json json = {.at = copy, .end = copy + size_bytes};
        code = is_text(copy, size_bytes) ? check_members(&json) : no_object("are no UTF-8");
    }
    free(copy);
    if (code) {
        free(made);
        return code;
    }
    const char *begin = (const char *)memchr(object, '{', size_bytes) + 1,
               *end = (const char *)memrchr(object, '}', size_bytes);
    while (begin < end && strchr(" \t\r\n", *begin))
        begin++;
    memcpy(made, begin, (size_t)(end - begin));
    made[end - begin] = 0;
    *members = made;
    return 0;
}

int cw_origin_same(const cw_checkpoint *c, const void *meta, uint64_t meta_bytes) {
    char *copy = malloc(meta_bytes + 1);
    if (!copy)
        return cw_fail(-EDQUOT, "no memory to look at the metadata of a tree");
    if (meta_bytes)
        memcpy(copy, meta, meta_bytes);
    struct cw_json json = {.at = copy, .end = copy + meta_bytes};
    bool same = false;
    if (is_text(copy, meta_bytes) && find(&json, "source") && find(&json, "files")) {
        while (json.at < json.end && *json.at == ' ')
            json.at++;
        uint64_t from = (uint64_t)(json.at - copy);
        if (cw_json_skip(&json) == 0) {
            uint64_t size_bytes = (uint64_t)(json.at - copy) - from;
            same = size_bytes == strlen(c->identity) &&
                   memcmp((const char *)meta + from, c->identity, size_bytes) == 0;
        }
    }
    free(copy);
    return same;
}

/* What a person tells two checkpoints apart by: the path, and of the first file its size, its time
 * and its header. */
static void describe(char *identity, char *out, size_t out_bytes) {
    struct cw_json json = {.at = identity, .end = identity + strlen(identity)};
    char none[] = "";
    struct cw_json_text key, path = {.text = none};
    uint64_t files = 0, size = 0, number, mtime = 0, inode = 0;
    bool first_file = true, first;
    if (cw_json_take(&json, '[') == 0)
        while (cw_json_element(&json, &first_file) == 1) {
            first = true;
            files++;
            if (cw_json_take(&json, '{'))
                break;
            while (cw_json_member(&json, &first, &key) == 1) {
                struct cw_json_text text;
                bool is_path = strcmp(key.text, "path") == 0;
                if (is_path || strcmp(key.text, "header") == 0) {
                    if (cw_json_text(&json, &text))
                        break;
                    path = is_path && files == 1 ? text : path;
                } else if (cw_json_whole(&json, &number) == 0) {
                    size += strcmp(key.text, "size") ? 0 : number;
                    mtime = strcmp(key.text, "mtime_ns") || files > 1 ? mtime : number;
                    inode = strcmp(key.text, "inode") || files > 1 ? inode : number;
                } else {
                    break;
                }
            }
        }
    time_t seconds = (time_t)(mtime / 1000000000);
    struct tm parts;
    char moment[32] = "";
    if (gmtime_r(&seconds, &parts))
        strftime(moment, sizeof moment, "%Y-%m-%d %H:%M:%S", &parts);
    snprintf(out, out_bytes,
             "%.120s%s (%llu file%s of %llu bytes, inode %llu, changed at %s.%09llu UTC)",
             path.text, files > 1 ? " and others" : "", (unsigned long long)files,
             files == 1 ? "" : "s", (unsigned long long)size, (unsigned long long)inode, moment,
             (unsigned long long)(mtime % 1000000000));
}

int cw_origin_differs(const cw_checkpoint *c, const char *name, const void *meta,
                      uint64_t meta_bytes) {
    char there[300] = "what no load made", here[300];
    char *copy = malloc(meta_bytes + 1), *own = strdup(c->identity);
    if (copy && own) {
        if (meta_bytes)
            memcpy(copy, meta, meta_bytes);
        copy[meta_bytes] = 0;
        struct cw_json json = {.at = copy, .end = copy + meta_bytes};
        if (is_text(copy, meta_bytes) && find(&json, "source") && find(&json, "files"))
            describe(json.at, there, sizeof there);
        describe(own, here, sizeof here);
    }
    bool told = copy && own;
    free(copy);
    free(own);
    if (!told)
        return cw_fail(-EDQUOT, "no memory to look at the metadata of a tree");
    return cw_fail(-EEXIST,
                   "\"%.60s\" is %s, not %s: load it under another name, or replace it "
                   "(replace=True, --replace)",
                   name, there, here);
}
