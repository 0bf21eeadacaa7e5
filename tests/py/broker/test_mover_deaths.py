"""cableway-mover, its clients and its broker killed at any moment; and what else can go wrong with it.

Runs in `make test-more`: storms of deaths take minutes.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import stat
import subprocess
import time
from pathlib import Path

import cuda_support
import pytest
from conftest import PATH
from mover_support import movers, world
from waiting import eventually

cuda_support.require()
double = pytest.mark.skipif(cuda_support.REAL, reason="needs the test double's faults")
pytestmark = cuda_support.second_gpu

REAL_MOVER = cuda_support.BUILD / "cableway-mover"
MOVED = {"no_peer": "all", "CABLEWAY_ROUTE": "mover"}

COPY = """
x = random(2_000_001)
a = cw.asarray(x, device="cuda:0")
b = a.to("cuda:1")
assert (b.to("cpu").numpy() == x).all()
"""


def wrapper(folder: Path, faults: str, times: int = 1) -> str:
    """A mover whose first starts have faults of the double's."""
    script = folder / "mover.sh"
    script.write_text(
        f"""#!/bin/sh
        echo >>{folder}/starts
        if [ $(wc -l <{folder}/starts) -le {times} ]; then
            export CABLEWAY_FAKECUDA_FAULTS={faults}
        fi
        exec {REAL_MOVER} "$@"
        """
    )
    script.chmod(stat.S_IRWXU)
    return str(script)


def status(folder: Path) -> dict[str, dict[str, int]]:
    """What the broker shows of itself."""
    shown = subprocess.run(
        [cuda_support.COMMAND, "status", "--json"],
        check=True,
        capture_output=True,
        env={**os.environ, "CABLEWAY_DIR": str(folder)},
    )
    told: dict[str, dict[str, int]] = json.loads(shown.stdout)
    return told


@double
@pytest.mark.parametrize("moment", [1, 2, 3, 8, 9, 61, 62])
def test_a_mover_killed_in_a_copy_is_started_again_and_the_copy_repeated(tmp_path, moment):
    # 31 pieces, each out and in: moment 62 is the last one's way in.
    mover = wrapper(tmp_path, f"copy@{moment}=kill", times=2)
    with world(tmp_path / "b", **MOVED, CABLEWAY_MOVER=mover) as run:
        run(
            COPY
            + """
            assert figure("mover_starts") == 3 and figure("jobs_repeated") == 2 and figure("jobs_done") == 1
            """.replace("\n            ", "\n")
        )


@double
@pytest.mark.parametrize(
    "call",
    [
        "cuInit",
        "cuMemImportFromShareableHandle",
        "cuMemHostRegister",
        "cuStreamWaitEvent@3",
        "cuMemUnmap",
    ],
)
def test_a_mover_killed_before_and_after_its_copy(tmp_path, call):
    mover = wrapper(tmp_path, f"{call}=kill")
    with world(tmp_path / "b", **MOVED, CABLEWAY_MOVER=mover) as run:
        run(COPY + "time.sleep(0.5)\n" + COPY)  # in between it unmaps
        assert eventually(lambda: status(tmp_path / "b")["gauges"]["jobs"] == 0)


def test_movers_killed_again_and_again(tmp_path):
    with world(tmp_path / "b", **MOVED) as run:
        run(
            """
            folder, stop = os.environ["CABLEWAY_DIR"], threading.Event()
            sys.path[:0] = os.environ["TESTS"].split(":")
            from mover_support import movers
            real = os.environ.get("CABLEWAY_TEST_GPU") == "1"  # there it takes a second to begin
            slower = 1.0  # the more of them are killed before they begin
            def kill():
                while not stop.wait(slower * ((1.5 if real else 0.02) + (1 if real else 0.1) * np.random.random())):
                    for pid in movers(folder):
                        try: os.kill(pid, signal.SIGKILL)
                        except ProcessLookupError: pass  # it was killed just before
            thread = threading.Thread(target=kill)
            thread.start()
            try:
                seed, at_least = 0, 6 if real else 12
                while seed < at_least or figure("mover_starts") < 2:  # a fast machine is done before the first kill
                    seed += 1
                    x = random(1_000_003, seed)
                    a, b = cw.asarray(x, device="cuda:0"), None
                    while b is None:
                        try: b = a.to("cuda:1")
                        except cw.DeviceError as error:  # on a busy machine they are killed before they begin, or are done
                            assert any(text in str(error) for text in ("before it took a job", "died 16 times in this copy")), error
                            slower *= 1.5
                    assert (b.to("cpu").numpy() == x).all(), seed
            finally:
                stop.set()
                thread.join()
            assert figure("mover_starts") > 1
            """,
            TESTS=":".join(PATH),
        )


STORM = """
rng = np.random.default_rng(os.getpid())
hub = cw.get("hub")
while True:
    x = rng.random(int(rng.integers(1, 300_000)))
    try:
        a = cw.asarray(x, device="cuda:0")
        b = a.to("cuda:1")
        if not (b.to("cpu").numpy() == x).all():
            os._exit(9)
        hub.copy_from(cw.full(1000, float(rng.random()), device="cuda:0"))
    except cw.ProducerDied:  # whoever had the hub before
        pass
    except cw.DeviceError as error:
        # We kill faster than they start, or are done: after 16 deaths nobody can tell a copy that kills its mover from one beside.
        if "before it took a job" not in str(error) and "died 16 times in this copy" not in str(error):
            raise
"""


@double
def test_a_storm_of_deaths_of_clients_and_movers(tmp_path):
    folder, kills = tmp_path / "b", 2000 if os.environ.get("CABLEWAY_SOAK") else 40
    chance = random.Random(1)
    with world(folder, **MOVED) as run:
        keeper = run.begin("""
            hub = cw.put("hub", cw.zeros(1000, device="cuda:1"))
            cw.asarray(random(1000), device="cuda:0").to("cuda:1")
            print("ready", flush=True)
            sys.stdin.read()
        """)
        assert keeper.stdout.readline() == "ready\n"
        before = status(folder)["gauges"]
        clients = [run.begin(STORM) for _ in range(3)]

        def much_was_done() -> bool:
            counted = status(folder)["counters"]
            return counted["jobs_done"] > kills and counted["mover_starts"] > kills // 10

        pause, killed, end = 0.3, 0, time.monotonic() + (3600 if kills > 40 else 60)
        while killed < kills or not much_was_done():
            assert time.monotonic() < end, status(folder)["counters"]
            if killed >= kills:
                pause *= 1.05  # on a busy machine they are killed before they have begun
            killed += 1
            time.sleep(
                chance.random() * pause
            )  # time to begin, and to be in the midst of something
            victim = chance.randrange(5)
            if victim >= len(clients):
                for pid in movers(folder):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                continue
            clients[victim].kill()
            _, told = clients[victim].communicate()
            assert clients[victim].returncode == -signal.SIGKILL, told
            clients[victim] = run.begin(STORM)
        for client in clients:
            client.kill()
            _, told = client.communicate()
            assert client.returncode == -signal.SIGKILL, told

        def settled() -> bool:
            now = status(folder)["gauges"]
            return (
                now["jobs"] == 0
                and now["clients"] <= 2
                and all(
                    now[name] <= before[name]
                    for name in ("slabs", "orphan_slabs", "gpu_bytes", "bytes")
                )
            )

        assert eventually(settled), (before, status(folder)["gauges"])
        run("""
            hub = cw.get("hub")
            with hub.writing(1, whole=True): pass
            hub.copy_from(np.ones(1000))
            assert (hub.to("cpu").numpy() == 1).all()
        """)
        keeper.communicate("")
        assert keeper.returncode == 0


@double
def test_copies_that_kill_every_mover_fail(tmp_path):
    mover = wrapper(tmp_path, "copy@1=kill", times=1000)
    with world(tmp_path / "b", **MOVED, CABLEWAY_MOVER=mover) as run:
        run("""
            a = cw.zeros(10, device="cuda:0")
            try: a.to("cuda:1")
            except cw.DeviceError as error: assert "died 16 times" in str(error), error
            else: raise AssertionError
            assert (a.to("cpu").numpy() == 0).all()
        """)


@double
def test_a_client_killed_while_the_mover_writes_for_it(tmp_path):
    go = tmp_path / "go"
    mover = wrapper(tmp_path, f"copy=until:{go}", times=1000)
    folder = tmp_path / "b"
    with world(folder, **MOVED, CABLEWAY_MOVER=mover) as run:
        done = run(
            """
            source = cw.put("source", cw.asarray(random(1000), device="cuda:0"))
            target = cw.put("target", cw.zeros(1000, device="cuda:1"))
            def die():
                in_a_copy()
                os.kill(os.getpid(), signal.SIGKILL)
            threading.Thread(target=die).start()
            target.copy_from(source)
            """,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL
        # The mover still has the job, whose blocks nobody may use anew; then it is done, and told to nobody.
        assert status(folder)["gauges"]["jobs"] == 1
        go.touch()
        assert eventually(lambda: status(folder)["gauges"]["jobs"] == 0)
        # Who reads the target learns that its writer died.
        run("""
            target = cw.get("target")
            try: target.wait(timeout=20)
            except cw.ProducerDied: pass
            else: raise AssertionError
            with target.writing(1, whole=True): pass  # written anew it is good
            target.copy_from(np.ones(1000))
            assert (target.to("cpu").numpy() == 1).all()
            assert (cw.get("source").to("cpu").numpy() == random(1000)).all()
        """)


@double
def test_who_writes_anew_what_a_dead_client_had_copied_waits_for_the_mover(tmp_path):
    # The copy goes on for longer than the poison of the dead needs to be final.
    mover = wrapper(tmp_path, "copy=delay:1100000", times=1000)
    with world(tmp_path / "b", **MOVED, CABLEWAY_MOVER=mover) as run:
        run(
            """
            source = cw.put("source", cw.asarray(random(1000), device="cuda:0"))
            target = cw.put("target", cw.zeros(1000, device="cuda:1"))
            def die():
                in_a_copy()
                os.kill(os.getpid(), signal.SIGKILL)
            threading.Thread(target=die).start()
            target.copy_from(source)
            """,
            check=False,
        )
        run("""
            target = cw.get("target")
            with target.writing(1, whole=True): pass
            assert figure("jobs_done") == 1  # it is over
            target.copy_from(np.ones(1000))
            time.sleep(0.5)
            assert (target.to("cpu").numpy() == 1).all()
        """)


@double
def test_a_copy_that_fails_in_the_midst_marks_its_target(tmp_path):
    mover = wrapper(tmp_path, "copy@40=ILLEGAL_ADDRESS")
    with world(tmp_path / "b", **MOVED, CABLEWAY_MOVER=mover) as run:
        run("""
            source = cw.asarray(random(2_000_001), device="cuda:0")
            target = cw.zeros(2_000_001, device="cuda:1")
            try: target.copy_from(source)
            except cw.DeviceError: pass
            else: raise AssertionError
            try: target.wait()
            except cw.ProducerDied: pass
            else: raise AssertionError("nobody was told")
            with target.writing(1, whole=True): pass
            target.copy_from(source)
            assert (target.to("cpu").numpy() == random(2_000_001)).all()
        """)


@double
def test_a_broker_killed_while_the_mover_works(tmp_path):
    mover = wrapper(tmp_path, "copy=hang", times=1000)
    folder = tmp_path / "b"
    with world(folder, **MOVED, CABLEWAY_MOVER=mover) as run:
        run("""
            a = cw.asarray(random(1000), device="cuda:0")
            lock = [name for name in os.listdir(os.environ["CABLEWAY_DIR"]) if name.endswith(".lock")][0]
            pid = int(open(os.path.join(os.environ["CABLEWAY_DIR"], lock)).read().split()[0])
            def kill():
                in_a_copy()
                os.kill(pid, signal.SIGKILL)
            threading.Thread(target=kill).start()
            try: a.to("cuda:1")
            except cw.BrokerLost: pass
            else: raise AssertionError
            # The write of the target never ends, and is nobody's business any more: the session goes.
            def sessions(): return sum("cw-session" in line for line in open("/proc/self/maps"))
            assert sessions() == 1
            a.close()
            del a
            cw.connect()
            assert sessions() == 1, open("/proc/self/maps").read()
        """)
        assert eventually(lambda: not movers(folder))


def test_a_mover_that_is_not_there_or_does_not_run(tmp_path):
    for program, told in (
        ("/nowhere/mover", "CABLEWAY_MOVER"),
        ("/bin/false", "ended 3 times"),
    ):
        with world(tmp_path / program.replace("/", "_"), **MOVED, CABLEWAY_MOVER=program) as run:
            run(f"""
                a = cw.asarray(random(1000), device="cuda:0")
                for _ in range(2):
                    try: a.to("cuda:1")
                    except cw.DeviceError as error: assert {told!r} in str(error), error
                    else: raise AssertionError
                assert (a.to("cpu").numpy() == random(1000)).all()
            """)


@double
def test_an_error_of_the_device_is_told_and_ends_the_mover(tmp_path):
    mover = wrapper(tmp_path, "copy@1=ILLEGAL_ADDRESS")
    with world(tmp_path / "b", **MOVED, CABLEWAY_MOVER=mover) as run:
        run(
            """
            a = cw.asarray(random(1000), device="cuda:0")
            try: a.to("cuda:1")
            except cw.DeviceError as error: assert "cableway-mover" in str(error) and "ILLEGAL_ADDRESS" in str(error), error
            else: raise AssertionError
            """
            + COPY.replace("\n", "\n            ")
        )
        run('assert figure("mover_starts") == 2')


def test_ctrl_c_ends_the_wait_for_a_mover_that_does_not_come(tmp_path):
    script = tmp_path / "sleeps"
    script.write_text("#!/bin/sh\nexec sleep 1000\n")
    script.chmod(stat.S_IRWXU)
    folder = tmp_path / "b"
    with world(folder, **MOVED, CABLEWAY_MOVER=str(script), CABLEWAY_MAX_CLIENT_JOBS=1) as run:
        run("""
            signal.signal(signal.SIGINT, signal.default_int_handler)
            a = cw.asarray(random(1000), device="cuda:0")
            told = []
            def interrupt():
                while figure("mover_starts") == 0: time.sleep(0.01)
                c = cw.zeros(10, device="cuda:1")
                try: c.to("cuda:0")  # one at a time
                except cw.LimitExceeded as error: told.append(str(error))
                os.kill(os.getpid(), signal.SIGINT)
            thread = threading.Thread(target=interrupt)
            thread.start()
            try: a.to("cuda:1")
            except KeyboardInterrupt: pass
            else: raise AssertionError
            thread.join()
            assert "CABLEWAY_MAX_CLIENT_JOBS" in told[0], told
            assert (a.to("cpu").numpy() == random(1000)).all()
        """)
        assert eventually(lambda: status(folder)["gauges"]["jobs"] == 0)


@double
def test_a_broker_whose_starter_ignores_its_children_hears_how_its_mover_ended(tmp_path):
    folder = tmp_path / "b"
    with world(folder, **MOVED) as run:
        broker = subprocess.Popen(
            [cuda_support.BUILD / "cablewayd", "--foreground"],
            stderr=subprocess.DEVNULL,
            env=run.environment,
            preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
        )
        with broker:
            try:
                assert eventually(lambda: any(lock.read_text() for lock in folder.glob("*.lock")))
                run(COPY)
                assert movers(folder)
                for pid in movers(folder):
                    os.kill(pid, signal.SIGKILL)
                run(COPY + 'assert figure("mover_starts") == 2')
            finally:
                broker.terminate()


def test_signals_while_the_mover_starts_leave_many_copies_complete(tmp_path):
    slow = tmp_path / "slow"
    slow.write_text(f'#!/bin/sh\nsleep 0.5\nexec {REAL_MOVER} "$@"\n')
    slow.chmod(stat.S_IRWXU)
    with world(tmp_path / "b", **MOVED, CABLEWAY_MOVER=slow) as run:
        run("""
            came = []
            signal.signal(signal.SIGALRM, lambda *_: came.append(True))  # raises nothing: the call goes on
            pairs = [(cw.zeros(1000, device="cuda:1"), cw.asarray(random(1000, i), device="cuda:0")) for i in range(3)]
            signal.setitimer(signal.ITIMER_REAL, 0.005, 0.05)
            cw.copy(pairs)
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert came
            for i, (target, _) in enumerate(pairs):
                target.wait()
                assert (target.to("cpu").numpy() == random(1000, i)).all()
        """)


@double
def test_no_number_of_ctrl_cs_leaves_a_target_that_the_mover_still_writes(tmp_path):
    mover = wrapper(tmp_path, "copy=delay:900000", times=1000)
    with world(tmp_path / "b", **MOVED, CABLEWAY_MOVER=mover) as run:
        run("""
            over, told = [], []
            def raise_once(*_):
                if not told:
                    told.append(True)
                    raise KeyboardInterrupt
            signal.signal(signal.SIGINT, raise_once)
            source = cw.asarray(random(1000), device="cuda:0")
            target = cw.zeros(1000, device="cuda:1")
            def interrupt():
                in_a_copy()
                while not over:
                    os.kill(os.getpid(), signal.SIGINT)
                    time.sleep(0.1)
            thread = threading.Thread(target=interrupt)
            thread.start()
            try: target.copy_from(source)
            except KeyboardInterrupt: pass
            done = figure("jobs_done")
            over.append(True)
            thread.join()
            assert done == 1  # the mover had taken it
            target.wait()
            assert (target.to("cpu").numpy() == random(1000)).all()
        """)


def test_an_idle_mover_leaves_and_holds_no_memory(tmp_path):
    folder = tmp_path / "b"
    with world(folder, **MOVED, CABLEWAY_MOVER_IDLE=1) as run:
        run("""
            def free():
                told = json.loads(subprocess.run([os.environ["CABLEWAY_COMMAND"], "topo", "--json"], check=True, capture_output=True).stdout)
                return [gpu["free_bytes"] for gpu in told["gpus"][:2]]  # more may be there
            os.environ["CABLEWAY_GPU_CACHE_BYTES"] = "0"
            a = cw.asarray(random(20_000_000), device="cuda:0")
            b = a.to("cuda:1")
            full = free()
            a.close(), b.close()
            cw.zeros(1, device="cuda:0"), cw.zeros(1, device="cuda:1")
            for _ in range(800):
                now = free()
                if all(n - f >= 100_000_000 for n, f in zip(now, full)): break
                time.sleep(0.05)
            else: raise AssertionError((full, now))
        """)
        assert eventually(lambda: not movers(folder))
        run(COPY)
        assert status(folder)["counters"]["mover_starts"] == 2
