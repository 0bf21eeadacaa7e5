"""CuPy arrays from one Dask worker to another, on one GPU and between two, and when their maker is killed.

    python tools/bench/clusters/bench_dask_gpu.py [--mib 1024] [--rounds 9] [--share [--allocator] | --stock] [--seconds 300]

It needs CuPy, NumPy, Dask, and the package; with one GPU the lines of two are left out. Where Dask comes as wheels in a folder:
`python -m pip install --no-index --find-links FOLDER --no-deps --target site FOLDER/*.whl`, and PYTHONPATH=site. Each worker sees its
own GPU first and then the others, as dask-cuda has it. After --seconds it ends with a traceback of where it stood. A sample is one
`get_data`, until its reply is deserialized and answered, and the GPU has nothing left to do: of an array that was never sent (first),
and once more (again), and twenty times, each request behind the other (in a row; the mean of one). 8 B is Dask's own request, of a value
that nobody shares. Then eight arrays that were sent before are asked for at once, each by a request of its own: their bytes by the time
until all are there. The raw copy is CuPy's, between the two GPUs, in a process of its own. With --share workers of a GPU use one
array (`cableway.gpu-share`); with --allocator CuPy has its memory from cableway.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MIB = 1 << 20
AT_ONCE = 8
IN_A_ROW = 20
COLUMNS = ("8 B", "8 B in a row", "first", "again", "in a row", "at once")
RAW = """
import sys, time, cupy
nbytes, times = int(sys.argv[1]), []
with cupy.cuda.Device(0):
    x = cupy.ones(nbytes // 8)
with cupy.cuda.Device(1):
    y = cupy.empty_like(x)
    for _ in range(12):
        cupy.cuda.Device(1).synchronize()
        begin = time.perf_counter()
        y.data.copy_from_device_async(x.data, nbytes, cupy.cuda.get_current_stream())
        cupy.cuda.Device(1).synchronize()
        times.append(time.perf_counter() - begin)
print(min(times[2:]) * 1000)
"""


BEGUN = time.monotonic()


def say(what: str) -> None:
    """A line with the seconds since the start, among the errors."""
    print(f"{time.monotonic() - BEGUN:7.1f} s  {what}", file=sys.stderr, flush=True)


def made(mib: int, fill: float, log: str) -> Any:
    """An array on the worker's GPU; a line in the log for each time that it is made."""
    import cupy  # noqa: PLC0415

    with open(log, "a") as lines:
        lines.write("made\n")
    x = cupy.full(mib * MIB // 8, fill)
    cupy.cuda.Device().synchronize()
    return x


def allocate() -> None:
    """CuPy has its memory from cableway from now on."""
    import cableway.cupy  # noqa: PLC0415

    cableway.cupy.use()


def total(x: Any) -> float:
    """Its sum, and that it is on a GPU."""
    import cupy  # noqa: PLC0415

    assert isinstance(x, cupy.ndarray)
    return float(x.sum())


async def fetched(keys: list[str], maker: str, times: int, dask_worker: Any) -> float:
    """Milliseconds until all are here, each asked for by itself; the mean of so many times, one behind the other."""
    import asyncio  # noqa: PLC0415

    import cupy  # noqa: PLC0415
    from distributed.worker import get_data_from_worker  # noqa: PLC0415

    rpc, own = dask_worker.rpc, dask_worker.address
    cupy.cuda.Device().synchronize()
    begin = time.perf_counter()
    for _ in range(times):
        replies = await asyncio.gather(
            *(get_data_from_worker(rpc, [key], maker, who=own) for key in keys)
        )
        cupy.cuda.Device().synchronize()
    taken = (time.perf_counter() - begin) * 1000 / times
    for key, reply in zip(keys, replies, strict=True):
        assert isinstance(reply["data"][key], (cupy.ndarray, bytes))
    return taken


@contextlib.contextmanager
def workers(
    gpus: dict[str, str], options: argparse.Namespace
) -> Iterator[tuple[Any, dict[str, str]]]:
    """A client, and the address of each worker by its name; gpus: which one each sees."""
    from distributed import Client, LocalCluster  # noqa: PLC0415

    settings = {
        "DASK_CABLEWAY__GPU_KEEP": f"{2 * AT_ONCE * options.mib} MiB",
        "DASK_CABLEWAY__GPU_SHARE": "true" if options.share else "false",
    }
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(n_workers=0, dashboard_address=None))
        for name, gpu in gpus.items():
            words = ["--name", name, "--nthreads", "1", "--no-nanny", "--no-dashboard"]
            words += [
                "--memory-limit",
                "0",
                "--death-timeout",
                "20",
                *([] if options.stock else ["--preload", "cableway.dask"]),
            ]
            process = subprocess.Popen(
                [sys.executable, "-m", "distributed.cli.dask_worker", cluster.scheduler_address, *words],
                env={**os.environ, **settings, "DASK_DISTRIBUTED__LOGGING__DISTRIBUTED": "warning", "CUDA_VISIBLE_DEVICES": gpu, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
            )  # fmt: skip
            stack.callback(process.wait)
            stack.callback(process.kill)
        client = stack.enter_context(Client(cluster))
        client.wait_for_workers(len(gpus), timeout=120)
        say(f"{len(gpus)} workers are there")
        client.amm.stop()
        told = client.scheduler_info(n_workers=-1)["workers"]
        yield client, {info["name"]: address for address, info in told.items()}


def measured(
    client: Any, maker: str, taker: str, options: argparse.Namespace, log: str
) -> dict[str, float]:
    """Medians of milliseconds, first, again, and of several at once."""

    def array(fill: float) -> Any:
        x = client.submit(made, options.mib, fill, log, workers=[maker], pure=False)
        client.gather(client.submit(total, x, workers=[maker], pure=False))
        return x

    def taken(arrays: list[Any], times: int = 1) -> float:
        keys = [x.key for x in arrays]
        return float(client.run(fetched, keys, maker, times, workers=[taker])[taker])

    samples: dict[str, list[float]] = {what: [] for what in COLUMNS}
    little = client.submit(bytes, 8, workers=[maker])
    client.gather(client.submit(len, little, workers=[maker]))
    several = [array(float(turn)) for turn in range(AT_ONCE)]
    taken(several)
    for turn in range(options.rounds + 1):  # the first one warms up
        x = array(float(turn))
        for what, arrays, times in (
            ("8 B", [little], 1),
            ("8 B in a row", [little], IN_A_ROW),
            ("first", [x], 1),
            ("again", [x], 1),
            ("in a row", [x], 1 if options.stock else IN_A_ROW),
            ("at once", several, 1),
        ):
            found = taken(arrays, times)
            say(f"round {turn}, {what}: {found:.2f} ms")
            if turn:
                samples[what].append(found)
        x.release()
    return {what: statistics.median(found) for what, found in samples.items()}


def killed(client: Any, places: dict[str, str], options: argparse.Namespace, log: str) -> str:
    """The maker is killed after another worker had it: whether a third one computes with it, and it was not made again."""
    Path(log).write_text("")
    maker, taker, third = places["a"], places["b"], places["c"]
    x = client.submit(made, options.mib, 3.0, log, workers=[maker], allow_other_workers=True)
    expected = 3.0 * options.mib * MIB / 8
    assert client.submit(total, x, workers=[taker], pure=False).result() == expected
    os.kill(client.run(os.getpid, workers=[maker])[maker], signal.SIGKILL)
    assert client.submit(total, x, workers=[third], pure=False).result(120) == expected
    times = Path(log).read_text().count("made")
    return f"the right sum, made {times} time{'s' * (times > 1)}"


def row(where: str, found: dict[str, float], options: argparse.Namespace) -> str:
    """A line of the table."""
    speed = AT_ONCE * options.mib / 1024 / found["at once"] * 1000
    return f"| {where} | {' | '.join(f'{found[what]:.2f}' for what in COLUMNS)} | {speed:.0f} |"


def main() -> None:
    """Prints tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--stock", action="store_true", help="Dask without cableway")
    parser.add_argument("--share", action="store_true", help="workers of a GPU use one array")
    parser.add_argument("--allocator", action="store_true", help="cableway.cupy.use()")
    parser.add_argument("--seconds", type=float, default=300, help="after which it ends")
    options = parser.parse_args()
    faulthandler.dump_traceback_later(options.seconds, exit=True)
    if not options.stock:
        import cableway.dask  # noqa: F401, PLC0415

    import cupy  # noqa: PLC0415

    two = cupy.cuda.runtime.getDeviceCount() > 1
    first, second = ("0,1", "1,0") if two else ("0", "")
    gpus = {"a": first, "b": first, "c": first, **({"d": second} if two else {})}
    kind = "stock" if options.stock else "cableway"
    kind += ", one array a GPU" if options.share else ""
    kind += ", CuPy's memory from cableway" if options.allocator else ""
    print(
        f"| {options.mib} MiB, {options.rounds} rounds, {kind}, ms | {' | '.join(COLUMNS)} | GiB/s at once |"
    )
    print("|---|" + "---|" * len(COLUMNS) + "---|")
    with tempfile.TemporaryDirectory() as folder, workers(gpus, options) as (client, places):
        log = f"{folder}/log"
        if options.allocator:
            client.run(allocate)
        same = measured(client, places["a"], places["b"], options, log)
        print(row("one GPU", same, options), flush=True)
        rows = [
            (f"same GPU: at most 1 ms, {what}", f"{same[what]:.2f} ms", same[what] <= 1)
            for what in ("again", "in a row")
        ]
        if two:
            other = measured(client, places["a"], places["d"], options, log)
            print(row("two GPUs", other, options), flush=True)
            words = [sys.executable, "-c", RAW, str(options.mib * MIB)]
            raw = float(subprocess.run(words, capture_output=True, check=True, text=True).stdout)
            for what, part in (
                ("one array", raw / other["again"]),
                (f"{AT_ONCE} at once", AT_ONCE * raw / other["at once"]),
            ):
                rows.append(
                    (
                        f"other GPU: at least 0.9 of a raw copy, {what}",
                        f"{part:.2f} ({raw:.2f} ms)",
                        part >= 0.9,
                    )
                )
        say("the maker is killed")
        found = killed(client, places, options, log)
        rows.append(("the producer is killed", found, found.endswith("made 1 time")))
    print("\n| promise | found | |\n|---|---|---|")
    for promise, value, kept in rows:
        print(f"| {promise} | {value} | {'met' if kept else '**MISSED**'} |")


if __name__ == "__main__":
    main()
