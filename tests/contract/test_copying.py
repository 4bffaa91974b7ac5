"""Checkpoints that a run begins from, at the other end of a network: copied and averaged, or refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from shardline.components.common import config as configs
from shardline.components.common.config.training_schema import Parent
from shardline.components.common.errors import DamagedData, StorageLost, UserError
from shardline.components.common.owner import hold
from shardline.components.common.storage import Storage
from shardline.components.training.checkpoint import catalog
from shardline.components.training.checkpoint.catalog import CheckpointRecord
from shardline.components.training.start import copying, merging
from shardline.components.training.start.copying import copy
from shardline.components.training.start.merging import merge
from shardline.components.training.start.origins import Origin
from tests.contract.faults import Proxy, Rule, proxy
from tests.unit.training.checkpoint_support import loaded, save

CONFIG = """\
version: 1
run: any
storage: /data
corpus: /texts
training: {steps: 20, global_batch: 8, microbatch: 2, sequence: 64}
"""


@pytest.fixture
def server(moto: str, s3: str, aws: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with proxy(moto) as server:
        aws.setenv("AWS_ENDPOINT_URL", server.address)
        aws.setenv("SHARDLINE_STORAGE_SECONDS", "1")
        yield server


@pytest.fixture
def root(s3: str, server: Proxy) -> Storage:
    return Storage(s3)


def saved(run: Storage, value: float) -> CheckpointRecord:
    with hold(run) as lease:
        return save(run, step=5, value=value, fence=lease.fence)


def origin(run: Storage, record: CheckpointRecord, weight: float) -> Origin:
    config = configs.parse(CONFIG, source="any", ignore_environment=True).config
    return Origin(run=run, config=config, record=record, named=Parent(run=run.url, step=5, weight=weight))


def nothing(size: int) -> None:
    pass


def test_a_copy_is_the_checkpoint_whatever_fails_for_a_moment(
    root: Storage, server: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_PART", 100)
    parent, child = root.at("parent"), root.at("child")
    record = saved(parent, 2.0)
    server.rules[:] = [Rule("reset", method="GET", holding="parent/checkpoints")]
    with pytest.raises(StorageLost, match=r"parent/checkpoints/step-000000000005/.*: storage failed"):
        copy(parent, record, run=child, on_part=nothing)
    assert not any(name.endswith("safetensors") for name in child.names(record.folder))
    server.rules[:] = [Rule("reset", method="GET", holding="parent/checkpoints", times=1)]
    parts: list[int] = []
    copy(parent, record, run=child, on_part=parts.append)
    assert sum(parts) == record.bytes and len(parts) > 3
    assert catalog.damage(child, record) is None
    assert all(torch.equal(value, loaded(parent, record)[name]) for name, value in loaded(child, record).items())
    # What is there is not fetched again.
    server.rules[:] = [Rule("reset", method="GET", holding="parent")]
    copy(parent, record, run=child, on_part=nothing)


@pytest.mark.parametrize("mistake", ["another", "shorter", "longer", "gone"])
def test_a_file_that_is_not_what_was_written_does_not_arrive(root: Storage, mistake: str) -> None:
    parent, child = root.at("parent"), root.at("child")
    record = saved(parent, 2.0)
    (name,) = (name for name in record.files if name.endswith("safetensors"))
    path = f"{record.folder}/{name}"
    data = parent.read(path)
    if mistake == "gone":
        parent.delete(path)
    else:
        parent.write(path, {"another": data[:-1] + b"!", "shorter": data[:-1], "longer": data + b"!"}[mistake])
    with pytest.raises(DamagedData, match=f"parent/{path}: is"):
        copy(parent, record, run=child, on_part=nothing)
    assert name not in child.names(record.folder)


def test_means_of_every_type_and_shape(root: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "_BLOCK", 40)
    runs = [root.at("one"), root.at("other")]
    records = [saved(run, value) for run, value in zip(runs, (1.0, 3.0), strict=True)]
    origins = [origin(run, record, 1.0) for run, record in zip(runs, records, strict=True)]
    folder = root.at("mean").at(records[0].folder)
    files, index = merge(origins, folder=folder, prefix="g000001", on_part=nothing)
    described = {file.name: {"size": file.size, "sha256": file.sha256} for file in files}
    record = replace(records[0], files=described, index=index)
    assert catalog.damage(root.at("mean"), record) is None
    found, expected = loaded(root.at("mean"), record), loaded(runs[0], records[0])
    # Full of 1 and of 3; 0 to 5 with as much added; a number: in float64, bfloat16 and float32.
    assert all(torch.equal(value, expected[name] + 1) for name, value in found.items())
    assert {name: value.dtype for name, value in found.items()} == {
        name: value.dtype for name, value in expected.items()
    }


def test_numbers_that_are_not_finite_have_no_mean(root: Storage) -> None:
    runs = [root.at("one"), root.at("other")]
    records = [saved(run, value) for run, value in zip(runs, (1.0, float("nan")), strict=True)]
    origins = [origin(run, record, 1.0) for run, record in zip(runs, records, strict=True)]
    with pytest.raises(UserError, match=r"other/checkpoints/.*: model\.a has numbers that are not finite"):
        merge(origins, folder=root.at("mean"), prefix="g000001", on_part=nothing)
