#!/bin/sh
# GPU memory on real GPUs, from a build that may have been copied here: run.sh BUILD [MODE] [ARGUMENTS].
#   (none)     the tests; without arguments for pytest $DEATHS producers are killed first, 8 at once (1000)
#   deaths     the latter alone, and a context that breaks: deaths [COUNT [AT ONCE [SECONDS]]] (1000, 8, no limit)
#   sanitize   C programs and a few tests under compute-sanitizer: any error fails; also when it is not there
#   bench      benchmarks and promises: bench [--seconds N] [PART...]
#   one, two   all of this in one call for one GPU, or for what needs two, with time limits and a table: steps.py
# Needs python3 with NumPy, cffi and pytest, and BUILD/site, BUILD/causeway and BUILD/tests/gpu (`make test-gpu` makes all); no
# registry and no compiler. Libraries that are not there (CuPy, PyTorch, Numba, JAX) are skipped, and named. Wheels in a folder
# .whl beside tests/ are used before those that are installed: what a library there needs in another version.
set -eu
build=$(cd "$1" && pwd)
python=${PYTHON:-python3}
shift
tests=$(cd "$(dirname "$0")/.." && pwd)
# site/bin has scripts of the Python that made it, which a copied build does not have.
export CAUSEWAY_BROKER="$build/site/causeway/bin/causewayd"
export CAUSEWAY_TEST_GPU="${CAUSEWAY_TEST_GPU:-1}" CAUSEWAY_BUILD="$build" PYTHONPATH="$build/site${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1

wheels="$tests/../.whl"
if [ -z "${CAUSEWAY_WHEELS:-}" ] && [ -n "$(find "$wheels" -name '*.whl' 2>/dev/null | head -n 1)" ]; then
    CAUSEWAY_WHEELS=$(mktemp -d)
    export CAUSEWAY_WHEELS # unpacked once; a step of steps.py calls this script again
    "$python" -m pip install -q --no-index --no-deps --no-compile --target "$CAUSEWAY_WHEELS" "$wheels"/*.whl ||
        echo "causeway: of the wheels in .whl not all can be used here, see above" >&2
    export PYTHONPATH="$CAUSEWAY_WHEELS:$PYTHONPATH"
fi

pytests() {
    cd "$tests/py"
    "$python" -m pytest -p no:cacheprovider -q -rs "$@"
}

# Runs a program under compute-sanitizer with a log for each process, its children's too.
sanitized() {
    echo "# $*"
    timeout -k 10 "${SANITIZE_SECONDS:-150}" "$tool" --tool memcheck --target-processes all --report-api-errors no \
        --require-cuda-init no --check-exit-code no --log-file "$folder/log.%p" "$@"
}

sanitize() {
    tool=$(command -v compute-sanitizer || true)
    for at in /usr/local/cuda*/bin/compute-sanitizer; do
        [ -n "$tool" ] || [ ! -x "$at" ] || tool=$at
    done
    if [ -z "$tool" ]; then
        echo "compute-sanitizer is not here (CUDA's toolkit has it): nothing was checked"
        exit 1
    fi
    export CAUSEWAY_DIR="$folder/causeway"
    mkdir -m 700 "$CAUSEWAY_DIR"
    failed=0
    sanitized "$build/tests/gpu/bench_fence" 50 || failed=1
    sanitized "$build/tests/gpu/bench_import" 3 64 || failed=1
    sanitized "$build/tests/gpu/fence_deaths" 5 1 || failed=1
    cd "$tests/py"
    sanitized "$python" -m pytest -p no:cacheprovider -q -k "reader_waits_for or one_piece_of_work or several_arrays_is" \
        test_cuda_order.py test_cuda_work.py || failed=1
    "$build/causeway" stop >/dev/null 2>&1 || true
    logs=$(find "$folder" -name 'log.*' | wc -l)
    # A killed producer has no summary; what it did wrong before is told all the same.
    if grep -hE '^========= (Invalid|Misaligned|Program hit|Error:|Leaked|Out-of-range|Malloc|Internal)' -A 12 "$folder"/log.*; then
        failed=1
    fi
    grep -h 'ERROR SUMMARY: [1-9]' "$folder"/log.* && failed=1
    echo "compute-sanitizer: logs of $logs processes, $([ $failed = 0 ] && echo no errors || echo ERRORS)"
    [ "$logs" -gt 0 ] && [ $failed = 0 ]
}

with_folder() { # a folder of its own, which goes at the end
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    "$@"
}

bench() {
    export CAUSEWAY_DIR="$folder"
    "$python" "$tests/../tools/bench/bench_gpu.py" "$@"
    "$python" "$tests/../tools/bench/bench_gpu_staged.py"
    "$python" "$tests/../tools/bench/bench_gpu_pool.py"
    "$python" "$tests/../tools/bench/bench_bridge_gpu.py" --build "$build"
}

mode=${1:-}
case $mode in
deaths)
    shift
    "$build/tests/gpu/broken_context"
    exec "$build/tests/gpu/fence_deaths" "${1:-1000}" "${2:-8}" "${3:-86400}"
    ;;
sanitize)
    with_folder sanitize
    ;;
one | two)
    exec "$python" "$tests/gpu/steps.py" "$@"
    ;;
bench)
    shift
    with_folder bench "$@"
    ;;
*)
    if [ $# = 0 ]; then
        "$build/tests/gpu/broken_context"
        "$build/tests/gpu/fence_deaths" "${DEATHS:-1000}" 8
    fi
    # shellcheck disable=SC2046 # names without spaces
    pytests "$@" $(cd "$tests/py" && ls test_cuda*.py test_mover*.py test_evict*.py test_pool_devices*.py test_transfers_gpu.py test_overlap*.py test_gpu_examples.py)
    ;;
esac
