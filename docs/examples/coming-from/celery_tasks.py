"""celery: tasks get arrays in JSON. `python celery_tasks.py`.

A task queue keeps messages for as long as it likes, and delivers one again if its worker died. A handle is for a message under way
(`transit_seconds`), so what is queued goes by name: `put(..., keep=True)` stays until it is removed, also when no process is
connected. celery's `register_type` makes the name of each `Array` in a message, and an array again in the task.

Here broker and results are folders, so that nothing else has to run; with Redis or RabbitMQ it is the same.
"""

import os
import subprocess
import sys
import tempfile

from celery import Celery
from kombu.utils.json import register_type

import cableway as cw


def to_name(array):
    """What goes into the message."""
    if array.name is None:
        raise TypeError("a queued array needs a name: put it with keep=True")
    return array.name


register_type(cw.Array, "cableway.Array", to_name, cw.get)  # in each process

folder = os.environ.setdefault("COMING_FROM_CELERY", tempfile.mkdtemp())
for part in ("queue", "results", "control"):
    os.makedirs(os.path.join(folder, part), exist_ok=True)
app = Celery("celery_tasks", broker="filesystem://", backend=f"file://{folder}/results")
app.conf.update(
    broker_transport_options={
        "data_folder_in": f"{folder}/queue",
        "data_folder_out": f"{folder}/queue",
        "control_folder": f"{folder}/control",
    },
    broker_connection_retry_on_startup=True,
)


@app.task
def scale(array, factor):
    """Writes to the caller's memory."""
    array *= factor
    return array


if __name__ == "__main__":
    from celery_tasks import scale  # by the name that the worker has for it

    w = cw.put("coming-from/queued", [1.0, 2.0, 3.0], keep=True)
    queued = scale.delay(w, 10.0)
    here = os.path.dirname(os.path.abspath(__file__))
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", "-c", "2", "-l", "ERROR"],
        cwd=here,
    )
    try:
        result = queued.get(timeout=60)
    finally:
        worker.terminate()
        worker.wait()
    assert w.tolist() == [10.0, 20.0, 30.0]  # what the task wrote
    result[0] = 5.0
    assert w[0] == 5.0  # and the result is the same memory
    cw.remove("coming-from/queued")
    print(w.tolist())
