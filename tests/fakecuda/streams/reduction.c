/*
 * The kernels of reductions in plain C, an element at a time and with nothing of the library's:
 * two-byte floats are taken apart by ldexp() and rounded by nearbyint().
 */
#include "tests/fakecuda/streams/reduction.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/fakecuda/memory/memory.h"

enum { BITS, I4, U4, I8, U8, F2, BF16, F4, F8, ELEMENTS };
enum { SUM, PROD, MIN, MAX, AND, OR, XOR, OPERATIONS };

static const char *const elements[ELEMENTS] = {"bits", "i4",   "u4", "i8", "u8",
                                               "f2",   "bf16", "f4", "f8"};
static const uint64_t sizes[ELEMENTS] = {1, 4, 4, 8, 8, 2, 2, 4, 8};
static const char *const operations[OPERATIONS] = {"sum", "prod", "min", "max", "and", "or", "xor"};

bool fake_reduction_named(const char *name, struct fake_reduction *out) {
    char entry[40];
    for (int e = 0; e < ELEMENTS; e++)
        for (int o = 0; o < OPERATIONS; o++)
            for (uint64_t access = sizes[e]; access <= 16; access += 16 - sizes[e]) {
                snprintf(entry, sizeof entry, "%s_%s_%d", operations[o], elements[e], (int)access);
                if (strcmp(entry, name) == 0) {
                    *out = (struct fake_reduction){e, o, access};
                    return true;
                }
            }
    return false;
}

/* ---- two-byte floats: sign, exponent, fraction, of so many bits ---- */

static float widen(uint16_t bits, int exponent_bits) {
    const int fraction_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1);
    const int fraction = bits & ((1 << fraction_bits) - 1);
    double value;
    if (exponent == (1 << exponent_bits) - 1)
        value = fraction ? NAN : INFINITY;
    else if (exponent == 0)
        value = ldexp(fraction, 1 - bias - fraction_bits);
    else
        value = ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
    return (float)(bits & 0x8000 ? -value : value);
}

static uint16_t narrow(float given, int exponent_bits) {
    const int fraction_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
    const int infinite = ((1 << exponent_bits) - 1) << fraction_bits;
    const int sign = signbit(given) ? 0x8000 : 0;
    int exponent;
    if (isnan(given))
        return (uint16_t)(sign | infinite | 1 << (fraction_bits - 1));
    if (isinf(given))
        return (uint16_t)(sign | infinite);
    frexp((double)given, &exponent); /* given is 0.5 to 1 times two to it */
    exponent = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
    double units = nearbyint(ldexp(fabs((double)given), fraction_bits - exponent));
    int bits = (int)units; /* with the leading one, if it is not subnormal */
    if (bits >> fraction_bits)
        bits += (exponent + bias - 1) << fraction_bits;
    return (uint16_t)(sign | (bits < infinite ? bits : infinite));
}

/* ---- elements ---- */

#define COMPUTE(type, a, b)                                                                        \
    switch (operation) {                                                                           \
    case SUM:                                                                                      \
        return (type)((a) + (b));                                                                  \
    case PROD:                                                                                     \
        return (type)((a) * (b));                                                                  \
    case MIN:                                                                                      \
        return (a) < (b) || (a) != (a) ? (a) : (b);                                                \
    default:                                                                                       \
        return (a) > (b) || (a) != (a) ? (a) : (b);                                                \
    }

static float of_f4(int operation, float a, float b) {
    COMPUTE(float, a, b)
}
static double of_f8(int operation, double a, double b) {
    COMPUTE(double, a, b)
}
static uint64_t of_u8(int operation, uint64_t a, uint64_t b) {
    COMPUTE(uint64_t, a, b)
}
static int64_t of_i8(int operation, int64_t a, int64_t b) {
    if (operation == SUM || operation == PROD)
        return (int64_t)of_u8(operation, (uint64_t)a, (uint64_t)b);
    COMPUTE(int64_t, a, b)
}
static uint8_t of_bits(int operation, uint8_t a, uint8_t b) {
    return (uint8_t)(operation == AND ? a & b : operation == OR ? a | b : a ^ b);
}

#define ALL_PARTS(type, wide, read, compute, write)                                                \
    {                                                                                              \
        type one;                                                                                  \
        memcpy(&one, (const void *)(uintptr_t)(sources[0] + at), sizeof one);                      \
        wide all = read(one);                                                                      \
        for (uint64_t part = 1; part < parts; part++) {                                            \
            memcpy(&one, (const void *)(uintptr_t)(sources[part] + at), sizeof one);               \
            all = (wide)compute(operation, all, read(one));                                        \
        }                                                                                          \
        one = (type)write(all);                                                                    \
        memcpy((void *)(uintptr_t)(target + at), &one, sizeof one);                                \
        break;                                                                                     \
    }

#define AS_IT_IS(x)    (x)
#define WIDEN_F2(x)    widen(x, 5)
#define NARROW_F2(x)   narrow(x, 5)
#define WIDEN_BF16(x)  widen(x, 8)
#define NARROW_BF16(x) narrow(x, 8)

static void reduce(struct fake_reduction reduction, uint64_t target, uint64_t at, uint64_t parts,
                   const uint64_t *sources) {
    const int operation = reduction.operation;
    switch (reduction.element) {
    case BITS:
        ALL_PARTS(uint8_t, uint8_t, AS_IT_IS, of_bits, AS_IT_IS)
    case I4:
        ALL_PARTS(int32_t, int32_t, AS_IT_IS, of_i8, AS_IT_IS)
    case U4:
        ALL_PARTS(uint32_t, uint32_t, AS_IT_IS, of_u8, AS_IT_IS)
    case I8:
        ALL_PARTS(int64_t, int64_t, AS_IT_IS, of_i8, AS_IT_IS)
    case U8:
        ALL_PARTS(uint64_t, uint64_t, AS_IT_IS, of_u8, AS_IT_IS)
    case F2:
        ALL_PARTS(uint16_t, float, WIDEN_F2, of_f4, NARROW_F2)
    case BF16:
        ALL_PARTS(uint16_t, float, WIDEN_BF16, of_f4, NARROW_BF16)
    case F4:
        ALL_PARTS(float, float, AS_IT_IS, of_f4, AS_IT_IS)
    default:
        ALL_PARTS(double, double, AS_IT_IS, of_f8, AS_IT_IS)
    }
}

CUresult fake_reduction_run(struct fake_stream *stream, struct fake_reduction reduction,
                            const uint64_t *arguments, const uint64_t *sources) {
    const uint64_t target = arguments[0], count = arguments[1], parts = (uint32_t)arguments[2];
    const uint64_t bytes = count * reduction.access_bytes;
    if (count == 0)
        return CUDA_SUCCESS;
    if (parts == 0 || parts > FAKE_PARTS_MAX)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    pthread_rwlock_rdlock(&fake_ranges_lock);
    bool good = fake_range_allows(stream->context, target, bytes, true, false) &&
                target % reduction.access_bytes == 0;
    for (uint64_t i = 0; i < parts && good; i++)
        good = fake_range_allows(stream->context, sources[i], bytes, false, false) &&
               sources[i] % reduction.access_bytes == 0;
    for (uint64_t at = 0; at < bytes && good; at += sizes[reduction.element])
        reduce(reduction, target, at, parts, sources);
    pthread_rwlock_unlock(&fake_ranges_lock);
    return good ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}
