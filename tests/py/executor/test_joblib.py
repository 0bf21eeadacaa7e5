"""joblib's backend: the same results as with others, arrays shared, nothing hangs."""

from __future__ import annotations

import functools
import gc
import os
import threading
import time
from pathlib import Path

import joblib_tasks as tasks
import numpy as np
import pytest
from conftest import Script, eventually

joblib = pytest.importorskip("joblib")
from joblib import Parallel, delayed, parallel_config  # noqa: E402

import cableway as cw  # noqa: E402
import cableway.joblib  # noqa: E402
from cableway._core.cpus import usable_cpus  # noqa: E402


@pytest.fixture(autouse=True, scope="module")
def workers_end(broker_folder):
    yield
    cableway.joblib.shutdown()


@pytest.fixture
def two():
    with parallel_config("cableway", n_jobs=2):
        yield


def test_a_grid_search_gives_the_scores_of_the_other_backends(script: Script):
    pytest.importorskip("sklearn")
    done = script(  # loky's processes end with it
        """
        import cableway.joblib
        from joblib import parallel_config
        from sklearn.datasets import load_digits
        from sklearn.model_selection import GridSearchCV, cross_val_score
        from sklearn.svm import SVC

        if __name__ == "__main__":
            features, labels = load_digits(return_X_y=True)
            features, labels = features[:600], labels[:600]
            found = {}
            for backend in ("sequential", "loky", "cableway"):
                with parallel_config(backend, n_jobs=2):
                    search = GridSearchCV(SVC(), {"C": [0.1, 1, 10], "gamma": [1e-3, 1e-4]}, n_jobs=-1)
                    search.fit(features, labels)
                    scores = cross_val_score(SVC(), features, labels, n_jobs=2)
                    means = search.cv_results_["mean_test_score"].tolist()
                    found[backend] = (means, scores.tolist(), search.best_params_)
            print(found["sequential"] == found["loky"] == found["cableway"])
        """
    )
    assert done.stdout == "True\n", done.stderr


def test_the_snippet_of_the_readme_runs_tasks_in_workers(script: Script):
    """As joblib's backends for clusters: who names this one and no number means all CPUs."""
    done = script(
        """
        import os
        import cableway.joblib, joblib
        from joblib import Parallel, delayed

        if __name__ == "__main__":
            with joblib.parallel_config("cableway"):
                found = Parallel(batch_size=1)(delayed(os.getpid)() for _ in range(20))
            print("callers", found.count(os.getpid()))
            with joblib.parallel_config("cableway", n_jobs=1):
                print("one", set(Parallel()(delayed(os.getpid)() for _ in range(3))) == {os.getpid()})
            with joblib.parallel_config("cableway"):
                print("asked", set(Parallel(n_jobs=1)(delayed(os.getpid)() for _ in range(3))) == {os.getpid()})
        """
    )
    callers = "20" if usable_cpus() == 1 else "0"
    assert done.stdout == f"callers {callers}\none True\nasked True\n", done.stderr


def test_an_array_is_put_once_and_seen_by_all_tasks_read_only(two, monkeypatch):
    puts = []
    monkeypatch.setattr(
        cableway._joblib.batches, "asarray", lambda x: puts.append(x.shape) or cw.asarray(x)
    )
    values = np.arange(500_000.0)
    found = Parallel()(delayed(tasks.seen)(values, i) for i in range(20))
    assert found == [(values.sum() + i, False, True) for i in range(20)]
    assert puts == [values.shape]
    fortran = np.asfortranarray(values.reshape(1000, 500))
    Parallel()(delayed(tasks.seen)(array, 0) for array in [fortran, fortran[:, 100:400]] * 5)
    assert puts[1:] == [(1000, 500), (1000, 300)]
    with pytest.raises(ValueError, match="read-only"):
        Parallel()(delayed(tasks.write)(values, i) for i in range(2))


def test_small_arrays_and_those_of_objects_are_the_tasks_own(two):
    small = np.zeros(1000)
    assert Parallel()(delayed(tasks.write)(small, i) for i in range(4)) == [1] * 4
    large = np.zeros(500_000)
    assert Parallel(max_nbytes=None)(delayed(tasks.write)(large, i) for i in range(4)) == [1] * 4
    assert not small.any() and not large.any()


def test_what_recurs_below_max_nbytes_is_put_once_as_long_as_it_stays_the_same(two, monkeypatch):
    puts = []
    monkeypatch.setattr(
        cableway._joblib.batches,
        "asarray",
        lambda x, copy=None: puts.append(x.shape) or cw.asarray(x, copy=copy),
    )
    square = np.zeros((200, 200))
    for values in (square.reshape(-1), square[:, :190]):  # the second in no one piece
        values = values.view()
        puts.clear()
        shape = values.shape
        work = (delayed(tasks.write)(values, i) for i in range(6))
        assert Parallel(batch_size=1)(work) == [shape[-1] if len(shape) == 2 else 1] * 6
        assert puts == [shape] and not square.any()


def test_what_changes_between_tasks_below_max_nbytes_is_seen_as_it_was_submitted():
    from cableway._joblib.batches import Batches, SharedArrays, run

    values, batches = np.zeros(20_000), Batches(SharedArrays(readonly=True), 1 << 20, "r")
    numbers = (0.0, 0.0, 0.0, -0.0, np.nan, np.nan, 1.0, 1.0, 2.0)
    submitted = []
    for number in numbers:
        values[:] = number
        submitted.append(batches.arguments(functools.partial(tasks.first_word, values)))
    assert [len(found) for _, _, found, _, _ in submitted] == [0] + [1] * 8
    words = [int(np.array([number]).view("u8")[0]) for number in numbers]
    assert [run(*arguments) for arguments in submitted[1:]] == words[1:]  # the first goes along


def test_only_what_the_workers_do_not_have_goes_by_value():
    batches = cableway._joblib.batches.Batches(
        cableway._joblib.batches.SharedArrays(readonly=True), None, None
    )

    def by_value(*args):
        return batches.arguments(delayed(tasks.pid)(*args))[3]

    def local(x):
        return x

    mine = type("Mine", (), {"__module__": "__main__"})
    assert not by_value("__main__") and not by_value(("default", None, Warning, "__main__", 0))
    assert not by_value(tasks.pid) and not by_value(np.float64(1))
    assert by_value(local) and by_value(lambda: 0)
    assert by_value(mine()) and by_value(mine) and by_value([{"a": mine}])


def test_a_call_leaves_nothing_shared_behind_not_even_until_garbage_is_collected(two):
    values = np.zeros(500_000)
    gc.collect()
    gc.disable()
    try:
        Parallel()(delayed(lambda x: x.sum())(values) for _ in range(4))  # goes by value
        # Whoever told the last result may still be on its way out of doing so.
        assert eventually(lambda: not [x for x in gc.get_objects() if type(x) is cw.Array], 10)
    finally:
        gc.enable()


@pytest.mark.parametrize(("mode", "own"), [("c", True), ("r+", False)])
def test_mmap_mode_tells_whether_tasks_share_what_they_write(two, mode, own):
    large = np.zeros(500_000)
    found = Parallel(mmap_mode=mode)(delayed(tasks.write)(large, i) for i in range(4))
    assert found == [1] * 4 if own else max(found) == 4
    assert not large.any()


def test_what_is_shared_goes_with_its_original_and_at_the_calls_end():
    arrays = cableway._joblib.batches.SharedArrays(readonly=True)
    first, second = np.zeros(1000), np.zeros(1000)
    assert arrays.share(first) is arrays.share(first)
    assert arrays.share(first[:10]) is arrays.share(first[:10]) is not arrays.share(first)
    arrays.share(second)
    del first
    assert len(arrays._owners) == 1
    arrays.clear()
    assert not arrays._owners


def test_an_exception_is_raised_with_the_tasks_traceback(two):
    with pytest.raises(tasks.Fault) as caught:
        Parallel()(delayed(tasks.fail_at_three)(i) for i in range(10))
    assert "in fail_at_three" in str(caught.value.__cause__)
    assert Parallel()(delayed(abs)(-i) for i in range(3)) == [0, 1, 2]


def test_a_killed_worker_raises_and_the_next_call_works(two):
    with pytest.raises(cw.WorkerDied):
        Parallel()(delayed(tasks.kill_at_three)(i) for i in range(20))
    assert Parallel()(delayed(abs)(-i) for i in range(3)) == [0, 1, 2]


def test_a_call_for_a_list_reads_its_input_on_the_callers_thread_alone(two):
    threads = set()

    def calls():
        for number in range(300):
            threads.add(threading.get_ident())
            yield delayed(abs)(-number)

    assert Parallel(batch_size=1)(calls()) == list(range(300))
    assert threads == {threading.get_ident()}


def test_an_input_that_raises_ends_the_call_and_the_next_one_works(two):
    def calls():
        for number in range(50):
            if number == 40:
                raise RuntimeError("no more input")
            yield delayed(abs)(-number)

    with pytest.raises(RuntimeError, match="no more input"):
        Parallel(batch_size=1)(calls())
    assert Parallel()(delayed(abs)(-number) for number in range(20)) == list(range(20))


def test_a_timeout_ends_the_call(two):
    with pytest.raises(Exception) as caught:  # noqa: B017 (it is joblib's to say which)
        Parallel(timeout=1)(delayed(time.sleep)(600) for _ in range(4))
    assert "Timeout" in type(caught.value).__name__


@pytest.mark.parametrize("how", ["generator", "generator_unordered"])
def test_results_come_as_a_generator(two, how):
    found = Parallel(return_as=how)(delayed(abs)(-i) for i in range(20))
    assert sorted(found) == list(range(20))


def test_loops_within_tasks_run_in_the_tasks_own_process(two):
    for pids in Parallel()(delayed(tasks.inner)(3) for _ in range(4)):
        assert len(set(pids)) == 1 and pids[0] != os.getpid()


def test_workers_stay_for_the_next_call_and_end_when_asked(two):
    def workers() -> set[int]:
        return set(Parallel(batch_size=1)(delayed(tasks.pid_after_a_while)(i) for i in range(20)))

    one = set()
    assert eventually(
        lambda: one.update(workers()) or len(one) == 2
    )  # quick ones may go to one worker alone
    assert workers() <= one
    cableway.joblib.shutdown()
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in one))


def test_inner_threads_are_limited():
    with parallel_config("cableway", n_jobs=2, inner_max_num_threads=1):
        assert set(Parallel()(delayed(tasks.threads_allowed)(i) for i in range(4))) == {"1"}


def test_threads_may_each_run_a_loop():
    found: list[list[int]] = []

    def run(number: int) -> None:
        with parallel_config("cableway", n_jobs=2):
            found.append(Parallel()(delayed(abs)(-i) for i in range(number)))

    threads = [threading.Thread(target=run, args=(n,)) for n in (3, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [list(range(3)), list(range(30))]


def test_n_jobs_counts_as_joblib_counts_it():
    backend = cableway.joblib.CablewayBackend(nesting_level=0)
    cpus = backend.effective_n_jobs(-1)
    assert cpus >= 1 and backend.effective_n_jobs(3) == 3 and backend.effective_n_jobs(None) == cpus
    assert backend.effective_n_jobs(-2) == max(cpus - 1, 1)
    with pytest.raises(ValueError):
        backend.effective_n_jobs(0)


def test_a_script_needs_no_guard_and_its_own_classes_travel(script: Script):
    done = script(
        """
        import joblib, cableway.joblib

        class Fault(Exception):
            pass

        class Point:
            def __init__(self, x):
                self.x = x

        def double(x):
            if x == 7:
                raise Fault("seven")
            return Point(2 * x)

        with joblib.parallel_config("cableway", n_jobs=2):
            found = joblib.Parallel()(joblib.delayed(double)(x) for x in range(5))
            print([point.x for point in found], all(type(point) is Point for point in found))
            try:
                joblib.Parallel()(joblib.delayed(double)(x) for x in range(10))
            except Fault as error:
                print(error, "in double" in str(error.__cause__))
        """
    )
    assert done.stdout == "[0, 2, 4, 6, 8] True\nseven True\n"
    assert not done.stderr


def test_what_a_batch_names_is_imported_once_for_all_workers(script: Script, tmp_path: Path):
    (tmp_path / "counted.py").write_text(
        "import os\n"
        "with open(os.environ['COUNTED'], 'a') as file:\n"
        "    file.write(f'{os.getpid()}\\n')\n"
        "def pid(number):\n"
        "    return os.getpid()\n"
    )
    done = script(
        """
        import os, sys
        sys.path.insert(0, os.path.dirname(os.environ["COUNTED"]))
        import joblib, cableway.joblib

        def workers():
            import counted
            calls = (joblib.delayed(counted.pid)(i) for i in range(50))
            return set(joblib.Parallel(2, backend="cableway", batch_size=1)(calls))

        seen = set()
        while len(seen) < 2:
            seen |= workers()
        with open(os.environ["COUNTED"]) as file:
            pids = set(map(int, file))
        print(len(pids), os.getpid() in pids, bool(pids & seen))
        """,
        env={**os.environ, "COUNTED": str(tmp_path / "counted.txt")},
    )
    assert done.stdout == "2 True False\n", done.stderr


def test_what_is_imported_finds_how_many_threads_it_may_use(script: Script, tmp_path: Path):
    """As with loky: a library may look at its import, and never again."""
    (tmp_path / "looks.py").write_text(
        "import os\n"
        "found = os.environ.get('OMP_NUM_THREADS')\n"
        "def at_import(_):\n"
        "    return found, os.environ.get('OMP_NUM_THREADS')\n"
    )
    done = script(
        """
        import os, sys
        sys.path.insert(0, os.environ["FOLDER"])
        import joblib, looks, cableway.joblib

        for threads in 1, 3:
            with joblib.parallel_config("cableway", n_jobs=2, inner_max_num_threads=threads):
                print(set(joblib.Parallel()(joblib.delayed(looks.at_import)(i) for i in range(20))))
        """,
        env={
            **{name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
            "FOLDER": str(tmp_path),
        },
    )
    assert done.stdout == "{('1', '1')}\n{('3', '3')}\n", done.stderr


def test_an_initializer_runs_in_each_worker_and_workers_stay_for_the_same_one(script: Script):
    done = script(
        """
        import joblib, os, cableway.joblib

        def call(values):
            found = joblib.Parallel(2, backend="cableway", initializer=start, initargs=(values,))(
                joblib.delayed(look)(i) for i in range(20)
            )
            return {pid for pid, _ in found}, [value for _, value in found]

        def look(_):
            return os.getpid(), os.environ.get("STARTED")

        def start(values):
            os.environ["STARTED"] = values

        one, two = "one", "two"
        (first, a), (second, b), (third, c) = call(one), call(one), call(two)
        print(set(a), set(b), set(c), len(first | second) <= 2, bool(first & third))
        """
    )
    assert done.stdout == "{'one'} {'one'} {'two'} True False\n", done.stderr


@pytest.mark.parametrize("size", [10, 300_000])  # below and above max_nbytes
@pytest.mark.parametrize(
    "part",
    [
        lambda values: values,
        lambda values: values[:, 1:3],
        lambda values: values[::-2, ::-1],
        lambda values: values.T,
        lambda values: values[3:4],
        lambda values: values[:0],
    ],
    ids=["all", "columns", "backwards", "transposed", "a row", "nothing"],
)
def test_what_tasks_write_into_a_mapped_file_is_there(two, tmp_path: Path, part, size: int):
    """As joblib's documentation collects results."""

    def fill(values, i):
        found = values.copy()
        values[...] = found + 1
        return found.tolist() if found.size < 100 else None

    out = np.memmap(tmp_path / "out", "f8", "w+", shape=(size, 4))
    out[:] = np.arange(size * 4).reshape(size, 4)
    wanted = np.array(out)
    part(wanted)[...] += 1
    [found] = Parallel()([delayed(fill)(part(out), 0)])
    assert np.array_equal(out, wanted)
    assert found is None or np.array_equal(np.array(found).reshape(part(out).shape), part(out) - 1)
    assert np.array_equal(np.fromfile(tmp_path / "out").reshape(size, 4), wanted)


def test_mapped_files_that_tasks_read_are_mapped_by_them(two, tmp_path: Path):
    def kind(values):
        return type(values).__name__, values.flags.writeable, float(values.sum())

    np.arange(300_000.0).tofile(tmp_path / "in")
    mapped = np.memmap(tmp_path / "in", "f8", "r")
    wanted = float(mapped.sum())
    assert Parallel()([delayed(kind)(mapped)]) == [("memmap", False, wanted)]
    os.unlink(tmp_path / "in")  # what is no more in a file is shared
    assert Parallel()([delayed(kind)(mapped)]) == [("ndarray", False, wanted)]
    np.arange(300_000.0).tofile(tmp_path / "own")
    own = np.memmap(tmp_path / "own", "f8", "c")
    own[0] = 5  # in no file
    assert Parallel()([delayed(kind)(own)]) == [("ndarray", False, wanted + 5)]
