/*
 * Fuzzes handle bytes, which come over any transport: whatever they say, they are refused, or they
 * describe a layout within the bytes that they name, which encodes to the same bytes again. The
 * check at their end is put right for half of the inputs, so that what is behind it is reached.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/handle_form.h"
#include "ipc/base/hash.h"
#include "shm/base/error.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void put_right(uint8_t *bytes, size_t size) {
    struct cw_handle_form form;
    if (size < sizeof form + 8)
        return;
    memcpy(&form, bytes, sizeof form);
    form.magic = CW_HANDLE_MAGIC;
    form.version = CW_HANDLE_VERSION;
    form.total_bytes = (uint32_t)size;
    memcpy(bytes, &form, sizeof form);
    uint64_t check = cw_hash(bytes, size - sizeof check, 0);
    memcpy(bytes + size - sizeof check, &check, sizeof check);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct cw_handle_read read;
    static uint8_t again[CW_HANDLE_BYTES_MAX];
    if (size < 1)
        return 0;
    bool right = *data & 1;
    data++;
    size--;
    uint8_t *exact = malloc(size ? size : 1); /* so that a byte beyond is noticed */
    CW_ASSERT(exact);
    memcpy(exact, data, size);
    if (right)
        put_right(exact, size);
    if (cw_handle_decode(exact, size, &read) == 0) {
        CW_ASSERT(read.shape.span_bytes <= read.info.handle.size_bytes);
        CW_ASSERT(strlen(read.info.address) <= CW_HANDLE_ADDRESS_MAX);
        CW_ASSERT(read.info.openers >= 1 && read.info.openers <= CW_OPENERS_MAX);
        CW_ASSERT(cw_handle_encode(&read, again) == size && memcmp(again, exact, size) == 0);
    }
    free(exact);
    return 0;
}
