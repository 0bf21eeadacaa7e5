"""joblib's backend whose workers are ended in the midst of a call: by another thread, a signal's handler, or a finaliser."""

from __future__ import annotations

import pytest
from closing_support import holds

pytest.importorskip("joblib")

PROGRAM = """
import sys
from itertools import count
from joblib import Parallel, delayed, parallel_config
import cableway as cw
import cableway.joblib as ours
from cableway._joblib import batches, calls

FILES = ours.__file__, batches.__file__, calls.__file__
way, step = sys.argv[1], int(sys.argv[2])
ways = {
    "shutdown": lambda backend: ours.shutdown(),
    "terminate": lambda backend: backend.terminate(),
    "abort": lambda backend: backend.abort_everything(ensure_ready=False),
}

def closing(backend, place):
    numbers, came = count(), []
    def look(frame, event, argument):
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line" and not came and next(numbers) == place:
            came.append(place)
            sys.settrace(None)
            ways[way](backend)
        return look
    sys.settrace(look)
    return came

for place in count(0, step):
    backend = ours.CablewayBackend(context="fork")
    with parallel_config(backend, n_jobs=2):
        came = closing(backend, place)
        try:
            found = Parallel()(delayed(abs)(x) for x in range(6))
            assert found == [0, 1, 2, 3, 4, 5], (place, found)
        except (RuntimeError, cw.Error) as error:
            told = any(text in str(error) for text in ("has ended or was aborted", "after shutdown", "was terminated"))
            assert told and way != "shutdown", (place, repr(error))
        finally:
            sys.settrace(None)
    if not came:
        break
ours.shutdown()
assert place > 5 * step, place
print("held")
"""


@pytest.mark.parametrize(("way", "step"), [("shutdown", 3), ("terminate", 3), ("abort", 11)])
def test_workers_may_be_ended_between_any_two_lines_of_a_call(way: str, step: int) -> None:
    holds(PROGRAM, way, str(step))
