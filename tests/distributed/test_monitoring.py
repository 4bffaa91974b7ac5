"""A real Prometheus scrapes the agents of a run: what it then knows is what the run itself recorded."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardline.components.common import config as configs
from shardline.components.common.control import ask
from shardline.components.common.kubernetes.alerts import ALERTS, groups
from shardline.components.common.series import GENERATION, LAST_STEP, LOSS, RESTARTS, STEP, STEPS, WORLD_SIZE, Series
from shardline.components.common.streams import read_all
from shardline.components.sharding.step import run as shard
from shardline.components.training.checkpoint import catalog
from tests.commands import COMMAND, environment, eventually
from tests.contract.servers import free_port, prometheus
from tests.distributed import runs
from tests.distributed.test_group import OVERRIDES, Group

pytestmark = pytest.mark.timeout(600)

#: More than the test waits for: it ends the run itself.
MANY = 1_000_000
_TAKEN = re.compile(r"^note: metrics are served at port (\d+): (\d+) \(monitoring\.port\) is in use$", re.MULTILINE)


class Queries:
    """Prometheus' own API at `address`."""

    def __init__(self, address: str) -> None:
        self._address = address

    def get(self, path: str, **parameters: str) -> Any:
        url = f"{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=20) as answer:
            return json.load(answer)["data"]

    def now(self, series: Series | str) -> dict[str, float]:
        """The value at each instance that has one now."""
        found = self.get("query", query=f"max by (instance) ({series})")["result"]
        return {each["metric"]["instance"]: float(each["value"][1]) for each in found}

    def scraped(self, series: Series) -> dict[tuple[str, float], float]:
        """Every value, by instance and the time of the scrape."""
        found = self.get("query", query=f"{series}[10m]")["result"]
        return {
            (each["metric"]["instance"], float(time)): float(value) for each in found for time, value in each["values"]
        }


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    """Two agents of a run that does not end by itself, asked for one port: one of them has to take another."""
    runs.prepare(tmp_path)
    port = f"monitoring.port={free_port()}"
    overrides = (*OVERRIDES, "training.checkpoint.keep=2", port)
    config = runs.make_config(tmp_path, run="watched", steps=MANY, overrides=overrides)
    shard(config)
    found = Group(tmp_path, config, agents="1:2")
    yield found
    for process in found.processes:
        process.kill()
        process.wait()


def ports(group: Group) -> dict[int, int]:
    """Where each agent's metrics are, by its place among the processes."""
    other = {place: _TAKEN.search(log.read_text()) for place, log in enumerate(group._logs)}
    (taken,) = {int(found[2]) for found in other.values() if found}
    return {place: int(found[1]) if found else taken for place, found in other.items()}


def config_of(folder: Path, targets: list[str]) -> str:
    (folder / "rules.yaml").write_text(yaml.safe_dump(groups()), encoding="utf-8")
    return yaml.safe_dump(
        {
            "global": {"scrape_interval": "250ms", "scrape_timeout": "250ms", "evaluation_interval": "1s"},
            "rule_files": [str(folder / "rules.yaml")],
            "scrape_configs": [{"job_name": "shardline", "static_configs": [{"targets": targets}]}],
        }
    )


def test_what_prometheus_knows_is_what_the_run_recorded(group: Group, tmp_path: Path) -> None:
    group.start(2)
    group.wait_for(lambda: group.running(2) and group.saved(10))
    instances = {place: f"127.0.0.1:{port}" for place, port in ports(group).items()}
    both = set(instances.values())
    for instance in both:
        for path in ("healthz", "readyz"):
            with urllib.request.urlopen(f"http://{instance}/{path}", timeout=20) as answer:
                assert answer.read() == b"ok\n"
    with prometheus(tmp_path, config_of(tmp_path, sorted(both))) as address:
        queries = Queries(address)
        group.wait_for(lambda: queries.now(WORLD_SIZE) == dict.fromkeys(both, 2) and len(queries.now(STEP)) == 2)
        assert queries.now('shardline_agent_role{role="leader"} == 1').keys() == {
            instances[group.processes.index(group.leader)]
        }

        lost = group.others[0]
        left = both - {instances[group.processes.index(lost)]}
        lost.kill()
        # The series of the lost one are gone with it, and the other one goes on alone.
        group.wait_for(lambda: queries.now(WORLD_SIZE) == dict.fromkeys(left, 1) and queries.now(STEP).keys() == left)
        assert queries.now("up") == {instance: float(instance in left) for instance in both}
        assert queries.now(RESTARTS) == dict.fromkeys(left, 1)
        group.wait_for(lambda: queries.now(f"{STEP} > {max(queries.scraped(STEP).values())}").keys() == left)

        ask(group.run, "stop")
        assert group.ends() == [130], group.errors()
        check_against_records(group, queries)
        rules = queries.get("rules")["groups"][0]["rules"]
        assert [(rule["name"], rule["health"]) for rule in rules] == [(alert.name, "ok") for alert in ALERTS]
    assert lost.returncode == -signal.SIGKILL


def check_against_records(group: Group, queries: Queries) -> None:
    """Each scrape shows one step of one generation, with the loss that the run recorded for it."""
    records = {
        (record["generation"], record["data"]["step"] + 1): record["data"]["loss"]
        for record in read_all(group.run.at("metrics"))
    }
    started = {
        each["generation"]: each["data"]["world"]
        for each in read_all(group.run.at("events"))
        if each["name"] == "generation.started"
    }
    generations, worlds = queries.scraped(GENERATION), queries.scraped(WORLD_SIZE)
    seen = {(int(generations[at]), int(world)) for at, world in worlds.items() if world}
    assert seen <= set(started.items()) and {world for _, world in seen} == {1, 2}

    steps, losses = queries.scraped(STEP), queries.scraped(LOSS)
    assert len(steps) > 4 and losses.keys() == steps.keys()
    for at, step in steps.items():
        assert losses[at] == records[int(generations[at]), int(step)]
    assert all(value == MANY for value in queries.scraped(STEPS).values())
    # The scraped ones come after the step was done, by the clock of one machine.
    assert all(value <= at[1] for at, value in queries.scraped(LAST_STEP).items())
    newest = catalog.current(group.run)
    assert newest is not None and newest.step >= max(steps.values())


def test_training_on_this_machine_serves_when_it_is_asked_to(tmp_path: Path) -> None:
    runs.prepare(tmp_path)
    port = free_port()
    overrides = (*OVERRIDES, "training.checkpoint.keep=2", "resources.processes=2", f"monitoring.port={port}")
    config = runs.make_config(tmp_path, run="local", steps=MANY, overrides=overrides)
    shard(config)
    (tmp_path / "local.yaml").write_text(configs.dump(config), encoding="utf-8")
    command = [*COMMAND, "train", str(tmp_path / "local.yaml")]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        text = eventually_exposed(f"http://127.0.0.1:{port}/metrics", process)
        found = {name: float(value) for name, value in re.findall(r"^(shardline\S+) (\S+)$", text, re.MULTILINE)}
        assert found['shardline_world_size{run="local"}'] == 2
        for rank in ("0", "1"):
            assert found[f'shardline_steps{{rank="{rank}",run="local"}}'] == MANY
        assert not [name for name in found if name.startswith("shardline_agent_role")]
        process.terminate()
        assert process.wait(60) == 143
    finally:
        process.kill()
        process.wait()


def eventually_exposed(url: str, process: subprocess.Popen[bytes]) -> str:
    """What is served at `url`, once both ranks have done a step."""
    found: list[str] = []

    def shown() -> bool:
        assert process.poll() is None
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=20) as answer:
            found[:] = [answer.read().decode()]
        return bool(found) and found[0].count("shardline_step{") == 2

    eventually(shown)
    return found[0]
