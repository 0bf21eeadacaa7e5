"""CPython's package `test`: the interpreter's own, and what that lacks from Debian's libpython3.*-testsuite.

With this file's grandparent first on sys.path, `import test.X` finds the modules of the running version wherever they
are. An interpreter may come without them (Debian, containers), or with some alone (`make install` of 3.11.7 leaves out
test_concurrent_futures).
"""

import sys
import sysconfig

__path__ = [
    f"{sysconfig.get_path('stdlib')}/test",
    f"/usr/lib/python{sys.version_info[0]}.{sys.version_info[1]}/test",
]
