"""The launcher on a real cluster: drained, killed at any point of its life, two at once, and cancelled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from shardline.components.common import config as configs
from shardline.components.elasticity.jobstate import is_cancelled
from shardline.components.training import step as training
from tests.cluster import workflows
from tests.cluster.jobs import ClusterRun, Make
from tests.cluster.kube import Cluster
from tests.cluster.operating import Operators
from tests.cluster.workflows import Workflows

pytestmark = pytest.mark.timeout(900)

SUSPENDED = ("kubernetes.suspend=true",)
#: What a launcher that lives says at each look at a job of which nothing runs yet.
LOOKED = ": suspended, 0 of 0 workers running, no step yet"


@pytest.fixture(scope="session")
def _workflows(cluster: Cluster) -> Iterator[None]:
    with workflows.defined(cluster):
        yield


@dataclass(frozen=True)
class Launchers:
    """Starts launchers of one run, each a step of a Workflow."""

    run: ClusterRun
    folder: Path

    def start(self, workflow: str, *, dies: int | None = None, when: str = "always") -> subprocess.Popen[str]:
        """A launcher; `dies` by that signal where none before it did."""
        path = self.folder / "config.yaml"
        path.write_text(configs.dump(self.run.loaded.config))
        command = [sys.executable, "-m", "tests.cluster.launching", str(path), workflow]
        if dies is not None:
            command.append(json.dumps({"signum": dies, "points": str(self.folder / "points"), "when": when}))
        root = Path(__file__).parents[2]
        return subprocess.Popen(
            command, cwd=root, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def points(self) -> list[str]:
        return (self.folder / "points").read_text().splitlines()


@pytest.fixture
def make_launchers(_workflows: None, make: Make, tmp_path: Path) -> Iterator[Make]:
    """Makes a run whose job starts suspended, for launchers."""

    def make_one(name: str) -> Launchers:
        return Launchers(make(name, workers={"replicas": 1}, overrides=SUSPENDED), tmp_path)

    yield make_one  # type: ignore[misc]


def uid(run: ClusterRun) -> str | None:
    job = run.client.get("PyTorchJob", run.name)
    return None if job is None else str(job["metadata"]["uid"])


def resume(run: ClusterRun) -> None:
    run.client.patch("PyTorchJob", run.name, {"spec": {"runPolicy": {"suspend": False}}})


def until_told(process: subprocess.Popen[str], words: str, *, times: int = 1) -> list[str]:
    """The lines up to the one in which it has said it so often; all, if it ends before that."""
    lines: list[str] = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if sum(words in each for each in lines) == times:
            break
    return lines


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_killed_or_drained_at_every_point_it_makes_one_job_and_trains(
    make_launchers: Make, signum: signal.Signals
) -> None:
    """Each launcher ends at a point at which none before it did, until one comes through to the end."""
    launchers = make_launchers("points")
    run = launchers.run
    run.shard()
    started = Workflows(run.client)
    workflow = started.start("first")
    jobs: set[str | None] = set()
    code = None
    while code != 0:
        with launchers.start(workflow, dies=signum) as process:
            # One that looks again has nowhere new to go: on to the part of its life in which there are pods.
            lines = until_told(process, LOOKED, times=3)
            if sum(LOOKED in line for line in lines) == 3:
                resume(run)
            output, _ = process.communicate(timeout=300)
        code = process.returncode
        assert code in (0, -signum, 128 + signum), "".join(lines) + output
        jobs.add(uid(run))
    points = launchers.points()
    print("\n".join(points))
    assert {point.partition(" in ")[0] for point in points} >= {
        f"{when} {what}"
        for when in ("before", "after")
        for what in (f"POST PyTorchJob {run.name}", f"DELETE Lease {run.name}-launcher", "GET Event")
    }
    # Where one was, it stayed: no job has the uid of another.
    assert len(jobs - {None}) == 1 and len(run.client.list("PyTorchJob")) == 1
    assert training.outcome(run.loaded.config)["step"] == run.loaded.config.training.steps
    assert run.client.get("Lease", f"{run.name}-launcher") is None
    started.remove(workflow)
    of_run = {"shardline.io/run": run.name}
    kinds = ("PyTorchJob", "PodDisruptionBudget", "ConfigMap", "Pod")
    run.until(lambda: not any(run.client.list(kind, labels=of_run) for kind in kinds), "nothing of it is left")


@pytest.mark.parametrize("ender", ["launcher", "operator", "garbage collection"])
def test_killed_as_it_ends_what_was_cancelled_the_next_one_ends_it(
    make_launchers: Make, tmp_path: Path, ender: str
) -> None:
    """Killed at each point of its clean-up, it leaves the job or not; what is left, another ends.

    To the operator and to garbage collection all points are the same at which the job is left: one is enough.
    """
    launchers = make_launchers("cancelled")
    run, started = launchers.run, Workflows(launchers.run.client)
    operators = Operators(run.namespace, tmp_path)
    left = 0
    try:
        if ender == "operator":
            operators.leading()
        code = None
        for number in range(100):
            workflow = started.start(f"number-{number}")
            with launchers.start(workflow, dies=signal.SIGKILL, when="terminated") as process:
                until_told(process, LOOKED)
                started.cancel(workflow)
                process.terminate()
                code = process.wait(60)
            assert code in (-signal.SIGKILL, 143)
            left += uid(run) is not None
            if ender == "launcher":
                with launchers.start(workflow) as process:
                    output, _ = process.communicate(timeout=60)
                assert process.returncode == 143, output
                assert uid(run) is None, output
            elif ender == "garbage collection":
                started.remove(workflow)
            run.until(lambda: uid(run) is None, f"what was cancelled is ended by {ender}", seconds=60)
            if code == 143 or ender != "launcher":
                break
    finally:
        operators.end()
    print("\n".join(launchers.points()))
    assert left > 0 and (code == 143 or ender != "launcher")


def drained(launchers: Launchers, workflow: str) -> None:
    """A launcher comes, looks at the job, and is drained."""
    with launchers.start(workflow) as process:
        until_told(process, LOOKED)
        process.terminate()
        assert process.wait(60) == 143


def test_a_drained_one_leaves_the_job_to_the_launcher_of_another_workflow(make_launchers: Make) -> None:
    """It belongs to that one from then on: what is left of the first Workflow may go."""
    launchers = make_launchers("drained")
    run, started = launchers.run, Workflows(launchers.run.client)
    first, second = started.start("first"), started.start("second")
    drained(launchers, first)
    job = uid(run)
    assert job is not None
    drained(launchers, second)
    (owner,) = run.client.get("PyTorchJob", run.name)["metadata"]["ownerReferences"]  # type: ignore[index]
    assert (owner["kind"], owner["name"], uid(run)) == ("Workflow", "second", job)
    # Whoever belongs to the first is collected with it.
    gone = run.client.get("Workflow", first)
    assert gone is not None
    reference = {"apiVersion": gone["apiVersion"], "kind": "Workflow", "name": first, "uid": gone["metadata"]["uid"]}
    mark = {"name": "of-the-first", "ownerReferences": [reference]}
    run.client.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": mark})
    started.remove(first)
    run.until(lambda: run.client.get("ConfigMap", "of-the-first") is None, "what belongs to the first is collected")
    assert uid(run) == job


def test_what_a_cancelled_workflow_left_makes_room_for_a_job_of_the_next(make_launchers: Make) -> None:
    launchers = make_launchers("again")
    run, started = launchers.run, Workflows(launchers.run.client)
    first, second = started.start("first"), started.start("second")
    with launchers.start(first) as process:
        until_told(process, LOOKED)
        started.cancel(first)
        process.kill()
    job = uid(run)
    with launchers.start(second) as process:
        lines = until_told(process, LOOKED)
        process.terminate()
    assert any("belongs to Workflow first, which was cancelled" in line for line in lines), lines
    assert uid(run) not in (None, job)


def test_of_two_one_acts_and_the_other_says_why_not(make_launchers: Make) -> None:
    """A cancelled one ends the job while it waits, too, if it is that of its own Workflow."""
    launchers = make_launchers("two")
    run, started = launchers.run, Workflows(launchers.run.client)
    first, second = started.start("first"), started.start("second")
    with launchers.start(first) as one:
        until_told(one, LOOKED)
        job = uid(run)
        started.cancel(second)
        with launchers.start(second) as other:
            lines = until_told(other, "waits")
            assert f"launcher-{one.pid} follows it: this one waits" in lines[-1], lines
            other.terminate()
            assert other.wait(60) == 143
        assert uid(run) == job
        with launchers.start(first) as other:
            until_told(other, "waits")
            started.cancel(first)
            other.terminate()
            assert other.wait(60) == 143
        output, _ = one.communicate(timeout=60)
        assert one.returncode == 2 and "was deleted while it was followed" in output
    assert uid(run) is None and is_cancelled(run.client.get("Workflow", first))
