"""CPython's tests of __main__ in workers (test.test_multiprocessing_main_handling), over `cableway.Pool`.

Each is a program that makes a pool: a script, a directory, a zip file, a module of a package, compiled or not.
"""

from __future__ import annotations

import multiprocessing
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

import in_place
import test.test_multiprocessing_main_handling as cpython

OLD = "from multiprocessing import Pool, set_start_method"
NEW = "from multiprocessing import set_start_method; from cableway import Pool"


class TestMain(cpython.MultiProcessingCmdLineMixin, unittest.TestCase):
    """Whatever the main module is, workers find what is defined in it where multiprocessing's do."""

    @property
    def start_method(self) -> str:
        """That of this process; the programs set the same."""
        return multiprocessing.get_start_method()

    @property
    def main_in_children_source(self) -> str:
        """The program for what only a fork can see."""
        if self.start_method == "fork":
            return cpython.test_source
        return cpython.test_source_main_skipped_in_children

    def setUp(self) -> None:
        """The programs use ours."""
        super().setUp()
        self.written = 0
        for name in ("make_script", "make_zip_pkg"):
            patch = mock.patch.object(cpython, name, self._with_ours(getattr(cpython, name)))
            patch.start()
            self.addCleanup(patch.stop)

    def tearDown(self) -> None:
        """They did."""
        self.assertGreater(self.written, 0)
        super().tearDown()

    def _with_ours(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """The function that writes a program, writing ours. Two workers do what CPython's five do."""

        def replaced(argument: Any) -> Any:
            if not isinstance(argument, str) or OLD not in argument:
                return argument
            self.written += 1
            new = OLD if in_place.THEIRS else NEW
            return argument.replace(OLD, new).replace("Pool(5)", "Pool(2)")

        return lambda *args, **settings: make(*map(replaced, args), **settings)
