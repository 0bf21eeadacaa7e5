"""CPython's own tests over ours: see cpython/suite_executor.py."""

import cpython_suite

outcomes = cpython_suite.outcomes("suite_executor")
test_cpython = cpython_suite.tests("suite_executor")
