"""The commands for Kubeflow, against an API server that checks every request."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardline.components.common import firing
from shardline.components.common.config import parse
from shardline.pipelines.kubeflow.cron import parse as parse_cron
from tests.commands import SMALL, write
from tests.kubeflow import Done, KubeflowServer, command, set_state, set_tasks

CONFIG = f"{SMALL}kubernetes: {{image: 'registry.example/shardline:1'}}\n"


@pytest.fixture
def server() -> Iterator[KubeflowServer]:
    with KubeflowServer() as started:
        yield started


@pytest.fixture
def folder(tmp_path: Path, server: KubeflowServer) -> Path:
    write(tmp_path, f"{CONFIG}kubeflow: {{host: '{server.url}/'}}\n".replace("./data", f"{tmp_path}/data"))
    return tmp_path


Shardline = Callable[..., Done]


@pytest.fixture
def shardline(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shardline:
    """A command, called in the folder of config.yaml."""
    monkeypatch.chdir(folder)
    return lambda *arguments: command(*arguments, patch=monkeypatch, capture=capsys)


def ok(done: Done) -> Any:
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout) if done.stdout.startswith(("{", "[")) else done.stdout


def refused(done: Done, code: int) -> str:
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr and "Warning" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_a_run_is_submitted_and_the_same_pipeline_uploaded_once(shardline: Shardline, server: KubeflowServer) -> None:
    shown = ok(shardline("submit", "config.yaml", "--json"))
    (run,) = server.all("runs")
    assert shown["run_id"] == run["run_id"] and shown["state"] == "PENDING"
    assert shown["link"] == f"{server.url}/#/runs/details/{run['run_id']}"
    assert shown["folder"].endswith("/data/runs/small")
    config = parse(run["runtime_config"]["parameters"]["config"], source="").config
    assert config.run == "small" and config.training.steps == 4
    (experiment,), (pipeline,) = server.all("experiments"), server.all("pipelines")
    assert experiment["display_name"] == pipeline["display_name"] == "shardline"
    assert run["experiment_id"] == experiment["experiment_id"]

    ok(shardline("submit", "config.yaml"))
    ok(shardline("submit", "config.yaml", "--set", "training.steps=6"))
    assert len(server.all("runs")) == 3 and len(server.all("experiments")) == len(server.all("pipelines")) == 1
    versions = [version["name"] for version in server.versions[pipeline["pipeline_id"]].values()]
    assert len(versions) == len(set(versions)) == 2
    assert all(name.startswith("sha256-") for name in versions)


def test_what_others_make_meanwhile_is_taken_as_it_is(shardline: Shardline, server: KubeflowServer) -> None:
    ok(shardline("submit", "config.yaml"))
    listing = server._page
    hidden = {"experiments": 1, "pipelines": 1, "pipeline_versions": 1}

    def page(found: list[dict[str, Any]], name: str, query: dict[str, str]) -> Any:
        if hidden.get(name, 0):  # as if it had been made after this look
            hidden[name] -= 1
            found = []
        return listing(found, name, query)

    server._page = page  # type: ignore[method-assign]
    ok(shardline("submit", "config.yaml"))
    assert hidden == {"experiments": 0, "pipelines": 0, "pipeline_versions": 0}
    assert len(server.all("pipelines")) == 1 and len(server.all("runs")) == 2


def test_lists_are_read_to_their_last_page(shardline: Shardline, server: KubeflowServer) -> None:
    for number in range(5):
        ok(shardline("schedule", "create", "config.yaml", "--cron", "0 2 * * *", "--name", f"s{number}"))
    listed = ok(shardline("schedule", "list", "--config", "config.yaml", "--json"))
    assert [each["name"] for each in listed] == [f"s{number}" for number in range(5)]


def test_a_schedule_lives_from_creation_to_deletion(shardline: Shardline, server: KubeflowServer) -> None:
    made = ok(shardline("schedule", "create", "config.yaml", "--cron", "30 2 * * 1-5", "--json"))
    assert made["cron"] == "0 30 2 * * 1,2,3,4,5" and len(made["next"]) == 3
    (schedule,) = server.all("recurringruns")
    assert schedule["max_concurrency"] == "1" and schedule["no_catchup"] is True and schedule["mode"] == "ENABLE"
    assert schedule["runtime_config"]["parameters"]["scheduled"] is True
    assert all(text.endswith("02:30 UTC") for text in made["next"])

    again = shardline("schedule", "create", "config.yaml", "--cron", "0 3 * * *")
    assert "there is a schedule 'small' already" in refused(again, 2)
    where = ("--config", "config.yaml")
    ok(shardline("schedule", "pause", "small", *where))
    assert schedule["mode"] == "DISABLE"
    assert "paused" in ok(shardline("schedule", "list", *where))
    ok(shardline("schedule", "resume", schedule["recurring_run_id"], *where))
    assert schedule["mode"] == "ENABLE"

    shown = ok(shardline("schedule", "trigger", "small", "--json", *where))
    (run,) = server.all("runs")
    parameters = run["runtime_config"]["parameters"]
    name = parse(parameters["config"], source="").config.run
    assert name.startswith("small-20") and parameters["scheduled"] is False
    assert shown["folder"].endswith(f"/runs/{name}")

    ok(shardline("schedule", "delete", "small", *where))
    assert server.all("recurringruns") == [] and server.all("runs") == [run]
    assert "no schedule 'small'" in refused(shardline("schedule", "pause", "small", *where), 2)


@pytest.mark.parametrize("name", ["Nächtlich", "夜", "Nightly", "a_b", "100%", "n" * 64, "", "-n"])
def test_a_schedule_whose_name_no_object_can_have(name: str, shardline: Shardline, server: KubeflowServer) -> None:
    done = shardline("schedule", "create", "config.yaml", "--cron", "0 2 * * *", "--name", name)
    assert "at most 63 lower-case letters" in refused(done, 2)
    assert server.all("experiments") == []


def test_two_schedules_of_one_name_are_told_apart_by_id(shardline: Shardline, server: KubeflowServer) -> None:
    ok(shardline("schedule", "create", "config.yaml", "--cron", "0 2 * * *"))
    (first,) = server.all("recurringruns")
    server.items["recurringruns"]["other"] = {**first, "recurring_run_id": "other"}
    where = ("--config", "config.yaml")
    assert "give the id of one" in refused(shardline("schedule", "pause", "small", *where), 2)
    ok(shardline("schedule", "pause", "other", *where))
    assert first["mode"] == "ENABLE"


def test_a_schedule_whose_runs_would_have_no_name_is_refused_before_anything_is_made(
    shardline: Shardline, server: KubeflowServer
) -> None:
    longest = "r" * firing.LONGEST_BASE
    options = ("schedule", "create", "config.yaml", "--cron", "0 2 * * *", "--set")
    assert "leaves 36" in refused(shardline(*options, f"run={longest}r"), 2)
    assert server.all("experiments") == []
    ok(shardline(*options, f"run={longest}"))


def test_a_run_is_shown_listed_and_cancelled(
    shardline: Shardline, server: KubeflowServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = ok(shardline("submit", "config.yaml", "--json"))["run_id"]
    run = server.items["runs"][identity]
    set_state(run, "RUNNING")
    set_tasks(run, shard="SUCCEEDED", plan="RUNNING")
    shown = ok(shardline("submitted", identity, "--json", "-c", "config.yaml"))
    assert shown["state"] == "RUNNING" and shown["tasks"] == {"shard": "SUCCEEDED", "plan": "RUNNING"}
    ok(shardline("submit", "config.yaml"))
    assert len(ok(shardline("submitted", "--json", "-c", "config.yaml"))) == 2
    # Without a config, the host of the environment.
    monkeypatch.setenv("KF_PIPELINES_ENDPOINT", server.url)
    ok(shardline("cancel", identity))
    assert run["state"] == "CANCELING"
    set_state(run, "FAILED")
    assert "it has ended already" in shardline("cancel", identity, "-c", "config.yaml").stderr
    waited = shardline("submitted", identity, "--wait", "-c", "config.yaml")
    assert waited.returncode == 130 and "was cancelled; submit the same config again" in waited.stderr
    assert "no run nobody" in refused(shardline("submitted", "nobody", "-c", "config.yaml"), 2)


def test_in_a_kubeflow_of_several_users_the_namespace_is_sent(shardline: Shardline, server: KubeflowServer) -> None:
    server.multi_user = True
    assert "kubeflow.namespace: is needed" in refused(shardline("submit", "config.yaml"), 2)
    ok(
        shardline(
            "submit", "config.yaml", "--set", "kubeflow.namespace=team", "--set", "kubeflow.service_account=trainer"
        )
    )
    assert server.all("experiments")[0]["namespace"] == server.all("pipelines")[0]["namespace"] == "team"
    assert server.all("runs")[0]["service_account"] == "trainer"


def test_a_missing_experiment_is_named(shardline: Shardline, server: KubeflowServer) -> None:
    message = refused(shardline("schedule", "list", "-c", "config.yaml"), 2)
    assert "there is no experiment 'shardline'" in message


def test_the_compiled_pipeline_that_is_uploaded_is_that_of_compile(
    shardline: Shardline, server: KubeflowServer
) -> None:
    ok(shardline("submit", "config.yaml"))
    ok(shardline("compile", "config.yaml"))
    ((version,),) = [list(each.values()) for each in server.versions.values()]
    compiled = list(yaml.safe_load_all(Path("pipeline.yaml").read_text()))
    assert [version["pipeline_spec"]["pipeline_spec"], version["pipeline_spec"]["platform_spec"]] == compiled


def test_crons_of_six_fields_are_refused_before_kubeflow_is_asked(shardline: Shardline, server: KubeflowServer) -> None:
    done = shardline("schedule", "create", "config.yaml", "--cron", "0 0 2 * * *")
    assert "6 fields" in refused(done, 2)
    assert server.requests == []
    assert parse_cron("0 2 * * *").for_kubeflow() == "0 0 2 * * *"
