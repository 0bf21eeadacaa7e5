"""Trees: what is put comes back, whole and in one version; nothing of a version ever changes."""

from __future__ import annotations

import collections
import os
import pickle
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import stop_broker
from hypothesis import given
from hypothesis import strategies as st
from tree_support import in_process, name_is_lost, state
from waiting import eventually, soon

import cableway as cw
from cableway._core.library import ffi, lib
from cableway.client import current


def test_a_state_dict_comes_back_by_its_own_names() -> None:
    put = cw.put("m", state(), meta={"step": 3})
    for tree in (put, cw.get("m"), cw.get("m", timeout=5)):
        assert list(tree) == ["embed.weight", "norm.bias", "head.weight"]
        assert tree["embed.weight"].numpy().tolist() == np.full((3, 4), 1.0).tolist()
        assert tree["norm.bias"].dtype == np.int64 or tree["norm.bias"].dtype == np.float64
        assert tree.meta == {"step": 3}
        assert "norm" not in tree and "norm.bias" in tree
        with pytest.raises(KeyError, match=r"no leaf 'norm': list\(tree\) gives the paths"):
            tree["norm"]


def test_what_is_tied_is_one_memory_and_counts_once() -> None:
    tree = cw.put("m", state())
    assert tree.ties() == {"head.weight": "embed.weight"}
    assert tree.nbytes == 3 * 4 * 4 + 5 * 8
    one, other = tree["embed.weight"].numpy(), tree["head.weight"].numpy()
    assert one.__array_interface__["data"] == other.__array_interface__["data"]


def test_dicts_and_lists_in_each_other_have_paths() -> None:
    value = {"a": {"b": np.ones(2)}, "c": [np.zeros(3), {"d": 5}], 7: (np.ones(1), 2.5)}
    tree = cw.put("m", value)
    assert list(tree) == ["a.b", "c.0", "c.1.d", "7.0", "7.1"]
    assert tree["c.1.d"].numpy() == 5 and tree["7.1"].shape == ()


def test_a_list_is_an_array_where_numpy_makes_one_and_else_a_tree() -> None:
    assert isinstance(cw.put("x", [1, 2]), cw.Array)
    assert isinstance(cw.put("x", [np.ones(2), np.ones(2)]), cw.Array)
    assert isinstance(cw.put("x", [np.ones(2), np.ones(3)]), cw.Tree)
    assert isinstance(cw.put("x", [{"a": 1}]), cw.Tree)
    assert isinstance(cw.put("x", [np.ones(2), np.ones(2)], as_tree=True), cw.Tree)


def test_every_leaf_is_read_only_in_every_process() -> None:
    tree = cw.put("m", state())
    with pytest.raises(ValueError, match="read-only"):
        tree["embed.weight"][0, 0] = 1
    told = in_process("""
        import cableway as cw
        x = cw.get("m")["embed.weight"].numpy()
        try:
            x.flags.writeable = True
        except ValueError:
            print("refused")
        """)
    assert told == "refused\n"


def test_a_reader_that_writes_by_force_ends_alone_and_the_content_stays() -> None:
    tree = cw.put("m", state())
    before = tree.content_hash
    code = """
        import ctypes, cableway as cw
        x = cw.get("m")["embed.weight"].numpy()
        ctypes.memset(x.__array_interface__["data"][0], 0, 4)
        """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    assert run.returncode == -signal.SIGSEGV
    again = cw.get("m")
    assert again.verify() == 3
    assert again.content_hash == before != 0


def test_verify_names_the_leaf_that_somebody_changed() -> None:
    memory = cw.empty(4, "f8")
    memory[...] = 1
    tree = cw.put("m", {"good": cw.zeros(2), "bad": memory}, copy=False)
    assert tree.verify() == 2
    memory.numpy()[0] = 2  # whoever had it writable still can: it is no longer what was published
    with pytest.raises(cw.Error, match='"bad"'):
        tree.verify()


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_categories=("Cc",)), min_size=1, max_size=20),
        st.tuples(
            st.sampled_from(["?", "i1", "<u2", "<f4", "<c16", "S3", "<M8[ns]"]),
            st.lists(st.integers(0, 4), max_size=4),
        ),
        max_size=12,
    )
)
def test_any_names_dtypes_and_shapes_come_back(leaves: dict[str, tuple[str, list[int]]]) -> None:
    given_ = {
        path: np.random.default_rng(len(path)).integers(0, 2, shape).astype(dtype)
        for path, (dtype, shape) in leaves.items()
    }
    tree = cw.put("any", given_)
    assert list(tree) == list(given_)
    for path, array in given_.items():
        assert tree[path].dtype == array.dtype and tree[path].shape == array.shape
        assert tree[path].numpy().tobytes() == array.tobytes()
    assert tree.verify() == len(given_)


def test_strides_that_are_not_those_of_c_order_stay() -> None:
    tree = cw.put("m", {"f": np.asfortranarray(np.arange(12.0).reshape(3, 4))})
    assert tree["f"].strides == (8, 24)
    assert tree["f"].numpy().tolist() == np.arange(12.0).reshape(3, 4).tolist()


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        ({"a": {"b": 1}, "a.b": 2}, ValueError, 'two arrays have the path "a.b"'),
        ({"a": {"b": None}}, TypeError, '"a.b": NumPy makes no array'),
        ({1.5: 3}, TypeError, "keys of a tree are str or int"),
        ({"a": np.array([object()])}, TypeError, '"a": dtype object'),
        ({"a\nb": 1}, ValueError, "control characters"),
        ({"x" * 2000: 1}, ValueError, "1024 bytes"),
        ({"a": np.ma.masked_array([1], [True])}, TypeError, "mask"),
    ],
)
def test_what_cannot_be_a_leaf_is_refused_by_its_path(value: Any, kind: Any, words: str) -> None:
    with pytest.raises(kind, match=words):
        cw.put("m", value)
    with pytest.raises(cw.NameNotFound):
        cw.get("m")


def test_options_that_are_not_for_it_are_refused() -> None:
    cw.put("m", state())
    with pytest.raises(ValueError, match="tree of another node"):
        cw.get("m", device=["cuda:0", "cuda:1"])
    with pytest.raises(cw.RemoteError):
        cw.put("//node/m", state())
    with pytest.raises(ValueError, match="only for trees"):
        cw.put("x", [1], if_version=3)
    with pytest.raises(TypeError, match="JSON"):
        cw.put("m", state(), meta={"x": object()})


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e8m0fnu"])
def test_the_dtypes_of_machine_learning_are_leaves_too(name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.arange(6).astype(getattr(ml_dtypes, name))
    tree = cw.put("m", {"plain": np.ones(3), "w": values})
    assert tree["w"].dtype == cw.asarray(values).dtype
    assert tree["w"].numpy().tobytes() == values.tobytes() and tree.verify() == 2


def test_a_leaf_that_cannot_be_shared_is_named() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    with pytest.raises(TypeError, match=r'"w": .*int4'):  # a byte an element; shared is int4_x2
        cw.put("m", {"plain": np.ones(3), "w": np.arange(6).astype(ml_dtypes.int4)})
    with pytest.raises(cw.NameNotFound):
        cw.get("m")


@pytest.mark.parametrize("key", ["", "a\0b", "a\nb", "\x1b[31m", "\x85", "a\ud800"])
def test_a_key_that_no_path_can_have_is_refused(key: str) -> None:
    for value in ({key: np.ones(2)}, {"x": {key: np.ones(2)}}):
        with pytest.raises(
            ValueError, match=r"at least one character, no control characters, .* stands the key"
        ):
            cw.put("m", value)


def test_a_list_of_numbers_in_a_dict_is_one_array() -> None:
    history = [0.5, 0.25, 1]
    tree = cw.put(
        "m", {"losses": history, "grid": [[1, 2], [3, 4]], "none": [], "w": [np.ones(2), 3.0]}
    )
    assert list(tree) == ["losses", "grid", "none", "w.0", "w.1"]
    assert tree["losses"].tolist() == history and tree["grid"].tolist() == [[1, 2], [3, 4]]
    assert tree["none"].shape == (0,) and tree["grid"].dtype == np.array([1]).dtype
    assert list(cw.put("n", {"ragged": [[1, 2], [3]]})) == ["ragged.0", "ragged.1"]
    assert list(cw.put("n", {"deep": [[[1, 2], [3, 4]], [[5], [6]]]})) == ["deep.0", "deep.1"]
    loop: list[Any] = []
    loop += [loop, loop]
    with pytest.raises(ValueError, match="lies in more than 64"):
        cw.put("n", {"loop": loop})


def test_fields_of_a_named_tuple_are_keys() -> None:
    state = collections.namedtuple("state", "count mu")
    assert list(cw.put("m", {"opt": state(np.zeros(()), {"w": np.ones(2)})})) == [
        "opt.count",
        "opt.mu.w",
    ]
    array = np.ones(3)
    assert list(cw.put("m", state(array, {"q": array}))) == ["count", "mu.q"]
    assert list(cw.put("m", state(array, np.ones(2)))) == ["count", "mu"]
    assert list(cw.put("m", [state(array, {"q": array})])) == ["0.count", "0.mu.q"]
    assert cw.put("m", state(array, array)).shape == (2, 3)  # as of a tuple


def test_of_an_empty_dict_nothing_is_kept_and_an_empty_list_is_an_array() -> None:
    tree = cw.put("m", {"a": {}, "b": np.ones(1), "c": [{}, {}], "d": []})
    assert list(tree) == ["b", "d"] and tree["d"].shape == (0,)


@pytest.mark.parametrize("number", [-1, 1 << 64])
def test_a_version_that_can_be_none_is_refused(number: int) -> None:
    cw.put("m", state())
    for call in (
        lambda: cw.wait("m", after=number),
        lambda: cw.get("m", version=number),
        lambda: cw.put("m", state(), if_version=number),
    ):
        with pytest.raises(ValueError, match="is a number from [01] on"):
            call()
    with pytest.raises(TypeError):
        cw.get("m", version="7")  # type: ignore[call-overload]


def test_an_empty_tree_is_one() -> None:
    tree = cw.put("m", {})
    assert len(tree) == 0 and list(cw.get("m")) == [] and tree.verify() == 0


def test_any_mapping_is_taken() -> None:
    assert list(cw.put("m", collections.OrderedDict(a=1))) == ["a"]


def test_a_tree_is_one_row_with_its_holders() -> None:
    tree = cw.put("m", state())
    info = ffi.new("cw_name_info *")
    assert lib.cw_name_stat(current().pointer, b"m", info) == 0
    assert ffi.string(info.dtype) == b"tree" and info.shape[0] == 3
    assert (info.nbytes, info.version, info.parts) == (tree.nbytes, tree.version, 1)
    assert info.holders == 1 and info.references == 1
    assert cw.names() == ["m"]


def test_a_tree_travels_to_workers_and_back() -> None:
    tree = cw.put("m", state(), meta={"k": 1})
    with cw.Pool(2) as pool:
        found = pool.map(_look, [tree, tree])
    assert found == [(tree.version, "m", {"k": 1}, 10.0)] * 2
    again = pickle.loads(pickle.dumps(tree))
    cw.remove("m")
    tree.close()
    assert again.verify() == 3


def _look(tree: cw.Tree) -> tuple[int, str | None, Any, float]:
    return tree.version, tree.name, tree.meta, float(tree["norm.bias"].numpy().sum())


def test_leaves_travel_alone() -> None:
    leaf = cw.put("m", state())["norm.bias"]
    cw.remove("m")
    with cw.Pool(1) as pool:
        assert pool.apply(np.sum, (leaf,)) == 10
    again = pickle.loads(pickle.dumps(leaf))
    assert again.readonly and again.numpy().sum() == 10


def test_what_is_open_stays_readable_without_a_broker(broker_folder: Path) -> None:
    tree = cw.put("m", state())
    bias = tree["norm.bias"]
    stop_broker(broker_folder)
    assert bias.numpy().sum() == 10 and list(tree)[0] == "embed.weight" and tree.verify() == 3
    assert eventually(name_is_lost)  # a get that asks nobody hears of it within 250 ms
    with pytest.raises((cw.BrokerLost, ValueError)):  # memory of a broker that is gone
        cw.put("again", tree)
    assert cw.put("m", state())["norm.bias"].numpy().sum() == 10


def test_a_publisher_killed_at_any_moment_leaves_a_whole_version() -> None:
    """By chance, between processes; at every instruction: tests/crash/crash_tree.c."""
    code = """
        import cableway as cw, numpy as np, itertools
        for value in itertools.count(1):
            cw.put("m", {str(i): np.full(5000, float(value)) for i in range(10)}, meta=value)
            print(value, flush=True)
        """
    chance = random.Random()
    for _ in range(8):
        command = [sys.executable, "-c", textwrap.dedent(code)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as maker:
            assert maker.stdout is not None
            for _ in range(chance.randrange(1, 20)):
                maker.stdout.readline()
            maker.kill()
        tree = cw.get("m")
        assert {float(x.numpy().min()) for x in tree.values()} == {float(tree.meta)}
        assert {float(x.numpy().max()) for x in tree.values()} == {float(tree.meta)}
        handle = tree["0"].handle(transit=False)
        cw.remove("m")
        tree.close()
        assert soon(lambda handle=handle: not _opens(handle))


def test_a_forked_child_reads_on_when_its_parent_has_let_go() -> None:
    tree = cw.put("m", state())
    begin, end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(begin, 1)
        good = tree["norm.bias"].numpy().sum() == 10 and tree.verify() == 3
        os._exit(0 if good else 1)
    cw.remove("m")
    tree.close()
    os.write(end, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(begin)
    os.close(end)


def test_memory_is_back_within_a_second_of_the_last_readers_death() -> None:
    code = """
        import sys, cableway as cw
        tree = cw.get("m")
        tree["w"].numpy()
        print("has it", flush=True)
        sys.stdin.read()
        """
    tree = cw.put("m", {"w": np.ones(1 << 22)})
    handle = tree["w"].handle(transit=False)
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdout is not None and reader.stdout.readline() == "has it\n"
        cw.remove("m")
        tree.close()
        assert _opens(handle)
        reader.kill()
    assert soon(lambda: not _opens(handle))


def _opens(handle: bytes) -> bool:
    carried = ffi.from_buffer("cw_handle *", handle)
    layout = cw.zeros(carried.size_bytes, "u1")._layout_now()
    out = ffi.new("cw_array **")
    status = lib.cw_array_open(current().pointer, carried, layout.c, 0, out)
    if status == 0:
        lib.cw_array_close(out[0])
    return bool(status == 0)


def test_leaves_of_a_tree_of_another_connection_are_put_too() -> None:
    tree = cw.put("m", state())
    with cw.connect(namespace="other"):
        mixed = cw.put("mixed", {"w": tree["norm.bias"], "x": np.ones(2)})
        assert mixed["w"].numpy().sum() == 10 and mixed.verify() == 2
    child = os.fork()
    if child == 0:
        again = cw.put("again", {"w": tree["norm.bias"]})
        os._exit(0 if again["w"].numpy().sum() == 10 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert cw.get("again").verify() == 1


def test_one_thread_may_close_a_tree_that_another_uses() -> None:
    found = in_process(
        """
        import pickle, sys, threading
        import numpy as np
        import cableway as cw
        sys.setswitchinterval(1e-6)
        cw.put("m", {"a": np.ones(1000), "b": {"c": np.ones(10)}})
        uses = [
            lambda t: t["a"], pickle.dumps, lambda t: t.verify(), lambda t: t.device, lambda t: cw.put("y", t),
            lambda t: t.kind("a"), lambda t: "a" in t, dict, lambda t: t.meta, list, lambda t: t.ties(),
        ]
        wrong = set()
        def use(tree, call):
            try:
                while True:
                    call(tree)
            except ValueError as error:
                if "closed" not in str(error): wrong.add(repr(error))
            except Exception as error: wrong.add(repr(error))
        for _ in range(40):
            for call in uses:
                tree = cw.get("m")
                threads = [threading.Thread(target=use, args=(tree, call)) for _ in range(2)]
                for thread in threads: thread.start()
                list(tree)
                tree.close()
                for thread in threads: thread.join()
        print(wrong or "held")
        """
    )
    assert found == "held\n"


def test_a_closed_tree_says_so_and_its_arrays_live() -> None:
    tree = cw.put("m", state())
    bias = tree["norm.bias"]
    with tree:
        pass
    assert tree.closed and "closed" in repr(tree)
    with pytest.raises(ValueError, match="closed"):
        tree["norm.bias"]
    assert bias.numpy().sum() == 10


def test_a_tied_tree_is_built_on() -> None:
    tied = np.ones((1000, 64), "f4")
    base = cw.put("base", {"embed": tied, "head": tied})
    more = cw.put("more", {**base, "adapter": np.zeros(10)})
    assert more.ties() == {"head": "embed"} and more["head"].numpy().sum() == 64000
    twice = cw.put("twice", {"x": base, "y": base})
    assert twice.ties() == {"x.head": "x.embed", "y.embed": "x.embed", "y.head": "x.embed"}
    assert cw.put("again", dict(base)).ties() == {"head": "embed"}


def test_leaves_that_share_a_part_of_their_memory_are_parted() -> None:
    rows = np.arange(6000, dtype="f4").reshape(100, 60)
    base = cw.put("base", {"w": rows})
    tree = cw.put(
        "m", {"x": base["w"][:3], "y": base["w"][2:4], "all": base["w"], "t": base["w"].numpy().T}
    )
    for path, wanted in (("x", rows[:3]), ("y", rows[2:4]), ("all", rows), ("t", rows.T)):
        assert np.array_equal(tree[path].numpy(), wanted)
    assert tree.verify() == 4
    shared = cw.zeros((100, 60))
    with pytest.raises(ValueError, match="share a part of their memory"):
        cw.put("n", {"a": shared, "b": shared[:10]}, copy=False)
    assert cw.put("n", {"a": shared, "b": shared}, copy=False).ties() == {"b": "a"}


def test_a_tree_is_got_on_the_device_where_it_lies() -> None:
    cw.put("m", state())
    assert len(cw.get("m", device="cpu")) == len(state())


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_metadata_are_json(number: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        cw.put("m", state(), meta={"x": number})


def test_a_name_may_become_an_array_while_its_tree_is_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from cableway import tree

    cw.put("m", state())
    look_up = tree.get

    def later(name: str, *given: Any) -> cw.Tree:
        cw.put("m", [1, 2, 3])  # between the two looks at the name
        return look_up(name, *given)

    monkeypatch.setattr(tree, "get", later)
    found = cw.get("m", readonly=True)
    assert found.numpy().tolist() == [1, 2, 3] and not found.numpy().flags.writeable
    monkeypatch.undo()
    with pytest.raises(cw.Error, match="not a tree: get it as an array"):
        tree.get("m")
