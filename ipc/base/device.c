/*
 * Devices by UUID: see device.h. No state; from any thread of any process.
 */
#include "ipc/base/device.h"

#include <stdio.h>
#include <string.h>

void cw_uuid_text(const uint8_t uuid[CW_UUID_BYTES], char out[CW_UUID_TEXT]) {
    static const uint8_t host[CW_UUID_BYTES];
    out[0] = 0;
    if (memcmp(uuid, host, sizeof host) == 0)
        return;
    size_t length = (size_t)snprintf(out, CW_UUID_TEXT, "GPU");
    for (unsigned i = 0; i < CW_UUID_BYTES; i++)
        length +=
            (size_t)snprintf(out + length, CW_UUID_TEXT - length, "%s%02x",
                             i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}
