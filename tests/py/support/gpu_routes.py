"""What programs on GPUs begin with that look at which bytes went by which route; POOL_ON is set before."""

from __future__ import annotations

MOVED = """
import collections, contextlib, json, os, subprocess, time
import cableway as cw

def status():
    told = subprocess.run([os.environ["CABLEWAY_COMMAND"], "status", "--json"], capture_output=True, check=True)
    return json.loads(told.stdout)

class Moved:
    '''Bytes that went by each route within the `with`, at whose end no client lives that has come meanwhile.'''
    def __enter__(self):
        cw.put("look", 1)  # a request, at which the broker reads our figures: names() need not ask it
        self.before = status()
        return self
    def __exit__(self, *_):
        while len(status()["clients"]) > len(self.before["clients"]):
            time.sleep(0.01)
        now, was = status()["counters"], self.before["counters"]
        moved = {name[6:]: now[name] - was[name] for name in now if name.startswith("bytes_")}
        self.routes = collections.Counter({name: n for name, n in moved.items() if n})

@contextlib.contextmanager
def pool_on(devices=POOL_ON, **options):
    '''A Pool that is closed and waited for.'''
    with cw.Pool(devices=devices, **options) as pool:
        yield pool
        pool.close()
        pool.join()
"""
