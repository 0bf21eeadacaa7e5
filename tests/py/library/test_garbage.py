"""Pauses of the collector end as they began."""

import gc

import pytest

from cableway._core.garbage import uncollected


@pytest.mark.parametrize("was_on", [True, False])
def test_a_pause_leaves_the_collector_as_it_was(was_on):
    try:
        gc.enable() if was_on else gc.disable()
        with uncollected():
            assert not gc.isenabled()
            with uncollected():
                assert not gc.isenabled()
            assert not gc.isenabled()
        assert gc.isenabled() is was_on
        with pytest.raises(KeyError), uncollected():
            raise KeyError
        assert gc.isenabled() is was_on
    finally:
        gc.enable()
