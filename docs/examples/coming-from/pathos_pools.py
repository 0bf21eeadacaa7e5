"""pathos and multiprocess: their pools take arrays as arguments, and lambdas write to them. `python pathos_pools.py`.

Each task gets a handle, so nothing is copied, and what a task writes its caller sees. `cw.Pool` has the same methods and takes lambdas,
too; it sends NumPy arrays by shared memory as well, and says which task died.
"""

import multiprocess
from pathos.multiprocessing import ProcessPool

import cableway as cw

if __name__ == "__main__":
    w = cw.zeros(6)
    parts = [w[i : i + 2] for i in range(0, 6, 2)]

    def fill(part, value):
        """Writes to the caller's memory."""
        part[...] = value
        return float(part.sum())

    with ProcessPool(nodes=2) as pool:
        assert pool.map(fill, parts, [1.0, 2.0, 3.0]) == [2.0, 4.0, 6.0]
        assert w.tolist() == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]  # what the tasks wrote
        assert pool.amap(lambda part: part.sum(), parts).get() == [2.0, 4.0, 6.0]
        pool.close()
        pool.join()
        pool.clear()

    with multiprocess.Pool(2) as pool:
        made = pool.map(lambda i: cw.full(2, i), range(3))  # memory that workers made
    assert [one.tolist() for one in made] == [[0, 0], [1, 1], [2, 2]]

    with cw.Pool(2) as pool:
        assert pool.map(lambda part: part.sum(), parts) == [2.0, 4.0, 6.0]
    print(w.tolist())
