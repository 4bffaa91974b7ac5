"""When garbage is collected, and what memory is reported."""

from __future__ import annotations

import gc
import weakref

from shardline.components.training.memory import collected


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_garbage_is_collected_after_the_steps_that_were_named_and_at_no_other_time() -> None:
    assert gc.isenabled()
    with collected(every=3) as collection:
        assert not gc.isenabled()
        seen = weakref.ref(Cycle())
        # Enough to start a collection, were there automatic ones.
        _ = [Cycle() for _ in range(5000)]
        collection.after_step(0)
        collection.after_step(1)
        assert seen() is not None
        collection.after_step(2)
        assert seen() is None
    assert gc.isenabled()


def test_automatic_collection_is_as_it_was_after_an_error() -> None:
    try:
        with collected(every=1):
            raise ValueError
    except ValueError:
        assert gc.isenabled()
