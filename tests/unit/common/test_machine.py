"""What a machine has to train with, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardline.components.common import config as configs
from shardline.components.common.config import RunConfig
from shardline.components.common.errors import EnvironmentLacking
from shardline.components.common.machine import device, pod_memory, processes, processes_and_why


def config(*overrides: str) -> RunConfig:
    training = "{steps: 1, global_batch: 16, microbatch: 2, sequence: 64}"
    text = f"{{version: 1, run: x, storage: /d, corpus: /c, training: {training}}}"
    return configs.parse(text, source="x", overrides=overrides).config


@pytest.fixture(params=[0, 1, 4])
def there(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(str(number) for number in range(request.param)))
    return int(request.param)


def test_each_process_has_a_device_or_none_has(there: int) -> None:
    assert device(config(), world=2) == ("cuda" if there >= 2 else "cpu")
    assert device(config("resources.device=cpu"), world=1) == "cpu"


def test_devices_that_are_asked_for_must_be_there(there: int) -> None:
    asked = config("resources.device=cuda")
    if there >= 2:
        assert device(asked, world=2) == "cuda"
        return
    with pytest.raises(
        EnvironmentLacking, match=f"2 training processes need a CUDA device each; this machine has {there}"
    ):
        device(asked, world=2)


def test_as_many_processes_as_layout_and_devices_suggest(there: int) -> None:
    assert processes(config("resources.processes=3")) == 3
    assert processes(config()) == (there or 2)
    assert processes(config("training.layout={pp: 2, dp_shard: 3}")) == 6
    assert processes(config("training.layout={pp: 3}")) == 3


def test_where_the_number_of_processes_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    assert processes_and_why(config("resources.processes=3")) == (3, "resources.processes")
    assert processes_and_why(config("training.layout={pp: 2, dp_shard: 3}")) == (6, "training.layout")
    assert processes_and_why(config()) == (4, "the 4 devices of this machine; resources.processes is auto")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert processes_and_why(config()) == (2, "the default without devices; resources.processes is auto")


@pytest.mark.parametrize("limit", [2000, "max"])
def test_memory_of_a_container(tmp_path: Path, limit: int | str) -> None:
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text("1500\n")
    (tmp_path / "memory.stat").write_text("anon 900\ninactive_file 400\nactive_file 200\n")
    assert pod_memory(tmp_path) == ((1100, 2000) if limit == 2000 else (None, None))


@pytest.mark.parametrize("limit", [2000, 9223372036854771712])
def test_memory_of_a_container_under_cgroup_1(tmp_path: Path, limit: int) -> None:
    folder = tmp_path / "memory"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory.usage_in_bytes").write_text("1500\n")
    (folder / "memory.stat").write_text("cache 500\ntotal_inactive_file 400\n")
    assert pod_memory(tmp_path) == ((1100, 2000) if limit == 2000 else (None, None))


def test_no_cgroup_is_no_limit(tmp_path: Path) -> None:
    assert pod_memory(tmp_path) == (None, None)
