"""Several agents train one run together, as the pods of a job do: each is a process, and any may be lost."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shardline.components.common import config as configs
from shardline.components.common.config import RunConfig
from shardline.components.common.control import ask
from shardline.components.common.runfolder import run_storage
from shardline.components.common.storage import Storage
from shardline.components.elasticity.group.board import StorageBoard
from shardline.components.elasticity.group.state import State
from shardline.components.sharding.step import run as shard
from shardline.components.training.checkpoint import catalog
from tests.distributed import runs
from tests.distributed.test_survival import workers

pytestmark = pytest.mark.timeout(900)

STEPS = 60
OVERRIDES = (
    "training.checkpoint.every=10",
    "training.schedule.decay_steps=60",
    "monitoring.flush_seconds=0.5",
)
PATIENCE = 180.0

Agent = subprocess.Popen[bytes]


class Group:
    """The agents of one job."""

    def __init__(self, root: Path, config: RunConfig, *, agents: str) -> None:
        self.run = run_storage(config)
        self.board = StorageBoard(self.run.at("groups/test"))
        self._agents = agents
        self._path = root / f"{config.run}.yaml"
        self._path.write_text(configs.dump(config), encoding="utf-8")
        self.processes: list[Agent] = []
        self._logs: list[Path] = []

    def start(self, count: int = 1, *options: str) -> None:
        for _ in range(count):
            command = [
                "worker",
                str(self._path),
                "--group",
                "test",
                "--host",
                "127.0.0.1",
                "--agents",
                self._agents,
                "--processes",
                "1",
                *options,
            ]
            self._logs.append(self._path.with_name(f"{self._path.stem}-{len(self._logs)}.log"))
            with open(self._logs[-1], "wb") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", "shardline.pipelines.cli.main", *command],
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                )
            self.processes.append(process)

    @property
    def state(self) -> State:
        state, _ = self.board.state()
        assert state is not None
        return state

    def running(self, members: int) -> bool:
        state, _ = self.board.state()
        return state is not None and state.phase == "running" and len(state.ranks) == members

    def process_of(self, member: str) -> Agent:
        """By the process ids of its workers, whose parent it is."""
        (found,) = [each for each in self.board.members() if each.id == member]
        return next(process for process in self.processes if str(process.pid) == found.id.rsplit("-", 1)[1])

    @property
    def leader(self) -> Agent:
        return self.process_of(self.state.leader)

    @property
    def others(self) -> list[Agent]:
        leader = self.leader
        return [process for process in self.processes if process is not leader and process.poll() is None]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"it took too long: {self.board.state()}"
            assert any(process.poll() is None for process in self.processes), self.errors()
            time.sleep(0.05)

    def saved(self, step: int) -> bool:
        return runs.saved(self.run, step)

    def ends(self) -> list[int]:
        """The exit codes of all that were not killed."""
        codes = [process.wait(PATIENCE) for process in self.processes]
        return [code for code in codes if code != -signal.SIGKILL]

    def errors(self) -> str:
        return "\n".join(path.read_text() for path in self._logs)


@pytest.fixture
def group(root: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Group]]:
    made: list[Group] = []

    def make(agents: str, *, overrides: tuple[str, ...] = ()) -> Group:
        name = re.sub("[^a-z0-9]+", "-", request.node.name)[5:50].strip("-")
        config = runs.make_config(root, run=name, steps=STEPS, overrides=(*OVERRIDES, *overrides))
        shard(config)
        made.append(Group(root, config, agents=agents))
        return made[-1]

    yield make
    for each in made:
        for process in each.processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def undisturbed(root: Path) -> Storage:
    config = runs.make_config(root, run="undisturbed", steps=STEPS, overrides=OVERRIDES)
    shard(config)
    one = Group(root, config, agents="1")
    one.start()
    assert one.ends() == [0], one.errors()
    return one.run


def test_two_agents_train_together(group: Callable[..., Group], undisturbed: Storage) -> None:
    two = group("2")
    two.start(2)
    assert two.ends() == [0, 0], two.errors()
    assert runs.worlds(two.run)[-1:] == [2]
    runs.same_result(two.run, undisturbed, steps=STEPS)


def test_a_member_that_is_killed_is_done_without(group: Callable[..., Group], undisturbed: Storage) -> None:
    two = group("1:2")
    two.start(2)
    two.wait_for(lambda: two.running(2) and two.saved(10))
    two.others[0].kill()
    assert two.ends() == [0], two.errors()
    assert runs.worlds(two.run)[-2:] == [2, 1]
    runs.same_result(two.run, undisturbed, steps=STEPS)


def test_the_leader_may_be_killed_too(group: Callable[..., Group], undisturbed: Storage) -> None:
    two = group("1:2")
    two.start(2)
    two.wait_for(lambda: two.running(2) and two.saved(10))
    two.leader.kill()
    assert two.ends() == [0], two.errors()
    assert two.state.term == 2
    runs.same_result(two.run, undisturbed, steps=STEPS)


def test_one_that_comes_later_takes_part(group: Callable[..., Group], undisturbed: Storage) -> None:
    some = group("1:2")
    some.start()
    some.wait_for(lambda: some.running(1) and some.saved(10))
    # So that it is still at work when it is asked to make room for the other one.
    (worker,) = workers(some.run)
    os.kill(worker, signal.SIGSTOP)
    some.start()
    some.wait_for(lambda: "regroup.json" in some.run.names("control"))
    os.kill(worker, signal.SIGCONT)
    some.wait_for(lambda: some.running(2))
    assert some.ends() == [0, 0], some.errors()
    assert runs.worlds(some.run) == [1, 2]
    assert runs.done_anew(some.run) == []
    runs.same_result(some.run, undisturbed, steps=STEPS)


def test_a_spare_waits_for_a_place(group: Callable[..., Group], undisturbed: Storage) -> None:
    """Under two stages three agents are one too many; when one of two is lost, the third takes its place."""
    three = group("2:3", overrides=("training.layout={pp: 2, dp_shard: 1}",))
    three.start(3)
    three.wait_for(lambda: three.running(2) and three.saved(10))
    ranks = three.state.ranks
    worker = next(name for name in ranks if name != three.state.leader)
    three.process_of(worker).kill()
    assert three.ends() == [0, 0], three.errors()
    assert runs.worlds(three.run) == [2, 2]
    runs.same_result(three.run, undisturbed, steps=STEPS)


def test_a_leader_that_hung_changes_nothing_when_it_wakes(group: Callable[..., Group], undisturbed: Storage) -> None:
    two = group("1:2")
    two.start(2)
    two.wait_for(lambda: two.running(2) and two.saved(10))
    hung = two.leader
    hung.send_signal(signal.SIGSTOP)
    two.wait_for(lambda: two.state.term == 2 and two.saved(20))
    hung.send_signal(signal.SIGCONT)
    assert two.ends() == [0, 0], two.errors()
    runs.same_result(two.run, undisturbed, steps=STEPS)


@pytest.mark.parametrize("who", ["leader", "other"])
def test_a_signal_saves_and_ends_one_agent(group: Callable[..., Group], undisturbed: Storage, who: str) -> None:
    two = group("1:2")
    two.start(2)
    two.wait_for(lambda: two.running(2) and two.saved(10))
    leaving = two.leader if who == "leader" else two.others[0]
    leaving.terminate()
    assert leaving.wait(PATIENCE) == 143, two.errors()
    assert sorted(two.ends()) == [0, 143], two.errors()
    assert runs.worlds(two.run)[-2:] == [2, 1]
    assert runs.done_anew(two.run) == []
    runs.same_result(two.run, undisturbed, steps=STEPS)


def test_all_are_ended_by_a_signal_and_the_next_ones_of_the_same_group_go_on(
    group: Callable[..., Group], undisturbed: Storage
) -> None:
    two = group("1:2")
    two.start(2)
    two.wait_for(lambda: two.running(2) and two.saved(10))
    for each in two.processes:
        each.terminate()
    assert two.ends() == [143, 143], two.errors()
    two.start(2)
    assert sorted(two.ends()) == [0, 0, 143, 143], two.errors()
    assert runs.done_anew(two.run) == []
    runs.same_result(two.run, undisturbed, steps=STEPS)


def test_a_signal_ends_one_that_waits_for_others(group: Callable[..., Group], undisturbed: Storage) -> None:
    two = group("2")
    two.start()
    two.wait_for(lambda: len(two.board.members()) == 1 and two.board.state()[0] is not None)
    (waiting,) = two.processes
    waiting.terminate()
    assert waiting.wait(PATIENCE) == 143, two.errors()
    assert "checkpoint" not in two.errors() and catalog.current(two.run) is None
    two.start(2)
    assert sorted(two.ends()) == [0, 0, 143], two.errors()
    assert runs.worlds(two.run) == [2]
    runs.same_result(two.run, undisturbed, steps=STEPS)


def test_an_error_that_would_come_again_ends_all(group: Callable[..., Group]) -> None:
    two = group("2", overrides=("training.layout={pp: 3, dp_shard: 1}", "model.layers=3"))
    two.start(2)
    assert two.ends() == [2, 2], two.errors()
    assert two.errors().count("training.layout") == 2


def test_a_stop_ends_all_and_the_next_start_goes_on(group: Callable[..., Group]) -> None:
    two = group("2")
    two.start(2)
    two.wait_for(lambda: two.running(2) and two.saved(10))
    ask(two.run, "stop")
    assert two.ends() == [130, 130], two.errors()
    assert catalog.current(two.run) is not None
