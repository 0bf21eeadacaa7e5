#!/bin/sh
# Installs a wheel into an empty virtual environment and uses it from an empty folder, with nothing else of ours on the
# machine to be seen: wheel.sh PYTHON WHEEL. The package, its broker and its command must all come from the wheel.
set -eu
python=$1
wheel=$(realpath "$2")
folder=$(mktemp -d)
dir="$folder/run"
cleanup() {
    env -i PATH="$folder/venv/bin:/usr/bin:/bin" CABLEWAY_DIR="$dir" cableway stop --force >/dev/null 2>&1 || true
    rm -rf "$folder"
}
trap cleanup EXIT
"$python" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check "$wheel"
mkdir "$folder/empty" "$dir"
chmod 700 "$dir"
cd "$folder/empty"

clean() { env -i HOME="$folder/empty" PATH="$folder/venv/bin:/usr/bin:/bin" CABLEWAY_DIR="$dir" "$@"; }

cat >first.py <<'PYTHON'
"""Puts an array under a name and shows what of cableway is mapped."""
import re
import subprocess
import sys

import numpy as np

import cableway as cw


def double(x):
    """Works in a Pool's worker."""
    return x * 2


if __name__ == "__main__":
    kept = cw.put("wheel/numbers", np.arange(1000.0))
    np.save("numbers.npy", np.asarray(kept))
    maps = open("/proc/self/maps").read()
    ours = set(re.findall(r"/\S*cableway\S*\.so\S*", maps))
    assert ours and all(path.startswith(sys.prefix) for path in ours), ours
    other = "import cableway as cw, numpy as np; print(np.asarray(cw.get('wheel/numbers')).sum())"
    seen = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True, check=True).stdout
    assert float(seen) == 499500.0, seen
    with cw.Pool(2) as pool:
        assert pool.map(double, range(5)) == [0, 2, 4, 6, 8]
    listed = subprocess.run(["cableway", "ls", "--json"], capture_output=True, text=True, check=True).stdout
    assert "wheel/numbers" in listed, listed
    print("wheel: package, broker, command and Pool work from an empty environment")
PYTHON
clean python first.py
# The command finds its broker by itself, whatever PATH says.
mkdir -m 700 "$folder/bare"
env -i CABLEWAY_DIR="$folder/bare" PATH=/usr/bin:/bin "$folder/venv/bin/cableway" put x numbers.npy >/dev/null
env -i CABLEWAY_DIR="$folder/bare" PATH=/usr/bin:/bin "$folder/venv/bin/cableway" stop --yes >/dev/null 2>&1
clean cableway doctor >/dev/null || echo "wheel: cableway doctor ended with status $?"
for program in "$folder"/venv/lib/python*/site-packages/cableway/bin/*; do
    if ldd "$program" | grep -vE 'linux-vdso|libc\.so|libm\.so|libpthread|libdl|ld-linux|statically'; then
        echo "wheel: $program needs more than the C library" >&2
        exit 1
    fi
done
# Its screen opens on a terminal, also where there is no description of any.
cat >screen.py <<'PYTHON'
"""Runs cableway top on a terminal until its last line stands there, and quits it."""
import os
import pty
import sys

pid, master = pty.fork()
if pid == 0:
    os.execvp("cableway", ["cableway", "top"])
seen = b""
while b"q quit" not in seen:
    seen += os.read(master, 65536)
os.write(master, b"q")
try:
    while os.read(master, 65536):
        pass
except OSError:  # the other end is closed
    pass
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
PYTHON
clean timeout 60 env TERM=xterm python screen.py
clean timeout 60 env TERM=xterm-of-tomorrow TERMINFO="$folder/empty" python screen.py
# Its completions come from the command.
clean cableway completion bash | bash -n
clean cableway completion zsh | grep -q "#compdef cableway"
# Its pages and its license are in it.
for page in cableway.1 cableway-run.1 cablewayd.1 cableway-bridge.1 cableway-mover.1; do
    if [ ! -s "$folder/venv/share/man/man1/$page" ]; then
        echo "wheel: the man page $page is not in it" >&2
        exit 1
    fi
done
if ! grep -q "Apache License" "$folder"/venv/lib/python*/site-packages/cableway-*.dist-info/licenses/LICENSE; then
    echo "wheel: LICENSE is not in it" >&2
    exit 1
fi
# The broker that ran came from the wheel.
pid=$(cut -d' ' -f1 "$dir"/cablewayd-v4*.lock)
case $(readlink "/proc/$pid/exe") in
"$folder"/venv/*) ;;
*)
    echo "wheel: the broker that runs is not the wheel's: $(readlink "/proc/$pid/exe")" >&2
    exit 1
    ;;
esac
echo "wheel: ok"
