#!/bin/sh
# GPU memory on real GPUs, from a build that may have been copied here: run.sh BUILD [MODE] [ARGUMENTS].
#   (none)     the tests; without arguments for pytest $DEATHS producers are killed first, 8 at once (1000)
#   deaths     the latter alone, and a context that breaks: deaths [COUNT [AT ONCE [SECONDS]]] (1000, 8, no limit)
#   sanitize   C programs and a few tests under compute-sanitizer, see sanitize.py; fails also when it is not there
#   bench      benchmarks and promises: bench [--seconds N] [PART...]
#   one, two   all of this in one call for one GPU, or for what needs two, with time limits and a table: steps.py
# Needs python3 with NumPy, cffi and pytest, and BUILD/site, BUILD/cableway and BUILD/tests/gpu (`make test-gpu` makes all); no
# registry and no compiler. Libraries that are not there (CuPy, PyTorch, Numba, JAX) are skipped, and named. Wheels in a folder
# .whl beside tests/ are used before those that are installed: what a library there needs in another version.
set -eu
build=$(cd "$1" && pwd)
python=${PYTHON:-python3}
shift
tests=$(cd "$(dirname "$0")/.." && pwd)
# site/bin has scripts of the Python that made it, which a copied build does not have.
export CABLEWAY_BROKER="$build/site/cableway/bin/cablewayd"
export CABLEWAY_TEST_GPU="${CABLEWAY_TEST_GPU:-1}" CABLEWAY_BUILD="$build" PYTHONPATH="$build/site${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1

wheels="$tests/../.whl"
if [ -z "${CABLEWAY_WHEELS:-}" ] && [ -n "$(find "$wheels" -name '*.whl' 2>/dev/null | head -n 1)" ]; then
    CABLEWAY_WHEELS=$(mktemp -d)
    export CABLEWAY_WHEELS # unpacked once; a step of steps.py calls this script again
    "$python" -m pip install -q --no-index --no-deps --no-compile --target "$CABLEWAY_WHEELS" "$wheels"/*.whl ||
        echo "cableway: of the wheels in .whl not all can be used here, see above" >&2
    export PYTHONPATH="$CABLEWAY_WHEELS:$PYTHONPATH"
fi

pytests() {
    cd "$tests/py"
    "$python" -m pytest -p no:cacheprovider -q -rs "$@"
}

with_folder() { # a folder of its own, which goes at the end
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    "$@"
}

bench() {
    export CABLEWAY_DIR="$folder"
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
    exec "$python" "$tests/gpu/sanitize.py"
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
    pytests "$@" $(cd "$tests/py" && find . \( -name 'test_cuda*.py' -o -name 'test_mover*.py' -o -name 'test_evict*.py' -o -name 'test_pool_devices*.py' \
        -o -name test_transfers_gpu.py -o -name 'test_overlap*.py' -o -name test_gpu_examples.py -o -name test_guide.py \) | sort)
    ;;
esac
