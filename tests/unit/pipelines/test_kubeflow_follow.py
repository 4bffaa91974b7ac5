"""`submit --wait`: how far a run is, what it ended with and why, by exit code and in one message."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from shardline.components.common import firing
from shardline.components.common.config import RunConfig, parse
from shardline.components.common.errors import DamagedData, ShardlineError, UserError
from shardline.components.common.runfolder import run_storage, write_json
from shardline.components.common.step import stepping
from shardline.components.common.streams import now as time_now
from shardline.components.sharding import parts
from shardline.pipelines.kubeflow import follow
from tests.commands import COMMAND, SMALL, environment, eventually, write
from tests.kubeflow import Done, KubeflowServer, command, set_state, set_tasks
from tests.serving import serving
from tests.unit.common.kubernetes.test_client import Server, kubeconfig

Wait = Callable[..., Done]
Look = Callable[[dict[str, Any]], None]


@pytest.fixture
def server() -> Iterator[KubeflowServer]:
    with KubeflowServer() as started:
        yield started


@pytest.fixture
def config(tmp_path: Path, server: KubeflowServer) -> RunConfig:
    text = f"{SMALL}kubernetes: {{image: 'registry.example/shardline:1'}}\nkubeflow: {{host: '{server.url}'}}\n"
    write(tmp_path, text := text.replace("./data", str(tmp_path / "data")))
    return parse(text, source="config.yaml").config


@pytest.fixture
def wait(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Wait:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(follow, "_POLL_SECONDS", 0.05)
    return lambda *words: command(*(words or ("submit", "config.yaml", "--wait")), patch=monkeypatch, capture=capsys)


def looks(*what: Look) -> Look:
    """What happens to a run at each look at it, the last again and again."""
    left = list(what)
    return lambda run: (left.pop(0) if len(left) > 1 else left[0])(run)


def to(state: str, **tasks: str) -> Look:
    def change(run: dict[str, Any]) -> None:
        if run["state"] != state:
            set_state(run, state)
        set_tasks(run, **tasks)

    return change


def fail(config: RunConfig, step: str, error: ShardlineError) -> Look:
    """The step fails as in its pod, and Kubeflow says that it did."""

    def change(run: dict[str, Any]) -> None:
        if run["state"] != "FAILED":
            with pytest.raises(ShardlineError), stepping(config, step):
                raise error
        to("FAILED", **{step: "FAILED"})(run)

    return change


def succeed(config: RunConfig, *, passed: bool) -> Look:
    def change(run: dict[str, Any]) -> None:
        with stepping(config, "shard"):
            verdict = {"passed": passed, "reason": "3.1 bits per byte is above gate.max_bits_per_byte (2)"}
            evaluation = {"time": time_now(), "gate": verdict}
            write_json(run_storage(config), "evaluation/step-000000000004.json", evaluation)
        to("SUCCEEDED", shard="SUCCEEDED")(run)

    return change


def test_a_run_that_ends_well(wait: Wait, server: KubeflowServer, config: RunConfig) -> None:
    server.on_look = looks(to("RUNNING", shard="RUNNING"), succeed(config, passed=True))
    done = wait()
    assert done.returncode == 0, done.stderr
    assert "Kubeflow: pending" in done.stderr and "Kubeflow: running" in done.stderr
    assert "shard: done" in done.stderr  # from the run folder
    assert "succeeded" in done.stdout


def test_a_model_that_the_gate_refuses(wait: Wait, server: KubeflowServer, config: RunConfig) -> None:
    server.on_look = succeed(config, passed=False)
    done = wait()
    assert done.returncode == 4
    assert "the gate refused the model: 3.1 bits per byte" in done.stderr


@pytest.mark.parametrize("error", [UserError("no corpus is there"), DamagedData("a shard is not what was written")])
def test_the_cause_is_what_the_step_left(
    error: ShardlineError, wait: Wait, server: KubeflowServer, config: RunConfig
) -> None:
    server.on_look = looks(to("RUNNING", shard="RUNNING"), fail(config, "shard", error))
    done = wait("submit", "config.yaml", "--wait", "--json")
    assert done.returncode == error.exit_code
    assert f"error: shard: {error.message}" in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(done.stdout)["state"] == "FAILED"


def test_the_cause_of_an_earlier_run_is_not_shown(
    wait: Wait, server: KubeflowServer, config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError), stepping(config, "shard"):
        raise UserError("the old mistake")
    monkeypatch.setattr(follow, "_SKEW", -timedelta(hours=1))  # an hour later
    server.on_look = to("FAILED", shard="FAILED")
    done = wait()
    assert done.returncode == 3
    assert "shard failed and left no word of it" in done.stderr and "the old mistake" not in done.stderr
    assert "describe pod small-shard-1" in done.stderr


def test_a_run_whose_folder_cannot_be_seen_from_here(wait: Wait, server: KubeflowServer) -> None:
    server.on_look = to("SUCCEEDED")
    done = wait()
    assert done.returncode == 0
    assert "note: what it did cannot be seen from here" in done.stderr
    server.on_look = to("FAILED")
    done = wait()
    assert done.returncode == 3 and "no step left a word of it; look at http" in done.stderr


def test_an_api_server_that_is_away_for_a_while(
    wait: Wait, server: KubeflowServer, config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(run: dict[str, Any]) -> None:
        to("RUNNING", shard="RUNNING")(run)
        server.failures = [503, 502]

    server.on_look = looks(away, succeed(config, passed=True))
    done = wait()
    assert done.returncode == 0
    assert done.stderr.count("Kubeflow does not answer, still waiting: failed to get run") == 2

    monkeypatch.setattr(follow, "_PATIENCE_SECONDS", 0.2)
    server.on_look = lambda run: server.failures.extend([503] * 100)
    assert wait().returncode == 175


def test_a_pod_that_does_not_start_is_pointed_to_once(
    wait: Wait, server: KubeflowServer, config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "_START_SECONDS", 0.05)
    monkeypatch.setattr(follow, "_SLOW_START_SECONDS", 0.1)
    waits = to("RUNNING", shard="RUNNING")
    server.on_look = looks(*[waits] * 8, succeed(config, passed=True))
    done = wait()
    assert done.returncode == 0
    (line,) = [line for line in done.stderr.splitlines() if "has written nothing to" in line]
    assert line.startswith("shard has") and "describe pod small-shard-1" in line

    # A step that is at work is not suspected, however long it takes.
    monkeypatch.setattr(follow, "_SKEW", timedelta(hours=1))
    server.on_look = looks(*[waits] * 8, to("SUCCEEDED"))
    assert "has written nothing" not in wait().stderr


def pod(name: str, **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": status}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The API server of the cluster that Kubeflow is in, with the pods of its `answers`."""
    with serving(Server()) as server:
        kubeconfig(tmp_path, monkeypatch, f"http://127.0.0.1:{server.server_address[1]}")
        yield server


def pods(*found: dict[str, Any]) -> list[tuple[int, Any]]:
    return [(200, {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": [*found]})]


def test_what_keeps_a_pod_from_running_is_told_once(
    wait: Wait, server: KubeflowServer, cluster: Server, config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "_START_SECONDS", 0.1)
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
    cluster.answers = pods(pod("small-shard-1", containerStatuses=[{"state": {"waiting": waiting}}]))
    server.on_look = looks(*[to("RUNNING", shard="RUNNING")] * 8, succeed(config, passed=True))
    done = wait()
    assert done.returncode == 0
    assert done.stderr.count("small-shard-1: its image cannot be pulled: Back-off pulling image") == 1
    (run,) = server.all("runs")
    asked = cluster.requests[0]
    assert asked["path"] == "/api/v1/namespaces/kubeflow/pods"
    assert asked["query"]["labelSelector"] == f"pipeline/runid={run['run_id']}"


def test_a_pod_that_was_killed_has_the_last_word_of_a_step_that_left_none(
    wait: Wait, server: KubeflowServer, cluster: Server, config: RunConfig
) -> None:
    ended = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-12-03T02:30:00Z"}
    cluster.answers = pods(pod("small-train-1", containerStatuses=[{"state": {"terminated": ended}}]))
    server.on_look = to("FAILED", train="FAILED")
    done = wait()
    assert done.returncode == 3
    assert "train failed and left no word of it" in done.stderr
    assert "small-train-1 ended with exit code 137 (OOMKilled)" in done.stderr
    # Whoever may not look at pods follows all the same.
    cluster.answers = [(403, {"kind": "Status", "status": "Failure", "reason": "Forbidden", "message": "no"})]
    done = wait()
    assert done.returncode == 3 and "describe pod small-train-1" in done.stderr and "orbidden" not in done.stderr


def test_parts_of_the_sharding_that_do_not_start_or_fail(
    wait: Wait, server: KubeflowServer, config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "_START_SECONDS", 0.05)
    monkeypatch.setattr(follow, "_SLOW_START_SECONDS", 0.1)

    def waits(run: dict[str, Any]) -> None:
        to("RUNNING")(run)
        set_tasks(run, **{"shard-part": "RUNNING"})

    def fails(run: dict[str, Any]) -> None:
        if run["state"] != "FAILED":
            with pytest.raises(UserError):
                parts.run(config.model_copy(update={"corpus": nowhere}), 0, 2)
        to("FAILED", **{"shard-part": "FAILED"})(run)

    nowhere = parse(SMALL, source="", overrides=["corpus=/nowhere/at/all"]).config.corpus
    server.on_look = looks(*[waits] * 8, fails)
    done = wait()
    assert done.returncode == 2
    assert "error: shard: /nowhere/at/all" in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "has written nothing to" in line]
    assert line.startswith("shard-part has")


def test_a_cancelled_run(wait: Wait, server: KubeflowServer, config: RunConfig) -> None:
    server.on_look = looks(to("CANCELING"), to("FAILED"))
    done = wait()
    assert done.returncode == 130
    assert "was cancelled; submit the same config again" in done.stderr
    server.on_look = looks(to("CANCELING"), succeed(config, passed=True))
    assert wait().returncode == 0


def test_a_run_of_a_schedule_has_its_own_folder(wait: Wait, server: KubeflowServer, config: RunConfig) -> None:
    wait("submit", "config.yaml")
    (run,) = server.all("runs")
    run["runtime_config"]["parameters"]["scheduled"] = True
    run["scheduled_at"] = "2026-12-03T02:30:00Z"
    fired = firing.at(config, datetime(2026, 12, 3, 2, 30, tzinfo=UTC))
    assert fired.run == "small-20261203-0230"
    server.on_look = fail(fired, "shard", UserError("no corpus is there"))
    done = wait("submitted", run["run_id"], "--wait", "--config", "config.yaml")
    assert done.returncode == 2 and "error: shard: no corpus is there" in done.stderr
    assert "/runs/small-20261203-0230" in done.stdout


def test_ctrl_c_ends_the_waiting_alone(config: RunConfig, server: KubeflowServer, tmp_path: Path) -> None:
    server.on_look = to("RUNNING")
    waiting = subprocess.Popen(
        [*COMMAND, "submit", "config.yaml", "--wait"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    eventually(lambda: bool(server.all("runs")) and server.all("runs")[0]["state"] == "RUNNING")
    os.kill(waiting.pid, signal.SIGINT)
    stdout, stderr = waiting.communicate(timeout=60)
    assert (waiting.returncode, stdout) == (130, "")
    (run,) = server.all("runs")
    assert f"no longer waiting: run {run['run_id']} goes on in Kubeflow" in stderr
    assert f"`shardline submitted {run['run_id']} --wait --config config.yaml` waits again" in stderr
    assert run["state"] == "RUNNING"
