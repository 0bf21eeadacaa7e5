/*
 * The header of a .safetensors file: a JSON object that names each tensor with its dtype, its
 * shape, and where its data begin and end behind the object.
 *
 * Invariants of what was read:
 *   S1  No two tensors have the same name, and none has a zero byte in it.
 *   S2  Each has as many bytes as its dtype and shape say.
 *   S3  In the order in which they are counted, each begins where the one before ends, the first
 *       at 0, and the last ends with the data.
 *
 * A header is input from outside: a copy is checked to its last byte, and the copy is used. We are
 * as strict as the reference or stricter: what it lets pass and we do not is a name that comes
 * twice, a field that the format has not, a dtype that we lack, more axes than CW_NDIM_MAX.
 *
 * Two numbers of 4 bits are two elements to the format (F4), and one to us: of such a tensor the
 * last axis is twice as long in the file.
 *
 * Pure; a struct does not change after it was made. Nothing to die.
 */
#include "ipc/load/safetensors.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "ipc/base/ml_dtype.h"
#include "ipc/load/json.h"
#include "shm/base/error.h"

struct entry {
    const char *name;
    const cw_dtype_row *row;
    uint64_t begin, end;
    size_t axes_at;
    uint32_t ndim;
};

struct note {
    const char *key, *value;
};

struct cw_safetensors {
    char *text; /* the copy; texts point into it */
    struct entry *entries;
    uint32_t count, room;
    int64_t *axes;
    size_t axes_used, axes_room;
    struct note *notes;
    uint32_t note_count, note_room;
    uint64_t hash;
};

/* While it is read. */
struct reading {
    struct cw_safetensors *file;
    struct cw_json json;
    const char *path;
};

static int damaged(const struct reading *r, const char *what) {
    return cw_fail(-EPROTO, "%.200s is damaged: its header %s: fetch the file again", r->path,
                   what);
}

/* What the JSON says is wrong. */
static int json_damaged(const struct reading *r, int code) {
    return code < 0 ? damaged(r, r->json.what) : code;
}

static int no_memory(const struct reading *r) {
    return cw_fail(-EDQUOT, "no memory for the header of %.200s", r->path);
}

/* Room for one more of items, of which there are count: where they lie now. NULL: no memory, and
 * they lie where they lay. */
static void *grown(void *items, uint64_t count, uint64_t *room, size_t item_bytes) {
    if (count < *room)
        return items;
    uint64_t wanted = *room ? 2 * *room : 16;
    void *made = realloc(items, wanted * item_bytes);
    if (made)
        *room = wanted;
    return made;
}

static bool is(const struct cw_json_text *text, const char *word) {
    return strcmp(text->text, word) == 0 && text->length == strlen(word);
}

int cw_safetensors_length(const char *path, const uint8_t bytes[CW_SAFETENSORS_LENGTH_BYTES],
                          uint64_t *header_bytes) {
    uint64_t length = 0;
    for (size_t i = CW_SAFETENSORS_LENGTH_BYTES; i-- > 0;)
        length = length << 8 | bytes[i];
    if (length < 2 || length > CW_SAFETENSORS_HEADER_MAX)
        return cw_fail(-EPROTO,
                       "%.200s is no .safetensors file: it begins with a header of %llu bytes; %u "
                       "are possible",
                       path, (unsigned long long)length, CW_SAFETENSORS_HEADER_MAX);
    *header_bytes = length;
    return 0;
}

/* ---- one tensor ---- */

static int read_shape(struct reading *r, struct entry *entry) {
    struct cw_safetensors *file = r->file;
    uint64_t extent, room = file->axes_room;
    bool first = true;
    entry->axes_at = file->axes_used;
    int code = cw_json_take(&r->json, '[');
    while (code == 0 && (code = cw_json_element(&r->json, &first)) == 1) {
        code = cw_json_whole(&r->json, &extent);
        if (code)
            break;
        if (++entry->ndim > CW_NDIM_MAX)
            return cw_fail(-ENOTSUP, "\"%.100s\" in %.200s has more than %d axes", entry->name,
                           r->path, CW_NDIM_MAX);
        int64_t *axes = grown(file->axes, file->axes_used, &room, sizeof *axes);
        if (!axes)
            return no_memory(r);
        file->axes = axes;
        file->axes_room = room;
        file->axes[file->axes_used++] = (int64_t)extent;
    }
    return json_damaged(r, code);
}

static int read_offsets(struct reading *r, struct entry *entry) {
    uint64_t *const ends[] = {&entry->begin, &entry->end};
    bool first = true;
    int code = cw_json_take(&r->json, '[');
    for (int i = 0; i < 2 && code == 0; i++) {
        code = cw_json_element(&r->json, &first);
        if (code == 0)
            return damaged(r, "has data_offsets that are not two numbers");
        if (code == 1)
            code = cw_json_whole(&r->json, ends[i]);
    }
    if (code == 0 && cw_json_element(&r->json, &first) != 0)
        return damaged(r, "has data_offsets that are not two numbers");
    return json_damaged(r, code);
}

static int read_dtype(struct reading *r, struct entry *entry) {
    struct cw_json_text text;
    int code = json_damaged(r, cw_json_text(&r->json, &text));
    if (code)
        return code;
    entry->row = strlen(text.text) == text.length ? cw_dtype_of_safetensors(text.text) : NULL;
    return entry->row
               ? 0
               : cw_fail(-ENOTSUP,
                         "\"%.100s\" in %.200s has the dtype %.40s, which cableway lacks: convert "
                         "it, or read it with the package safetensors",
                         entry->name, r->path, text.text);
}

/* In the file two numbers of 4 bits are two elements. */
static int halve(const struct reading *r, const struct entry *entry, int64_t *shape) {
    if (entry->row->dlpack_lanes == 1)
        return 0;
    if (!entry->ndim || shape[entry->ndim - 1] % entry->row->dlpack_lanes)
        return cw_fail(-ENOTSUP,
                       "the last axis of \"%.100s\" in %.200s has an odd number of elements of 4 "
                       "bits, and two of them are one byte here: convert it, or read it with the "
                       "package safetensors",
                       entry->name, r->path);
    shape[entry->ndim - 1] /= entry->row->dlpack_lanes;
    return 0;
}

static int check_size(const struct reading *r, const struct entry *entry) {
    int64_t *axes = r->file->axes, size = entry->row->size_bytes; /* no axes yet: NULL */
    int64_t *shape = axes ? axes + entry->axes_at : NULL;
    bool empty = false;
    if (entry->ndim && !shape)
        return damaged(r, "has dimensions without a shape");
    int code = halve(r, entry, shape);
    if (code)
        return code;
    for (uint32_t i = 0; i < entry->ndim; i++) {
        empty |= shape[i] == 0;
        if (__builtin_mul_overflow(size, shape[i] ? shape[i] : 1, &size))
            return damaged(r, "claims more bytes than 63 bits can count");
    }
    if (entry->end < entry->begin || entry->end - entry->begin != (empty ? 0 : (uint64_t)size))
        return cw_fail(-EPROTO,
                       "%.200s is damaged: the data_offsets of \"%.100s\" are not those of its "
                       "dtype and shape: fetch the file again",
                       r->path, entry->name);
    return 0;
}

static int read_tensor(struct reading *r, const char *name) {
    static const char *const fields[] = {"dtype", "shape", "data_offsets"};
    int (*const read[])(struct reading *, struct entry *) = {read_dtype, read_shape, read_offsets};
    struct cw_safetensors *file = r->file;
    struct entry entry = {.name = name};
    struct cw_json_text key;
    unsigned found = 0, field;
    bool first = true;
    int code = json_damaged(r, cw_json_take(&r->json, '{'));
    while (code == 0 && (code = json_damaged(r, cw_json_member(&r->json, &first, &key))) == 1) {
        for (field = 0; field < 3 && !is(&key, fields[field]); field++)
            ;
        if (field == 3 || found & 1u << field)
            return damaged(r, "has a tensor with other fields than dtype, shape and data_offsets");
        found |= 1u << field;
        code = read[field](r, &entry);
    }
    if (code == 0 && found != 7)
        code = damaged(r, "has a tensor without dtype, shape or data_offsets");
    if (code == 0)
        code = check_size(r, &entry);
    if (code)
        return code;
    uint64_t room = file->room;
    if (file->count == CW_LEAVES_MAX)
        return cw_fail(-ENOTSUP, "%.200s has more than %u tensors: split it into several files",
                       r->path, CW_LEAVES_MAX);
    struct entry *entries = grown(file->entries, file->count, &room, sizeof entry);
    if (!entries)
        return no_memory(r);
    file->entries = entries;
    file->room = (uint32_t)room;
    file->entries[file->count++] = entry;
    return 0;
}

/* ---- all of it ---- */

static int read_notes(struct reading *r) {
    struct cw_safetensors *file = r->file;
    struct cw_json_text key, value;
    bool first = true;
    if (file->notes)
        return damaged(r, "has " CW_SAFETENSORS_METADATA " twice");
    int code = json_damaged(r, cw_json_take(&r->json, '{'));
    uint64_t room = file->note_room;
    if (code == 0 && !(file->notes = grown(NULL, 0, &room, sizeof *file->notes)))
        return no_memory(r);
    while (code == 0 && (code = json_damaged(r, cw_json_member(&r->json, &first, &key))) == 1) {
        code = json_damaged(r, cw_json_text(&r->json, &value));
        if (code)
            return code;
        if (strlen(key.text) != key.length || strlen(value.text) != value.length)
            return damaged(r, "has a zero byte in its metadata");
        struct note *notes = grown(file->notes, file->note_count, &room, sizeof *notes);
        if (!notes)
            return no_memory(r);
        file->notes = notes;
        file->notes[file->note_count++] = (struct note){.key = key.text, .value = value.text};
    }
    file->note_room = (uint32_t)room;
    return code;
}

static int by_data(const void *a, const void *b) {
    const struct entry *one = a, *other = b;
    return one->begin != other->begin ? (one->begin < other->begin ? -1 : 1)
           : one->end != other->end   ? (one->end < other->end ? -1 : 1)
                                      : strcmp(one->name, other->name);
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* No text comes twice. names is sorted. */
static int check_twice(const struct reading *r, const char **names, uint32_t count,
                       const char *what) {
    qsort(names, count, sizeof *names, by_name);
    for (uint32_t i = 1; i < count; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            return cw_fail(-EPROTO, "%.200s is damaged: its header has the %s \"%.100s\" twice",
                           r->path, what, names[i]);
    return 0;
}

static int check_names(const struct reading *r) {
    const struct cw_safetensors *file = r->file;
    uint32_t most = file->count > file->note_count ? file->count : file->note_count;
    const char **names = malloc((most + 1) * sizeof *names);
    if (!names)
        return no_memory(r);
    for (uint32_t i = 0; i < file->count; i++)
        names[i] = file->entries[i].name;
    int code = check_twice(r, names, file->count, "tensor");
    for (uint32_t i = 0; i < file->note_count; i++)
        names[i] = file->notes[i].key;
    if (code == 0)
        code = check_twice(r, names, file->note_count, "metadata");
    free(names);
    return code;
}

/* S3. */
static int check_data(const struct reading *r, uint64_t data_bytes) {
    const struct cw_safetensors *file = r->file;
    uint64_t end = 0;
    for (uint32_t i = 0; i < file->count; i++) {
        const struct entry *entry = &file->entries[i];
        if (entry->begin != end)
            return cw_fail(-EPROTO, "%.200s is damaged: \"%.100s\" %s: fetch the file again",
                           r->path, entry->name,
                           entry->begin < end ? "overlaps another tensor"
                                              : "begins behind a hole in the data");
        end = entry->end;
    }
    if (data_bytes == UINT64_MAX || end == data_bytes)
        return 0;
    if (end < data_bytes)
        return cw_fail(-EPROTO,
                       "%.200s is damaged: it goes on behind its data: fetch the file again",
                       r->path);
    return cw_fail(-EPROTO,
                   "%.200s was cut off: its header promises %llu bytes of data, it has %llu: fetch "
                   "the file again",
                   r->path, (unsigned long long)end, (unsigned long long)data_bytes);
}

static int read_header(struct reading *r) {
    struct cw_json_text key;
    bool first = true;
    if (r->json.at == r->json.end || *r->json.at != '{')
        return damaged(r, "does not begin with {");
    if (!cw_json_utf8(r->json.at, (size_t)(r->json.end - r->json.at)))
        return damaged(r, "is no UTF-8");
    int code = json_damaged(r, cw_json_take(&r->json, '{'));
    while (code == 0 && (code = json_damaged(r, cw_json_member(&r->json, &first, &key))) == 1) {
        if (strlen(key.text) != key.length)
            return cw_fail(-ENOTSUP, "a tensor's name in %.200s has a zero byte in it", r->path);
        code = strcmp(key.text, CW_SAFETENSORS_METADATA) ? read_tensor(r, key.text) : read_notes(r);
    }
    return code ? code : json_damaged(r, cw_json_finish(&r->json));
}

int cw_safetensors_parse(const char *path, const void *header, uint64_t header_bytes,
                         uint64_t data_bytes, cw_safetensors **out) {
    if (!path || !header || !out)
        return cw_needs("a path, a header and a place for it");
    if (header_bytes > CW_SAFETENSORS_HEADER_MAX)
        return cw_fail(-EPROTO, "%.200s has a header of %llu bytes; %u are possible", path,
                       (unsigned long long)header_bytes, CW_SAFETENSORS_HEADER_MAX);
    struct reading r = {.path = path, .file = calloc(1, sizeof *r.file)};
    if (r.file)
        r.file->text = malloc(header_bytes + 1);
    if (!r.file || !r.file->text) {
        free(r.file);
        return no_memory(&r);
    }
    memcpy(r.file->text, header, header_bytes);
    r.file->hash = XXH3_64bits(header, header_bytes);
    r.json = (struct cw_json){.at = r.file->text, .end = r.file->text + header_bytes};
    int code = read_header(&r);
    if (code == 0)
        code = check_names(&r);
    if (code == 0) {
        if (r.file->count)
            qsort(r.file->entries, r.file->count, sizeof *r.file->entries, by_data);
        code = check_data(&r, data_bytes);
    }
    if (code)
        cw_safetensors_free(r.file);
    else
        *out = r.file;
    return code;
}

void cw_safetensors_free(cw_safetensors *file) {
    if (!file)
        return;
    free(file->text);
    free(file->entries);
    free(file->axes);
    free(file->notes);
    free(file);
}

uint32_t cw_safetensors_count(const cw_safetensors *file) {
    return file ? file->count : 0;
}

uint64_t cw_safetensors_hash(const cw_safetensors *file) {
    return file->hash;
}

int cw_safetensors_tensor(const cw_safetensors *file, uint32_t number, cw_tensor *out) {
    if (!file || !out)
        return cw_needs("a header and a place for the tensor");
    if (number >= file->count)
        return cw_fail(-EINVAL, "tensor %u of %u", number, file->count);
    const struct entry *entry = &file->entries[number];
    *out = (cw_tensor){.name = entry->name,
                       .layout = {.ndim = entry->ndim,
                                  .itemsize = entry->row->size_bytes,
                                  .shape = file->axes ? file->axes + entry->axes_at : NULL,
                                  .dtype = entry->row->dtype},
                       .offset_bytes = entry->begin,
                       .size_bytes = entry->end - entry->begin};
    return 0;
}

int cw_safetensors_note(const cw_safetensors *file, uint32_t number, const char **key,
                        const char **value) {
    if (!file || !key || !value)
        return cw_needs("a header, and places for key and value");
    if (number >= file->note_count)
        return -ENOENT;
    *key = file->notes[number].key;
    *value = file->notes[number].value;
    return 0;
}
