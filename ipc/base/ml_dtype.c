/*
 * The table of the dtypes that array libraries share; see ml_dtype.h. It never changes. Python
 * reads it through cw_dtype_table(), so that there is one.
 *
 * Invariants: a word begins with a letter and a typestr never does; size_bytes is dlpack_bits *
 * dlpack_lanes / 8; a name that a library lacks is "".
 *
 * Pure functions over constants, from any thread of any process: nothing to die.
 */
#include "ipc/base/ml_dtype.h"

#include <stddef.h>
#include <string.h>

/* DLPack's DLDataTypeCode, as version 1.1 and later have it. */
enum {
    DL_INT = 0,
    DL_UINT = 1,
    DL_FLOAT = 2,
    DL_BFLOAT = 4,
    DL_COMPLEX = 5,
    DL_BOOL = 6,
    DL_FLOAT8_E4M3FN = 10,
    DL_FLOAT8_E4M3FNUZ = 11,
    DL_FLOAT8_E5M2 = 12,
    DL_FLOAT8_E5M2FNUZ = 13,
    DL_FLOAT8_E8M0FNU = 14,
    DL_FLOAT4_E2M1FN = 17,
};

#define ROW(text, size, code, lanes, ml, torch, file)                                              \
    { text, ml, torch, file, size, code, (size)*8 / (lanes), lanes }

/* ml_dtypes has int4, uint4 and float4_e2m1fn too, with a byte for each element: other types. */
static const cw_dtype_row table[] = {
    ROW("bfloat16", 2, DL_BFLOAT, 1, "bfloat16", "bfloat16", "BF16"),
    ROW("float8_e4m3fn", 1, DL_FLOAT8_E4M3FN, 1, "float8_e4m3fn", "float8_e4m3fn", "F8_E4M3"),
    ROW("float8_e4m3fnuz", 1, DL_FLOAT8_E4M3FNUZ, 1, "float8_e4m3fnuz", "float8_e4m3fnuz",
        "F8_E4M3FNUZ"),
    ROW("float8_e5m2", 1, DL_FLOAT8_E5M2, 1, "float8_e5m2", "float8_e5m2", "F8_E5M2"),
    ROW("float8_e5m2fnuz", 1, DL_FLOAT8_E5M2FNUZ, 1, "float8_e5m2fnuz", "float8_e5m2fnuz",
        "F8_E5M2FNUZ"),
    ROW("float8_e8m0fnu", 1, DL_FLOAT8_E8M0FNU, 1, "float8_e8m0fnu", "float8_e8m0fnu", "F8_E8M0"),
    ROW("float4_e2m1fn_x2", 1, DL_FLOAT4_E2M1FN, 2, "", "float4_e2m1fn_x2", "F4"),
    ROW("int4_x2", 1, DL_INT, 2, "", "int4", ""),
    ROW("uint4_x2", 1, DL_UINT, 2, "", "uint4", ""),
    ROW("complex32", 4, DL_COMPLEX, 1, "", "complex32", ""),
    ROW("|b1", 1, DL_BOOL, 1, "", "bool", "BOOL"),
    ROW("|i1", 1, DL_INT, 1, "", "int8", "I8"),
    ROW("<i2", 2, DL_INT, 1, "", "int16", "I16"),
    ROW("<i4", 4, DL_INT, 1, "", "int32", "I32"),
    ROW("<i8", 8, DL_INT, 1, "", "int64", "I64"),
    ROW("|u1", 1, DL_UINT, 1, "", "uint8", "U8"),
    ROW("<u2", 2, DL_UINT, 1, "", "uint16", "U16"),
    ROW("<u4", 4, DL_UINT, 1, "", "uint32", "U32"),
    ROW("<u8", 8, DL_UINT, 1, "", "uint64", "U64"),
    ROW("<f2", 2, DL_FLOAT, 1, "", "float16", "F16"),
    ROW("<f4", 4, DL_FLOAT, 1, "", "float32", "F32"),
    ROW("<f8", 8, DL_FLOAT, 1, "", "float64", "F64"),
    ROW("<c8", 8, DL_COMPLEX, 1, "", "complex64", "C64"),
    ROW("<c16", 16, DL_COMPLEX, 1, "", "complex128", ""),
};
#define ROWS (sizeof table / sizeof *table)

const cw_dtype_row *cw_dtype_table(uint32_t *count) {
    if (count)
        *count = ROWS;
    return table;
}

const cw_dtype_row *cw_dtype_find(const char *dtype) {
    for (size_t i = 0; i < ROWS; i++)
        if (strcmp(table[i].dtype, dtype) == 0)
            return &table[i];
    return NULL;
}

const cw_dtype_row *cw_dtype_word(const char *dtype) {
    const cw_dtype_row *row = *dtype >= 'a' && *dtype <= 'z' ? cw_dtype_find(dtype) : NULL;
    return row;
}

const cw_dtype_row *cw_dtype_of_safetensors(const char *name) {
    for (size_t i = 0; *name && i < ROWS; i++)
        if (strcmp(table[i].safetensors, name) == 0)
            return &table[i];
    return NULL;
}
