"""Pyro5: objects in other processes get arrays by handle. `python pyro.py`.

Pyro's serializer (serpent) refuses NumPy arrays. Two hooks make a handle of each `cableway.Array`, in arguments and in results, and an
array again at the other end: the same memory, not a copy. A handle is for one opener, as a Pyro call has one receiver.
"""

import base64
import multiprocessing

import Pyro5.api

import cableway as cw

KIND = "cableway.Array"


def to_dict(array):
    """What serpent carries."""
    return {"__class__": KIND, "handle": base64.b64encode(cw.to_handle(array)).decode()}


def from_dict(_kind, data):
    """The array again."""
    return cw.from_handle(base64.b64decode(data["handle"]))


def register():
    """In each process that sends or receives arrays."""
    Pyro5.api.register_class_to_dict(cw.Array, to_dict)
    Pyro5.api.register_dict_to_class(KIND, from_dict)


@Pyro5.api.expose
class Scaler:
    """An object that others call."""

    def scale(self, array, factor):
        """Writes to the caller's memory."""
        array *= factor
        return float(array.sum())

    def make(self, n):
        """The result's memory is made here, and is the caller's when it has it."""
        return cw.full(n, 7.0)


def serve(pipe):
    """The server's process."""
    register()
    with Pyro5.api.Daemon() as daemon:
        pipe.send(str(daemon.register(Scaler)))
        daemon.requestLoop()


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    register()
    with Pyro5.api.Proxy(ours.recv()) as scaler:
        w = cw.asarray([1.0, 2.0, 3.0])
        assert scaler.scale(w, 10.0) == 60.0
        assert w.tolist() == [10.0, 20.0, 30.0]  # what the server wrote
        made = scaler.make(4)
        made += 1
        assert made.tolist() == [8.0] * 4
    server.terminate()
    server.join()
    print(w.tolist(), made.tolist())
