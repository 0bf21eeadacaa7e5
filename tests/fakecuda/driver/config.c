/*
 * The environment of the test double: see config.h, and README.md for the list.
 */
#include "tests/fakecuda/driver/config.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX "CABLEWAY_FAKECUDA_"

struct fake_config fake_config;

CUresult fake_config_wrong(const char *variable, const char *value, const char *should) {
    fprintf(stderr, "fakecuda: %s=%s: should be %s\n", variable, value, should);
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult number(const char *name, uint64_t fallback, uint64_t min, uint64_t max,
                       uint64_t *out) {
    const char *text = getenv(name);
    char should[80], *end;
    *out = fallback;
    if (!text || !*text)
        return CUDA_SUCCESS;
    uint64_t value = strtoull(text, &end, 0);
    if (*end || value < min || value > max) {
        snprintf(should, sizeof should, "a number from %llu to %llu", (unsigned long long)min,
                 (unsigned long long)max);
        return fake_config_wrong(name, text, should);
    }
    *out = value;
    return CUDA_SUCCESS;
}

/* Sixteen bytes in hex, with dashes where they please, after "GPU-" or "MIG-". */
static bool uuid_parse(const char *text, size_t length, CUuuid *out) {
    int digits = 0;
    if (length < 4 || (strncmp(text, "GPU-", 4) != 0 && strncmp(text, "MIG-", 4) != 0))
        return false;
    memset(out, 0, sizeof *out);
    for (size_t i = 4; i < length; i++) {
        if (text[i] == '-')
            continue;
        if (!isxdigit((unsigned char)text[i]) || digits == 32)
            return false;
        int digit = isdigit((unsigned char)text[i]) ? text[i] - '0' : (text[i] | 32) - 'a' + 10;
        out->bytes[digits / 2] =
            (char)((unsigned char)out->bytes[digits / 2] | digit << (digits % 2 ? 0 : 4));
        digits++;
    }
    return digits == 32;
}

static void uuid_text(int index, char text[48]) {
    const unsigned char *b = (const unsigned char *)fake_config.uuid[index].bytes;
    int at = snprintf(text, 48, fake_config.mig ? "MIG-" : "GPU-");
    for (int i = 0; i < 16; i++)
        at += snprintf(text + at, 48 - (size_t)at,
                       i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", b[i]);
}

static CUresult load_uuids(void) {
    const char *text = getenv(PREFIX "UUIDS");
    for (int i = 0; i < fake_config.device_count; i++) {
        memcpy(fake_config.uuid[i].bytes, "fakecuda\0\0\0\0\0\0\0", 16);
        fake_config.uuid[i].bytes[15] = (char)i;
    }
    for (int i = 0; text && *text; i++) {
        size_t length = strcspn(text, ",");
        if (i >= fake_config.device_count || !uuid_parse(text, length, &fake_config.uuid[i]))
            return fake_config_wrong(PREFIX "UUIDS", text,
                                     "a UUID as GPU-32 hex digits, for each device");
        text += length + (text[length] == ',');
    }
    return CUDA_SUCCESS;
}

/* "0-1,2-3" or "all": pairs that cannot reach each other. */
static CUresult load_peers(void) {
    const char *text = getenv(PREFIX "NO_PEER");
    bool all = fake_config.mig || (text && strcmp(text, "all") == 0);
    for (int a = 0; a < FAKE_DEVICES_MAX; a++)
        for (int b = 0; b < FAKE_DEVICES_MAX; b++)
            fake_config.peer[a][b] = a == b || !all;
    while (text && *text && strcmp(text, "all") != 0) {
        int a, b, used = 0;
        if (sscanf(text, "%d-%d%n", &a, &b, &used) != 2 || (text[used] && text[used] != ',') ||
            a < 0 || b < 0 || a == b || a >= fake_config.device_count ||
            b >= fake_config.device_count)
            return fake_config_wrong(PREFIX "NO_PEER", text, "all, or pairs of devices as 0-1,2-3");
        fake_config.peer[a][b] = fake_config.peer[b][a] = false;
        text += used + (text[used] == ',');
    }
    return CUDA_SUCCESS;
}

static CUresult load_mode(void) {
    const char *text = getenv(PREFIX "MODE");
    fake_config.mode = CU_COMPUTEMODE_DEFAULT;
    if (text && strcmp(text, "exclusive") == 0)
        fake_config.mode = CU_COMPUTEMODE_EXCLUSIVE_PROCESS;
    else if (text && strcmp(text, "prohibited") == 0)
        fake_config.mode = CU_COMPUTEMODE_PROHIBITED;
    else if (text && *text && strcmp(text, "default") != 0)
        return fake_config_wrong(PREFIX "MODE", text, "default, exclusive or prohibited");
    return CUDA_SUCCESS;
}

/* The device that one item of CUDA_VISIBLE_DEVICES means; -1 if none. A UUID may be shortened. */
static int visible_index(const char *text, size_t length) {
    char item[48], uuid[48];
    if (length >= sizeof item || length == 0)
        return -1;
    snprintf(item, sizeof item, "%.*s", (int)length, text);
    if (isdigit((unsigned char)item[0])) {
        char *end;
        long index = strtol(item, &end, 10);
        return *end || index >= fake_config.device_count ? -1 : (int)index;
    }
    if (length <= 4)
        return -1;
    for (int i = 0; i < fake_config.device_count; i++) {
        uuid_text(i, uuid);
        if (strncasecmp(uuid, item, length) == 0)
            return i;
    }
    return -1;
}

/* As the driver does: the list ends at its first wrong item, and one with an item twice is empty.
 * Of MIG instances a process sees one. */
static void load_visible(void) {
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    int most = fake_config.mig ? 1 : fake_config.device_count;
    fake_config.visible_count = 0;
    for (int i = 0; !text && i < most; i++)
        fake_config.visible[fake_config.visible_count++] = i;
    while (text && *text) {
        size_t length = strcspn(text, ",");
        int index = visible_index(text, length);
        if (index < 0)
            break;
        if (fake_config_ordinal(index) >= 0) {
            fake_config.visible_count = 0;
            break;
        }
        fake_config.visible[fake_config.visible_count++] = index;
        text += length + (text[length] == ',');
    }
    if (fake_config.visible_count > most)
        fake_config.visible_count = most;
}

static CUresult load_folder(void) {
    static char folder[FAKE_VARIABLE_MAX];
    const char *text = getenv(PREFIX "DIR");
    if (text && *text)
        snprintf(folder, sizeof folder, "%s", text);
    else
        snprintf(folder, sizeof folder, "/tmp/cableway-fakecuda-%d", (int)getuid());
    fake_config.folder = folder;
    mkdir(folder, 0700);
    if (access(folder, W_OK) < 0)
        return fake_config_wrong(PREFIX "DIR", folder, "a folder that can be written");
    return CUDA_SUCCESS;
}

static CUresult flag(const char *name, bool *out) {
    uint64_t value;
    CUresult code = number(name, 0, 0, 1, &value);
    *out = value;
    return code;
}

CUresult fake_config_load(void) {
    uint64_t devices, memory_mib, context_mib, driver, waits;
    bool no_export, no_wait64, no_batch;
    CUresult code;
    if ((code = number(PREFIX "DEVICES", 2, 0, FAKE_DEVICES_MAX, &devices)) ||
        (code = number(PREFIX "MEMORY_MIB", 1024, 2, 1 << 20, &memory_mib)) ||
        (code = number(PREFIX "CONTEXT_MIB", 0, 0, 1 << 20, &context_mib)) ||
        (code = number(PREFIX "DRIVER", 13000, 1000, 99990, &driver)) ||
        (code = number(PREFIX "WAITS", 8, 1, 1 << 20, &waits)) ||
        (code = number(PREFIX "LATE_MS", 0, 0, 60000, &fake_config.late_ms)) ||
        (code = flag(PREFIX "LATE_KEEPS", &fake_config.late_keeps)) ||
        (code = flag(PREFIX "NO_EXPORT", &no_export)) ||
        (code = flag(PREFIX "NO_WAIT64", &no_wait64)) ||
        (code = flag(PREFIX "NO_BATCH", &no_batch)) ||
        (code = flag(PREFIX "MIG", &fake_config.mig)))
        return code;
    fake_config.device_count = (int)devices;
    fake_config.memory_bytes = memory_mib << 20;
    fake_config.context_bytes = context_mib << 20;
    fake_config.driver = (int)driver;
    fake_config.waits = (int)waits;
    fake_config.fd_export = !no_export;
    fake_config.wait64 = !no_wait64;
    fake_config.batch = !no_batch;
    if ((code = load_uuids()) || (code = load_peers()) || (code = load_mode()) ||
        (code = load_folder()))
        return code;
    load_visible();
    return CUDA_SUCCESS;
}

int fake_config_ordinal(int index) {
    for (int i = 0; i < fake_config.visible_count; i++)
        if (fake_config.visible[i] == index)
            return i;
    return -1;
}
