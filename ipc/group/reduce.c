/*
 * Reductions: see reduce.h. Pure functions over memory; parts are reduced a piece at a time, in
 * memory that stays in the first cache, and each piece is then stored to all targets.
 *
 * Conversion of float16: F. Giesen, "float<->half conversions" (rounding to nearest, ties to even).
 */
#include "ipc/group/reduce.h"

#include <emmintrin.h>
#include <stdbool.h>
#include <string.h>

#include "ipc/cableway.h"
#include "shm/base/error.h"

#ifdef __clang__
#define VECTORS _Pragma("clang loop vectorize(assume_safety)")
#pragma clang diagnostic ignored "-Wpass-failed" /* none at -O1 and under sanitizers */
#else
#define VECTORS _Pragma("GCC ivdep")
#pragma GCC optimize("O3")
#endif

#define PIECE_BYTES 8192u

enum dtype { NO_DTYPE, B1, I1, I2, I4, I8, U1, U2, U4, U8, F2, F4, F8, C8, C16, BF16, DTYPES };

static const struct {
    const char *name;
    uint32_t size;
} dtypes[DTYPES] = {
    [NO_DTYPE] = {"bytes", 1}, [B1] = {"|b1", 1}, [I1] = {"|i1", 1},    [I2] = {"<i2", 2},
    [I4] = {"<i4", 4},         [I8] = {"<i8", 8}, [U1] = {"|u1", 1},    [U2] = {"<u2", 2},
    [U4] = {"<u4", 4},         [U8] = {"<u8", 8}, [F2] = {"<f2", 2},    [F4] = {"<f4", 4},
    [F8] = {"<f8", 8},         [C8] = {"<c8", 8}, [C16] = {"<c16", 16}, [BF16] = {"bfloat16", 2},
};

static const char *const names[CW_REDUCTIONS] = {
    [CW_SUM] = "sum", [CW_PROD] = "prod", [CW_MIN] = "min",   [CW_MAX] = "max", [CW_LAND] = "land",
    [CW_LOR] = "lor", [CW_LXOR] = "lxor", [CW_BAND] = "band", [CW_BOR] = "bor", [CW_BXOR] = "bxor",
};

uint32_t cw_reduce_dtype(const char *dtype) {
    for (uint32_t i = 1; i < DTYPES; i++) /* most differ in these two */
        if (dtype[0] == dtypes[i].name[0] && dtype[1] == dtypes[i].name[1] &&
            strcmp(dtype, dtypes[i].name) == 0)
            return i;
    return NO_DTYPE;
}

const char *cw_reduce_dtype_name(uint32_t dtype) {
    return dtypes[dtype < DTYPES ? dtype : NO_DTYPE].name;
}

uint32_t cw_reduce_dtype_size(uint32_t dtype) {
    return dtype < DTYPES ? dtypes[dtype].size : 0;
}

const char *cw_reduce_name(uint32_t reduction) {
    return reduction < CW_REDUCTIONS && names[reduction] ? names[reduction] : "";
}

/* ---- kernels: out = a op b; out may be a or b, whole ---- */

typedef void kernel_fn(void *out, const void *a, const void *b, size_t count);

#define KERNEL(name, type, expression)                                                             \
    static void name(void *out_, const void *a_, const void *b_, size_t count) {                   \
        type *out = out_;                                                                          \
        const type *a = a_, *b = b_;                                                               \
        VECTORS for (size_t i = 0; i < count; i++) {                                               \
            const type x = a[i], y = b[i];                                                         \
            out[i] = (type)(expression);                                                           \
        }                                                                                          \
    }

/* Sums and products of integers wrap around, as NumPy's: unsigned in C. */
#define INTEGERS(tag, type, wide)                                                                  \
    KERNEL(sum_##tag, type, (wide)x + (wide)y)                                                     \
    KERNEL(prod_##tag, type, (wide)x *(wide)y)                                                     \
    KERNEL(min_##tag, type, x < y ? x : y)                                                         \
    KERNEL(max_##tag, type, x > y ? x : y)                                                         \
    KERNEL(land_##tag, type, x &&y)                                                                \
    KERNEL(lor_##tag, type, x || y)                                                                \
    KERNEL(lxor_##tag, type, !x != !y)                                                             \
    KERNEL(band_##tag, type, x &y)                                                                 \
    KERNEL(bor_##tag, type, x | y)                                                                 \
    KERNEL(bxor_##tag, type, x ^ y)

/* Of two numbers of which one is no number (NaN), that one, as numpy.minimum has it. */
#define FLOATS(tag, type)                                                                          \
    KERNEL(sum_##tag, type, x + y)                                                                 \
    KERNEL(prod_##tag, type, x *y)                                                                 \
    KERNEL(min_##tag, type, x < y || x != x ? x : y)                                               \
    KERNEL(max_##tag, type, x > y || x != x ? x : y)

#define COMPLEX(tag, type)                                                                         \
    static void sum_##tag(void *out, const void *a, const void *b, size_t count) {                 \
        sum_part_##tag(out, a, b, 2 * count);                                                      \
    }                                                                                              \
    static void prod_##tag(void *out_, const void *a_, const void *b_, size_t count) {             \
        type *out = out_;                                                                          \
        const type *a = a_, *b = b_;                                                               \
        for (size_t i = 0; i < 2 * count; i += 2) {                                                \
            type re = a[i] * b[i] - a[i + 1] * b[i + 1];                                           \
            type im = a[i] * b[i + 1] + a[i + 1] * b[i];                                           \
            out[i] = re;                                                                           \
            out[i + 1] = im;                                                                       \
        }                                                                                          \
    }

INTEGERS(i1, int8_t, uint32_t)
INTEGERS(i2, int16_t, uint32_t)
INTEGERS(i4, int32_t, uint32_t)
INTEGERS(i8, int64_t, uint64_t)
INTEGERS(u1, uint8_t, uint32_t)
INTEGERS(u2, uint16_t, uint32_t)
INTEGERS(u4, uint32_t, uint32_t)
INTEGERS(u8, uint64_t, uint64_t)
FLOATS(f4, float)
FLOATS(f8, double)
#define sum_part_c8  sum_f4
#define sum_part_c16 sum_f8
COMPLEX(c8, float)
COMPLEX(c16, double)

#define INTEGER_ROW(tag)                                                                           \
    {                                                                                              \
        [CW_SUM] = sum_##tag, [CW_PROD] = prod_##tag, [CW_MIN] = min_##tag, [CW_MAX] = max_##tag,  \
        [CW_LAND] = land_##tag, [CW_LOR] = lor_##tag, [CW_LXOR] = lxor_##tag,                      \
        [CW_BAND] = band_##tag, [CW_BOR] = bor_##tag, [CW_BXOR] = bxor_##tag                       \
    }
#define FLOAT_ROW(tag)                                                                             \
    { [CW_SUM] = sum_##tag, [CW_PROD] = prod_##tag, [CW_MIN] = min_##tag, [CW_MAX] = max_##tag }

static kernel_fn *const kernels[DTYPES][CW_REDUCTIONS] = {
    /* As NumPy's add and multiply of bools, which are bytes of 0 and 1. */
    [B1] = {[CW_SUM] = lor_u1,
            [CW_PROD] = land_u1,
            [CW_MIN] = min_u1,
            [CW_MAX] = max_u1,
            [CW_LAND] = land_u1,
            [CW_LOR] = lor_u1,
            [CW_LXOR] = lxor_u1,
            [CW_BAND] = band_u1,
            [CW_BOR] = bor_u1,
            [CW_BXOR] = bxor_u1},
    [I1] = INTEGER_ROW(i1),
    [I2] = INTEGER_ROW(i2),
    [I4] = INTEGER_ROW(i4),
    [I8] = INTEGER_ROW(i8),
    [U1] = INTEGER_ROW(u1),
    [U2] = INTEGER_ROW(u2),
    [U4] = INTEGER_ROW(u4),
    [U8] = INTEGER_ROW(u8),
    [F2] = FLOAT_ROW(f4), /* computed in float32 */
    [BF16] = FLOAT_ROW(f4),
    [F4] = FLOAT_ROW(f4),
    [F8] = FLOAT_ROW(f8),
    [C8] = {[CW_SUM] = sum_c8, [CW_PROD] = prod_c8},
    [C16] = {[CW_SUM] = sum_c16, [CW_PROD] = prod_c16},
};

int cw_reduce_check(uint32_t dtype, uint32_t reduction) {
    if (reduction == 0 || reduction >= CW_REDUCTIONS)
        return cw_fail(-EINVAL, "op %u: there are 1 to %d (enum cw_reduction)", reduction,
                       CW_REDUCTIONS - 1);
    if (dtype == NO_DTYPE || dtype >= DTYPES || !kernels[dtype][reduction])
        return cw_fail(-EINVAL,
                       "%s of %s cannot be computed: sum, prod, min and max are for numbers (of "
                       "complex ones sum and prod), logical and bitwise ones for integers and "
                       "bools; convert the elements first",
                       cw_reduce_name(reduction), cw_reduce_dtype_name(dtype));
    return 0;
}

/* ---- on a GPU ---- */

/* In the order of enum cw_reduction, for numbers. */
static const enum cw_kernel_operation kernel_operations[CW_REDUCTIONS] = {
    [CW_SUM] = CW_KERNEL_SUM,  [CW_PROD] = CW_KERNEL_PROD, [CW_MIN] = CW_KERNEL_MIN,
    [CW_MAX] = CW_KERNEL_MAX,  [CW_BAND] = CW_KERNEL_AND,  [CW_BOR] = CW_KERNEL_OR,
    [CW_BXOR] = CW_KERNEL_XOR, [CW_LAND] = CW_KERNEL_AND,  [CW_LOR] = CW_KERNEL_OR,
    [CW_LXOR] = CW_KERNEL_XOR,
};

/* Of bools, which are bytes of 0 and 1, the logical operations are those of bits. */
static const enum cw_kernel_operation kernel_operations_of_bools[CW_KERNEL_OPERATIONS] = {
    [CW_KERNEL_SUM] = CW_KERNEL_OR,  [CW_KERNEL_PROD] = CW_KERNEL_AND,
    [CW_KERNEL_MIN] = CW_KERNEL_AND, [CW_KERNEL_MAX] = CW_KERNEL_OR,
    [CW_KERNEL_AND] = CW_KERNEL_AND, [CW_KERNEL_OR] = CW_KERNEL_OR,
    [CW_KERNEL_XOR] = CW_KERNEL_XOR,
};

static const enum cw_kernel_element kernel_elements[DTYPES] = {
    [I4] = CW_KERNEL_I4, [I8] = CW_KERNEL_I8,  [U4] = CW_KERNEL_U4, [U8] = CW_KERNEL_U8,
    [F2] = CW_KERNEL_F2, [F4] = CW_KERNEL_F4,  [F8] = CW_KERNEL_F8, [BF16] = CW_KERNEL_BF16,
    [C8] = CW_KERNEL_F4, [C16] = CW_KERNEL_F8,
};

struct cw_kernel cw_reduce_kernel(uint32_t dtype, uint32_t reduction) {
    const struct cw_kernel none = {.element = CW_KERNEL_NONE};
    struct cw_kernel found = {kernel_elements[dtype], kernel_operations[reduction]};
    const bool logical = reduction == CW_LAND || reduction == CW_LOR || reduction == CW_LXOR;
    if (dtype == B1)
        return (struct cw_kernel){CW_KERNEL_BITS, kernel_operations_of_bools[found.operation]};
    if (logical || ((dtype == C8 || dtype == C16) && reduction != CW_SUM))
        return none;
    if (found.operation >= CW_KERNEL_AND)
        found.element = CW_KERNEL_BITS;
    else if (found.operation == CW_KERNEL_SUM || found.operation == CW_KERNEL_PROD)
        found.element = found.element == CW_KERNEL_U4   ? CW_KERNEL_I4
                        : found.element == CW_KERNEL_U8 ? CW_KERNEL_I8
                                                        : found.element;
    return cw_kernel_is(found) ? found : none;
}

/* ---- two-byte floats ---- */

static inline float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static void widen_f2(float *out, const uint16_t *in, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint32_t sign = (uint32_t)(in[i] & 0x8000u) << 16, rest = in[i] & 0x7fffu;
        /* As a float that is 2^112 too small; right for subnormal ones too. */
        uint32_t bits = bits_of(float_of(rest << 13) * 0x1p112f);
        bits = rest >= 0x7c00u ? 0x7f800000u | rest << 13 : bits; /* infinite, NaN */
        out[i] = float_of(bits | sign);
    }
}

static void narrow_f2(uint16_t *out, const float *in, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = bits_of(in[i]), sign = bits & 0x80000000u;
        bits ^= sign;
        /* Small ones: the addition rounds at the last bit that a half has. */
        uint32_t small = bits_of(float_of(bits) + 0.5f) - 0x3f000000u;
        uint32_t normal = (bits + 0xc8000fffu + (bits >> 13 & 1)) >> 13;
        uint32_t half = bits < 0x38800000u ? small : normal;
        half = bits >= 0x47800000u ? (bits > 0x7f800000u ? 0x7e00u : 0x7c00u) : half;
        out[i] = (uint16_t)(half | sign >> 16);
    }
}

static void widen_bf16(float *out, const uint16_t *in, size_t count) {
    for (size_t i = 0; i < count; i++)
        out[i] = float_of((uint32_t)in[i] << 16);
}

static void narrow_bf16(uint16_t *out, const float *in, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = bits_of(in[i]);
        uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
        out[i] = (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x40u : rounded);
    }
}

/* ---- pieces ---- */

/* Past the caches: what is stored is larger than they are, and its reader is another core. */
static void stream_out(void *target, const void *source, size_t bytes) {
    uint8_t *to = target;
    const uint8_t *from = source;
    size_t head = -(uintptr_t)to & 15;
    head = head < bytes ? head : bytes;
    memcpy(to, from, head);
    size_t at = head;
    for (; at + 16 <= bytes; at += 16)
        _mm_stream_si128((__m128i *)(void *)(to + at),
                         _mm_loadu_si128((const __m128i *)(const void *)(from + at)));
    memcpy(to + at, from + at, bytes - at);
}

static const void *part_at(const void *part, uint64_t at_bytes) {
    return (const uint8_t *)part + at_bytes;
}

static void widen(uint32_t dtype, float *out, const void *in, size_t count) {
    if (dtype == BF16)
        widen_bf16(out, in, count);
    else
        widen_f2(out, in, count);
}

/* Reduces a piece of floats of two bytes in float32, and rounds it into piece. */
static void reduce_narrow(uint32_t dtype, kernel_fn *kernel, uint16_t *piece,
                          const void *const *from, uint32_t parts, uint64_t at_bytes,
                          size_t count) {
    _Alignas(64) float sum[PIECE_BYTES / 2], next[PIECE_BYTES / 2];
    widen(dtype, sum, part_at(from[0], at_bytes), count);
    for (uint32_t i = 1; i < parts; i++) {
        widen(dtype, next, part_at(from[i], at_bytes), count);
        kernel(sum, sum, next, count);
    }
    if (dtype == BF16)
        narrow_bf16(piece, sum, count);
    else
        narrow_f2(piece, sum, count);
}

void cw_reduce(uint32_t dtype, uint32_t reduction, void *const *targets, uint32_t target_count,
               const void *const *from, uint32_t parts, uint64_t count, bool past_caches) {
    _Alignas(64) uint8_t room[PIECE_BYTES];
    const uint32_t size = dtypes[dtype].size;
    kernel_fn *kernel = kernels[dtype][reduction];
    const bool narrow = dtype == F2 || dtype == BF16;
    for (uint64_t at = 0; at < count; at += PIECE_BYTES / size) {
        size_t some = count - at < PIECE_BYTES / size ? count - at : PIECE_BYTES / size;
        uint64_t at_bytes = at * size;
        /* Two parts go straight to a target; of more, a target may be one not yet read. */
        const bool straight = parts == 2 && !narrow && !past_caches;
        void *piece = straight ? (uint8_t *)targets[0] + at_bytes : room;
        if (narrow)
            reduce_narrow(dtype, kernel, piece, from, parts, at_bytes, some);
        else if (parts == 1)
            memcpy(piece, part_at(from[0], at_bytes), some * size);
        else
            kernel(piece, part_at(from[0], at_bytes), part_at(from[1], at_bytes), some);
        for (uint32_t i = 2; i < parts && !narrow; i++)
            kernel(piece, piece, part_at(from[i], at_bytes), some);
        for (uint32_t i = straight; i < target_count; i++)
            if (past_caches)
                stream_out((uint8_t *)targets[i] + at_bytes, piece, some * size);
            else
                memcpy((uint8_t *)targets[i] + at_bytes, piece, some * size);
    }
    if (past_caches)
        _mm_sfence();
}
