"""CPython's own tests over ours: see cpython/suite_pool.py.

Runs in `make test-more`: all start methods take minutes.
"""

import cpython_suite

outcomes = cpython_suite.outcomes("suite_pool")
test_cpython = cpython_suite.tests("suite_pool")
