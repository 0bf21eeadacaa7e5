/*
 * The grammar of dtypes: what NumPy writes of types that can be shared has the size that NumPy
 * gives it, and everything else is refused where it is said, not where another process reads it.
 */
#include "ipc/base/meta.h"
#include "ipc/base/ml_dtype.h"
#include "tests/unit/ipc/client_support.h"

static void what_numpy_writes_has_its_size(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint32_t size_bytes;
    } good[] = {
        {"|b1", 1},
        {"|i1", 1},
        {"<i2", 2},
        {">i4", 4},
        {"=u8", 8},
        {"<f2", 2},
        {"<f4", 4},
        {"|f8", 8},
        {"<f16", 16},
        {"<c8", 8},
        {"<c16", 16},
        {"<c32", 32},
        {"|S0", 0},
        {"|S5", 5},
        {"<U7", 28},
        {"|V100000", 100000},
        {"<M8[ns]", 8},
        {"<m8[25us]", 8},
        {"<M8", 8},
        {"<m8[generic]", 8},
        {"|V2147483647", INT32_MAX},
        {"<U536870911", 4u * 536870911u},
        {"[]", 0},
        {"[('a', '<f4'), ('b', '|i1')]", 5},
        {"[('a','<f4'),('b','|i1'),]", 5},
        {"[('a', '<f4', (2, 3)), ('b', [('c', '|u1'), ('d', '>i2', (2,))])]", 29},
        {"[('a', '<f4', 3)]", 12},
        {"[('a', '<f4', ())]", 4},
        {"[(('title', 'n'), '<f8')]", 8},
        {"[(\"n'a\", '<f8'), ('q\"\\'\\\\', '<i4')]", 12},
        {"[('a', '|b1'), ('', '|V3'), ('b', '<f4')]", 8},
        {"[('', '|V1'), ('a', '<f4'), ('', '|V3'), ('', '|V0')]", 8},
        {"[('', '<f4', (2,)), ('', '<f4', 2), ('', '<f8')]", 24},
        {"[('a', [('a', '<f4'), ('b', '<f4')]), ('b', [('a', '<f4')])]", 12},
        {"[('\\x00\\u0001\\U0001f600\\n', '<f4'), ('\xc3\xa9', '<f4')]", 8},
        {"('<f8', (3, 2))", 48},
        {"{'names': ['a', 'b'], 'formats': ['<i4', '<f8'], 'offsets': [8, 0], 'itemsize': 20}", 20},
        {"{'names': ['a'], 'formats': [{'names': ['x', 'y'], 'formats': ['|i1', '<f8'], 'offsets': "
         "[0, 8], 'itemsize': 16, 'aligned': True}], 'offsets': [16], 'itemsize': 64, 'titles': "
         "[None]}",
         64},
        {"{'names': ['a'], 'formats': ['<i4'], 'offsets': [0], 'itemsize': 4, 'record': True}", 4},
        {"|V2400 of 300 fields, zlib c-rk@$*~", 2400},
        {"bfloat16", 2},
        {"float8_e4m3fn", 1},
        {"float8_e4m3fnuz", 1},
        {"float8_e5m2", 1},
        {"float8_e5m2fnuz", 1},
        {"float8_e8m0fnu", 1},
        {"float4_e2m1fn_x2", 1},
        {"int4_x2", 1},
        {"uint4_x2", 1},
        {"complex32", 4},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        uint32_t size_bytes = 77;
        int code = cw_dtype_size(good[i].text, &size_bytes);
        if (code || size_bytes != good[i].size_bytes)
            fail_msg("%s: %d, %u bytes: %s", good[i].text, code, size_bytes, cw_error());
    }
}

static const char *const bad[] = {
    "",
    "zz",
    "f8",
    "d",
    "float64",
    "|O",
    "|O8",
    "<f3",
    "<q8",
    "<f",
    "<f8 ",
    " <f8",
    "<f8x",
    "< f8",
    "<f 8",
    "<b8",
    "<c4",
    "<U",
    "|S99999999999999999999",
    "<U536870912",
    "|V2147483648",
    "<M8[xs]",
    "<M8[ns",
    "<M8[0s]",
    "<M8[]",
    "<M4",
    ("<\xff"
     "8"),
    "\xff\xfe",
    "'<f8'",
    "[",
    "]",
    "[]x",
    "[,]",
    "['<f8']",
    "[('a')]",
    "[('a',)]",
    "[('a', '|O')]",
    "[('a', '<f8'",
    "[('a', '<f8')",
    "[('a' '<f8')]",
    "[('a, '<f8')]",
    "[(1, '<f8')]",
    "[(b'a', '<f8')]",
    "[('a', '<f8', (-1,))]",
    "[('a', '<f8', (1.5,))]",
    "[('a', '<f8', (65536, 65536))]",
    "[('a', '<f8\")]",
    "[(('a', 'b', 'c'), '<f8')]",
    "('<f8',)",
    "()",
    "{}",
    "{'names': ['a']}",
    "{'names': ['a'], 'formats': ['<f8'], 'offsets': [4], 'itemsize': 8}",
    "{'names': ['a'], 'formats': ['<f8', '<f8'], 'offsets': [0], 'itemsize': 16}",
    "{'names': ['a'], 'formats': ['<f8'], 'offsets': [0, 0], 'itemsize': 16}",
    "{'names': ['a'], 'formats': ['<f8'], 'offsets': [0], 'itemsize': 8, 'aligned': 1}",
    "{'names': ['a'], 'formats': ['<f8'], 'offsets': [0], 'itemsize': 8, 'record': False}",
    "|V2400 of 300 fields, zlib ",
    "|V2400 of 300 fields, zlib",
    "|V2400 of 300 fields, zlib a b",
    "|V2400 of fields, zlib ab",
    "|V2400 of 300 fields",
    "<f8 of 300 fields, zlib ab",
    "|V2400 ",
    "[('a', '<f8')]; import os",
    "[('a', '<f4'), ('a', '<f4')]",
    "[('a', '<f4'), (\"\\x61\", '<f4')]",
    "[('\xc3\xa9', '<f4'), ('\\u00e9', '<f4')]",
    "[('', '<f4'), ('', '<i4')]",
    "[('', '<f4', ()), ('', '<i4')]",
    "[('', [('a', '<f4')]), ('', '<i4')]",
    "[(('t', ''), '|V4'), ('', '<i4')]",
    "[(('a', 'a'), '<f4')]",
    "[(('b', 'a'), '<f4'), ('b', '<f4')]",
    "[('x', [('a', '<f4'), ('a', '<f4')])]",
    "{'names': ['a', 'a'], 'formats': ['<i4', '<i4'], 'offsets': [0, 4], 'itemsize': 8}",
    "{'names': ['a'], 'formats': ['<i4'], 'offsets': [0], 'itemsize': 4, 'titles': ['a']}",
    "[('a', '|V0', (2,))]",
    "[('a', '|S0', 2)]",
    "('<U0', ())",
    "[('a', {'names': ['b'], 'formats': ['<i4'], 'offsets': [0], 'itemsize': 4})]",
    "[('a', ({'names': ['b'], 'formats': ['<i4'], 'offsets': [0], 'itemsize': 4}, 2))]",
    "[('\\N{DASH}', '<f4')]",
    "[('\\q', '<f4')]",
    "[('\\x4', '<f4')]",
    "[('\\U00110000', '<f4')]",
    "[('a\nb', '<f4')]",
    "[('a\\\nb', '<f4')]",
    "bfloat",
    "bfloat16 ",
    " bfloat16",
    "<bfloat16",
    "'bfloat16'",
    "Bfloat16",
    "bfloat16x",
    "float8_e4m3",
    "float4_e2m1fn",
    "int4",
    "complex64",
    "[('a', 'bfloat16')]",
    "('bfloat16', (2,))",
};

static void what_is_no_dtype_is_refused_where_it_is_said(void **state) {
    (void)state;
    cw_client *client = client_open();
    int64_t count = 3;
    cw_array *array = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint32_t size_bytes = 77;
        cw_layout layout = {.ndim = 1, .itemsize = 8, .shape = &count, .dtype = bad[i]};
        assert_int_equal(cw_dtype_size(bad[i], &size_bytes), -EINVAL);
        assert_int_equal(size_bytes, 77);
        if (cw_array_new(client, "cpu", &layout, 0, &array) != -EINVAL)
            fail_msg("\"%s\" was taken", bad[i]);
    }
    char deep[CW_DTYPE_MAX + 2];
    memset(deep, '(', sizeof deep);
    deep[sizeof deep - 1] = 0;
    assert_int_equal(cw_dtype_size(deep, &(uint32_t){0}), -EINVAL);
    deep[CW_DTYPE_MAX] = 0;
    assert_int_equal(cw_dtype_size(deep, &(uint32_t){0}), -EINVAL);
    cw_client_unref(client);
}

/* A word that the grammar has and the table has not, or a size that differs, would make two. */
static void the_table_and_the_grammar_are_one(void **state) {
    (void)state;
    uint32_t count, words = 0;
    const cw_dtype_row *row = cw_dtype_table(&count);
    assert_ptr_equal(row, cw_dtype_table(NULL));
    assert_true(count > 20);
    for (const cw_dtype_row *end = row + count; row < end; row++) {
        uint32_t size_bytes = 0;
        OK(cw_dtype_size(row->dtype, &size_bytes));
        assert_int_equal(size_bytes, row->size_bytes);
        assert_int_equal(row->dlpack_bits * row->dlpack_lanes, 8 * size_bytes);
        assert_ptr_equal(cw_dtype_find(row->dtype), row);
        bool is_word = row->dtype[0] >= 'a' && row->dtype[0] <= 'z';
        assert_ptr_equal(cw_dtype_word(row->dtype), is_word ? row : NULL);
        if (*row->safetensors)
            assert_ptr_equal(cw_dtype_of_safetensors(row->safetensors), row);
        words += is_word;
    }
    assert_int_equal(words, 10);
    assert_null(cw_dtype_of_safetensors(""));
    assert_null(cw_dtype_of_safetensors("F6_E2M3"));
    assert_null(cw_dtype_find(">f4"));
}

static void elements_are_as_large_as_their_dtype(void **state) {
    (void)state;
    cw_client *client = client_open();
    int64_t count = 3;
    cw_array *array = NULL, *view = NULL;
    cw_handle handle;
    cw_layout layout = {.ndim = 1, .itemsize = 4, .shape = &count, .dtype = "<f8"};
    assert_int_equal(cw_array_new(client, "cpu", &layout, 0, &array), -EINVAL);
    assert_non_null(strstr(cw_error(), "have 8 bytes, the layout says 4"));
    layout.itemsize = 8;
    OK(cw_array_new(client, "cpu", &layout, 0, &array));
    OK(cw_array_export(array, 0, &handle));
    layout.itemsize = 4;
    assert_int_equal(cw_array_open(client, &handle, &layout, 0, &view), -EINVAL);
    assert_int_equal(cw_array_put(array, "x", 0, &layout, 0), -EINVAL);
    layout.dtype = "[('a', '<i2'), ('b', '<u2')]";
    OK(cw_array_open(client, &handle, &layout, 0, &view));
    cw_array_close(view);
    cw_array_close(array);
    cw_client_unref(client);
}

/* A name whose metadata another client made up. */
static void a_name_with_a_dtype_that_is_none_is_a_breach_and_not_an_array(void **state) {
    (void)state;
    struct cw_shape shape = {.ndim = 0, .itemsize = 8, .dtype = "<f8", .dtype_bytes = 3}, read;
    uint8_t meta[CW_META_BYTES_MAX];
    uint32_t bytes = cw_meta_encode(&shape, meta);
    OK(cw_meta_decode(meta, bytes, 8, &read));
    assert_string_equal(read.dtype, "<f8");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (!*bad[i])
            continue;
        strcpy(shape.dtype, bad[i]);
        shape.dtype_bytes = (uint32_t)strlen(bad[i]);
        bytes = cw_meta_encode(&shape, meta);
        assert_int_equal(cw_meta_decode(meta, bytes, 8, &read), -EPROTO);
    }
    strcpy(shape.dtype, "<f4");
    shape.dtype_bytes = 3;
    bytes = cw_meta_encode(&shape, meta);
    assert_int_equal(cw_meta_decode(meta, bytes, 8, &read), -EPROTO);
}

/* No caller can copy what was never read. */
static void metadata_that_are_none_leave_shape_and_layout_as_they_were(void **state) {
    (void)state;
    struct cw_shape shape = {.ndim = 1, .itemsize = 8, .dtype = "<f8", .dtype_bytes = 3}, read;
    uint8_t meta[CW_META_BYTES_MAX];
    cw_layout layout, before;
    shape.shape[0] = 4;
    shape.strides[0] = 8;
    uint32_t bytes = cw_meta_encode(&shape, meta);
    OK(cw_meta_layout(meta, bytes, 32, &read, &layout));
    assert_true(layout.ndim == 1 && layout.itemsize == 8 && layout.shape == read.shape &&
                layout.strides == read.strides && layout.dtype == read.dtype);
    assert_true(read.shape[0] == 4 && read.strides[0] == 8);
    memset(&shape, 0x5a, sizeof shape);
    memset(&layout, 0x5a, sizeof layout);
    read = shape;
    before = layout;
    for (uint32_t length = 0; length < bytes; length++)
        assert_int_equal(cw_meta_layout(meta, length, 32, &read, &layout), -EPROTO);
    assert_int_equal(cw_meta_layout(meta, bytes, 31, &read, &layout), -EPROTO);
    assert_memory_equal(&read, &shape, sizeof shape);
    assert_memory_equal(&layout, &before, sizeof layout);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_numpy_writes_has_its_size),
        cmocka_unit_test_setup_teardown(what_is_no_dtype_is_refused_where_it_is_said, folder_make,
                                        folder_remove),
        cmocka_unit_test(the_table_and_the_grammar_are_one),
        cmocka_unit_test_setup_teardown(elements_are_as_large_as_their_dtype, folder_make,
                                        folder_remove),
        cmocka_unit_test(a_name_with_a_dtype_that_is_none_is_a_breach_and_not_an_array),
        cmocka_unit_test(metadata_that_are_none_leave_shape_and_layout_as_they_were),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
