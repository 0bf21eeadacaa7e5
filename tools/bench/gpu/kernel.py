"""A kernel that keeps a GPU busy for about so long: one block that fills memory, over and over. Computes nothing."""

from __future__ import annotations

import ctypes
import time

from gpu import driver

_WORDS = 4096
# fill(u32 *p, u64 n, u32 value), by one block: words are counted modulo _WORDS, so that n is time and not memory.
_PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry fill(.param .u64 p, .param .u64 n, .param .u32 value) {
.reg .pred %q; .reg .u32 %r<8>; .reg .u64 %rd<12>;
ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [n]; ld.param.u32 %r5, [value];
mov.u32 %r3, %tid.x; cvt.u64.u32 %rd8, %r3;
next: setp.ge.u64 %q, %rd8, %rd2; @%q bra done;
and.b64 %rd9, %rd8, 4095; shl.b64 %rd10, %rd9, 2; add.u64 %rd10, %rd1, %rd10; st.volatile.u32 [%rd10], %r5;
add.u64 %rd8, %rd8, 32; bra next;
done: ret;
}
"""


class Busy:
    """The kernel in this process, on its first GPU.

    Args:
        on_the_double: the test double knows `fill` by its name, and needs all the memory.
    """

    def __init__(self, on_the_double: bool) -> None:
        driver.enter()
        module, self._kernel = ctypes.c_void_p(), ctypes.c_void_p()
        driver.call("cuModuleLoadData", ctypes.byref(module), _PTX)
        driver.call("cuModuleGetFunction", ctypes.byref(self._kernel), module, b"fill")
        self._stream = driver.stream()
        self._memory = driver.memory(4 * _WORDS)
        self._most = _WORDS if on_the_double else 1 << 62

    def run(self, words: int) -> None:
        """Launches it and waits."""
        driver.enter()
        p, n = ctypes.c_uint64(self._memory), ctypes.c_uint64(min(words, self._most))
        value = ctypes.c_uint32(1)
        arguments = (ctypes.c_void_p * 3)(
            *(ctypes.cast(ctypes.byref(x), ctypes.c_void_p) for x in (p, n, value))
        )
        one, block = ctypes.c_uint(1), ctypes.c_uint(32)
        driver.call(
            "cuLaunchKernel", self._kernel, one, one, one, block, one, one, ctypes.c_uint(0), self._stream, arguments, None
        )  # fmt: skip
        driver.finish(self._stream)

    def words_for(self, seconds: float) -> int:
        """How many words take so long."""
        words = 1 << 12
        self.run(words)  # the first launch loads the module
        while True:
            took = min(self._seconds(words) for _ in range(3))
            if took >= seconds / 2 or words >= self._most:
                return max(1, int(words * seconds / took))
            words *= 2

    def _seconds(self, words: int) -> float:
        begin = time.perf_counter()
        self.run(words)
        return time.perf_counter() - begin
