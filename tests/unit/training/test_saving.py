"""Saving beside training: what is saved is the state of then, and a failure costs one checkpoint."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from shardline.components.common.errors import EnvironmentLacking, PeerLost, StorageLost, to_record
from shardline.components.common.owner import Lease
from shardline.components.common.storage import Storage
from shardline.components.training.checkpoint import catalog
from shardline.components.training.checkpoint.planning import plan_save
from shardline.components.training.checkpoint.saving import Saver, _first_failure
from tests.unit.training.checkpoint_support import contents, context, loaded, save, steps, tensors


class Held:
    """Keeps the thread that saves from going on, as slow storage would."""

    def __init__(self) -> None:
        self.entered, self.released = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.entered.set()
        assert self.released.wait(30)


def make(run: Storage, lease: Lease, state: dict[str, torch.Tensor], **options: Any) -> Saver:
    return Saver(context(run, fence=lease.fence), tensors=lambda: state, **{"background": True, **options})


def test_training_goes_on_and_the_state_of_then_is_saved(run: Storage, lease: Lease) -> None:
    state, held = tensors(1.0), Held()
    saver = make(run, lease, state, before_commit=held)
    saver.start(contents(5))
    assert held.entered.wait(30) and saver.busy
    for tensor in state.values():
        tensor.add_(100)
    assert catalog.committed(run) == []
    held.released.set()
    saver.wait()
    (record,) = catalog.committed(run)
    assert torch.equal(loaded(run, record)["model.a"], tensors(1.0)["model.a"])


def test_host_memory_is_made_once(run: Storage, lease: Lease) -> None:
    state = tensors(1.0)
    saver = make(run, lease, state)
    places = [buffer.data_ptr() for buffer in saver._buffers or ()]
    for step in (5, 10):
        state["model.a"].fill_(float(step))
        saver.start(contents(step))
        saver.wait()
        assert [buffer.data_ptr() for buffer in saver._buffers or ()] == places
    assert [loaded(run, record)["model.a"][0, 0].item() for record in catalog.committed(run)] == [10.0, 5.0]


def test_what_was_recorded_before_is_put_out_before_the_commit(run: Storage, lease: Lease) -> None:
    seen: list[list[int]] = []
    saver = make(run, lease, tensors(1.0), before_commit=lambda: seen.append(steps(run)))
    saver.start(contents(5))
    saver.wait()
    assert seen == [[]] and steps(run) == [5]


def test_the_time_that_training_stood_still_is_told(run: Storage, lease: Lease) -> None:
    held, told = Held(), []
    saver = make(run, lease, tensors(1.0), before_commit=held, on_saved=told.append)
    saver.start(contents(5))
    held.released.set()
    saver.wait()
    (saved,) = told
    assert 0 < saved.blocked < saved.seconds
    alone = make(run, lease, tensors(1.0), background=False, on_saved=told.append)
    alone.start(contents(10))
    assert told[1].blocked == told[1].seconds > 0


def test_a_save_that_is_given_up_does_not_count(run: Storage, lease: Lease) -> None:
    held = Held()
    saver = make(run, lease, tensors(1.0), before_commit=held)
    saver.start(contents(5))
    assert held.entered.wait(30)
    threading.Timer(0.05, held.released.set).start()
    saver.close()
    assert not saver.busy and catalog.committed(run) == []


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("failure", [EnvironmentLacking("the disk is full"), ValueError("a bug")])
def test_a_failure_is_raised_once_by_wait_and_the_next_save_is_made(
    run: Storage, lease: Lease, background: bool, failure: Exception
) -> None:
    failures = [failure]

    def fail() -> None:
        if failures:
            raise failures.pop()

    saver = make(run, lease, tensors(1.0), background=background, before_commit=fail)
    saver.start(contents(5))
    with pytest.raises(type(failure), match=str(failure)):
        saver.wait()
    saver.wait()
    saver.start(contents(10))
    saver.wait()
    assert steps(run) == [10]


def test_of_several_failures_a_bug_goes_first_then_the_lowest_rank() -> None:
    lost, bug = {"error": to_record(StorageLost("gone"))}, {"error": to_record(TypeError("a bug"))}
    fine: dict[str, Any] = {"file": None}
    assert (_first_failure([fine, lost, lost]) or {})["rank"] == 1
    assert (_first_failure([fine, lost, bug]) or {})["rank"] == 2
    assert _first_failure([fine, fine]) is None


def test_a_failing_write_leaves_no_checkpoint(run: Storage, lease: Lease) -> None:
    run.write("checkpoints", b"a file in the way")
    with pytest.raises(EnvironmentLacking, match="cannot be"):
        save(run, step=5, value=1.0, fence=lease.fence)


def test_only_tensors_are_saved() -> None:
    state: dict[str, Any] = {"a": object()}
    with pytest.raises(TypeError, match="only tensors"):
        plan_save(state, prefix="g", rank=0, world=1)


def test_a_silent_peer_ends_the_save(run: Storage, lease: Lease) -> None:
    from datetime import timedelta

    from torch.distributed import HashStore

    from shardline.components.training.checkpoint.meeting import Meeting

    def meeting(rank: int) -> Meeting:
        return Meeting(
            store,
            number=0,
            rank=rank,
            world=2,
            silence=timedelta(seconds=0.3),
            given_up=threading.Event(),
        )

    store: Any = HashStore()
    meeting(0).report({"file": None})
    with pytest.raises(PeerLost, match="rank 1 gave no sign"):
        meeting(0).reports()
    with pytest.raises(PeerLost, match="rank 0 gave no sign"):
        meeting(1).decision()


def test_an_old_save_leaves_no_keys_behind(run: Storage, lease: Lease) -> None:
    saver = make(run, lease, tensors(1.0))
    counts = []
    for step in range(1, 5):
        saver.start(contents(step))
        saver.wait()
        counts.append(saver._store.num_keys())
    assert counts[1:] == [counts[1]] * 3
