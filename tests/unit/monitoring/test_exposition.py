"""What is exposed is the table of series, each with its value, and no more series than there are ranks."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from shardline.components.common.series import AGENT_ROLE, SERIES
from shardline.components.common.vitals import VARIABLE, Vitals, VitalsWriter
from shardline.components.monitoring.exposition import Standing, TrainingCollector, families, registry_of

STANDING = Standing(
    role="leader",
    round=5,
    generation=7,
    world=2,
    least=1,
    restarts=1,
    most_restarts=3,
    memory_used=1 << 30,
    memory_limit=2 << 30,
)
VITALS = Vitals(
    generation=7,
    rank=0,
    world=2,
    started=100.0,
    steps=20,
    step=4,
    loss=2.5,
    tokens_per_second=1000.0,
    finished=110.0,
    skipped=1,
    host_bytes=1 << 28,
    device_bytes=1 << 29,
    device_limit=1 << 30,
    checkpoint_step=3,
    checkpoint_time=109.0,
    checkpoint_every=3,
    storage_repeats=12,
)

Found = dict[tuple[str, ...], float]


def samples(text: str) -> Found:
    """Each sample's value, by its name and the values of its labels."""
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def exposed(folder: Path, standing: Standing | None) -> Found:
    collector = TrainingCollector("try", folder=folder, standing=(lambda: standing) if standing else None)
    return samples(generate_latest(registry_of(collector)).decode())


def write(*, rank: int, generation: int, world: int) -> None:
    with VitalsWriter(memory=dict, rank=rank, generation=generation, world=world, started=1.0, steps=9):
        pass


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


def test_every_series_of_the_table_is_exposed_with_its_value() -> None:
    found = {family.name: family for family in families("try", STANDING, [VITALS])}
    for series in SERIES:
        family = found.pop(series.name.removesuffix("_total"))
        assert (family.type, family.documentation) == (series.kind, series.help)
        if series is AGENT_ROLE:
            continue
        (sample,) = family.samples
        worker = series.source != "agent"
        assert sample.value == getattr(VITALS if worker else STANDING, series.field)
        assert sample.labels == {"run": "try", **({"rank": "0"} if worker else {})}
    assert not found


def test_the_table_has_every_number_that_is_known() -> None:
    known = {field.name for kind in (Standing, Vitals) for field in dataclasses.fields(kind)}
    assert known - {series.field for series in SERIES} == {"silent", "ready", "rank"}


def test_names_end_in_their_unit() -> None:
    for series in SERIES:
        assert series.name.startswith("shardline_") and series.name.islower()
        if "memory" in series.name:
            assert series.name.endswith("_bytes")
        if series.field in ("started", "finished", "checkpoint_time"):
            assert series.name.endswith("_timestamp_seconds")
    assert len({series.name for series in SERIES}) == len(SERIES)


def test_the_role_is_one_of_three(tmp_path: Path) -> None:
    found = exposed(tmp_path, dataclasses.replace(STANDING, role="spare"))
    values = {labels[0]: value for (name, *labels), value in found.items() if name == AGENT_ROLE.name}
    assert values == {"leader": 0, "member": 0, "spare": 1}


def test_what_is_not_known_is_no_series(tmp_path: Path) -> None:
    bare = exposed(tmp_path, Standing(role="member", generation=0, world=0))
    assert {name for name, *_ in bare} == {"shardline_agent_role", "shardline_generation", "shardline_world_size"}


def test_series_follow_the_ranks_and_not_the_restarts(folder: Path) -> None:
    for generation in range(1, 6):
        for rank in range(3):
            write(rank=rank, generation=generation, world=3)
        now = dataclasses.replace(STANDING, generation=generation)
        ranks = [key[1] for key in exposed(folder, now) if key[0] == "shardline_steps"]
        assert ranks == ["0", "1", "2"]
    write(rank=0, generation=6, world=1)
    now = dataclasses.replace(STANDING, generation=6)
    assert [key[1] for key in exposed(folder, now) if key[0] == "shardline_steps"] == ["0"]


def test_workers_that_are_stopped_are_not_shown(folder: Path) -> None:
    write(rank=0, generation=7, world=2)
    gathering = dataclasses.replace(STANDING, generation=0, world=0)
    assert not [key for key in exposed(folder, gathering) if key[0] == "shardline_steps"]


def test_an_agent_that_tells_nothing_is_known_by_its_workers(folder: Path) -> None:
    assert exposed(folder, None) == {("shardline_generation", "try"): 0, ("shardline_world_size", "try"): 0}
    write(rank=1, generation=4, world=2)
    found = exposed(folder, None)
    assert found["shardline_generation", "try"] == 4 and found["shardline_world_size", "try"] == 2
    assert found["shardline_steps", "1", "try"] == 9
