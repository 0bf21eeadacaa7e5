"""CPython's own tests over ours: see cpython/suite_executor.py.

Runs in `make test-more`: all start methods take minutes.
"""

import cpython_suite

outcomes = cpython_suite.outcomes("suite_executor")
test_cpython = cpython_suite.tests("suite_executor")
test_what_is_left_out_passes_there = cpython_suite.left_out("suite_executor")
