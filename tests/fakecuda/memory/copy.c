/*
 * Copies and fills. All of them are work on a stream; the plain ones wait for it.
 *
 * Host memory that is not registered is treated as the driver does: a copy into it has been done
 * when the call returns, also an asynchronous one; a copy out of it has read it by then, at once if
 * it is small, else when the stream comes to it. So a call can block behind a stream that waits.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/fakecuda/memory/memory.h"
#include "tests/fakecuda/streams/stream.h"

#define STAGED_MAX ((size_t)64 << 10)

static bool pageable(bool host, uintptr_t address) {
    if (!host)
        return false;
    pthread_rwlock_rdlock(&fake_ranges_lock);
    bool known = fake_range_known(address, 1);
    pthread_rwlock_unlock(&fake_ranges_lock);
    return !known;
}

/* The copy's source as it is now; NULL: too large for that. */
static void *stage(struct fake_copy *copy) {
    if (copy->height > 1 || copy->width_bytes > STAGED_MAX)
        return NULL;
    void *staged = malloc(copy->width_bytes);
    if (!staged)
        abort();
    memcpy(staged, (const void *)copy->from, copy->width_bytes);
    copy->from = (uintptr_t)staged;
    return staged;
}

static CUresult submit(fake_context *context, CUstream handle, struct fake_work work, bool wait) {
    struct fake_stream *stream = fake_stream_hold(handle, context);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult code = fake_stream_push(stream, work);
    if (!code && wait)
        code = fake_stream_wait(stream, stream->submitted);
    pthread_mutex_unlock(&fake_mutex);
    return code;
}

/* Memory that is mapped read-only. */
static bool refused(const fake_context *context, uintptr_t to) {
    pthread_rwlock_rdlock(&fake_ranges_lock);
    bool refuses = fake_range_refuses(context, to);
    pthread_rwlock_unlock(&fake_ranges_lock);
    return refuses;
}

static CUresult copy(fake_context *context, CUstream handle, bool wait, struct fake_copy copy) {
    if (!copy.width_bytes || !copy.height)
        return CUDA_SUCCESS;
    if (!copy.to || !copy.from || refused(context, copy.to))
        return CUDA_ERROR_INVALID_VALUE;
    if (pageable(copy.to_host, copy.to))
        wait = true;
    if (!wait && pageable(copy.from_host, copy.from) && !(copy.staged = stage(&copy)))
        wait = true;
    struct fake_work work = {.kind = FAKE_COPY};
    work.copy = copy;
    CUresult code = submit(context, handle, work, wait);
    if (code && !wait)
        free(copy.staged); /* it was not taken; with wait there is none */
    return code;
}

static struct fake_copy line(uintptr_t to, bool to_host, uintptr_t from, bool from_host,
                             size_t size_bytes) {
    return (struct fake_copy){.to = to,
                              .from = from,
                              .width_bytes = size_bytes,
                              .height = 1,
                              .to_host = to_host,
                              .from_host = from_host};
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t size_bytes, CUstream stream) {
    CALL_IN(context, cuMemcpyHtoDAsync);
    return copy(context, stream, false, line(to, false, (uintptr_t)from, true, size_bytes));
}

CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t size_bytes, CUstream stream) {
    CALL_IN(context, cuMemcpyDtoHAsync);
    return copy(context, stream, false, line((uintptr_t)to, true, from, false, size_bytes));
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t size_bytes, CUstream stream) {
    CALL_IN(context, cuMemcpyDtoDAsync);
    return copy(context, stream, false, line(to, false, from, false, size_bytes));
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size_bytes, CUstream stream) {
    CALL_IN(context, cuMemcpyAsync);
    return copy(context, stream, false, line(to, true, from, true, size_bytes));
}

/* The two contexts say where the memory lies; addresses are enough for that here. */
CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                           CUcontext from_context, size_t size_bytes, CUstream stream) {
    CALL_IN(context, cuMemcpyPeerAsync);
    if (!to_context || !from_context)
        return CUDA_ERROR_INVALID_CONTEXT;
    return copy(context, stream, false, line(to, false, from, false, size_bytes));
}

/* Copies in any order: here the last one first, so that who counts on an order is found out. */
CUresult cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                            CUmemcpyAttributes *attributes, size_t *first, size_t attributes_count,
                            CUstream stream) {
    CALL_IN(context, cuMemcpyBatchAsync);
    if (!fake_config.batch)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!to || !from || !sizes || !count || !attributes || !first || attributes_count != 1 ||
        first[0] != 0 || !stream || stream == CU_STREAM_LEGACY ||
        attributes->srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = count; i-- > 0;) {
        CUresult code = copy(context, stream, false, line(to[i], false, from[i], false, sizes[i]));
        if (code)
            return code;
    }
    return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t size_bytes) {
    CALL_IN(context, cuMemcpyHtoD);
    return copy(context, NULL, true, line(to, false, (uintptr_t)from, true, size_bytes));
}

CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t size_bytes) {
    CALL_IN(context, cuMemcpyDtoH);
    return copy(context, NULL, true, line((uintptr_t)to, true, from, false, size_bytes));
}

CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t size_bytes) {
    CALL_IN(context, cuMemcpyDtoD);
    return copy(context, NULL, true, line(to, false, from, false, size_bytes));
}

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size_bytes) {
    CALL_IN(context, cuMemcpy);
    return copy(context, NULL, true, line(to, true, from, true, size_bytes));
}

/* One side of a copy of rows: its first byte. False: a kind of memory that is not known here. */
static bool side(CUmemorytype type, const void *host, CUdeviceptr device, size_t x_bytes, size_t y,
                 size_t pitch_bytes, uintptr_t *out, bool *out_host) {
    if (type != CU_MEMORYTYPE_HOST && type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_UNIFIED)
        return false;
    *out = (type == CU_MEMORYTYPE_HOST ? (uintptr_t)host : (uintptr_t)device) + y * pitch_bytes +
           x_bytes;
    *out_host = type != CU_MEMORYTYPE_DEVICE;
    return true;
}

static CUresult copy_rows(fake_context *context, const CUDA_MEMCPY2D *from, CUstream stream,
                          bool wait) {
    if (!from)
        return CUDA_ERROR_INVALID_VALUE;
    struct fake_copy rows = {.width_bytes = from->WidthInBytes,
                             .height = from->Height,
                             .to_pitch_bytes = from->dstPitch ? from->dstPitch : from->WidthInBytes,
                             .from_pitch_bytes =
                                 from->srcPitch ? from->srcPitch : from->WidthInBytes};
    if (rows.to_pitch_bytes < from->WidthInBytes + from->dstXInBytes ||
        rows.from_pitch_bytes < from->WidthInBytes + from->srcXInBytes ||
        !side(from->dstMemoryType, from->dstHost, from->dstDevice, from->dstXInBytes, from->dstY,
              rows.to_pitch_bytes, &rows.to, &rows.to_host) ||
        !side(from->srcMemoryType, from->srcHost, from->srcDevice, from->srcXInBytes, from->srcY,
              rows.from_pitch_bytes, &rows.from, &rows.from_host))
        return CUDA_ERROR_INVALID_VALUE;
    return copy(context, stream, wait, rows);
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D *rows, CUstream stream) {
    CALL_IN(context, cuMemcpy2DAsync);
    return copy_rows(context, rows, stream, false);
}

CUresult cuMemcpy2D(const CUDA_MEMCPY2D *rows) {
    CALL_IN(context, cuMemcpy2D);
    return copy_rows(context, rows, NULL, true);
}

/* ---- fills -------------------------------------------------------------------------------------
 */

static CUresult fill(fake_context *context, CUstream stream, bool wait, CUdeviceptr to,
                     uint32_t value, int unit_bytes, size_t count) {
    if (to % (unsigned)unit_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (!count)
        return CUDA_SUCCESS;
    if (refused(context, to))
        return CUDA_ERROR_INVALID_VALUE;
    struct fake_work work = {.kind = FAKE_FILL};
    work.fill = (struct fake_fill){to, value, unit_bytes, count};
    return submit(context, stream, work, wait);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
    CALL_IN(context, cuMemsetD8Async);
    return fill(context, stream, false, to, value, 1, count);
}

CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
    CALL_IN(context, cuMemsetD16Async);
    return fill(context, stream, false, to, value, 2, count);
}

CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
    CALL_IN(context, cuMemsetD32Async);
    return fill(context, stream, false, to, value, 4, count);
}

CUresult cuMemsetD8(CUdeviceptr to, unsigned char value, size_t count) {
    CALL_IN(context, cuMemsetD8);
    return fill(context, NULL, true, to, value, 1, count);
}

CUresult cuMemsetD32(CUdeviceptr to, unsigned value, size_t count) {
    CALL_IN(context, cuMemsetD32);
    return fill(context, NULL, true, to, value, 4, count);
}
