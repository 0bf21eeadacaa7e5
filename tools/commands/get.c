/*
 * cableway get: an array as an .npy file, or a .safetensors file if its name ends so. Contiguous
 * arrays (C or Fortran) are written as they lie; strided views in C order, gathered piece by piece.
 * The file appears whole or not at all.
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
#include "tools/npy/npy.h"
#include "tools/output.h"
#include "tools/safetensors/safetensors.h"

#define PIECE_BYTES (4u << 20)

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

static int write_all(int fd, const void *from, uint64_t size_bytes) {
    uint64_t done = 0;
    while (done < size_bytes) {
        uint64_t piece = size_bytes - done < (64u << 20) ? size_bytes - done : 64u << 20;
        ssize_t count = write(fd, (const char *)from + done, piece);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return cw_fail(errno == ECONNRESET ? -EPIPE : -errno, "writing the file failed: %m");
        done += (uint64_t)count;
    }
    return 0;
}

/* ---- the array ---- */

static bool is_contiguous(const cw_layout *layout, bool fortran) {
    int64_t expected = layout->itemsize;
    bool contiguous = true;
    for (uint32_t i = 0; i < layout->ndim; i++) {
        uint32_t axis = fortran ? i : layout->ndim - 1 - i;
        if (layout->shape[axis] == 0)
            return true; /* no element, no order */
        if (layout->shape[axis] != 1 && layout->strides[axis] != expected)
            contiguous = false;
        expected *= layout->shape[axis];
    }
    return contiguous;
}

static uint64_t data_bytes(const cw_layout *layout) {
    uint64_t total = layout->itemsize;
    for (uint32_t i = 0; i < layout->ndim; i++)
        total *= (uint64_t)layout->shape[i];
    return total;
}

struct gather { /* writes elements in C order through a buffer */
    int fd;
    char *buffer;
    size_t used;
};

static int gather_add(struct gather *gather, const char *from, uint64_t size_bytes) {
    while (size_bytes) {
        uint64_t piece = PIECE_BYTES - gather->used;
        piece = piece < size_bytes ? piece : size_bytes;
        memcpy(gather->buffer + gather->used, from, piece);
        gather->used += piece;
        from += piece;
        size_bytes -= piece;
        if (gather->used == PIECE_BYTES) {
            gather->used = 0;
            int code = write_all(gather->fd, gather->buffer, PIECE_BYTES);
            if (code)
                return code;
        }
    }
    return 0;
}

/* All elements of a strided array in C order: an odometer over the outer axes; the innermost axes
 * that lie together are one run. */
static int write_strided(int fd, const cw_layout *layout, const char *data) {
    uint32_t outer = layout->ndim;
    uint64_t run_bytes = layout->itemsize;
    while (outer &&
           (layout->strides[outer - 1] == (int64_t)run_bytes || layout->shape[outer - 1] == 1))
        run_bytes *= (uint64_t)layout->shape[--outer];
    struct gather gather = {.fd = fd, .buffer = malloc(PIECE_BYTES)};
    CW_ASSERT(gather.buffer);
    int64_t place[CW_NDIM_MAX] = {0};
    int code = 0;
    for (bool more = true; more && code == 0;) {
        code = gather_add(&gather, data, run_bytes);
        more = false;
        for (uint32_t axis = outer; axis-- > 0 && !more;) {
            data += layout->strides[axis];
            more = ++place[axis] < layout->shape[axis];
            if (!more) {
                data -= layout->strides[axis] * layout->shape[axis];
                place[axis] = 0;
            }
        }
    }
    if (code == 0)
        code = write_all(fd, gather.buffer, gather.used);
    free(gather.buffer);
    return code;
}

/* The elements where the CPU sees them: *copy is to be freed. */
static int bring_here(cw_array *array, const cw_layout *layout, char **copy, const char **data) {
    *copy = NULL;
    *data = cw_array_data(array);
    if (cw_array_gpu(array) < 0)
        return 0;
    uint64_t span_bytes = cw_array_nbytes(array), above_bytes = 0;
    for (uint32_t i = 0; i < layout->ndim; i++)
        if (layout->strides[i] < 0)
            above_bytes += (uint64_t)((layout->shape[i] - 1) * -layout->strides[i]);
    *copy = malloc(span_bytes);
    if (!*copy)
        return cw_fail(-EDQUOT, "no memory for a copy of %llu bytes",
                       (unsigned long long)span_bytes);
    int code = cw_array_read(array, 0, *copy, span_bytes);
    *data = *copy + above_bytes;
    return code;
}

static int write_array(const struct cli *cli, int fd, cw_array *array) {
    cw_layout layout;
    cw_array_layout(array, &layout);
    bool to_safetensors = safetensors_is_path(cli->arguments[1]); /* which has C order alone */
    bool c_order = is_contiguous(&layout, false);
    bool fortran_order = !to_safetensors && !c_order && is_contiguous(&layout, true);
    uint64_t header_bytes, nbytes = data_bytes(&layout);
    char *header;
    int code = to_safetensors
                   ? safetensors_format_header(cli->arguments[0], &layout, &header, &header_bytes)
                   : npy_format_header(&layout, fortran_order, &header, &header_bytes);
    if (code)
        return code;
    code = write_all(fd, header, header_bytes);
    free(header);
    if (code || nbytes == 0)
        return code;
    const char *data;
    char *copy;
    code = bring_here(array, &layout, &copy, &data);
    if (code == 0)
        code = c_order || fortran_order ? write_all(fd, data, nbytes)
                                        : write_strided(fd, &layout, data);
    free(copy);
    return code;
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
                              (json_int_t)data_bytes(&layout)));
        return;
    }
    char *shape = output_shape(layout.ndim, layout.shape), *dtype = output_safe(layout.dtype);
    char *path = output_safe(cli->arguments[1]);
    printf("%s: %s %s, %s\n", path, shape, dtype, output_size(data_bytes(&layout), size));
    free(path);
    free(dtype);
    free(shape);
}

int cmd_get(const struct cli *cli) {
    cw_client *client;
    cw_array *array;
    int result = cw_name_check(cli->arguments[0]);
    if (result)
        return cli_result(result);
    int code = cli_connect(cli, false, &client);
    if (code)
        return code;
    code = cli_result(cw_get(client, cli->arguments[0], CW_READONLY, &array));
    if (code == CLI_OK) {
        struct target target;
        result = target_open(cli->arguments[1], &target);
        if (result == 0)
            result = write_array(cli, target.fd, array);
        result = target_close(&target, result);
        /* A file that cannot be written is no missing name and no lost broker. */
        code = result ? cli_error(result == -EDQUOT ? CLI_LIMIT : CLI_FAILED, "%s", cw_error())
                      : CLI_OK;
        if (code == CLI_OK)
            report(cli, array);
        cw_array_close(array);
    }
    cw_client_unref(client);
    return code;
}
