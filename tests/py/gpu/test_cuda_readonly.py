"""Read-only arrays in GPU memory: the GPU itself refuses to write there, and who tries harms himself alone."""

from __future__ import annotations

import cuda_programs
import cuda_support

cuda_support.require()

gpus = cuda_support.for_module()
program = cuda_programs.program

# A kernel's store (kernels.h), the driver's fill, and what a process may do.
HELP = """
PTX = b'''.version 7.0
.target sm_50
.address_size 64
.visible .entry poke(.param .u64 at, .param .u32 value)
{
  .reg .u64 %rd<3>;
  .reg .u32 %r<2>;
  ld.param.u64 %rd1, [at];
  ld.param.u32 %r1, [value];
  cvta.to.global.u64 %rd2, %rd1;
  st.global.u32 [%rd2], %r1;
  ret;
}
'''
def poke(at, value):
    "What a kernel's store there comes to."
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuModuleLoadData", ctypes.byref(module), PTX + bytes(1))
    call("cuModuleGetFunction", ctypes.byref(function), module, b"poke")
    place, number = ctypes.c_uint64(at), ctypes.c_uint32(value)
    arguments = (ctypes.c_void_p * 2)(ctypes.addressof(place), ctypes.addressof(number))
    status = cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)
    return status or cuda.cuCtxSynchronize()
def fill(at):
    return cuda.cuMemsetD8_v2(ctypes.c_uint64(at), ctypes.c_ubyte(9), ctypes.c_size_t(4))
REFUSED, ILLEGAL = 1, 700
"""
WRITER = (
    HELP
    + """
Stream()
w = cw.put("w", np.full(1000, 7, "u4"), device="cuda:0", keep=True)
"""
)


def test_a_kernel_that_writes_breaks_its_own_context_alone(program):
    program(
        WRITER
        + """
child = other(HELP + '''
Stream()
w = cw.get("w", readonly=True)
assert w.readonly
assert fill(low(w)) == REFUSED                   # at the call, and the context lives
assert w.to("cpu").numpy()[0] == 7               # reading is as ever
assert poke(low(w), 9) in (ILLEGAL, 719), "a store went through"
say()
os._exit(0)
''')
heard(child)
child.wait()
assert w.to("cpu").numpy().tolist() == [7] * 1000
assert poke(low(w), 5) == 0                      # the maker's own context and memory are whole
assert w.to("cpu").numpy()[0] == 5
""".replace("other(HELP", f"other({HELP!r}")
    )


def test_a_writable_array_beside_it_makes_it_writable_where_it_is(program):
    program(
        WRITER
        + """
child = other(HELP + '''
Stream()
r = cw.get("w", readonly=True)
before = low(r)
assert fill(low(r)) == REFUSED
w = cw.get("w")
assert low(w) == low(r) == before                # one address in a process
assert fill(low(w)) == 0 and poke(low(w), 3) == 0
w.close()
assert poke(before, 4) == 0                      # and stays so: a kernel may outlive its array
say()
''')
heard(child)
ended(child)
assert w.to("cpu").numpy()[0] == 4
""".replace("other(HELP", f"other({HELP!r}")
    )


def test_work_that_outlives_a_writable_array_is_not_broken_by_a_reader(program):
    program(
        WRITER
        + """
child = other(HELP + '''
stream = Stream()
w = cw.get("w")
stream.hold("go")
stream.fill(low(w), 2)
w.close()
r = cw.get("w", readonly=True)
touch("go")
stream.finish()
assert cuda.cuCtxSynchronize() == 0
assert r.to("cpu").numpy().view("u1")[0] == 2
say()
''')
heard(child)
ended(child)
""".replace("other(HELP", f"other({HELP!r}")
    )


def test_what_is_found_by_its_address_is_as_read_only_as_its_memory(program):
    program(
        WRITER
        + """
child = other(HELP + '''
Stream()
class Shown:
    "As a library shows it that was given the array."
    def __init__(self, w):
        told = dict(w.__cuda_array_interface__)
        told["data"] = (told["data"][0], False)
        self.__cuda_array_interface__ = told
r = cw.get("w", readonly=True)
found = cw.asarray(Shown(r))
assert found.readonly
say()
''')
heard(child)
ended(child)
""".replace("other(HELP", f"other({HELP!r}")
    )
