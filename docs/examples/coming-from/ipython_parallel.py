"""ipyparallel: push, apply, map and scatter, with arrays that all engines share. `python ipython_parallel.py`.

A `cableway.Array` goes to engines as what it is: a pickle of some 200 bytes. `push` to all engines serializes it once, and each engine
opens that one pickle. Engines must run on this node, as this user.
"""

import ipyparallel as ipp

import cableway as cw


def total(array):
    """Reads."""
    return float(array.sum())


def double(part):
    """Writes to the client's memory."""
    part *= 2
    return len(part)


if __name__ == "__main__":
    with ipp.Cluster(n=2, log_level=40) as engines:
        view = engines[:]
        w = cw.asarray([1.0, 2.0, 3.0, 4.0])
        view.push({"shared": w}, block=True)
        view.execute("shared[0] += 10", targets=0, block=True)
        assert view.pull("shared", targets=1, block=True)[0] == 11  # what the other engine wrote
        assert w[0] == 11  # and the client sees it
        assert view.apply_sync(total, w) == [20.0, 20.0]
        assert view.map_sync(double, [w[:2], w[2:]]) == [2, 2]
        assert w.tolist() == [22.0, 4.0, 6.0, 8.0]
        view.scatter("part", [w[:2], w[2:]], block=True)
        assert view.gather("part", block=True)[1].tolist() == [6.0, 8.0]
    print(w.tolist())
