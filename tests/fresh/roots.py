"""Roots of new machines: made by debootstrap, with this machine's ways to its registries, entered by chroot.

All mounts are made in the mount namespace of fresh.py, whose end unmounts them, and all that runs in a root ends with its
PID namespace. A root takes over from this machine: apt's mirror, proxy and checks; pip's index, proxy and certificates.
"""

from __future__ import annotations

import configparser
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path("/usr/share/debootstrap/scripts")
KEYRINGS = Path("/usr/share/keyrings")
MEMORY_LEAST = 14 << 30  # available, for roots in memory
MEMORY_TAKEN = "9g"
APT_KEPT = re.compile(r"^Acquire::(http|https|Check-|Retries|ForceIP|AllowInsecure|AllowWeak)")
CERTIFICATES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
PIP_FILES = ("/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf")
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "fuse")


class Cannot(Exception):
    """Something cannot be tried here, and why."""


@dataclass(frozen=True)
class Suite:
    """A release of a distribution."""

    of: str
    name: str
    components: str = "main"
    script: str = ""  # debootstrap's, where it does not know the name
    is_next: bool = False  # not released yet: its Release file is outdated after a week, which a mirror that stands still has

    def __str__(self) -> str:
        return f"{self.of} {self.name}"

    def elsewhere(self) -> bool:
        """Whether this machine is another distribution's, so that the mirror may be out of reach."""
        return f"ID={self.of.lower()}\n" not in Path("/etc/os-release").read_text()


def output(*words: str) -> str:
    """What a command says; "" if it fails."""
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout


def mirror_of(suite: Suite) -> str:
    """A mirror that has the suite: of apt's configuration, else one that debootstrap's script names."""
    uris = output("apt-get", "indextargets", "--format", "$(REPO_URI)").split()
    script = SCRIPTS / (suite.script or suite.name)
    uris += re.findall(r"default_mirror\s+(http\S+)", script.read_text() if script.exists() else "")
    for uri in dict.fromkeys(uris):
        try:
            with urllib.request.urlopen(
                f"{uri.rstrip('/')}/dists/{suite.name}/Release", timeout=60
            ) as answer:
                head = answer.read(400).decode("utf-8", "replace")
        except (OSError, ValueError):
            continue
        if f"\nLabel: {suite.of}\n" in head and f"Origin: {suite.of}\n" in head:
            return uri
    raise Cannot("no mirror of it can be reached")


def keyring_of(suite: Suite, out: Path, place: Path) -> Path:
    """The keys of the distribution's archive: this machine's, or from Debian's package in a root made before."""
    name = f"{suite.of.lower()}-archive-keyring.gpg"
    for kept in (KEYRINGS / name, out / name):
        if kept.exists():
            return kept
    for base in sorted(place.glob("base-*")):
        root = Root(base, place / "keyring", Suite("", base.name), out / "keyring.log")
        try:
            root.make()
            if (
                root.run(
                    f"apt-get -qq update && apt-get -qq install -y {suite.of.lower()}-keyring",
                    "root",
                    300,
                )[0]
                == 0
            ):
                shutil.copy(root.path / "usr/share/keyrings" / name, out / name)
                return out / name
        finally:
            root.end()
    raise Cannot(f"no {name}, so what its mirror sends could not be checked")


def base_of(suite: Suite, out: Path, place: Path, days: float) -> Path:
    """The folder of a base: unpacked from the one that is kept, or made anew."""
    kept, folder = out / f"base-{suite.name}.tar", place / f"base-{suite.name}"
    if not kept.exists() or time.time() - kept.stat().st_mtime > days * 86400:
        words = ["debootstrap", "--variant=minbase", f"--components={suite.components}"]
        mirror = mirror_of(suite)
        words += [f"--keyring={keyring_of(suite, out, place)}", suite.name, str(folder), mirror]
        if suite.script and not (SCRIPTS / suite.name).exists():
            words += [str(SCRIPTS / suite.script)]
        log = out / f"base-{suite.name}.log"
        with open(log, "wb") as into:
            made = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=into, stderr=subprocess.STDOUT, check=False
            )
        if made.returncode:
            said = log.read_text(errors="replace").strip().splitlines() or ["no word"]
            raise Cannot(f"debootstrap ended with {made.returncode}: {said[-1]}")
        partial = kept.with_suffix(".new")
        subprocess.run(["tar", "-C", str(folder), "-cf", str(partial), "."], check=True)
        partial.rename(kept)
    elif not folder.exists():
        folder.mkdir()
        subprocess.run(["tar", "-C", str(folder), "-xpf", str(kept)], check=True)
    return folder


def memory_for_roots(place: Path) -> str:
    """Puts a file system in memory under the roots if there is plenty; where they lie then."""
    available = re.search(r"MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text())
    if available and int(available[1]) << 10 > MEMORY_LEAST:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={MEMORY_TAKEN},mode=755", "roots", str(place)],
            check=True,
        )
        return "in memory"
    return "on disk"


class Root:
    """One root, from a base."""

    def __init__(self, base: Path, path: Path, suite: Suite, log: Path) -> None:
        self.base, self.path, self.suite, self.log = base, path, suite, log
        self.environment = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
            "DEBIAN_FRONTEND": "noninteractive",
            **{name: os.environ[name] for name in PROXIES if name in os.environ},
        }
        log.unlink(missing_ok=True)

    def make(self) -> None:
        """Copies the base, mounts what a machine has, and tells it this machine's ways to the registries."""
        subprocess.run(["cp", "-a", str(self.base), str(self.path)], check=True)
        dev = self.path / "dev"
        mounts = [
            ["-t", "proc", "proc", "proc"], ["-t", "sysfs", "-o", "ro", "sysfs", "sys"],
            ["-t", "tmpfs", "-o", "mode=755", "dev", "dev"], ["-t", "tmpfs", "-o", "mode=1777", "tmp", "tmp"],
        ]  # fmt: skip
        for *options, what, where in mounts:
            subprocess.run(["mount", *options, what, str(self.path / where)], check=True)
        for name in ("shm", "pts"):
            (dev / name).mkdir()
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "mode=1777", "shm", str(dev / "shm")], check=True
        )
        subprocess.run(
            ["mount", "-t", "devpts", "-o", "newinstance,ptmxmode=0666", "pts", str(dev / "pts")],
            check=True,
        )
        for name, target in (
            ("ptmx", "pts/ptmx"),
            ("fd", "/proc/self/fd"),
            ("stdin", "fd/0"),
            ("stdout", "fd/1"),
            ("stderr", "fd/2"),
        ):
            (dev / name).symlink_to(target)
        for name in DEVICES:
            if Path("/dev", name).exists():
                (dev / name).touch()
                subprocess.run(["mount", "--bind", f"/dev/{name}", str(dev / name)], check=True)
        self.takes_apt()
        self.takes_pip()

    def takes_apt(self) -> None:
        """Apt's proxy, checks and passwords; and no waiting for the disk after each package."""
        kept = [line for line in output("apt-config", "dump").splitlines() if APT_KEPT.match(line)]
        if self.suite.is_next:
            kept.append('Acquire::Check-Valid-Until "false";')
        self.write("/etc/apt/apt.conf.d/99machine", "\n".join(kept) + "\n")
        self.write("/etc/dpkg/dpkg.cfg.d/unsafe-io", "force-unsafe-io\n")
        for name in ("auth.conf", "auth.conf.d"):
            if (own := Path("/etc/apt", name)).exists():
                subprocess.run(["cp", "-a", str(own), str(self.path / "etc/apt/")], check=True)

    def takes_pip(self) -> None:
        """Pip's index and proxy, from the environment and from its files, and the certificates that these need."""
        merged = configparser.RawConfigParser()
        merged.read([os.path.expanduser(name) for name in PIP_FILES])
        given = {
            k: v for k, v in os.environ.items() if k.startswith("PIP_") and k != "PIP_CACHE_DIR"
        }
        given |= {k: os.environ[k] for k in CERTIFICATES if k in os.environ}
        if merged.has_option("global", "cert"):
            given.setdefault("PIP_CERT", merged.get("global", "cert"))
            merged.remove_option("global", "cert")
        for name in CERTIFICATES:
            if name in given and Path(given[name]).is_file():
                target = f"/usr/local/share/certificates-{name.lower()}.pem"
                shutil.copy(given[name], self.path / target[1:])
                given[name] = target
        for folder in given.get("PIP_FIND_LINKS", "").split():
            if Path(folder).is_dir():
                shutil.copytree(folder, self.path / folder.lstrip("/"), dirs_exist_ok=True)
        self.environment |= given
        with open(self.path / "etc/pip.conf", "w") as into:
            merged.write(into)

    def write(self, path: str, text: str) -> None:
        """Writes a file of the root."""
        (self.path / path.lstrip("/")).write_text(text)

    def run(self, command: str, user: str = "root", timeout: float = 2400) -> tuple[int, str]:
        """Types a command; its status, and all that it said, which the log gets, too."""
        home = "/root" if user == "root" else f"/home/{user}"
        words = [
            "env",
            "-i",
            *(f"{k}={v}" for k, v in self.environment.items()),
            f"HOME={home}",
            f"USER={user}",
        ]
        words += ["chroot", f"--userspec={user}:{user}", str(self.path), "sh", "-c", command]
        with open(self.log, "a+b") as log:
            log.write(f"$ {command}\n".encode())
            log.flush()
            start = log.tell()
            child = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = child.wait(timeout)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                status = child.wait()
                log.write(f"it ran past {timeout:.0f} s\n".encode())
                log.flush()
            log.seek(start)
            return status, log.read().decode("utf-8", "replace")

    def installs(self, *packages: str) -> None:
        """Installs what the kind of root has before anything is typed."""
        words = f"apt-get -qq update && apt-get -qq install -y --no-install-recommends {' '.join(packages)} >/dev/null"
        if self.run(words)[0]:
            raise Cannot(f"{' '.join(packages)} cannot be installed: {self.said_last(1)[0]}")

    def adds_user(self, name: str) -> None:
        """An ordinary user."""
        subprocess.run(["chroot", str(self.path), "useradd", "--create-home", name], check=True)

    def takes_repository(self, checkout: Path, user: str) -> None:
        """The checkout's HEAD as a repository that the user may clone."""
        target = self.path / "srv/cableway.git"
        subprocess.run(
            ["git", "clone", "-q", "--bare", "--depth=1", f"file://{checkout}", str(target)],
            check=True,
        )
        subprocess.run(
            ["chroot", str(self.path), "chown", "-R", f"{user}:", "/srv/cableway.git"], check=True
        )

    def takes_cuda_header(self, checkout: Path) -> None:
        """A CUDA Toolkit's cuda.h, where one finds it: this machine's Toolkit's, or PyPI's by our own script."""
        script = str(checkout / "tools/cuda_header.sh")
        found = output("sh", script, "find").strip()
        if not found:
            found = str(self.path / "tmp/cuda")
            if subprocess.run(
                ["sh", script, "fetch", found, "python3 -m pip"], check=False
            ).returncode:
                raise Cannot("no cuda.h, neither here nor from PyPI")
        target = self.path / "usr/local/cuda/include"
        target.mkdir(parents=True)
        shutil.copy(Path(found) / "cuda.h", target)

    def said_last(self, count: int) -> list[str]:
        """The last lines of the log."""
        return (self.log.read_text(errors="replace").splitlines() or ["no word"])[-count:]

    def end(self) -> None:
        """Ends what still runs in the root, unmounts it, and removes it."""
        for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
            try:
                if os.readlink(f"/proc/{pid}/root").startswith(str(self.path)):
                    os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        below = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mounted in sorted((m for m in below if m.startswith(f"{self.path}/")), reverse=True):
            subprocess.run(["umount", "--lazy", mounted], check=False)
        if not any(
            line.split()[1].startswith(f"{self.path}/")
            for line in Path("/proc/mounts").read_text().splitlines()
        ):
            shutil.rmtree(self.path, ignore_errors=True)
