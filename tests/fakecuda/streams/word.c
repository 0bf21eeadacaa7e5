/*
 * Words that streams write and wait for. The word must lie in memory that the driver knows, as the
 * real one asks for.
 */
#include "tests/fakecuda/memory/memory.h"
#include "tests/fakecuda/streams/stream.h"

static CUresult check(CUdeviceptr address, int size_bytes) {
    pthread_rwlock_rdlock(&fake_ranges_lock);
    bool known = fake_range_known(address, (size_t)size_bytes);
    pthread_rwlock_unlock(&fake_ranges_lock);
    return known && address % (unsigned)size_bytes == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult fill_in(enum fake_work_kind kind, CUdeviceptr address, uint64_t value,
                        int size_bytes, unsigned flags, struct fake_work *out) {
    unsigned allowed = kind == FAKE_WAIT ? 3u | CU_STREAM_WAIT_VALUE_FLUSH
                                         : CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER;
    if (flags & ~allowed)
        return CUDA_ERROR_INVALID_VALUE;
    if ((size_bytes == 8 && !fake_config.wait64) || (flags & CU_STREAM_WAIT_VALUE_FLUSH))
        return CUDA_ERROR_NOT_SUPPORTED;
    *out = (struct fake_work){.kind = kind};
    out->word = (struct fake_word){address, value, size_bytes, flags};
    return check(address, size_bytes);
}

static CUresult submit(fake_context *context, CUstream stream, enum fake_work_kind kind,
                       CUdeviceptr address, uint64_t value, int size_bytes, unsigned flags) {
    struct fake_work work;
    CUresult code = fill_in(kind, address, value, size_bytes, flags, &work);
    return code ? code : fake_stream_submit(stream, context, work);
}

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                              unsigned flags) {
    CALL_IN(context, cuStreamWriteValue32);
    return submit(context, stream, FAKE_WRITE, address, value, 4, flags);
}

CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
                              unsigned flags) {
    CALL_IN(context, cuStreamWriteValue64);
    return submit(context, stream, FAKE_WRITE, address, value, 8, flags);
}

CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                             unsigned flags) {
    CALL_IN(context, cuStreamWaitValue32);
    return submit(context, stream, FAKE_WAIT, address, value, 4, flags);
}

CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
                             unsigned flags) {
    CALL_IN(context, cuStreamWaitValue64);
    return submit(context, stream, FAKE_WAIT, address, value, 8, flags);
}

static CUresult one_of_batch(const CUstreamBatchMemOpParams *from, struct fake_work *out) {
    switch (from->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        return fill_in(FAKE_WAIT, from->waitValue.address, from->waitValue.value, 4,
                       from->waitValue.flags, out);
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        return fill_in(FAKE_WAIT, from->waitValue.address, from->waitValue.value64, 8,
                       from->waitValue.flags, out);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        return fill_in(FAKE_WRITE, from->writeValue.address, from->writeValue.value, 4,
                       from->writeValue.flags, out);
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        return fill_in(FAKE_WRITE, from->writeValue.address, from->writeValue.value64, 8,
                       from->writeValue.flags, out);
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

/* All of them or, if one is wrong, none. */
CUresult cuStreamBatchMemOp(CUstream handle, unsigned count, CUstreamBatchMemOpParams *from,
                            unsigned flags) {
    CALL_IN(context, cuStreamBatchMemOp);
    struct fake_work work[256];
    if (flags || !from || count > sizeof work / sizeof *work)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        CUresult code = one_of_batch(&from[i], &work[i]);
        if (code)
            return code;
    }
    struct fake_stream *stream = fake_stream_hold(handle, context);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult code = CUDA_SUCCESS;
    for (unsigned i = 0; i < count && !code; i++)
        code = fake_stream_push(stream, work[i]);
    pthread_mutex_unlock(&fake_mutex);
    return code;
}
