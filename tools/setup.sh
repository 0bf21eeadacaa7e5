#!/bin/sh
# Sees to it that this machine has what a part of the build needs: setup.sh build|test|lint.
# Installs what is missing through apt when it may (root, or sudo without a password); else says in one line what to
# install. Each requirement is a package and a probe; a probe that succeeds is enough, whoever installed it.
set -eu
part=${1:-build}
python=${PYTHON:-python3}

header() { [ -f "/usr/include/$1" ] || [ -f "/usr/local/include/$1" ] || [ -f "/usr/include/$(uname -m)-linux-gnu/$1" ]; }
command_() { command -v "$1" >/dev/null 2>&1; }
venv() { "$python" -c 'import ensurepip, venv' 2>/dev/null; }
python_h() { "$python" -c 'import sysconfig, os, sys; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'; }
# CPython's own tests of multiprocessing and concurrent.futures, as tests/py/cpython_suite.py finds them.
suite() { PYTHONPATH="$(dirname "$0")/../tests/py/cpython" "$python" -B -c 'import sys
from importlib.util import find_spec
sys.exit(not all(map(find_spec, ("test._test_multiprocessing", "test.test_concurrent_futures"))))'; }
fuzzer() { echo 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n); int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return d && n > 9; }' |
    clang -x c -fsanitize=fuzzer,address - -o /dev/null 2>/dev/null; }

missing=
need() { # need PACKAGE PROBE...
    package=$1
    shift
    "$@" || missing="$missing $package"
}
wanted=
want() { # want PACKAGE PROBE...: without it a part is left out
    package=$1
    shift
    "$@" || wanted="$wanted $package"
}

check_build() {
    need gcc command_ gcc
    need libc6-dev header stdio.h
    need make command_ make
    need binutils command_ ar
    need python3-venv venv
    need python3-dev python_h
    need uthash-dev header uthash.h
    need libxxhash-dev header xxhash.h
    need libjansson-dev header jansson.h
    need libinih-dev header ini.h
    want liburing-dev header liburing.h
    want libssl-dev header openssl/ssl.h
}
check_test() {
    check_build
    need libcmocka-dev header cmocka.h
    need libck-dev header ck_ring.h
    need libfuse3-dev header fuse3/fuse.h
    need fuse3 command_ fusermount3
    need clang command_ clang
}
check_lint() {
    check_test
    need clang-format command_ clang-format
    need clang-tidy command_ clang-tidy
    need cppcheck command_ cppcheck
    need shellcheck command_ shellcheck
}

as_root=
if [ "$(id -u)" != 0 ]; then
    if command_ sudo && sudo -n true 2>/dev/null; then as_root="sudo -n"; else as_root=no; fi
fi

refresh() { # the lists of packages, once
    [ -n "${updated:-}" ] || $as_root apt-get -qq -o DPkg::Lock::Timeout=300 update
    updated=1
}
install() { # install PACKAGES
    if ! command_ apt-get || [ "$as_root" = no ]; then
        echo "cableway: please install these packages (Debian and Ubuntu names), then run this again: apt-get install$*" >&2
        exit 1
    fi
    echo "cableway: installing$*" >&2
    refresh
    # shellcheck disable=SC2086,SC2048
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 -y --no-install-recommends install $* >/dev/null
}

"check_$part"
[ -z "$missing" ] || install "$missing"

if [ -n "$wanted" ] && ! { (install "$wanted") && wanted= && "check_$part" && [ -z "$wanted" ]; }; then
    echo "cableway: not here:$wanted; cableway-bridge will be left out, and no other node can be reached" >&2
fi

# libFuzzer's runtime is a package of its own on newer systems, named after clang's version.
if [ "$part" != build ] && ! fuzzer; then
    major=$(clang -dumpversion | cut -d. -f1)
    if apt-cache show "libclang-rt-$major-dev" >/dev/null 2>&1; then install " libclang-rt-$major-dev"; fi
fi

# Where CPython's tests are not to be had, ours that run them are skipped.
if [ "$part" = test ] && ! suite; then
    package=lib$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')-testsuite
    if command_ apt-get && [ "$as_root" != no ]; then
        refresh
        if apt-cache show "$package" >/dev/null 2>&1; then (install " $package") || true; fi
    fi
    suite || echo "cableway: CPython's own tests are not here ($package has them), so those for Pool, Executor and Queue will be skipped" >&2
fi

missing=
"check_$part"
if [ -n "$missing" ]; then
    echo "cableway: still missing after installation:$missing" >&2
    exit 1
fi
