"""`shardline drill` on this machine, with one fault of each kind; and a run that did lose something."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from shardline.components.common import config as configs
from shardline.components.common.errors import EXIT_DAMAGED
from shardline.components.common.storage import Storage
from shardline.components.elasticity.drill.plan import LOCAL
from tests.commands import COMMAND, environment, eventually
from tests.distributed import runs

# Whole runs, on whatever machine: far above what they take.
pytestmark = pytest.mark.timeout(1200)

OVERRIDES = (
    "training.checkpoint.every=10",
    "training.schedule.decay_steps=60",
    "elastic.timeout=6",
    "monitoring.flush_seconds=0.5",
)
#: What a drill is called with to be over soon.
QUICK = ("--every", "0.2s", "--early", "0", "--json")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drills")
    runs.prepare(folder)
    config = runs.make_config(folder, run="tiny", overrides=OVERRIDES)
    (folder / "tiny.yaml").write_text(configs.dump(config), encoding="utf-8")
    return folder


def drill(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "drill", "tiny.yaml", *QUICK, *options], cwd=root, env=environment(), capture_output=True, text=True
    )


def test_one_fault_of_each_kind_and_nothing_is_lost(root: Path) -> None:
    done = drill(root, "--faults", str(len(LOCAL)), "--seed", "7", "--baseline", "--history", "history/drills.jsonl")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {fault["kind"] for fault in found["faults"]} == set(LOCAL)
    assert all(fault["seconds"] is not None for fault in found["faults"])
    assert found["held"] and found["problems"] == [] and found["lost"] is None
    assert found["losses"]["difference"] <= found["losses"]["bound"]
    worlds = runs.worlds(Storage(found["run"]))
    assert {1, 2} == set(worlds) and len(worlds) > len(LOCAL) / 2
    (line,) = (root / "history/drills.jsonl").read_text().splitlines()
    assert json.loads(line)["faults"] == len(LOCAL)
    assert not runs_of(root).exists("owner.json"), "the config's own run was touched"
    assert not at_work(found["run"])


def runs_of(root: Path) -> Storage:
    return Storage(str(root / "storage/runs/tiny"))


def at_work(url: str) -> list[str]:
    """The command lines of processes that have to do with the run at `url`."""
    lines = [path.read_bytes().replace(b"\0", b" ").decode() for path in Path("/proc").glob("[0-9]*/cmdline")]
    return [line for line in lines if url in line]


def test_a_run_that_others_have_started_is_disturbed_and_a_lost_sample_is_told(root: Path) -> None:
    overrides = (*OVERRIDES, "training.checkpoint.every=2", "monitoring.flush_seconds=0.5")
    config = runs.make_config(root, run="theirs", steps=1_000_000, overrides=overrides)
    (root / "theirs.yaml").write_text(configs.dump(config), encoding="utf-8")
    shard = subprocess.run([*COMMAND, "shard", "theirs.yaml"], cwd=root, env=environment(), capture_output=True)
    assert shard.returncode == 0, shard.stderr
    run = Storage(str(root / "storage/runs/theirs"))
    with subprocess.Popen([*COMMAND, "train", "theirs.yaml"], cwd=root, env=environment()) as theirs:
        try:
            eventually(lambda: runs.saved(run, 2))
            done = drill(root, "--attach", "theirs", "--kill", "worker", "--faults", "2")
            assert done.returncode == 0, done.stderr
            assert theirs.poll() is None, "a run of others was ended"
            damage(run)
            done = drill(root, "--attach", "theirs", "--kill", "worker", "--faults", "1")
        finally:
            theirs.terminate()
    assert done.returncode == EXIT_DAMAGED
    assert "no sample is recorded" in done.stderr or "is lost" in done.stderr
    assert not json.loads(done.stdout)["held"]


def damage(run: Storage) -> None:
    """Take away the first samples that were recorded."""
    samples = run.at("samples")
    samples.delete(sorted(samples.names())[0])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--kill", "pod"), "--kill: 'pod' is not one of worker, hang, agent"),
        (("--kill", "join", "--agents", "1"), "--kill: 'join' is not one of"),
        (("--every", "soon"), "'soon' is not a time"),
        (("--attach", "nothing"), "no run is here"),
        (("--attach", "theirs", "--baseline"), "--baseline"),
    ],
)
def test_what_does_not_go_together_is_refused(root: Path, options: tuple[str, ...], told: str) -> None:
    done = drill(root, *options)
    assert done.returncode == 2, done.stderr
    assert told in " ".join(done.stderr.replace("│", " ").split())
