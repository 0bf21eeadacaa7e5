#!/usr/bin/env python3
"""Types the README's commands in new roots of Debian and Ubuntu, as a newcomer would: `make test-fresh`.

A root is what debootstrap makes (variant minbase) from the mirror that apt on this machine uses, and what the kind adds:

  alone   git, make and python3
  cuda    besides gcc and a CUDA Toolkit's cuda.h; then make install, make wheel and make deb, too
  user    an ordinary user without sudo: told in one line what to install, served once that is installed
  wheel   Python, pip and NumPy, and the wheel that `cuda` made: no compiler and no checkout
  deb     the package that `cuda` made, alone and beside the wheel; a compiler, Python, pip and NumPy, and no checkout
  python  git, make and python3; then the tests that depend most on the interpreter, with that system's Python

`make demo` is what is typed first. README's second command takes ten minutes, so it is typed first with --whole alone (kind
`whole`, as root and as an ordinary user); CI, which has 90 minutes on two cores, runs `make test` once outside, and in the
`user` root builds all that it runs.

All this happens in a mount and PID namespace of its own: what is mounted and what runs there is gone when this program is,
however it ends. Roots lie in memory where there is plenty, else in BUILD/fresh; the bases are kept there for the next time
(--base-days), with a log for each root. The first line of a failed check's output is the command that failed.
The last line is `N passed, N failed, N skipped`. Where no root can be made at all, that is a failure.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from roots import Cannot, Root, Suite, base_of, memory_for_roots

ROOT = Path(__file__).resolve().parent.parent.parent
SUITES = {
    "bookworm": Suite("Debian", "bookworm"),
    "trixie": Suite("Debian", "trixie"),
    "forky": Suite("Debian", "forky", script="sid", is_next=True),
    "noble": Suite("Ubuntu", "noble", components="main,universe", script="gutsy"),
}
KINDS = {
    "Debian": ["alone", "cuda", "user", "wheel", "deb", "python"],
    "Ubuntu": ["alone", "wheel", "deb", "python"],
}
INSIDE = "CABLEWAY_FRESH_INSIDE"
ASKED = "cableway: please install these packages"


@dataclass
class Result:
    """The checks of all roots."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


class Failed(Exception):
    """A check of a root failed."""


class Try:
    """The checks in one root, in order: the first that fails ends them."""

    def __init__(self, root: Root, result: Result, wheels: Path) -> None:
        self.root, self.result, self.wheels = root, result, wheels

    def check(self, what: str, done: bool) -> None:
        """Counts one check."""
        if not done:
            raise Failed(what)
        print(f"       ok: {what}", flush=True)
        self.result.passed += 1

    def types(self, command: str, user: str = "root", timeout: float = 2400) -> str:
        """A command that must succeed; what it said."""
        status, said = self.root.run(command, user, timeout)
        self.check(f"{command}{'' if user == 'root' else ', as an ordinary user'}", status == 0)
        return said

    def has(self, path: str) -> bool:
        """Whether a file is in the root."""
        return bool(list(self.root.path.glob(path.lstrip("/"))))


def cloned(t: Try, *packages: str, user: str = "root") -> str:
    """The first line of the README: the clone's folder, in which all else is typed."""
    t.root.installs("git", "make", "python3", *packages)
    home = "/root" if user == "root" else f"/home/{user}"
    t.root.takes_repository(ROOT, user)
    t.types(f"cd {home} && git clone -q /srv/cableway.git cableway", user)
    return f"{home}/cableway"


def demo(t: Try, folder: str, user: str = "root") -> str:
    """README's first command, from which all else comes."""
    said = t.types(f"cd {folder} && make demo", user)
    t.check("the bridge is built, too", t.has(f"{folder}/build/cableway-bridge"))
    t.check("the screen of top is built, too", t.has(f"{folder}/build/tools/screen/screen.o"))
    return said


def alone(t: Try) -> None:
    """Git, make and python3."""
    said = demo(t, cloned(t))
    lines = said.splitlines()
    tells = [i for i, line in enumerate(lines) if line.startswith("cableway: installing")]
    builds = [i for i, line in enumerate(lines) if line.startswith("  CC ")]
    t.check(
        "it says what it installs, once and before it builds",
        len(tells) == 1 and tells < builds[:1],
    )


LINKED = "#include <cableway.h>\n#include <stdio.h>\nint main(void) { puts(cw_version()); }\n"


def cuda(t: Try) -> None:
    """A compiler and a CUDA Toolkit's cuda.h, and not our libraries."""
    folder = cloned(t, "gcc", "libc6-dev")
    t.root.takes_cuda_header(ROOT)
    demo(t, folder)
    t.types(f"cd {folder} && make install")
    t.root.write("/tmp/linked.c", LINKED)
    t.types("gcc -o /tmp/linked /tmp/linked.c -lcableway && /tmp/linked")
    t.types(f"cd {folder} && make wheel && make deb")
    build = t.root.path / f"{folder[1:]}/build"
    for made in (*build.glob("dist/*.whl"), *build.glob("deb/*.deb")):
        shutil.copy(made, t.wheels / t.root.suite.name)


def told_once(t: Try, folder: str, command: str, user: str) -> str:
    """What an ordinary user is told: one line, whose end is what root types."""
    status, said = t.root.run(f"cd {folder} && {command}", user, 300)
    t.check(f"{command} by an ordinary user ends with an error", status != 0)
    ours = [line for line in said.splitlines() if line.startswith("cableway: ")]
    t.check("one line says what to install", len(ours) == 1 and ours[0].startswith(ASKED))
    t.check("before anything is compiled", not t.has(f"{folder}/build/**/*.o"))
    return "apt-get install" + ours[0].split("apt-get install", 1)[1]


def user_without_sudo(t: Try) -> None:
    """An ordinary user, and root beside, who types what the user was told."""
    user = "newcomer"
    t.root.adds_user(user)
    folder = cloned(t, user=user)
    for_demo = told_once(t, folder, "make demo", user)
    for_test = told_once(t, folder, "make test", user)
    t.check(
        "what make test needs is more than what make demo does",
        set(for_demo.split()) < set(for_test.split()),
    )
    t.check(
        "the bridge and its tests are in it",
        {"liburing-dev", "libssl-dev", "iproute2", "openssl"} <= set(for_test.split()),
    )
    t.types(f"{for_demo} -y --no-install-recommends -qq >/dev/null")
    demo(t, folder, user)
    t.types(f"{for_test} -y --no-install-recommends -qq >/dev/null")
    t.types(
        f"cd {folder} && make test-programs build/venv/package.stamp build/venv/deps-test.stamp",
        user,
    )
    stop = "tests/py/cli/test_cli.py -k test_stop_by_force_ends_a_stopped_broker"
    t.types(
        f"cd {folder} && build/venv/bin/python tests/run.py --build build 'py:pytest {stop}'", user
    )


# Forks, ends of processes, imports, signals at any bytecode, NumPy's buffers.
OF_THE_INTERPRETER = [
    "arrays/test_array.py",
    "executor/test_executor.py",
    "groups/test_group_objects.py",
    "library/test_locks.py",
    "pool/faults/test_exit_starts.py",
    "pool/faults/test_pool_alarms.py",
    "pool/faults/test_pool_exit.py",
    "pool/faults/test_pool_interrupts.py",
    "pool/launch/test_pool_imports.py",
    "pool/launch/test_pool_preload.py",
    "pool/launch/test_pool_process.py",
    "pool/launch/test_pool_server.py",
    "queues/test_queue_interrupts.py",
    "queues/test_queue_standard.py",
]


def python(t: Try) -> None:
    """The system's Python, which need not be that of the machine that runs this."""
    folder = cloned(t)
    t.types(
        f"cd {folder} && make test-programs build/venv/package.stamp build/venv/deps-test.stamp"
    )
    files = [f"tests/py/{name}" for name in OF_THE_INTERPRETER]
    lanes = " ".join(f"'py:pytest {' '.join(files[lane::2])}'" for lane in (0, 1))
    t.types(f"cd {folder} && build/venv/bin/python tests/run.py --build build {lanes}")


def whole(t: Try) -> None:
    """README's second command, typed first, by root and by an ordinary user."""
    user = "newcomer"
    t.root.adds_user(user)
    told = told_once(t, cloned(t, user=user), "make test", user)
    t.types(f"{told} -y --no-install-recommends -qq >/dev/null")
    t.types(f"cd /home/{user}/cableway && make test", user, 3600)


def whole_as_root(t: Try) -> None:
    """README's second command, typed first, by root."""
    t.types(f"cd {cloned(t)} && make test", timeout=3600)


PIP_INSTALL = "pip install -q --break-system-packages --root-user-action=ignore"


def made_before(t: Try, end: str) -> str:
    """The name of what the kind cuda made, of this suite if it was tried; it lies in the root's /tmp."""
    made = sorted((t.wheels / t.root.suite.name).glob(f"*.{end}"))
    made += sorted(t.wheels.glob(f"*/*.{end}"))
    if not made:
        raise Cannot(f"no .{end} was made before: the kind cuda makes it")
    shutil.copy(made[0], t.root.path / "tmp")
    return made[0].name


def wheel(t: Try) -> None:
    """Python, pip and NumPy, and the wheel."""
    file = made_before(t, "whl")
    t.root.installs("python3", "python3-pip", "python3-numpy")
    shutil.copy(Path(__file__).parent / "two_nodes.sh", t.root.path / "tmp")
    t.types(f"{PIP_INSTALL} /tmp/{file}")
    readme = (ROOT / "README.md").read_text()
    lines = readme.split("## In ten lines", 1)[1].split("```python\n", 1)[1].split("```", 1)[0]
    t.root.write("/tmp/ten_lines.py", lines)
    said = t.types("cd /tmp && python3 ten_lines.py")
    t.check(
        "ten means come of the README's ten lines", len(said.strip().strip("[]").split(",")) == 10
    )
    t.types("cableway ls && cableway doctor")
    t.check("the manual is there", t.has("/usr/local/share/man/man1/cableway.1"))
    t.check(
        "the license is there",
        t.has("/usr/local/lib/python3*/dist-packages/cableway-*.dist-info/**/LICENSE"),
    )
    t.types("sh /tmp/two_nodes.sh", timeout=120)


TAB = """bash -c '. /usr/share/bash-completion/completions/cableway
COMP_LINE="cableway stat" COMP_POINT=13 COMP_WORDS=(cableway stat) COMP_CWORD=1
_cableway; echo "${COMPREPLY[*]}"'"""
RUNS_FROM = "readlink /proc/$(cut -d' ' -f1 /tmp/cableway-*/cablewayd-*.lock)/exe"
OURS = (
    "find / -xdev -iname '*cableway*' -not -path '/tmp/*' -not -path '/proc/*' -not -path '/sys/*'"
)


def deb(t: Try) -> None:
    """The package: installed, used by root and by an ordinary user, beside the wheel, and removed."""
    package, wheel_name = made_before(t, "deb"), made_before(t, "whl")
    t.root.installs("gcc", "libc6-dev", "pkg-config", "python3", "python3-pip", "python3-numpy")
    t.root.adds_user("newcomer")
    t.check("nothing of ours is there before", t.types(OURS) == "")
    t.types(f"apt-get install -y -qq --no-install-recommends /tmp/{package} >/dev/null")
    t.check("and it is after", t.has("/usr/bin/cablewayd") and t.types(OURS) != "")
    pages = [page.name for page in (ROOT / "docs/man").glob("*.1")]
    t.check("its pages are there", all(t.has(f"/usr/share/man/man1/{name}.gz") for name in pages))
    unit = "/usr/lib/systemd/user/cablewayd.service"
    t.types(f"test -x \"$(sed -n 's/^ExecStart=\\([^ ]*\\).*/\\1/p' {unit})\"")
    t.check("Tab in bash", t.types(TAB).split() == ["status", "stat"])
    t.check("zsh's is there", t.has("/usr/share/zsh/vendor-completions/_cableway"))
    t.root.write("/tmp/linked.c", LINKED)
    t.types("cd /tmp && gcc -o linked linked.c $(pkg-config --cflags --libs cableway) && ./linked")
    t.types("cableway doctor && cableway ls && cableway stop --yes", "newcomer")

    # Beside the wheel: a process of Python starts the wheel's broker, and takes a package's that runs.
    t.types(f"{PIP_INSTALL} /tmp/{wheel_name}")
    put = "python3 -c 'import cableway as cw; cw.put(\"x\", [1.0, 2.0], keep=True)'"
    t.types(put)
    t.check("Python starts the wheel's broker", "/dist-packages/" in t.types(RUNS_FROM))
    listed = t.types("/usr/bin/cableway ls")
    t.check("which the package's command serves, too", "<f8" in listed)
    t.types("/usr/bin/cableway stop --yes")
    t.types("/usr/bin/cablewayd")
    t.types(put)
    t.check("a package's broker serves Python", t.types(RUNS_FROM).strip() == "/usr/bin/cablewayd")
    t.types("cableway stop --yes && rm -rf /tmp/cableway-*")

    t.types("pip uninstall -q -y --break-system-packages --root-user-action=ignore cableway")
    t.types("apt-get purge -y -qq cableway >/dev/null")
    left = t.types(OURS)
    t.check(f"nothing of ours is left: {left}", left == "")


TRIES: dict[str, Callable[[Try], None]] = {
    "alone": alone, "cuda": cuda, "user": user_without_sudo, "wheel": wheel, "deb": deb, "python": python, "whole": whole, "whole-root": whole_as_root,
}  # fmt: skip


def try_root(suite: Suite, kind: str, base: Path, place: Path, out: Path, result: Result) -> None:
    """One root, from its making to its end."""
    name = f"{suite}: {kind}"
    began = time.monotonic()
    print(f"---- {name}", flush=True)
    (out / "wheels" / suite.name).mkdir(parents=True, exist_ok=True)
    root = Root(base, place / f"{suite.name}-{kind}", suite, out / f"{suite.name}-{kind}.log")
    verdict = "ok"
    try:
        root.make()
        TRIES[kind](Try(root, result, out / "wheels"))
    except Cannot as why:
        verdict = f"skipped: {why}"
        result.skipped.append(f"{name}: {why}")
    except Failed as what:
        verdict = f"FAILED: {what}"
        result.failed.append(f"{name}: {what}")
        print("".join(f"       | {line}\n" for line in root.said_last(60)), end="")
    finally:
        root.end()
    print(f"---- {name}: {(time.monotonic() - began) / 60:.1f} minutes, {verdict}", flush=True)


def inside(args: argparse.Namespace) -> int:
    """All roots, in the namespace."""
    out = (args.build / "fresh").resolve()
    out.mkdir(parents=True, exist_ok=True)
    # The first process of a namespace takes no signal that it has no handler for.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    held = open(out / "lock", "w")
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        print(f"test-fresh: another one runs in {out}\n0 passed, 1 failed, 0 skipped")
        return 1
    shutil.rmtree(out / "wheels", ignore_errors=True)
    place = out / "roots"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    print(f"roots lie {memory_for_roots(place)}", flush=True)
    result = Result()
    for name in args.suite:
        suite = SUITES[name]
        kinds = [kind for kind in KINDS[suite.of] if kind in args.kind]
        if args.whole:
            kinds += ["whole", "whole-root"]
        began = time.monotonic()
        try:
            base = base_of(suite, out, place, args.base_days)
        except Cannot as why:
            print(f"---- {suite}: no root: {why}", flush=True)
            (result.skipped if suite.elsewhere() else result.failed).append(f"{suite}: {why}")
            continue
        print(f"---- {suite}: base, {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
        for kind in kinds:
            try_root(suite, kind, base, place, out, result)
    if not result.passed and not result.failed:
        result.failed.append("no root could be made, so nothing was tried")
    print()
    for words, names in (("failed", result.failed), ("skipped", result.skipped)):
        print("".join(f"{words}: {line}\n" for line in names), end="")
    print(
        f"{result.passed} passed, {len(result.failed)} failed, {len(result.skipped)} skipped",
        flush=True,
    )
    return 1 if result.failed else 0


def outside(argv: list[str]) -> None:
    """Goes into the namespace, or says why that cannot be and returns."""
    why = ""
    if os.geteuid() != 0:
        why = "it makes roots and mounts, so it must be run as root"
    elif subprocess.run(["sh", str(ROOT / "tools/setup.sh"), "fresh"], check=False).returncode:
        why = "debootstrap cannot be had here"
    elif subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], check=False).returncode:
        why = "no mount and PID namespaces here"
    if why:
        print(f"test-fresh: nothing was tried: {why}\n0 passed, 1 failed, 0 skipped", flush=True)
        return
    if subprocess.run(
        ["git", "-C", str(ROOT), "status", "--porcelain"], capture_output=True, check=False
    ).stdout:
        print("test-fresh: what is not committed is not in the clones", flush=True)
    words = [
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "--propagation",
        "private",
    ]
    os.environ[INSIDE] = "1"
    os.execvp(words[0], [*words, sys.executable, "-B", __file__, *argv])


def main() -> int:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="the build folder")
    released = [name for name, suite in SUITES.items() if not suite.is_next]
    parser.add_argument("--suite", nargs="+", choices=list(SUITES), default=released)
    parser.add_argument(
        "--kind", nargs="+", choices=KINDS["Debian"], default=KINDS["Debian"], help="which roots"
    )
    parser.add_argument(
        "--whole",
        action="store_true",
        help="make test as first command, too, by root and by a user",
    )
    parser.add_argument("--base-days", type=float, default=7.0, help="how old a kept base may be")
    args = parser.parse_args()
    if os.environ.get(INSIDE):
        return inside(args)
    outside(sys.argv[1:])
    return 1


if __name__ == "__main__":
    sys.exit(main())
