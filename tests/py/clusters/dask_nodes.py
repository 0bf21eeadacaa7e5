"""What cableway.dask promises between nodes, one function each; test_dask_nodes.py runs them, with nodes whose bridges know each other."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask_cluster as c
from dask_cluster import MIB
from distributed import Client, LocalCluster, Security, wait
from waiting import eventually

NO_BROKER = 3  # a command's exit code
Places = dict[str, list[str]]  # addresses of workers, by node


def certificates() -> tuple[Security, list[str]]:
    """For a cluster by tls, and what `dask worker` is told of it."""
    security = Security.temporary()
    words = []
    for option, text in (
        ("--tls-ca-file", security.tls_ca_file),
        ("--tls-cert", security.tls_worker_cert),
        ("--tls-key", security.tls_worker_key),
    ):
        file = Path(option.strip("-")).resolve()
        file.write_text(str(text))
        words += [option, str(file)]
    return security, words


@contextlib.contextmanager
def nodes(
    told: str, workers: int, preload: str = "cableway.dask"
) -> Iterator[tuple[Client, Places]]:
    """A client, and a cluster by tls with so many workers on each node.

    Args:
        told: JSON: the environment of each node's processes; in it PORT of its bridge, and NETNS and HOST, if the node has a network
            namespace, and OUTSIDE, the address of this process.
    """
    environments: dict[str, dict[str, str]] = json.loads(told)
    security, words = certificates()
    path = os.pathsep.join([os.path.dirname(__file__), os.environ["PYTHONPATH"]])
    with contextlib.ExitStack() as stack:
        options: dict[str, Any] = {"n_workers": 0, "dashboard_address": None, "security": security}
        outside = next(iter(environments.values())).get("OUTSIDE")
        options |= {"host": outside} if outside else {}
        made = stack.enter_context(LocalCluster(protocol="tls://", **options))
        for name, environment in environments.items():
            for i in range(workers):
                process = subprocess.Popen(
                    [
                        *(["ip", "netns", "exec", environment["NETNS"]] if outside else []),
                        *(sys.executable, "-m", "distributed.cli.dask_worker"),
                        *(["--host", environment["HOST"]] if outside else []),
                        *(made.scheduler_address, *words, "--name", f"{name}-{i}"),
                        *("--nthreads", "1", "--no-nanny", "--no-dashboard", "--memory-limit", "0"),
                        *(["--preload", preload] if preload else []),
                    ],
                    env={**os.environ, **environment, "PYTHONPATH": path},
                )
                stack.callback(_end, process)
        client = stack.enter_context(Client(made, timeout="120s"))
        client.wait_for_workers(workers * len(environments), timeout=120)
        names = {
            w: info["name"] for w, info in client.scheduler_info(n_workers=-1)["workers"].items()
        }
        yield (
            client,
            {
                node: sorted(w for w in names if names[w].startswith(f"{node}-"))
                for node in environments
            },
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(60)


def _shown(environment: dict[str, str], *words: str, may_lack_broker: bool = False) -> Any:
    """What a command of a node says as JSON; None: no broker runs there, and may not. It starts none, as a connection would."""
    done = subprocess.run(
        ["cableway", *words, "--json"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if may_lack_broker and done.returncode == NO_BROKER:
        return None
    assert done.returncode == 0, done
    return json.loads(done.stdout)


def received(told: str) -> dict[str, dict[str, int]]:
    """Bytes that each node's bridge has received from each other one."""
    return {
        node: {row["name"]: row["bytes_in"] or 0 for row in _shown(environment, "peers")}
        for node, environment in json.loads(told).items()
    }


def once_a_node(told: str, workers: str, mib: str) -> None:
    """An array crosses the link to each node once, whichever workers want it, and is one copy there."""
    size, log = int(mib), Path("log").resolve()
    with nodes(told, int(workers)) as (client, places):
        client.amm.stop()  # it would drop what a node has and no task waits for
        everyone = [w for of in places.values() for w in of]
        x = client.submit(c.made, size, str(log), workers=places["a"][:1])
        before = received(told)
        for task in (c.total, c.spoiled):
            sums = [client.submit(task, x, workers=[w], pure=False) for w in everyone]
            assert client.gather(sums) == [c.total_of(size)] * len(everyone)
        after = received(told)
        for node in places:
            came = sum(after[node].values()) - sum(before[node].values())
            expected = 0 if node == "a" else size * MIB
            assert expected <= came <= expected + expected // 20 + MIB, (node, came, before, after)
        for w, seen in client.run(c.look).items():
            assert seen["mapped"][x.key] == size * MIB, (w, places, seen)
        assert c.times_made(log) == 1


def _names(told: str) -> dict[str, list[str]]:
    """The names of blocks on each node, without the probes. A node's broker may have been killed."""
    found = {}
    for node, environment in json.loads(told).items():
        rows = _shown(environment, "ls", "dask/", may_lack_broker=True) or []
        found[node] = [row["name"] for row in rows if not row["name"].startswith("dask/at-")]
    return found


def _none_left(told: str) -> None:
    gone = lambda: not any(_names(told).values())  # noqa: E731
    assert eventually(gone, 60), _names(told)  # what a cut connection named is held for 30 s


def names_end(told: str) -> None:
    """The names of what Dask has released end on all nodes, and those of a killed worker; its array is read where it is."""
    log = Path("log").resolve()
    with nodes(told, 2) as (client, places):
        client.amm.stop()
        x = client.submit(c.made, 16, str(log), workers=places["a"][:1], allow_other_workers=True)
        sums = [client.submit(c.total, x, workers=places[n][:1], pure=False) for n in ("b", "c")]
        assert client.gather(sums) == [c.total_of(16)] * 2
        (named,) = {name for of in _names(told).values() for name in of}  # one, on all nodes
        assert _names(told) == {"a": [named], "b": [named], "c": [named]}
        pids = client.run(os.getpid)
        os.kill(pids[places["a"][0]], signal.SIGKILL)
        assert eventually(lambda: _names(told)["a"] == [])
        last = client.submit(c.total, x, workers=[*places["a"][1:], *places["b"][1:]], pure=False)
        assert last.result() == c.total_of(16)
        assert c.times_made(log) == 1
        del x, sums, last
        _none_left(told)


def one_after_another(told: str) -> None:
    """Of arrays that come one after the other, each released, a node has the memory of two at most: one is here, the next one comes."""
    size, before = 32, _memory(told)
    with nodes(told, 1) as (client, places):
        client.amm.stop()
        (a,), (b,), _ = places.values()
        for fill in range(8):
            x = client.submit(c.made, size, fill=fill, workers=[a])
            total = client.submit(c.total, x, workers=[b], pure=False)
            assert total.result() == c.total_of(size, fill)
            del x, total
            _none_left(told)
            after = _memory(told)
            most = {node: before[node] + 2 * size * MIB + 8 * MIB for node in after}
            assert all(after[node] <= most[node] for node in after), (fill, before, after)


def _memory(told: str) -> dict[str, int]:
    """Bytes of shared memory that each node's broker has given out."""
    return {
        node: _shown(environment, "status")["gauges"]["bytes"]
        for node, environment in json.loads(told).items()
    }


def refused(told: str) -> None:
    """A node that may not read there gets bytes, as one whose connection ends; the others share on."""
    with nodes(told, 1) as (client, places):
        client.amm.stop()
        (a,), (b,), (d,) = places.values()
        for fill in range(3):
            if fill == 1:
                assert _command(told, "a", "peers", "remove", "b") == 0
                assert eventually(lambda: _command(told, "b", "ls", "//a/dask/") != 0)
            x = client.submit(c.made, 16, fill=fill, workers=[a])
            for w in (b, d):  # one after the other: else b may have it from d
                total = client.submit(c.total, x, workers=[w], pure=False)
                assert total.result() == c.total_of(16, fill)
                mapped = client.run(c.look, workers=[w])[w]["mapped"][x.key]
                assert mapped == (0 if fill and w == b else 16 * MIB), (fill, w == b, mapped)


def _command(told: str, node: str, *words: str) -> int:
    environment = {**os.environ, **json.loads(told)[node]}
    return subprocess.run(
        ["cableway", *words], env=environment, check=False, capture_output=True
    ).returncode


def _bridge(environment: dict[str, str]) -> int:
    """The pid of a node's bridge; 0: none runs now."""
    folder = os.fsencode(environment["CABLEWAY_DIR"]) + b"/"
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if words[0] == b"cableway-bridge" and words[3].startswith(folder):
                    return int(entry.name)
    return 0


def _broker(environment: dict[str, str]) -> int:
    (lock,) = Path(environment["CABLEWAY_DIR"]).glob("*.lock")
    return int(lock.read_text().split()[0])


def killed(told: str, what: str, rounds: str, mib: str = "24") -> None:
    """A bridge or a broker is killed in the midst of transfers, again and again: all results are right, and nothing stays."""
    environments, size = json.loads(told), int(mib)
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    find = {"bridge": _bridge, "broker": _broker}[what]
    with nodes(told, 2) as (client, places):
        everyone = [w for of in places.values() for w in of]
        for i in range(int(rounds)):
            x = client.submit(c.made, size, fill=i, workers=[chance.choice(everyone)])
            wait(x)
            sums = [client.submit(c.total, x, workers=[w], pure=False) for w in everyone]
            time.sleep(chance.random() * 0.3)
            pid = find(environments[chance.choice([*places])])
            if pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            assert client.gather(sums) == [c.total_of(size, i)] * len(everyone), i
            del x, sums
        _none_left(told)


def _cut(environment: dict[str, str]) -> int:
    """Resets all connections that a node's bridge has accepted, as a broken network would; returns how many."""
    inside = ["ip", "netns", "exec", environment["NETNS"]] if "NETNS" in environment else []
    done = subprocess.run(
        [*inside, "ss", "-KtnH", "state", "established", "sport", "=", f":{environment['PORT']}"],
        capture_output=True,
        text=True,
        check=False,
    )
    return len(done.stdout.splitlines())


def _checksum(x: Any) -> int:
    return zlib.crc32(memoryview(x).cast("B"))


def cut(told: str, most: str, mib: str = "24") -> None:
    """Connections between bridges are reset in the midst of transfers, so many times: no byte is wrong, and nothing stays."""
    environments, size, cuts, number = json.loads(told), int(mib), 0, 0
    seed = int(os.environ.get("CABLEWAY_SEED", random.randrange(1 << 32)))
    print("seed", seed)
    chance = random.Random(seed)
    with nodes(told, 2) as (client, places):
        client.amm.stop()
        everyone = [w for of in places.values() for w in of]
        while cuts < int(most):
            number += 1
            x = client.submit(c.made, size, fill=number, workers=[chance.choice(everyone)])
            wait(x)
            sums = [client.submit(_checksum, x, workers=[w], pure=False) for w in everyone]
            while not all(future.done() for future in sums):
                cuts += _cut(environments[chance.choice([*places])])
                time.sleep(chance.random() * 0.1)
            expected = _checksum(c.made(size, fill=number))
            assert client.gather(sums) == [expected] * len(everyone), number
            del x, sums
        said = f"{cuts} connections were cut while {number} arrays went to three nodes"
        print(said, file=sys.stderr)
        _none_left(told)


if __name__ == "__main__":
    c.main({name: value for name, value in globals().items() if callable(value)})
