#!/bin/sh
# cuda.h, which the driver's calls are built against: no driver, no GPU and no Toolkit is needed for it.
#   cuda_header.sh find            the folder of a Toolkit's cuda.h that is new enough, or nothing
#   cuda_header.sh fetch DIR PIP   puts the one of PyPI's nvidia-cuda-runtime into DIR; PIP: how to call pip
set -eu
VERSION=13.0.96 # of nvidia-cuda-runtime
LEAST=12000     # CUDA_VERSION: earlier headers lack calls that are used

new_enough() { # new_enough FILE
    found=$(sed -n 's/^#define CUDA_VERSION \([0-9]*\).*/\1/p' "$1" 2>/dev/null)
    [ "${found:-0}" -ge "$LEAST" ]
}

case $1 in
find)
    for folder in "${CUDA_HOME:-/usr/local/cuda}/include" /usr/local/cuda/include /usr/include; do
        if new_enough "$folder/cuda.h"; then
            echo "$folder"
            exit
        fi
    done
    ;;
fetch)
    rm -rf "$2.new" && mkdir -p "$2.new"
    # shellcheck disable=SC2086
    $3 download -q --disable-pip-version-check --no-deps --only-binary=:all: -d "$2.new" "nvidia-cuda-runtime==$VERSION"
    ${3%% *} -m zipfile -e "$2.new"/*.whl "$2.new"
    mkdir -p "$2"
    mv "$2.new"/nvidia/*/include/cuda.h "$2/cuda.h"
    rm -rf "$2.new"
    ;;
esac
