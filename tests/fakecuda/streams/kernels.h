/*
 * Kernels for tests, as PTX that every real driver compiles. The test double knows them by name
 * and does in C what they do.
 *
 *   fill(u32 *p, u64 n, u32 value)                       p[0..n) = value
 *   add(u32 *out, const u32 *a, const u32 *b, u64 n)     out[i] = a[i] + b[i]
 *   spin(u32 *flag, u32 value)                           until *flag is value
 *   poke(u32 *p, u32 value)                              *p = value, whatever p is
 *   trap()                                               breaks the context: LAUNCH_FAILED
 *
 * Launch fill and add with any grid, the others with one thread. In spin the flag lies in
 * registered host memory, or in device memory that somebody else can write meanwhile.
 */
#ifndef CW_TESTS_FAKECUDA_STREAMS_KERNELS_H
#define CW_TESTS_FAKECUDA_STREAMS_KERNELS_H

/* The first index of a thread, and the step to its next, in %rd8 and %rd9. */
#define KERNELS_GRID_LOOP                                                                          \
    "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mov.u32 %r4, %nctaid.x;\n"  \
    "mul.wide.u32 %rd8, %r1, %r2; cvt.u64.u32 %rd7, %r3; add.u64 %rd8, %rd8, %rd7;\n"              \
    "mul.wide.u32 %rd9, %r4, %r2;\n"

static const char kernels_ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry fill(.param .u64 p, .param .u64 n, .param .u32 value) {\n"
    ".reg .pred %q; .reg .u32 %r<8>; .reg .u64 %rd<12>;\n"
    "ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [n]; ld.param.u32 %r5, [value];\n" KERNELS_GRID_LOOP
    "next: setp.ge.u64 %q, %rd8, %rd2; @%q bra done;\n"
    "shl.b64 %rd10, %rd8, 2; add.u64 %rd10, %rd1, %rd10; st.u32 [%rd10], %r5;\n"
    "add.u64 %rd8, %rd8, %rd9; bra next;\n"
    "done: ret;\n}\n"
    ".visible .entry add(.param .u64 out, .param .u64 a, .param .u64 b, .param .u64 n) {\n"
    ".reg .pred %q; .reg .u32 %r<8>; .reg .u64 %rd<12>;\n"
    "ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [a]; ld.param.u64 %rd3, [b];\n"
    "ld.param.u64 %rd4, [n];\n" KERNELS_GRID_LOOP
    "next: setp.ge.u64 %q, %rd8, %rd4; @%q bra done;\n"
    "shl.b64 %rd10, %rd8, 2; add.u64 %rd5, %rd2, %rd10; ld.u32 %r5, [%rd5];\n"
    "add.u64 %rd5, %rd3, %rd10; ld.u32 %r6, [%rd5]; add.u32 %r5, %r5, %r6;\n"
    "add.u64 %rd5, %rd1, %rd10; st.u32 [%rd5], %r5;\n"
    "add.u64 %rd8, %rd8, %rd9; bra next;\n"
    "done: ret;\n}\n"
    ".visible .entry spin(.param .u64 flag, .param .u32 value) {\n"
    ".reg .pred %q; .reg .u32 %r<4>; .reg .u64 %rd<2>;\n"
    "ld.param.u64 %rd1, [flag]; ld.param.u32 %r1, [value];\n"
    "again: ld.volatile.u32 %r2, [%rd1]; setp.ne.u32 %q, %r2, %r1; @%q bra again;\n"
    "ret;\n}\n"
    ".visible .entry poke(.param .u64 p, .param .u32 value) {\n"
    ".reg .u32 %r<2>; .reg .u64 %rd<2>;\n"
    "ld.param.u64 %rd1, [p]; ld.param.u32 %r1, [value]; st.u32 [%rd1], %r1;\n"
    "ret;\n}\n"
    ".visible .entry trap() {\n"
    "trap;\n"
    "ret;\n}\n";

#endif
