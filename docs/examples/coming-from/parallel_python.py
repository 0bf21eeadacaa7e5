"""Parallel Python (ppft, and pp, which is ppft by its old name): jobs on arrays. `python parallel_python.py [ppft | pp]`.

Jobs take an array by its name, or by a handle, which may go before the job has begun. With ppft the array itself will do as well: it
is a pickle there. `cw.Executor` does the same with futures: `submit` instead of `submit` with tuples of functions and modules, `add_done_callback`
instead of `callback=`, and `stats()` instead of `get_stats()`.
"""

import importlib
import sys

import cableway as cw

ppft = importlib.import_module(sys.argv[1] if len(sys.argv) > 1 else "ppft")


def scale_behind(handle, factor):
    """Writes to the caller's memory. ppft imports what `modules` names."""
    array = cableway.from_handle(handle)  # noqa: F821
    array *= factor
    return float(array.sum())


def scale(array, factor):
    """The same for `cw.Executor`, to which an array goes as it is."""
    array *= factor
    return float(array.sum())


def total_of(name):
    """Finds the array by its name."""
    return float(cableway.get(name).sum())  # noqa: F821


def total(name):
    """The same for `cw.Executor`."""
    return float(cw.get(name).sum())


if __name__ == "__main__":
    w = cw.put("coming-from/table", [1.0, 2.0, 3.0])
    heard = []

    server = ppft.Server(ncpus=2)
    arguments = cw.to_handle(w), 10.0
    job = server.submit(scale_behind, arguments, modules=("cableway",), callback=heard.append)
    assert job() == 60.0
    assert w.tolist() == [10.0, 20.0, 30.0]  # what the job wrote
    by_name = server.submit(total_of, ("coming-from/table",), modules=("cableway",))
    assert by_name() == 60.0
    server.wait()
    assert heard == [60.0]
    assert sum(node.njobs for node in server.get_stats().values()) == 2
    server.destroy()

    heard = []
    with cw.Executor(2) as executor:
        job = executor.submit(scale, w, 0.1)
        job.add_done_callback(lambda done: heard.append(done.result()))
        assert job.result() == 6.0
        assert executor.submit(total, "coming-from/table").result() == 6.0
    assert heard == [6.0]
    cw.remove("coming-from/table")
    print(w.tolist())
