/*
 * cableway put: the array of an .npy or .safetensors file under a name. The file is read straight
 * into the shared array; the name appears when all of it is there, or not at all.
 */
#include <errno.h>
#include <fcntl.h>
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

#define READ_PIECE_BYTES (64u << 20)

static int open_input(const char *path) {
    int fd = strcmp(path, "-") ? open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY) : dup(STDIN_FILENO);
    struct stat status;
    if (fd < 0)
        return cw_fail(-errno, "opening %.300s failed: %m", path);
    if (fstat(fd, &status) == 0 && S_ISDIR(status.st_mode)) {
        close(fd);
        return cw_fail(-EISDIR, "%.300s is a folder, no .npy file", path);
    }
    return fd;
}

static int cut_off(const char *path, uint64_t nbytes, uint64_t found) {
    return cw_fail(-EPROTO,
                   "%.200s was cut off: its header promises %llu bytes of data, it has %llu", path,
                   (unsigned long long)nbytes, (unsigned long long)found);
}

/* A file that is too short is refused before memory is taken for it. */
static int check_length(int fd, const char *path, const struct npy *npy) {
    struct stat status;
    off_t at = lseek(fd, 0, SEEK_CUR);
    if (at < 0 || fstat(fd, &status) || !S_ISREG(status.st_mode))
        return 0; /* a pipe: its end will tell */
    uint64_t left = status.st_size > at ? (uint64_t)(status.st_size - at) : 0;
    return left < npy->nbytes ? cut_off(path, npy->nbytes, left) : 0;
}

static int read_data(int fd, const char *path, void *to, uint64_t nbytes) {
    uint64_t done = 0;
    while (done < nbytes) {
        uint64_t piece = nbytes - done < READ_PIECE_BYTES ? nbytes - done : READ_PIECE_BYTES;
        ssize_t count = read(fd, (char *)to + done, piece);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return cw_fail(-errno, "reading %.200s failed: %m", path);
        if (count == 0)
            return cut_off(path, nbytes, done);
        done += (uint64_t)count;
    }
    return 0;
}

static void report(const struct cli *cli, const char *name, const struct npy *npy) {
    char size[OUTPUT_SHORT], *shape = output_shape(npy->ndim, npy->shape);
    char *safe = output_safe(name), *dtype = output_safe(npy->dtype);
    if (cli->options & CLI_JSON) {
        json_t *extents = json_array();
        for (uint32_t i = 0; i < npy->ndim; i++)
            json_array_append_new(extents, json_integer(npy->shape[i]));
        output_json(json_pack("{s:o, s:o, s:o, s:I, s:b}", "name", output_json_text(name), "shape",
                              extents, "dtype", output_json_text(npy->dtype), "bytes",
                              (json_int_t)npy->nbytes, "keep", (cli->options & CLI_KEEP) != 0));
    } else {
        printf("%s: %s %s, %s\n", safe, shape, dtype, output_size(npy->nbytes, size));
    }
    free(safe);
    free(dtype);
    free(shape);
}

static int put_file(const struct cli *cli, int fd, const struct npy *npy) {
    const char *name = cli->arguments[0], *path = cli->arguments[1];
    cw_client *client;
    cw_array *array;
    int code = cli_connect(cli, true, &client);
    if (code)
        return code;
    cw_layout layout = {.ndim = npy->ndim,
                        .itemsize = npy->itemsize,
                        .shape = npy->shape,
                        .strides = npy->strides,
                        .dtype = npy->dtype};
    int result = cw_array_new(client, "cpu", &layout, 0, &array);
    if (result == 0) {
        unsigned flags = (cli->options & CLI_KEEP ? CW_KEEP : 0u) |
                         (cli->options & CLI_NO_REPLACE ? 0u : CW_REPLACE);
        result = read_data(fd, path, cw_array_data(array), npy->nbytes);
        if (result == 0)
            result = cw_array_put(array, name, flags, NULL, 0);
        cw_array_close(array);
    }
    code = cli_result(result);
    if (code == CLI_OK) {
        report(cli, name, npy);
        cli_note_lifetime(cli, name);
    }
    cw_client_unref(client);
    return code;
}

int cmd_put(const struct cli *cli) {
    struct npy *npy = malloc(sizeof *npy);
    CW_ASSERT(npy);
    /* All that can be wrong with name and file is said before a broker is started for it. */
    int result = cw_name_check(cli->arguments[0]), fd = -1;
    if (result == 0)
        result = fd = open_input(cli->arguments[1]);
    if (result >= 0)
        result = safetensors_is_path(cli->arguments[1])
                     ? safetensors_read_header(fd, cli->arguments[1], npy)
                     : npy_read_header(fd, cli->arguments[1], npy);
    if (result == 0)
        result = check_length(fd, cli->arguments[1], npy);
    int code = result == -ENOENT ? cli_error(CLI_FAILED, "%s", cw_error()) : cli_result(result);
    if (code == CLI_OK)
        code = put_file(cli, fd, npy);
    if (fd >= 0)
        close(fd);
    free(npy);
    return code;
}
