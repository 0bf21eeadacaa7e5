/*
 * The kernels of kernel.h as PTX.
 *
 *   NAME(void *target, u64 count, u32 parts, const void *from[CW_KERNEL_PARTS_MAX])
 *
 * count accesses (of 16 bytes, or of one element) become one of all parts. A thread takes
 * CW_KERNEL_AT_ONCE wide ones in each round, which lie a whole grid apart: it loads all of the
 * first part, then all of the next one, which it combines with what it has, and stores. So loads of
 * two parts are under way at once, which is what the way to another GPU needs.
 *
 * Registers, for access number u of a round: %x<u>_<i> as loaded, %a<u>_<i> the elements so far,
 * %b<u>_<i> those of the next part; both are untyped, of an element's width (four bytes for what is
 * computed in float32).
 *
 * PTX: NVIDIA, Parallel Thread Execution ISA, version 7.0.
 */
#include <stdio.h>
#include <stdlib.h>

#include "ipc/cuda/kernel.h"

static const char *const operations[CW_KERNEL_OPERATIONS] = {
    [CW_KERNEL_SUM] = "sum", [CW_KERNEL_PROD] = "prod", [CW_KERNEL_MIN] = "min",
    [CW_KERNEL_MAX] = "max", [CW_KERNEL_AND] = "and",   [CW_KERNEL_OR] = "or",
    [CW_KERNEL_XOR] = "xor",
};

static const struct {
    const char *name;
    const char *type; /* of PTX, in which it is computed */
    uint32_t size;
} elements[CW_KERNEL_ELEMENTS] = {
    [CW_KERNEL_NONE] = {"", "", 1},    [CW_KERNEL_BITS] = {"bits", "b32", 1},
    [CW_KERNEL_I4] = {"i4", "s32", 4}, [CW_KERNEL_U4] = {"u4", "u32", 4},
    [CW_KERNEL_I8] = {"i8", "s64", 8}, [CW_KERNEL_U8] = {"u8", "u64", 8},
    [CW_KERNEL_F2] = {"f2", "f32", 2}, [CW_KERNEL_BF16] = {"bf16", "f32", 2},
    [CW_KERNEL_F4] = {"f4", "f32", 4}, [CW_KERNEL_F8] = {"f8", "f64", 8},
};

uint32_t cw_kernel_size(enum cw_kernel_element element) {
    return elements[element].size;
}

bool cw_kernel_is(struct cw_kernel kernel) {
    switch (kernel.element) {
    case CW_KERNEL_BITS:
        return kernel.operation >= CW_KERNEL_AND;
    case CW_KERNEL_U4:
    case CW_KERNEL_U8:
        return kernel.operation == CW_KERNEL_MIN || kernel.operation == CW_KERNEL_MAX;
    default:
        return kernel.element != CW_KERNEL_NONE && kernel.operation < CW_KERNEL_AND;
    }
}

void cw_ptx_name(struct cw_kernel kernel, uint32_t access_bytes, char name[CW_KERNEL_NAME_MAX]) {
    snprintf(name, CW_KERNEL_NAME_MAX, "%s_%s_%u", operations[kernel.operation],
             elements[kernel.element].name, access_bytes);
}

struct shape {
    struct cw_kernel kernel;
    const char *type;
    uint32_t access; /* bytes */
    uint32_t at_once;
    uint32_t words;   /* registers of an access */
    uint32_t numbers; /* elements of an access, or words of bits */
    bool narrow;      /* two-byte floats: two in a word, computed in float32 */
    bool wide_words;  /* of eight bytes */
};

static struct shape shape_of(struct cw_kernel kernel, uint32_t access) {
    struct shape s = {.kernel = kernel, .type = elements[kernel.element].type, .access = access};
    const uint32_t size = elements[kernel.element].size;
    s.at_once = access == CW_KERNEL_VECTOR ? CW_KERNEL_AT_ONCE : 1;
    s.narrow = size == 2;
    s.wide_words = size == 8;
    s.words = access < 4 ? 1 : access / (s.wide_words ? 8 : 4);
    s.numbers = s.narrow ? access / 2 : s.words;
    return s;
}

/* "{%x1_0, %x1_1}", or one register. */
static void write_words(FILE *out, const struct shape *s, uint32_t u) {
    for (uint32_t i = 0; i < s->words; i++)
        fprintf(out, "%s%%x%u_%u%s",
                i              ? ", "
                : s->words > 1 ? "{"
                               : "",
                u, i,
                i + 1 < s->words ? ""
                : s->words > 1   ? "}"
                                 : "");
}

/* ".v4.b32": of a load and a store. */
static void write_access(FILE *out, const struct shape *s) {
    if (s->access < 4)
        fprintf(out, ".%s", s->access == 1 ? "u8" : "u16");
    else
        fprintf(out, "%s.b%u",
                s->words == 4   ? ".v4"
                : s->words == 2 ? ".v2"
                                : "",
                s->wide_words ? 64 : 32);
}

/* All accesses of the part whose address is in %part. */
static void write_loads(FILE *out, const struct shape *s) {
    for (uint32_t u = 0; u < s->at_once; u++) {
        fprintf(out, "add.u64 %%at, %%part, %%offset%u;\n@%%in%u ld.global", u, u);
        write_access(out, s);
        fprintf(out, " ");
        write_words(out, s, u);
        fprintf(out, ", [%%at];\n");
    }
}

/* Words as loaded become numbers. */
static void write_unpack(FILE *out, const struct shape *s, uint32_t u, char to) {
    for (uint32_t i = 0; i < s->words; i++) {
        if (!s->narrow) {
            fprintf(out, "mov.b%u %%%c%u_%u, %%x%u_%u;\n", s->wide_words ? 64 : 32, to, u, i, u, i);
            continue;
        }
        const bool two = s->numbers > 1;
        if (s->kernel.element == CW_KERNEL_BF16) {
            fprintf(out, "shl.b32 %%%c%u_%u, %%x%u_%u, 16;\n", to, u, 2 * i, u, i);
            if (two)
                fprintf(out, "and.b32 %%%c%u_%u, %%x%u_%u, 0xffff0000;\n", to, u, 2 * i + 1, u, i);
            continue;
        }
        fprintf(out, "mov.b32 {%%h0, %%h1}, %%x%u_%u;\ncvt.f32.f16 %%%c%u_%u, %%h0;\n", u, i, to, u,
                2 * i);
        if (two)
            fprintf(out, "cvt.f32.f16 %%%c%u_%u, %%h1;\n", to, u, 2 * i + 1);
    }
}

/* Rounds a float to the upper half of its bits, to even, into register `to`. */
static void write_round_bf16(FILE *out, uint32_t u, uint32_t i, const char *to) {
    fprintf(out,
            "shr.u32 %%t0, %%a%u_%u, 16;\nand.b32 %%t1, %%t0, 1;\nadd.u32 %%t1, %%t1, 0x7fff;\n"
            "add.u32 %%t1, %%a%u_%u, %%t1;\nshr.u32 %%t1, %%t1, 16;\n"
            "and.b32 %%t2, %%a%u_%u, 0x7fffffff;\nsetp.gt.u32 %%p, %%t2, 0x7f800000;\n"
            "or.b32 %%t0, %%t0, 0x40;\nselp.b32 %s, %%t0, %%t1, %%p;\n",
            u, i, u, i, u, i, to);
}

/* Numbers become words to be stored. */
static void write_pack(FILE *out, const struct shape *s, uint32_t u) {
    for (uint32_t i = 0; i < s->words; i++) {
        const bool two = s->numbers > 1;
        if (!s->narrow) {
            fprintf(out, "mov.b%u %%x%u_%u, %%a%u_%u;\n", s->wide_words ? 64 : 32, u, i, u, i);
        } else if (s->kernel.element == CW_KERNEL_BF16) {
            char low[16];
            snprintf(low, sizeof low, "%%x%u_%u", u, i);
            write_round_bf16(out, u, 2 * i, low);
            if (two) {
                write_round_bf16(out, u, 2 * i + 1, "%t3");
                fprintf(out, "shl.b32 %%t3, %%t3, 16;\nor.b32 %s, %s, %%t3;\n", low, low);
            }
        } else {
            fprintf(out, "cvt.rn.f16.f32 %%h0, %%a%u_%u;\n", u, 2 * i);
            fprintf(out, two ? "cvt.rn.f16.f32 %%h1, %%a%u_%u;\n" : "mov.u16 %%h1, 0;\n", u,
                    2 * i + 1);
            fprintf(out, "mov.b32 %%x%u_%u, {%%h0, %%h1};\n", u, i);
        }
    }
}

/* a = a op b, of one number. Of two floats of which one is no number (NaN), that one, as
 * numpy.minimum has it. */
static void write_combine(FILE *out, const struct shape *s, uint32_t u, uint32_t i) {
    const bool floats = s->type[0] == 'f';
    const char *name = NULL;
    switch (s->kernel.operation) {
    case CW_KERNEL_SUM:
        name = floats ? "add.rn" : "add";
        break;
    case CW_KERNEL_PROD:
        name = floats ? "mul.rn" : "mul.lo";
        break;
    case CW_KERNEL_MIN:
    case CW_KERNEL_MAX:
        name = s->kernel.operation == CW_KERNEL_MIN ? "min" : "max";
        break;
    default:
        name = operations[s->kernel.operation];
    }
    if (!floats || s->kernel.operation == CW_KERNEL_SUM || s->kernel.operation == CW_KERNEL_PROD) {
        fprintf(out, "%s.%s %%a%u_%u, %%a%u_%u, %%b%u_%u;\n", name, s->type, u, i, u, i, u, i);
        return;
    }
    fprintf(out,
            "setp.%s.%s %%p, %%a%u_%u, %%b%u_%u;\nsetp.nan.%s %%q, %%a%u_%u, %%a%u_%u;\n"
            "or.pred %%p, %%p, %%q;\nselp.b%s %%a%u_%u, %%a%u_%u, %%b%u_%u, %%p;\n",
            s->kernel.operation == CW_KERNEL_MIN ? "lt" : "gt", s->type, u, i, u, i, s->type, u, i,
            u, i, s->type + 1, u, i, u, i, u, i);
}

static void write_head(FILE *out, const struct shape *s) {
    char name[CW_KERNEL_NAME_MAX];
    cw_ptx_name(s->kernel, s->access, name);
    fprintf(out,
            ".visible .entry %s(.param .u64 target, .param .u64 count, .param .u32 parts,\n"
            ".param .align 8 .b8 from[%u])\n{\n"
            ".reg .pred %%p, %%q, %%done;\n.reg .b16 %%h0, %%h1;\n.reg .b32 %%t0, %%t1, %%t2, "
            "%%t3;\n"
            ".reg .u32 %%block, %%width, %%lane, %%grid, %%parts, %%number;\n"
            ".reg .u64 %%target, %%count, %%i, %%step, %%round, %%part, %%place, %%at;\n",
            name, CW_KERNEL_PARTS_MAX * 8);
    for (uint32_t u = 0; u < s->at_once; u++) {
        fprintf(out, ".reg .pred %%in%u;\n.reg .u64 %%i%u, %%offset%u;\n", u, u, u);
        for (uint32_t i = 0; i < s->words; i++)
            fprintf(out, ".reg .b%u %%x%u_%u;\n", s->wide_words ? 64 : 32, u, i);
        for (uint32_t i = 0; i < s->numbers; i++)
            fprintf(out, ".reg .b%u %%a%u_%u, %%b%u_%u;\n", s->wide_words ? 64 : 32, u, i, u, i);
    }
    fprintf(out,
            "ld.param.u64 %%target, [target];\nld.param.u64 %%count, [count];\n"
            "ld.param.u32 %%parts, [parts];\n"
            "mov.u32 %%block, %%ctaid.x;\nmov.u32 %%width, %%ntid.x;\nmov.u32 %%lane, %%tid.x;\n"
            "mov.u32 %%grid, %%nctaid.x;\n"
            "mul.wide.u32 %%i, %%block, %%width;\ncvt.u64.u32 %%at, %%lane;\n"
            "add.u64 %%i, %%i, %%at;\nmul.wide.u32 %%step, %%grid, %%width;\n"
            "mul.lo.u64 %%round, %%step, %u;\n",
            s->at_once);
}

static void write_kernel(FILE *out, struct cw_kernel kernel, uint32_t access) {
    const struct shape s = shape_of(kernel, access);
    write_head(out, &s);
    fprintf(out, "NEXT:\nsetp.ge.u64 %%done, %%i, %%count;\n@%%done bra END;\n");
    for (uint32_t u = 0; u < s.at_once; u++) {
        if (u == 0)
            fprintf(out, "mov.u64 %%i0, %%i;\n");
        else
            fprintf(out, "add.u64 %%i%u, %%i%u, %%step;\n", u, u - 1);
        fprintf(out, "setp.lt.u64 %%in%u, %%i%u, %%count;\nmul.lo.u64 %%offset%u, %%i%u, %u;\n", u,
                u, u, u, access);
    }
    fprintf(out, "mov.u64 %%place, from;\nld.param.u64 %%part, [%%place];\n");
    write_loads(out, &s);
    for (uint32_t u = 0; u < s.at_once; u++)
        write_unpack(out, &s, u, 'a');
    fprintf(out, "mov.u32 %%number, 1;\n"
                 "PARTS:\nsetp.ge.u32 %%done, %%number, %%parts;\n@%%done bra STORE;\n"
                 "add.u64 %%place, %%place, 8;\nld.param.u64 %%part, [%%place];\n");
    write_loads(out, &s);
    for (uint32_t u = 0; u < s.at_once; u++) {
        write_unpack(out, &s, u, 'b');
        for (uint32_t i = 0; i < s.numbers; i++)
            write_combine(out, &s, u, i);
    }
    fprintf(out, "add.u32 %%number, %%number, 1;\nbra PARTS;\nSTORE:\n");
    for (uint32_t u = 0; u < s.at_once; u++) {
        write_pack(out, &s, u);
        fprintf(out, "add.u64 %%at, %%target, %%offset%u;\n@%%in%u st.global", u, u);
        write_access(out, &s);
        fprintf(out, " [%%at], ");
        write_words(out, &s, u);
        fprintf(out, ";\n");
    }
    fprintf(out, "add.u64 %%i, %%i, %%round;\nbra NEXT;\nEND:\nret;\n}\n");
}

char *cw_ptx_write(void) {
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        return NULL;
    fprintf(out, ".version 7.0\n.target sm_70\n.address_size 64\n");
    for (unsigned element = 0; element < CW_KERNEL_ELEMENTS; element++)
        for (unsigned operation = 0; operation < CW_KERNEL_OPERATIONS; operation++) {
            struct cw_kernel kernel = {(enum cw_kernel_element)element,
                                       (enum cw_kernel_operation)operation};
            if (!cw_kernel_is(kernel))
                continue;
            write_kernel(out, kernel, CW_KERNEL_VECTOR);
            write_kernel(out, kernel, cw_kernel_size(kernel.element));
        }
    if (ferror(out) | fclose(out)) {
        free(text);
        return NULL;
    }
    return text;
}
