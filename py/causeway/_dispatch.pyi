from collections.abc import Callable
from typing import Any

DATA_MAX: int
WORDS_MAX: int
FUNCTION_MAX: int
FUNCTION_SLOTS: int
CELLS_MAX: int
WORKERS_MAX: int
GROUPS_MAX: int

def watch(pidfd: int, status: int, /) -> None: ...
def pool_bytes(workers: int, cells: int, groups: int, /) -> int: ...
def pool_allocate(nbytes: int, /) -> int: ...
def plain_loads(pickled: bytes, /) -> Any: ...
def small_dump(obj: Any, /) -> bytes | None: ...
def small_load(pickled: bytes, /) -> tuple[Any, ...]: ...
def set_numpy(array: type, scalars: tuple[type, ...], /) -> None: ...

Described = tuple[int, int, int] | None
# (owner, number, worker, kind, data, cell, held)
Told = tuple[Any, int, int, int, Any, int, Any]

class Outcome:
    engine: Any
    owner: Any
    function: Any
    found: Any
    described: Described
    settled: bool
    _call: Any
    _state: str
    _result: Any
    _exception: BaseException | None
    _made: Any
    _cell: int
    _success: bool
    _ended: bool
    def finish(self, value: Any, exception: BaseException | None, /) -> bool: ...
    def _given(self, timeout: float | None = None) -> Any: ...

class Dispatch:
    under_way: int
    def __init__(
        self,
        memory: object,
        address: int,
        nbytes: int,
        workers: int,
        cells: int,
        groups: int,
        spin_seconds: float,
        deliver: Callable[[list[Told], int], None],
        /,
    ) -> None: ...
    def submit(
        self,
        work: Any,
        owner: Any,
        number: int,
        kind: int,
        function: Described,
        data: bytes,
        held: Any,
        group: int = 0,
        /,
    ) -> int: ...
    def submit_plain(
        self,
        work: Any,
        owner: Any,
        number: int,
        kind: int,
        function: Described,
        obj: Any,
        group: int = 0,
        /,
    ) -> int: ...
    def submit_chunks(
        self,
        work: Any,
        owner: Any,
        number: int,
        kind: int,
        function: Described,
        items: tuple[Any, ...],
        chunksize: int,
        most: int,
        group: int = 0,
        /,
    ) -> tuple[int, int]: ...
    def share(
        self, pinned: dict[Any, Any], kinds: tuple[type, ...], pending: Any, waiters: set[int], /
    ) -> None: ...
    def begin(
        self,
        kind: type,
        engine: Any,
        owner: Any,
        function: Any,
        args: tuple[Any, ...],
        named: dict[str, Any] | None,
        /,
    ) -> Any: ...
    def wait(self, outcome: Outcome, seconds: float | None, /) -> None: ...
    def pump(self) -> bool: ...
    def withdraw(self, cell: int, owner: Any, /) -> Told | None: ...
    def withdraw_all(self, owner: Any, /) -> list[Told]: ...
    def collect(self) -> None: ...
    def listen(self, news: int, seconds: float | None, /) -> None: ...
    def help(self, news: int, seconds: float | None, /) -> None: ...
    def call(
        self,
        kind: int,
        described: Described,
        function: Any,
        obj: Any,
        messages: list[bytes],
        group: int = 0,
        /,
    ) -> tuple[bool | None, Any] | None: ...
    def fail(self, token: int, error: BaseException, /) -> None: ...
    def bury(self, worker: int, /) -> list[Told]: ...
    def close(self, closing: bool, /) -> None: ...
    def use(self, workers: int, /) -> None: ...
    def shut(self) -> None: ...
    def dismiss(self, worker: int, /) -> None: ...
    def news(self, helper: bool, /) -> int: ...
    def tell(self, helper: bool, /) -> None: ...
    def assign(self, worker: int, group: int, /) -> None: ...
    def ready(self, group: int | None = None, /) -> int: ...
    def load(self, group: int, /) -> int: ...
    def running(self) -> list[tuple[Any, int, int, float, int]]: ...
    def is_taken(self, cell: int, owner: Any, /) -> bool: ...
    def look_at(self, worker: int, /) -> tuple[int, int, int, int, int]: ...
    def words(self, worker: int, /) -> bytes: ...
    def put_function(self, slot: int, pickled: bytes, /) -> None: ...

class WorkerEnd:
    running: bool
    extra_in: int
    place: int  # of the task that runs
    def __init__(
        self,
        address: int,
        nbytes: int,
        workers: int,
        cells: int,
        groups: int,
        number: int,
        group: int,
        spinners: int,
        /,
    ) -> None: ...
    def serve(self, handler: Any, most: int, /) -> None: ...
    def tell(self, state: int, words: bytes, /) -> None: ...
    # The nth ready task of the own group: its place, and its message (empty if it is plain).
    def peek(self, nth: int, /) -> tuple[int, bytes] | None: ...
    # In run_message: what it returns is not the answer. A token for answer() or answer_message().
    def defer(self) -> int: ...
    # As if the function had returned this value; any thread. The token's task ends with it.
    def answer(self, token: int, value: Any, /) -> None: ...
    # With a message of the handler's: (data, bytes beside it), as encode_exception() makes.
    def answer_message(self, token: int, message: tuple[bytes, int], /) -> None: ...

class QueueEnd:
    def __init__(self, put: int, get: int, queue: int, data_max: int, /) -> None: ...
    def put(self, obj: Any, /) -> bool: ...
    def get(self, slot: Any, address: int, timeout_ns: int, /) -> Any: ...
