"""CPython's own tests over ours: see cpython/suite_queue.py.

Runs in `make test-more`: all start methods take minutes.
"""

import cpython_suite

outcomes = cpython_suite.outcomes("suite_queue")
test_cpython = cpython_suite.tests("suite_queue")
test_what_is_left_out_passes_there = cpython_suite.left_out("suite_queue")
