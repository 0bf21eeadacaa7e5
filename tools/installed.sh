#!/bin/sh
# What is left to do after `make install`: installed.sh PREFIX DESTDIR. Tells the dynamic linker of the library where that may
# be done, else says how programs find it; says how Python gets the package.
set -eu
prefix=$1
destdir=$2
PATH="$PATH:/usr/sbin:/sbin"
if [ -z "$destdir" ]; then
    if [ "$(id -u)" = 0 ]; then ldconfig || true; fi
    if ! ldconfig -p 2>/dev/null | grep -q "=> $prefix/lib/libcableway.so.0\$"; then
        echo "cableway: the dynamic linker does not look into $prefix/lib: run ldconfig as root if that folder is one of its own" \
            "(/etc/ld.so.conf), else link programs with -Wl,-rpath,$prefix/lib or set LD_LIBRARY_PATH=$prefix/lib"
    fi
fi
echo "cableway: installed for C and the shell; for Python: make wheel, then PYTHON -m pip install build/dist/cableway-*.whl"
