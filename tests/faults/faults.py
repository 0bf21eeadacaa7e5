#!/usr/bin/env python3
"""Makes each call site of each allocation and system call of ours fail once, and looks what becomes of it.

A role is a process of ours: the broker, or a program with the client library. A first run of the role's walk lists the
sites that it reaches (sites.c says what a site is); then the walk is run once for each site and each error that a kernel
would really give there. What must hold in each run:

- nobody aborts, crashes or hangs;
- the caller is told: a call of the walk that fails has a code and a sentence, and no more than one fails;
- the same call works the next time, and what is read is right (the walk itself looks);
- the broker lives on, and its gauges are 0 when all clients are gone; a broker that cannot start says why;
- at the end it obeys SIGTERM, ends with 0 and leaves no socket.

faults.py [--role ROLE] [--sample N] [--seed N] [--only TEXT] [--jobs N]: --sample takes so many cases of each role by
chance. It prints TAP, a line for each role and one for each case that failed.
"""

from __future__ import annotations

import abc
import argparse
import contextlib
import ctypes
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import bridge

PR_SET_CHILD_SUBREAPER = 36
HERE = Path(__file__).resolve().parent
PACKAGE = Path(sysconfig.get_path("platlib")) / "cableway"
LIMIT_S = 30.0  # a run takes a quarter of a second
SETTLE_S = 5.0  # what clients held is back within 100 ms
OWN_WAY = -1  # the shim's: recvmsg without descriptors

NO_MEMORY = [errno.ENOMEM]
NO_DESCRIPTOR = [errno.EMFILE]
INTERRUPTED = [errno.EINTR]
# What a kernel says there when it lacks something, or a signal came.
ERRORS: dict[str, list[int]] = {
    **dict.fromkeys(("malloc", "calloc", "realloc", "aligned_alloc", "posix_memalign"), NO_MEMORY),
    **dict.fromkeys(("mmap", "mprotect", "readlink", "setenv"), NO_MEMORY),
    **dict.fromkeys(
        ("memfd_create", "socket", "socketpair", "epoll_create1", "eventfd"), NO_DESCRIPTOR
    ),
    **dict.fromkeys(
        ("signalfd", "timerfd_create", "pipe2", "dup", "dup2", "fcntl_dup"), NO_DESCRIPTOR
    ),
    **dict.fromkeys(("pidfd_open", "open", "openat", "fopen", "fopen64"), NO_DESCRIPTOR),
    **dict.fromkeys(
        ("epoll_wait", "futex_wait", "nanosleep", "waitpid", "recv", "read"), INTERRUPTED
    ),
    **dict.fromkeys(("fork", "clone", "pthread_create", "posix_spawn"), [errno.EAGAIN]),
    **dict.fromkeys(("mkdir", "rename", "renameat", "pwrite"), [errno.ENOSPC]),
    **dict.fromkeys(("unlink", "unlinkat"), [errno.EROFS]),
    "madvise": [errno.ENOMEM, errno.EINVAL],  # EINVAL: a kernel that does not know the advice
    "ftruncate": [errno.EIO],
    "fallocate": [errno.ENOSPC, errno.EINTR],
    "accept4": [errno.EMFILE, errno.ECONNABORTED],
    "connect": [errno.EAGAIN, errno.EINTR],
    "bind": [errno.ENOSPC],
    "listen": [errno.ENOBUFS],
    "setsockopt": [errno.ENOBUFS],
    "sendmsg": [errno.ENOBUFS],
    "sendmsg_fds": [errno.ENOBUFS, errno.ETOOMANYREFS],
    "sendmsg_waiting": [errno.ENOBUFS, errno.EINTR],
    "send": [errno.ENOBUFS],
    "recvmsg": [OWN_WAY],
    "recvmsg_waiting": [errno.EINTR, OWN_WAY],
    "write_file": [errno.ENOSPC],
    "write_pipe": [errno.ENOMEM],
    "epoll_ctl": [errno.ENOMEM],
    "poll": [errno.EINTR],
    "ppoll": [errno.EINTR],
    "flock": [errno.EINTR, errno.ENOLCK],
    "close_range": [errno.ENOSYS],
    "fcntl_pipe": [errno.EPERM],
}


@dataclass(frozen=True)
class Site:
    """A site as the shim lists it."""

    number: str
    text: str

    @property
    def call(self) -> str:
        """The name of the call."""
        return self.text.split("@")[0]


@dataclass(frozen=True)
class Case:
    """A site and what it fails with."""

    site: Site
    error: int

    def __str__(self) -> str:
        name = "its own way" if self.error == OWN_WAY else errno.errorcode[self.error]
        return f"{self.site.number} {self.site.text} {name}"


@dataclass
class Outcome:
    """What became of a run."""

    fired: bool = False
    told: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class Role(abc.ABC):
    """A process of ours whose calls fail."""

    def __init__(self, name: str, build: Path, modules: str, program: str) -> None:
        """program: as FAULTS_ROLE has it."""
        self.name, self.build, self.modules, self.program = name, build, modules, program

    def shim(self, folder: Path, case: Case | None) -> dict[str, str]:
        """The environment of the process whose call fails; without a case, of one that lists its sites."""
        words = {
            "LD_PRELOAD": str(self.build / "tests/faults/libfaults.so"),
            "FAULTS_ROLE": self.program,
            "FAULTS_MODULES": self.modules,
            "FAULTS_LIST": str(folder / "sites"),
            "FAULTS_FIRED": str(folder / "fired"),
        }
        if case:
            words |= {"FAULTS_SITE": case.site.number, "FAULTS_ERROR": str(case.error)}
        return words

    @abc.abstractmethod
    def walk(self, run: Run, shim: dict[str, str]) -> None:
        """Starts what there is to start and walks."""


class Run:
    """One run of a role's walk in a folder of its own."""

    def __init__(self, role: Role, folder: Path, case: Case | None) -> None:
        self.role, self.folder, self.case = role, folder, case
        self.place = folder / "place"
        self.place.mkdir(mode=0o700)
        self.outcome = Outcome()
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("CABLEWAY_", "FAULTS_"))
        }
        self.environment |= {
            "CABLEWAY_DIR": str(self.place),
            "CABLEWAY_BROKER": str(role.build / "cablewayd"),
            "CABLEWAY_CUDA_DRIVER": str(role.build / "tests/fakecuda/libcuda-double.so"),
            "CABLEWAY_FAKECUDA_DIR": str(folder / "card"),
            "CABLEWAY_FAKECUDA_MEMORY_MIB": "64",
            "CABLEWAY_PICKLE_SECONDS": "0",  # what stays for further openers would be found left
            "TMPDIR": str(folder),
        }

    def wrong(self, text: str) -> None:
        """Notes what may not be."""
        self.outcome.wrong.append(text)

    def program(self, *words: str, shim: dict[str, str]) -> subprocess.CompletedProcess[str]:
        """Runs a program of ours to its end, within the limit; what it prints goes into files, so that a daemon that
        keeps them open holds up nobody."""
        out = self.folder / "out"
        with out.open("w") as file:
            process = subprocess.Popen(
                words,
                stdout=file,
                stderr=file,
                stdin=subprocess.DEVNULL,
                env=self.environment | shim,
            )
            try:
                process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                self.wrong(f"{Path(words[0]).name} hangs")
                process.kill()
                process.wait()
        text = out.read_text(errors="replace")
        self.outcome.told += [line for line in text.splitlines() if line.startswith("told ")]
        if process.returncode < 0:
            self.wrong(
                f"{Path(words[0]).name} died by signal {-process.returncode}: {text[-300:].strip()}"
            )
        return subprocess.CompletedProcess(words, process.returncode, text, "")

    def broker_pid(self) -> int:
        """The pid of the broker in the folder, 0: none has a lock."""
        for lock in self.place.glob("*.lock"):
            words = lock.read_text().split()
            if words and words[0].isdigit():
                return int(words[0])
        return 0

    def log(self) -> str:
        """The broker's log."""
        return "".join(path.read_text(errors="replace") for path in self.place.glob("*.log"))

    def gauges(self) -> dict[str, int]:
        """The broker's gauges by its monitor page. A mover is ended: it stays as long as the broker."""
        done = self.program(str(self.role.build / "cableway"), "status", "--json", shim={})
        try:
            status = json.loads(done.stdout)
        except ValueError:
            return {"status": done.returncode}
        for client in status["clients"]:
            if client["command"].startswith("cableway-mover"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(client["pid"], signal.SIGKILL)
        return dict(status["gauges"])

    def settle(self) -> None:
        """All gauges become 0."""
        end = time.monotonic() + SETTLE_S
        while left := {name: value for name, value in self.gauges().items() if value}:
            if time.monotonic() > end or "status" in left:
                break
            time.sleep(0.005)
        if left:
            self.wrong(f"the broker still has {left}")

    def end_broker(self, pid: int) -> None:
        """The broker ends by SIGTERM, with 0, and leaves no socket."""
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            pass
        status = wait_for(pid, LIMIT_S)
        if status is None:
            self.wrong("the broker does not end by SIGTERM")
            os.kill(pid, signal.SIGKILL)
            wait_for(pid, LIMIT_S)
        elif status != 0:
            self.wrong(f"the broker ended with {status}: {self.log()[-300:]}")
        if list(self.place.glob("*.sock")) and self.case and self.case.site.call != "unlinkat":
            self.wrong("the broker left its socket")

    def go(self) -> Outcome:
        """Runs the walk and looks at everything."""
        shim = self.role.shim(self.folder, self.case)
        try:
            self.role.walk(self, shim)
        finally:
            pid = self.broker_pid()
            if pid and is_child(pid):
                self.settle()
                self.end_broker(pid)
        log = self.log()
        for word in ("dropped client", "assertion", "Assertion"):
            if word in log:
                self.wrong(
                    f"the log says: {next(line for line in log.splitlines() if word in line)}"
                )
        self.outcome.fired = (self.folder / "fired").exists()
        if len(self.outcome.told) > 1:
            self.wrong(f"{len(self.outcome.told)} calls failed, and one was made to")
        return self.outcome


def is_child(pid: int) -> bool:
    """Is it a child of ours? Detached brokers are: this process is the subreaper."""
    try:
        return f"\nPPid:\t{os.getpid()}\n" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def wait_for(pid: int, limit_s: float) -> int | None:
    """The exit code of a child, as subprocess has it; None: it still runs."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        try:
            ended, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return 0
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    return None


def walk_in_c(run: Run, shim: dict[str, str]) -> None:
    """The walk of walk.c."""
    done = run.program(str(run.role.build / "tests/faults/walk"), shim=shim)
    if done.returncode > 0 or "whole" not in done.stdout:
        lines = [
            line for line in done.stdout.splitlines() if line.startswith(("wrong", "descriptors"))
        ]
        run.wrong(
            f"the walk ended with {done.returncode}: {'; '.join(lines) or done.stdout[-300:]}"
        )


class Client(Role):
    """The client library in a C program."""

    def walk(self, run: Run, shim: dict[str, str]) -> None:
        """The walk starts the broker."""
        walk_in_c(run, shim)


class Broker(Role):
    """cablewayd."""

    def start(self, run: Run, shim: dict[str, str]) -> int:
        """Starts it detached; its first process ends when it listens. One that cannot start says why."""
        done = run.program(str(self.build / "cablewayd"), "--dir", str(run.place), shim=shim)
        if done.returncode and not done.stdout.strip():
            run.wrong(f"the broker did not start, with {done.returncode}, and did not say why")
        return done.returncode

    def walk(self, run: Run, shim: dict[str, str]) -> None:
        """The broker comes first; one that could not start does so the next time."""
        if self.start(run, shim) != 0 and self.start(run, shim) != 0:
            run.wrong("the broker did not start the second time either")
            return
        pid = run.broker_pid()
        walk_in_c(run, {})
        if run.broker_pid() != pid or not is_child(pid):
            run.wrong(f"the broker did not survive: {run.log()[-300:]}")


class Python(Role):
    """The Python package, in the process that has the Pool or in all others."""

    def walk(self, run: Run, shim: dict[str, str]) -> None:
        """The walk of walk.py, with the Python that runs this."""
        done = run.program(sys.executable, "-B", str(HERE / "walk.py"), shim=shim)
        if done.returncode > 0 or "whole" not in done.stdout:
            lines = [line for line in done.stdout.splitlines() if line.startswith("wrong")]
            run.wrong(
                f"the walk ended with {done.returncode}: {'; '.join(lines) or done.stdout[-2000:]}"
            )


class Bridge(Role):
    """cableway-bridge of one of two nodes (bridge.py)."""

    def __init__(self, build: Path) -> None:
        super().__init__("bridge", build, "cableway-bridge", "cableway-bridge")
        self.folder = tempfile.TemporaryDirectory(prefix="cw-faults-keys-")
        self.keys = bridge.make_keys(build, Path(self.folder.name))
        self.descriptors: Counter[str] = Counter()

    def walk(self, run: Run, shim: dict[str, str]) -> None:
        """The walk of walk_bridge.py."""
        bridge.walk(run, self.keys, self.descriptors, shim)


def roles(build: Path) -> list[Role]:
    """All of them."""
    extensions = "_cableway:_dispatch:_dlpack:libcableway"
    return [
        Broker("broker", build, "cablewayd", "cablewayd"),
        Client("client", build, "libcableway", "walk"),
        Python("parent", build, extensions, "python:parent"),
        Python("worker", build, extensions, "python:worker"),
        *([Bridge(build)] if (build / "cableway-bridge").exists() else []),
    ]


def one_run(role: Role, case: Case | None) -> tuple[Outcome, list[Site]]:
    """A run, and the sites that it reached."""
    folder = Path(tempfile.mkdtemp(prefix="cw-faults-"))
    try:
        outcome = Run(role, folder, case).go()
        listed = folder / "sites"
        lines = listed.read_text().splitlines() if listed.exists() else []
        return outcome, [Site(line.split()[0], line.split(maxsplit=2)[2]) for line in lines]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def cases_of(role: Role, runs: int) -> tuple[list[Case], list[str]]:
    """All cases of a role, by what some runs without a failure reach, and what was wrong in these."""
    sites: dict[str, Site] = {}
    wrong: list[str] = []
    for _ in range(runs):
        outcome, found = one_run(role, None)
        wrong += outcome.wrong + outcome.told
        sites |= {site.number: site for site in found}
    unknown = {site.call for site in sites.values()} - ERRORS.keys()
    if unknown:
        wrong.append(f"no error is known for {unknown}")
    return [
        Case(site, error) for site in sites.values() for error in ERRORS.get(site.call, [])
    ], wrong


def where(role: Role, site: Site) -> str:
    """The functions and lines of a site."""
    text = []
    for frame in site.text.split("@", 1)[1].split("<"):
        module, offset = frame.rsplit("+", 1)
        for place in (role.build / module, PACKAGE / module):
            if place.exists():
                command = ["addr2line", "-sfe", str(place), hex(int(offset, 16) - 1)]
                lines = subprocess.run(command, capture_output=True, text=True).stdout.split()
                text.append(" ".join(lines[:2]))
                break
    return " < ".join(text)


def main() -> int:
    """Runs the cases and prints what became of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=os.environ.get("CABLEWAY_BUILD", "build"))
    parser.add_argument("--role")
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--verbose", action="store_true")
    chosen = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    chance = random.Random(chosen.seed)
    if chosen.sample:
        print(f"# seed {chosen.seed}")
    number, failed = 0, 0
    for role in roles(Path(chosen.build).resolve()):
        if chosen.role and role.name != chosen.role:
            continue
        cases, wrong = cases_of(role, 3)
        reached = len({case.site for case in cases})
        cases = [case for case in cases if chosen.only in str(case)]
        if chosen.sample and chosen.sample < len(cases):
            cases = chance.sample(cases, chosen.sample)
        fired = told = 0
        with ThreadPoolExecutor(chosen.jobs) as pool:
            runs = pool.map(lambda case, role=role: one_run(role, case), cases)
            for case, (outcome, _) in zip(cases, runs, strict=True):
                fired += outcome.fired
                told += bool(outcome.told)
                if outcome.wrong or chosen.verbose:
                    number += bool(outcome.wrong)
                    failed += bool(outcome.wrong)
                    if outcome.wrong:
                        print(f"not ok {number} - {role.name}: {case}")
                    else:
                        print(f"# {role.name}: {case} fired {outcome.fired}")
                    print(f"#   at {where(role, case.site)}")
                    for line in outcome.told + outcome.wrong:
                        print(f"#   {line}")
                    sys.stdout.flush()
        number += 1
        state = "not ok" if wrong or not reached else "ok"
        failed += state != "ok"
        print(
            f"{state} {number} - {role.name}: {reached} sites, {len(cases)} cases, {fired} of them came, "
            f"{told} were told to the caller"
        )
        for line in wrong:
            print(f"#   without a failure: {line}")
        sys.stdout.flush()
    print(f"1..{number}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
