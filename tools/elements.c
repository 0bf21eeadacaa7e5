/*
 * Elements as bytes of a file: see elements.h. What lies in host memory is written from there; of
 * a GPU a piece at a time is copied here first, and of a strided view there all that it spans.
 * One thread; nothing outlives a call.
 */
#include "tools/elements.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/base/error.h"

#define PIECE_BYTES     (4u << 20)
#define GPU_PIECE_BYTES (64u << 20)

int elements_write_bytes(int fd, const void *from, uint64_t size_bytes) {
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

bool elements_are_contiguous(const cw_layout *layout, bool fortran) {
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

uint64_t elements_nbytes(const cw_layout *layout) {
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
            int code = elements_write_bytes(gather->fd, gather->buffer, PIECE_BYTES);
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
        code = elements_write_bytes(fd, gather.buffer, gather.used);
    free(gather.buffer);
    return code;
}

/* How far below element 0 the elements reach. */
static uint64_t below_bytes(const cw_layout *layout) {
    uint64_t below = 0;
    for (uint32_t i = 0; i < layout->ndim; i++)
        if (layout->strides[i] < 0)
            below += (uint64_t)((layout->shape[i] - 1) * -layout->strides[i]);
    return below;
}

/* From the lowest byte to the end of the highest element. There is at least one. */
static uint64_t span_bytes(const cw_layout *layout) {
    uint64_t span = layout->itemsize;
    for (uint32_t i = 0; i < layout->ndim; i++)
        span += (uint64_t)((layout->shape[i] - 1) * llabs(layout->strides[i]));
    return span;
}

static int no_memory(uint64_t size_bytes) {
    return cw_fail(-EDQUOT, "no memory for a copy of %llu bytes", (unsigned long long)size_bytes);
}

static int write_from_gpu(int fd, const cw_array *array, uint64_t offset_bytes, uint64_t nbytes) {
    uint64_t room_bytes = nbytes < GPU_PIECE_BYTES ? nbytes : GPU_PIECE_BYTES;
    char *buffer = malloc(room_bytes);
    int code = buffer ? 0 : no_memory(room_bytes);
    for (uint64_t done = 0; done < nbytes && code == 0; done += room_bytes) {
        uint64_t piece = nbytes - done < room_bytes ? nbytes - done : room_bytes;
        code = cw_array_read(array, offset_bytes + done, buffer, piece);
        if (code == 0)
            code = elements_write_bytes(fd, buffer, piece);
    }
    free(buffer);
    return code;
}

static int write_strided_from_gpu(int fd, const cw_array *array, uint64_t offset_bytes,
                                  const cw_layout *layout) {
    uint64_t nbytes = span_bytes(layout);
    char *copy = malloc(nbytes);
    if (!copy)
        return no_memory(nbytes);
    int code = cw_array_read(array, offset_bytes, copy, nbytes);
    if (code == 0)
        code = write_strided(fd, layout, copy + below_bytes(layout));
    free(copy);
    return code;
}

int elements_write(int fd, const cw_array *array, uint64_t offset_bytes, const cw_layout *layout,
                   bool fortran) {
    uint64_t nbytes = elements_nbytes(layout);
    bool contiguous = elements_are_contiguous(layout, false) ||
                      (fortran && elements_are_contiguous(layout, true));
    if (nbytes == 0)
        return 0;
    if (cw_array_gpu(array) >= 0)
        return contiguous ? write_from_gpu(fd, array, offset_bytes, nbytes)
                          : write_strided_from_gpu(fd, array, offset_bytes, layout);
    cw_layout whole;
    cw_array_layout(array, &whole);
    const char *lowest = (const char *)cw_array_data(array) - below_bytes(&whole) + offset_bytes;
    return contiguous ? elements_write_bytes(fd, lowest, nbytes)
                      : write_strided(fd, layout, lowest + below_bytes(layout));
}
