"""The ledger and the records of bad nodes, on storage that may be away."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from shardline.components.common.errors import DamagedData, RecordedError, ShardlineError, UserError
from shardline.components.common.storage import Storage
from shardline.components.common.streams import read_all
from shardline.components.elasticity.budget.again import count
from shardline.components.elasticity.budget.keeping import Ledger
from shardline.components.elasticity.budget.ledger import Entry
from shardline.components.elasticity.budget.nodes import BadNodes
from shardline.components.elasticity.budget.verdict import Limits
from tests.commands import eventually


def entry(generation: int, *, step: int = 0) -> Entry:
    time = "2026-01-01T00:00:00.000Z"
    return Entry(generation=generation, time=time, step=step, cause="killed", reason=f"it was so in {generation}")


def test_a_ledger_outlives_who_wrote_it(tmp_path: Path) -> None:
    run = Storage(str(tmp_path))
    with Ledger(run) as first:
        first.add(entry(3, step=10))
        eventually(lambda: bool(run.names("ledger")), seconds=20)
        first.add(entry(12, step=10))
    assert Ledger(run).entries() == first.entries() == [entry(3, step=10), entry(12, step=10)]


def test_one_entry_a_generation_and_the_first_is_kept(tmp_path: Path) -> None:
    run = Storage(str(tmp_path))
    old, new = Ledger(run), Ledger(run)
    new.add(entry(3, step=10))
    new.write()
    old.add(entry(3, step=99))
    old.add(entry(3), job="one")
    old.add(entry(3, step=7), job="one")
    old.write()
    assert [each.step for each in Ledger(run).entries()] == [10, 0]


def test_what_could_not_be_written_is_written_later(tmp_path: Path) -> None:
    run = Storage(str(tmp_path))
    with Ledger(run) as ledger:
        (tmp_path / "ledger").write_text("in the way of the folder")
        ledger.add(entry(3))
        ledger.add(entry(4))
        assert ledger.entries() == [entry(3), entry(4)]
        with pytest.raises(ShardlineError):
            ledger.write()
        (tmp_path / "ledger").unlink()
        eventually(lambda: len(run.names("ledger")) == 2, seconds=20)
    assert Ledger(run).entries() == [entry(3), entry(4)]


def test_a_damaged_entry_is_named(tmp_path: Path) -> None:
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "000003.json").write_text('{"v": 1, "generation": 3}')
    with pytest.raises(DamagedData, match=r"ledger/000003\.json: is not what was written; bring it back, or delete it"):
        Ledger(Storage(str(tmp_path)))


def test_a_bad_node_lasts_until_it_is_cleared(tmp_path: Path) -> None:
    nodes = BadNodes(Storage(str(tmp_path)))
    assert nodes.names() == [] and nodes.get("n1") is None
    assert nodes.set_aside("n1", reason="it fails", run="file:///runs/a", entries=[entry(3)])
    assert not nodes.set_aside("n1", reason="another reason")
    (found,) = BadNodes(Storage(str(tmp_path))).all()
    assert (found.name, found.reason, found.run) == ("n1", "it fails", "file:///runs/a")
    assert Entry.from_json(found.entries[0]) == entry(3)
    assert nodes.cleared("n1") is None
    assert nodes.clear("n1") and not nodes.clear("n1")
    assert nodes.names() == [] and nodes.all() == []
    cleared = nodes.cleared("n1")
    assert cleared is not None and datetime.fromisoformat(found.since) <= cleared <= datetime.now(UTC)


@pytest.mark.parametrize("name", ["", "../n1", "a/b", "-n", "n.", "cleared/n1", "a" * 254])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    nodes = BadNodes(Storage(str(tmp_path)))
    for call in (nodes.get, nodes.clear, lambda name: nodes.set_aside(name, reason="so")):
        with pytest.raises(UserError, match="is no name of a node"):
            call(name)
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize("text", ["[]", "{", json.dumps({"name": "n1"})])
def test_a_damaged_record_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes" / "n1.json").write_text(text)
    with pytest.raises(DamagedData, match=r"nodes/n1\.json: is not what was written"):
        BadNodes(Storage(str(tmp_path))).get("n1")


def test_a_job_is_made_again_so_often_and_once_for_each_that_failed(tmp_path: Path) -> None:
    run = Storage(str(tmp_path))
    limits = Limits(max_restarts=0, restart_window=3600, restarts_in_window=2, set_aside_after=3)
    old = Ledger(run)
    old.add(entry(7, step=30))  # long ago
    old.write()
    for uid in ("one", "one", "two"):
        count(run, limits=limits, job="PyTorchJob try", uid=uid, writer="launcher-a")
    with pytest.raises(
        RecordedError, match=r"made again, and elastic.restarts_in_window \(2\) is used up, 3 times"
    ) as error:
        count(run, limits=limits, job="PyTorchJob try", uid="three", writer="launcher-a")
    assert error.value.exit_code == 175
    entries = Ledger(run).entries()
    assert [(each.cause, each.generation, each.step) for each in entries] == [("killed", 7, 30), *[("job", 7, 30)] * 3]
    (told,) = read_all(run.at("events"))
    assert (told["name"], told["reason"]) == ("budget.spent", str(error.value))
