/*
 * cableway verify: is a tree still what was published, and is it what lies in these files?
 *
 * All of its memory is read, by this process alone; nothing is changed. What differs goes to
 * stdout, a line for each tensor.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/error.h"
#include "tools/cli.h"
#include "tools/output.h"

struct verification {
    const struct cli *cli;
    cw_client *client;
    cw_tree *tree;
    cw_tree_info info;
    uint64_t *hashes; /* of the leaves, as they are in memory */
    uint32_t unknown; /* leaves that were published without a hash */
    json_t *differs;  /* [{"path": ..., "what": ...}] */
};

static void differs(struct verification *v, const char *path, const char *what) {
    json_array_append_new(v->differs,
                          json_pack("{s:o, s:s}", "path", output_json_text(path), "what", what));
    if (v->cli->options & CLI_JSON)
        return;
    char *safe = output_safe(path);
    printf("%s: %s\n", safe, what);
    free(safe);
}

/* ---- memory ---- */

static int hash_leaf(struct verification *v, const cw_leaf *leaf, cw_array **parts,
                     uint64_t *hash) {
    int code = 0;
    if (!leaf->size_bytes) {
        *hash = leaf->hash;
        return 0;
    }
    if (leaf->alias) {
        *hash = v->hashes[leaf->alias - 1];
        return 0;
    }
    if (!parts[leaf->part])
        code = cw_tree_part(v->tree, v->client, leaf->part, &parts[leaf->part]);
    return code ? code
                : cw_array_hash(parts[leaf->part], leaf->offset_bytes, leaf->size_bytes, hash);
}

static int hash_leaves(struct verification *v) {
    cw_array **parts = calloc(v->info.parts + 1, sizeof(void *));
    int code = 0;
    CW_ASSERT(parts);
    for (uint32_t i = 0; i < v->info.leaves && code == 0; i++) {
        cw_leaf leaf;
        code = cw_tree_leaf(v->tree, i, &leaf);
        if (code == 0)
            code = hash_leaf(v, &leaf, parts, &v->hashes[i]);
        if (code)
            break;
        if (!(leaf.flags & CW_LEAF_HASHED))
            v->unknown++;
        else if (v->hashes[i] != leaf.hash)
            differs(v, leaf.path, "is not what was published: somebody wrote there");
    }
    for (uint32_t i = 0; i < v->info.parts; i++)
        cw_array_close(parts[i]);
    free(parts);
    return code;
}

/* ---- files ---- */

static bool same_layout(const cw_layout *one, const cw_layout *other) {
    return one->ndim == other->ndim && strcmp(one->dtype, other->dtype) == 0 && !one->strides &&
           (!one->ndim || memcmp(one->shape, other->shape, one->ndim * sizeof *one->shape) == 0);
}

static int compare_tensor(struct verification *v, const cw_tensor *tensor, uint64_t hash,
                          bool *in_files) {
    cw_leaf leaf;
    uint32_t number;
    if (cw_tree_find(v->tree, tensor->name, &number)) {
        differs(v, tensor->name, "is in the files, and not in the tree");
        return 0;
    }
    in_files[number] = true;
    int code = cw_tree_leaf(v->tree, number, &leaf);
    if (code)
        return code;
    if (!same_layout(&leaf.layout, &tensor->layout))
        differs(v, tensor->name, "has another dtype or shape in the files");
    else if (leaf.size_bytes && v->hashes[number] != hash)
        differs(v, tensor->name, "has other values in the files");
    return 0;
}

static int compare(struct verification *v, const cw_checkpoint *checkpoint, const cw_read *reads) {
    bool *in_files = calloc(v->info.leaves + 1, sizeof *in_files);
    int code = 0;
    CW_ASSERT(in_files);
    for (uint32_t i = 0; i < cw_checkpoint_count(checkpoint) && code == 0; i++) {
        cw_tensor tensor;
        code = cw_checkpoint_tensor(checkpoint, i, &tensor);
        if (code == 0)
            code = compare_tensor(v, &tensor, reads[i].hash, in_files);
    }
    for (uint32_t i = 0; i < v->info.leaves && code == 0; i++) {
        cw_leaf leaf;
        if (in_files[i])
            continue;
        code = cw_tree_leaf(v->tree, i, &leaf);
        if (code == 0)
            differs(v, leaf.path, "is in the tree, and not in the files");
    }
    free(in_files);
    return code;
}

static int compare_files(struct verification *v, const cw_checkpoint *checkpoint) {
    uint32_t count = cw_checkpoint_count(checkpoint);
    cw_read *reads = calloc((size_t)count + 1, sizeof *reads);
    cw_reading *reading = NULL;
    int code = 0;
    CW_ASSERT(reads);
    for (uint32_t i = 0; i < count && code == 0; i++) {
        cw_tensor tensor;
        code = cw_checkpoint_tensor(checkpoint, i, &tensor);
        reads[i] = (cw_read){.tensor = i, .size_bytes = code ? 0 : tensor.size_bytes};
    }
    if (code == 0)
        code = cw_reading_begin(checkpoint, reads, count, &reading);
    while (code == 0 && (code = cw_reading_wait(reading, -1)) == -EINTR)
        code = 0;
    cw_reading_end(reading);
    if (code == 0)
        code = compare(v, checkpoint, reads);
    free(reads);
    return code;
}

/* ---- all of it ---- */

static int report(struct verification *v) {
    bool equal = json_array_size(v->differs) == 0;
    if (v->cli->options & CLI_JSON) {
        char hash[20];
        snprintf(hash, sizeof hash, "%016llx", (unsigned long long)v->info.content_hash);
        output_json(json_pack(
            "{s:o, s:I, s:i, s:i, s:s, s:b, s:O}", "name", output_json_text(v->cli->arguments[0]),
            "version", (json_int_t)v->info.version, "tensors", (int)v->info.leaves, "without_hash",
            (int)v->unknown, "content_hash", hash, "equal", equal, "differs", v->differs));
    } else if (equal) {
        char *safe = output_safe(v->cli->arguments[0]);
        printf("%s: %u tensors are what %s\n", safe, v->info.leaves - v->unknown,
               v->cli->count > 1 ? "was published, and what lies in the files" : "was published");
        free(safe);
        if (v->unknown && v->cli->count == 1)
            cli_note("note: %u tensors were published without a hash, and cannot be verified",
                     v->unknown);
    }
    return equal ? CLI_OK : CLI_DIFFERS;
}

static int verify(struct verification *v, const cw_checkpoint *checkpoint) {
    int result = cw_tree_get(v->client, v->cli->arguments[0], 0, &v->tree);
    if (result)
        return cli_result(result);
    cw_tree_look_at(v->tree, &v->info);
    v->hashes = calloc((size_t)v->info.leaves + 1, sizeof *v->hashes);
    v->differs = json_array();
    CW_ASSERT(v->hashes && v->differs);
    result = hash_leaves(v);
    if (result == 0 && checkpoint)
        result = compare_files(v, checkpoint);
    int code = result == -ENOENT ? cli_error(CLI_FAILED, "%s", cw_error()) : cli_result(result);
    if (code == CLI_OK)
        code = report(v);
    json_decref(v->differs);
    free(v->hashes);
    cw_tree_close(v->tree);
    return code;
}

int cmd_verify(const struct cli *cli) {
    struct verification v = {.cli = cli};
    cw_checkpoint *checkpoint = NULL;
    int result = cli->count > 1 ? cw_checkpoint_open(cli->arguments[1], &checkpoint) : 0;
    if (result)
        return result == -ENOENT ? cli_error(CLI_FAILED, "%s", cw_error()) : cli_result(result);
    int code = cli_connect(cli, false, &v.client);
    if (code == CLI_OK) {
        code = verify(&v, checkpoint);
        cw_client_unref(v.client);
    }
    cw_checkpoint_close(checkpoint);
    return code;
}
