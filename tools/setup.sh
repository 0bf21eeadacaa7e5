#!/bin/sh
# Sees to it that this machine has what a part of the build needs: setup.sh build|wheel|test|more|lint|fresh.
# Says what it will install and installs it through apt when it may (root, or sudo without a password); else says in one line
# what to install, all that this part will ever ask for. Each requirement is a package and a probe; a probe that succeeds is
# enough, whoever installed it.
set -eu
part=${1:-build}
python=${PYTHON:-python3}

header() { [ -f "/usr/include/$1" ] || [ -f "/usr/local/include/$1" ] || [ -f "/usr/include/$(uname -m)-linux-gnu/$1" ]; }
command_() { command -v "$1" >/dev/null 2>&1; }
venv() { "$python" -c 'import ensurepip, venv' 2>/dev/null; }
python_h() { "$python" -c 'import sysconfig, os, sys; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'; }
# CPython's own tests of multiprocessing and concurrent.futures, as tests/py/suites/cpython_suite.py finds them.
suite() { PYTHONPATH="$(dirname "$0")/../tests/py/suites/cpython" "$python" -B -c 'import sys
from importlib.util import find_spec
sys.exit(not all(map(find_spec, ("test._test_multiprocessing", "test.test_concurrent_futures"))))'; }
ncurses() { # its archives; libtinfo's is in the same package, or in libncursesw's
    header curses.h || return 1
    for folder in /usr/lib /usr/lib64 /usr/local/lib "/usr/lib/$(uname -m)-linux-gnu"; do
        if [ -f "$folder/libncursesw.a" ]; then return 0; fi
    done
    return 1
}
fuzzer() { echo 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n); int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return d && n > 9; }' |
    clang -x c -fsanitize=fuzzer,address - -o /dev/null 2>/dev/null; }

lists() { [ -n "$(find /var/lib/apt/lists -name '*_Packages*' 2>/dev/null | head -n 1)" ]; }
known() { apt-cache show "$1" >/dev/null 2>&1; }
suite_package=lib$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')-testsuite

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

# libFuzzer's runtime is a package of its own on newer systems, and clang's own on older ones. Of a clang that is here it must
# be the version; the one to be installed is the system's default. Where apt has no lists of packages yet it is asked for.
need_fuzzer() {
    package=libclang-rt-dev
    if command_ clang; then package=libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev; fi
    if ! lists || known "$package"; then missing="$missing $package"; fi
}
# Where CPython's tests are not to be had, ours that run them are skipped.
want_suite() {
    if known "$suite_package"; then wanted="$wanted $suite_package"; fi
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
    want libncurses-dev ncurses
}
# In a wheel OpenSSL is linked from its archive, which may want these (tools/static_libs.sh).
check_wheel() {
    check_build
    need zlib1g-dev header zlib.h
    need libzstd-dev header zstd.h
}
check_test() {
    check_build
    need iproute2 command_ ip
    need openssl command_ openssl
    need g++ command_ g++
    need libcmocka-dev header cmocka.h
    need libck-dev header ck_ring.h
    need libfuse3-dev header fuse3/fuse.h
    need fuse3 command_ fusermount3
    need clang command_ clang
    fuzzer || need_fuzzer
    suite || want_suite
}
# A browser for the exporter's page. Where there is none, its tests are skipped: Ubuntu has it as a snap alone.
browser() { for program in chromium-headless-shell chromium chromium-browser google-chrome chrome; do if command_ "$program"; then return 0; fi; done; return 1; }
check_more() {
    check_test
    if known chromium-headless-shell; then want chromium-headless-shell browser; fi
}
# What builds the roots of `make test-fresh`.
check_fresh() {
    need debootstrap command_ debootstrap
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

may_install() { command_ apt-get && [ "$as_root" != no ]; }
apt() { $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@" >/dev/null; }
# shellcheck disable=SC2086 # lists of packages
install() { apt -y --no-install-recommends install $1; }

look() { # what is not here, into missing and wanted
    missing=
    wanted=
    "check_$part"
}

look
if [ -n "$missing$wanted" ] && may_install; then
    apt update || echo "cableway: apt-get update failed; going on with the lists of packages that are here" >&2
    look # which packages there are is known now
fi
if [ -n "$missing$wanted" ] && may_install; then
    echo "cableway: installing by apt-get, which may take some minutes:$missing$wanted" >&2
    if ! install "$missing$wanted"; then
        if [ -n "$missing" ]; then install "$missing"; fi
        for package in $wanted; do install "$package" || true; done
    fi
    look
    if [ -n "$missing" ]; then
        echo "cableway: still missing after installation:$missing" >&2
        exit 1
    fi
elif [ -n "$missing" ]; then
    echo "cableway: please install these packages (Debian and Ubuntu names), then run this again: apt-get install$missing$wanted" >&2
    exit 1
fi

# What is left out.
bridge=
for package in $wanted; do
    case $package in liburing-dev | libssl-dev) bridge="$bridge $package" ;; esac
done
if ! ncurses; then
    echo "cableway: not here: libncurses-dev; cableway top will have no screen, --once and --json alone" >&2
fi
if [ -n "$bridge" ]; then
    echo "cableway: not here:$bridge; cableway-bridge will be left out, and no other node can be reached" >&2
fi
if [ "$part" = more ] && ! browser; then
    echo "cableway: no browser is here (Debian's chromium-headless-shell), so the tests of the exporter's page will be skipped" >&2
fi
if { [ "$part" = test ] || [ "$part" = more ]; } && ! suite; then
    echo "cableway: CPython's own tests are not here ($suite_package has them), so those for Pool, Executor and Queue will be skipped" >&2
fi
