"""reshape, ravel, transpose, swapaxes and squeeze of an array on a GPU: a handle on the same memory, or an error, as NumPy has it."""

from __future__ import annotations

import textwrap

import cuda_support

cuda_support.require()
gpus = cuda_support.for_module()

SAME = textwrap.dedent("""
    import numpy as np
    import cableway as cw

    def place(w, x, base):
        '''Whether w is to the memory of its array what x is to that of base.'''
        at = x.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        steps = [[s for s, n in zip(a.strides, a.shape) if n > 1] for a in (w, x)]  # of one element they mean nothing
        return (w.shape, steps[0], w.dtype, w._offset) == (x.shape, steps[1], x.dtype, at)

    def same(w, x, base, call):
        '''The call on w does what it does on x, or needs a copy and says so. Returns whether it was a view.'''
        try:
            want = call(x)
        except (ValueError, TypeError) as error:
            try: call(w)
            except type(error) as ours: assert str(ours) == str(error)
            else: raise AssertionError(error)
            return False
        if x.size and not np.shares_memory(want, x):
            try: call(w)
            except ValueError as error:
                assert "needs a copy" in str(error) and "cupy.asarray(w).r" in str(error), error
            else: raise AssertionError((x.shape, x.strides, want.shape))
            return False
        found = call(w)
        assert isinstance(found, cw.Array) and found.device == "cuda:0" and found.name is None
        assert found.shape == want.shape
        if x.size:
            assert place(found, want, base), (x.shape, x.strides, found, want.strides)
            assert (found.to("cpu").numpy() == want).all()
        return True
""")


def test_what_numpy_does_without_a_copy_is_a_handle_and_the_rest_is_refused(script):
    script(
        SAME
        + textwrap.dedent("""
        base = np.arange(120, dtype="i4")
        whole = cw.asarray(base, device="cuda:0")
        views = [
            lambda a: a, lambda a: a.reshape(2, 3, 20), lambda a: a.reshape(2, 3, 20).T, lambda a: a.reshape(4, 30)[1:3],
            lambda a: a.reshape(4, 30)[:, ::2], lambda a: a[::-1], lambda a: a[::2], lambda a: a.reshape(4, 30)[:, 3:9],
            lambda a: a.reshape(10, 12, order="F"), lambda a: a[5:6].reshape(1, 1, 1), lambda a: a[7, ...], lambda a: a[3:3],
            lambda a: a.reshape(2, 1, 60).transpose(1, 2, 0), lambda a: a.reshape(4, 30)[:, :0],
        ]
        calls = [lambda a, n=n, o=o: a.reshape(n, order=o) for o in "CFA" for n in (-1, (2, -1), (-1, 2), (1, -1, 1), (5, 4, -1))]
        calls += [lambda a, n=n: a.reshape(*n) for n in ((120,), (4, 30), (3, 3), (-1, -1), (0, -1), (2, 0), ("x",), (6, 5, 4))]
        calls += [lambda a, o=o: a.ravel(order=o) for o in "CFAK"] + [lambda a: a.ravel(), lambda a: a.ravel("F"), lambda a: a.ravel("Z")]
        calls += [lambda a: a.transpose(), lambda a: a.transpose(1, 0), lambda a: a.transpose((0, 1)), lambda a: a.transpose(2, 0, 1)]
        calls += [lambda a: a.T, lambda a: a.squeeze(), lambda a: a.squeeze(0), lambda a: a.swapaxes(0, -1), lambda a: a.swapaxes(0, 9)]
        views_made = 0
        for view in views:
            for number, call in enumerate(calls):
                views_made += same(view(whole), view(base), base, call)
        assert views_made > 150, views_made
        """)
    )


def test_shapes_and_strides_drawn_by_chance(script):
    script(
        SAME
        + textwrap.dedent("""
        rng = np.random.default_rng(7)
        base = np.arange(720, dtype="u1").view("u1")
        whole = cw.asarray(base, device="cuda:0")
        shapes = [(720,), (8, 90), (2, 4, 9, 10), (6, 5, 24), (3, 1, 16, 15), (10, 72), (2, 2, 2, 90)]
        counts = [0, 0]
        for turn in range(400):
            x, w = base, whole
            for step in range(rng.integers(1, 4)):
                shape = shapes[rng.integers(len(shapes))]
                if x.size == 720 and x.flags.c_contiguous:
                    x, w = x.reshape(shape), w.reshape(shape)
                axes = rng.permutation(x.ndim)
                x, w = x.transpose(axes), w.transpose(axes)
                cut = tuple(slice(int(rng.integers(2)) if n > 2 else 0, None, int(rng.choice([1, 1, 1, 2, -1]))) for n in x.shape)
                if rng.random() < 0.5:
                    x, w = x[cut], w[cut]
            n = [int(k) for k in rng.permutation([d for d in (2, 3, 5, -1) if x.size % abs(d) == 0])][:3]
            order = str(rng.choice(list("CFA")))
            if -1 not in n:
                n.append(-1)
            counts[same(w, x, base, lambda a: a.reshape(n, order=order))] += 1
            counts[same(w, x, base, lambda a: a.ravel(order))] += 1
        assert min(counts) > 40, counts
        """)
    )


def test_a_handle_in_another_shape_is_written_sent_and_outlives_the_first_one(script):
    script("""
        import pickle
        import cableway as cw
        w = cw.zeros(6, "f4", device="cuda:0")
        rows = w.reshape(2, 3)
        rows[1] = [1, 2, 3]
        assert w.to("cpu").tolist() == [0, 0, 0, 1, 2, 3]
        assert rows.__cuda_array_interface__["data"] == w.__cuda_array_interface__["data"]
        again = pickle.loads(pickle.dumps(rows.transpose()))
        assert again.shape == (3, 2) and again.to("cpu").tolist() == [[0, 1], [0, 2], [0, 3]]
        w.close()
        with rows.writing():
            pass
        assert rows.to("cpu").tolist() == [[0, 0, 0], [1, 2, 3]]
        try: rows.reshape(6, copy=True)
        except ValueError as error: assert "needs a copy" in str(error)
        else: raise AssertionError
        try: w.reshape(2, 3)
        except ValueError as error: assert "closed" in str(error)
        else: raise AssertionError
    """)
