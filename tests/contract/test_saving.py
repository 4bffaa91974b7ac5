"""Saving to a store elsewhere that fails: one checkpoint is lost, and no more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from shardline.components.common.errors import StorageLost
from shardline.components.common.owner import Lease, hold
from shardline.components.common.storage import Storage
from shardline.components.training.checkpoint import catalog
from shardline.components.training.checkpoint.saving import Saver
from tests.contract.faults import Proxy, Rule, proxy
from tests.unit.training.checkpoint_support import contents, context, loaded, steps, tensors


@pytest.fixture
def server(moto: str, s3: str, aws: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with proxy(moto) as server:
        aws.setenv("AWS_ENDPOINT_URL", server.address)
        aws.setenv("SHARDLINE_STORAGE_SECONDS", "1")
        yield server


@pytest.fixture
def run(s3: str, server: Proxy) -> Storage:
    return Storage(s3)


@pytest.fixture
def lease(run: Storage) -> Iterator[Lease]:
    with hold(run) as lease:
        yield lease


@pytest.mark.parametrize(
    "fault",
    [
        Rule("answer", method="PUT", holding="safetensors"),
        Rule("answer", method="PUT", holding="index.json"),
        Rule("answer", method="PUT", holding="commit.json"),
        Rule("reset", method="PUT", holding="safetensors"),
    ],
    ids=lambda fault: f"{fault.kind} {fault.holding}",
)
def test_a_store_that_fails_costs_one_checkpoint(run: Storage, lease: Lease, server: Proxy, fault: Rule) -> None:
    state = tensors(1.0)
    saver = Saver(context(run, fence=lease.fence), tensors=lambda: state, background=True)
    saver.start(contents(5))
    saver.wait()
    server.rules.append(fault)
    saver.start(contents(10))
    with pytest.raises(StorageLost, match="step-000000000010"):
        saver.wait()
    server.rules.clear()
    assert steps(run) == [5]
    state["model.a"].fill_(3.0)
    saver.start(contents(15))
    saver.wait()
    assert steps(run) == [15, 5]
    (newest, _) = catalog.committed(run)
    assert torch.equal(loaded(run, newest)["model.a"], state["model.a"])
    assert catalog.damage(run, newest) is None


def test_a_commit_whose_answer_is_lost_is_made(run: Storage, lease: Lease, server: Proxy) -> None:
    saver = Saver(context(run, fence=lease.fence), tensors=lambda: tensors(1.0), background=True)
    server.rules.append(Rule("lost", method="PUT", holding="commit.json", times=1))
    saver.start(contents(5))
    saver.wait()
    assert steps(run) == [5]
