"""PyOpenCL: a device works on memory that processes share. `python opencl.py`.

A buffer with `USE_HOST_PTR` uses an array's memory as it is. On a CPU device (PoCL here) nothing is copied: commands see what other
processes wrote, and they see what commands write. Kernels take the buffer as any other. A GPU's driver may keep a copy;
`enqueue_map_buffer` says when host and device agree.
"""

import multiprocessing

import numpy as np
import pyopencl as cl

import cableway as cw


def other(name, pipe):
    """Another process, without OpenCL."""
    x = cw.get(name).numpy()
    x[1] = 50  # before the device reads it
    pipe.send(True)
    pipe.recv()
    pipe.send(x.tolist())  # after the device has written


if __name__ == "__main__":
    device = cl.get_platforms()[0].get_devices()[0]
    context = cl.Context([device])
    queue = cl.CommandQueue(context)

    w = cw.put("coming-from/opencl", np.arange(4, dtype="f4"))
    x = w.numpy()
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
    buffer = cl.Buffer(context, flags, hostbuf=x)

    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=other, args=("coming-from/opencl", theirs))
    process.start()
    assert ours.recv()

    copied = cl.Buffer(context, cl.mem_flags.READ_WRITE, x.nbytes)
    cl.enqueue_copy(queue, copied, buffer)  # on the device
    found = np.empty_like(x)
    cl.enqueue_copy(queue, found, copied)
    assert found.tolist() == [0.0, 50.0, 2.0, 3.0]  # what the other process wrote

    cl.enqueue_fill_buffer(queue, buffer, np.float32(7), 8, 8)
    mapped, _ = cl.enqueue_map_buffer(queue, buffer, cl.map_flags.READ, 0, x.shape, x.dtype)
    assert mapped.ctypes.data == x.ctypes.data  # no copy
    ours.send(True)
    seen = ours.recv()
    process.join()
    assert seen == x.tolist() == [0.0, 50.0, 7.0, 7.0]  # what the device wrote
    mapped.base.release(queue)
    queue.finish()
    cw.remove("coming-from/opencl")
    print(device.platform.name, seen)
