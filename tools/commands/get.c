/*
 * cableway get: an array as an .npy file, or a .safetensors file if its name ends so; a tree as a
 * .safetensors file (tools/safetensors/from_tree.c). Contiguous arrays (C or Fortran) are written
 * as they lie; strided views in C order. The file appears whole or not at all.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/base/error.h"
#include "tools/cli.h"
#include "tools/elements.h"
#include "tools/npy/npy.h"
#include "tools/output.h"
#include "tools/safetensors/from_tree.h"
#include "tools/safetensors/safetensors.h"

struct target { /* where the file is written, until it gets its name */
    int fd;
    char final[PATH_MAX];
    char part[PATH_MAX + 32]; /* "" when written in place (stdout, a pipe, a device) */
};

/* ---- the file ---- */

static int target_open(const char *path, struct target *out) {
    struct stat status;
    *out = (struct target){.fd = -1};
    if (!strcmp(path, "-")) {
        out->fd = dup(STDOUT_FILENO);
        return out->fd < 0 ? cw_fail(-errno, "stdout cannot be used: %m") : 0;
    }
    if (stat(path, &status) == 0 && !S_ISREG(status.st_mode)) {
        out->fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
        return out->fd < 0 ? cw_fail(-errno, "opening %.300s failed: %m", path) : 0;
    }
    /* Through a symbolic link the file behind it is replaced, not the link. */
    if (!realpath(path, out->final) &&
        (size_t)snprintf(out->final, PATH_MAX, "%s", path) >= PATH_MAX)
        return cw_fail(-ENAMETOOLONG, "the path %.80s... is too long", path);
    snprintf(out->part, sizeof out->part, "%s.part-%d", out->final, (int)getpid());
    out->fd = open(out->part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (out->fd < 0) {
        int code = cw_fail(-errno, "making a file beside %.300s failed: %m", path);
        out->part[0] = 0;
        return code;
    }
    return 0;
}

/* Gives the file its name, or removes it when result tells of a failure. Returns the first failure.
 */
static int target_close(struct target *target, int result) {
    if (target->fd >= 0 && close(target->fd) && result == 0)
        result = cw_fail(-errno, "writing the file failed: %m");
    if (target->part[0] && result == 0 && rename(target->part, target->final))
        result = cw_fail(-errno, "giving the file its name %.300s failed: %m", target->final);
    if (target->part[0] && result)
        unlink(target->part);
    return result;
}

static int write_array(const struct cli *cli, int fd, const cw_array *array) {
    cw_layout layout;
    cw_array_layout(array, &layout);
    bool to_safetensors = safetensors_is_path(cli->arguments[1]); /* which has C order alone */
    bool fortran_order = !to_safetensors && !elements_are_contiguous(&layout, false) &&
                         elements_are_contiguous(&layout, true);
    uint64_t header_bytes;
    char *header;
    int code = to_safetensors
                   ? safetensors_format_header(cli->arguments[0], &layout, &header, &header_bytes)
                   : npy_format_header(&layout, fortran_order, &header, &header_bytes);
    if (code)
        return code;
    code = elements_write_bytes(fd, header, header_bytes);
    free(header);
    return code ? code : elements_write(fd, array, 0, &layout, fortran_order);
}

static void report(const struct cli *cli, const cw_array *array) {
    cw_layout layout;
    char size[OUTPUT_SHORT];
    cw_array_layout(array, &layout);
    if (!strcmp(cli->arguments[1], "-"))
        return; /* stdout is the file */
    if (cli->options & CLI_JSON) {
        output_json(json_pack("{s:o, s:o, s:I}", "name", output_json_text(cli->arguments[0]),
                              "file", output_json_text(cli->arguments[1]), "bytes",
                              (json_int_t)elements_nbytes(&layout)));
        return;
    }
    char *shape = output_shape(layout.ndim, layout.shape), *dtype = output_safe(layout.dtype);
    char *path = output_safe(cli->arguments[1]);
    printf("%s: %s %s, %s\n", path, shape, dtype, output_size(elements_nbytes(&layout), size));
    free(path);
    free(dtype);
    free(shape);
}

/* A file that cannot be written is no missing name and no lost broker. */
static int file_result(int result) {
    return result ? cli_error(result == -EDQUOT ? CLI_LIMIT : CLI_FAILED, "%s", cw_error())
                  : CLI_OK;
}

static int get_array(const struct cli *cli, const cw_array *array) {
    struct target target;
    int result = target_open(cli->arguments[1], &target);
    if (result == 0)
        result = write_array(cli, target.fd, array);
    int code = file_result(target_close(&target, result));
    if (code == CLI_OK)
        report(cli, array);
    return code;
}

/* ---- a tree ---- */

static void report_tree(const struct cli *cli, const cw_tree *tree, uint64_t data_bytes) {
    char size[OUTPUT_SHORT];
    cw_tree_info info;
    cw_tree_look_at(tree, &info);
    if (cli->options & CLI_JSON) {
        output_json(json_pack("{s:o, s:o, s:I, s:I, s:i}", "name",
                              output_json_text(cli->arguments[0]), "file",
                              output_json_text(cli->arguments[1]), "bytes", (json_int_t)data_bytes,
                              "version", (json_int_t)info.version, "leaves", (int)info.leaves));
        return;
    }
    char *path = output_safe(cli->arguments[1]);
    printf("%s: %u leaves, %s\n", path, info.leaves, output_size(data_bytes, size));
    free(path);
}

static int get_tree(const struct cli *cli, cw_client *client, const cw_tree *tree) {
    const char *name = cli->arguments[0], *path = cli->arguments[1];
    struct target target;
    uint64_t data_bytes = 0;
    cw_tree_info info;
    cw_tree_look_at(tree, &info);
    if (!safetensors_is_path(path))
        return cli_error(CLI_FAILED,
                         "\"%s\" is a tree of %u arrays, and an .npy file holds one: give a file "
                         "that ends in .safetensors, which holds all of them, or save one from "
                         "Python by numpy.save(file, cableway.get(name)[path].numpy())",
                         name, info.leaves);
    int result = target_open(path, &target);
    if (result == 0)
        result = safetensors_from_tree(target.fd, name, client, tree, &data_bytes);
    int code = file_result(target_close(&target, result));
    if (code == CLI_OK)
        report_tree(cli, tree, data_bytes);
    return code;
}

int cmd_get(const struct cli *cli) {
    cw_client *client;
    cw_array *array = NULL;
    cw_tree *tree = NULL;
    int result = cw_name_check(cli->arguments[0]);
    if (result)
        return cli_result(result);
    int code = cli_connect(cli, false, &client);
    if (code)
        return code;
    code = cli_result(cli_open(client, cli->arguments[0], &array, &tree));
    if (code == CLI_OK)
        code = tree ? get_tree(cli, client, tree) : get_array(cli, array);
    cw_tree_close(tree);
    cw_array_close(array);
    cw_client_unref(client);
    return code;
}
