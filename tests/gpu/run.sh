#!/bin/sh
# The GPU tests on real GPUs, from a build that may have been copied here: run.sh BUILD [PYTEST ARGUMENTS].
# Needs python3 with NumPy, cffi and pytest, and BUILD/site, BUILD/causeway and BUILD/tests/gpu (`make test-gpu` makes all); no
# registry and no compiler. Libraries that are not there (CuPy, PyTorch, Numba, JAX) are skipped, and named. Without pytest's
# arguments $DEATHS producers are killed first, 8 at once (1000, which take five minutes).
set -eu
build=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/../py"
# site/bin has scripts of the Python that made it, which a copied build does not have.
export CAUSEWAY_BROKER="$build/site/causeway/bin/causewayd"
export CAUSEWAY_TEST_GPU=1 CAUSEWAY_BUILD="$build" PYTHONPATH="$build/site${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1
[ $# -gt 0 ] || "$build/tests/gpu/fence_deaths" "${DEATHS:-1000}" 8
exec "${PYTHON:-python3}" -m pytest -p no:cacheprovider -q -rs "$@" test_cuda*.py test_mover*.py test_evict*.py
