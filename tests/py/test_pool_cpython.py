"""CPython's own tests over ours: see cpython/suite_pool.py."""

import cpython_suite

outcomes = cpython_suite.outcomes("suite_pool")
test_cpython = cpython_suite.tests("suite_pool")
