"""Whole rounds: what the operator does about a world, by what it asks of a client that records it."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest

from shardline.components.common import config as configs
from shardline.components.common.kubernetes.client import Client
from shardline.components.common.kubernetes.refusals import ClusterLost, Conflict
from shardline.components.common.runfolder import CONFIG_FILE, DATASET_FILE, run_storage, write_json
from shardline.components.common.streams import StreamReader, StreamWriter
from shardline.components.elasticity.operator import deadnodes, ending, facts, notices, progress
from shardline.components.elasticity.operator.acting import Hands
from shardline.components.elasticity.operator.facts import Job, World
from shardline.components.elasticity.operator.notices import Limit, Notice
from shardline.components.elasticity.operator.pictures import Picture, Pictures
from shardline.components.elasticity.operator.settings import Settings
from shardline.components.elasticity.operator.since import Since
from shardline.components.elasticity.operator.turn import Rounds
from tests.distributed.runs import CONFIG
from tests.unit.elasticity.operating import job, manifest, node, pod

AT_ONCE = Settings(namespace="team", settle=0, cool_down=0, pending=0, done=0, dead_node=0)
STATUS = {
    "phase": "train",
    "generation": 3,
    "step": 40,
    "steps": 100,
    "loss": 2.34567,
    "tokens_per_second": 1234.5,
    "eta_seconds": 90.0,
    "heartbeat": "2026-01-01T00:00:00.000Z",
}


class Recording(Client):
    """Answers from `objects`, and keeps what is asked of it."""

    def __init__(self, *objects: dict[str, Any]) -> None:
        self.objects = {(each["kind"], each["metadata"]["name"]): each for each in objects}
        self.asked: list[tuple[str, str, Any]] = []

    def get(self, kind: str, name: str, **_: Any) -> dict[str, Any] | None:
        return self.objects.get((kind, name))

    def create(self, manifest: dict[str, Any], **_: Any) -> dict[str, Any]:
        key = manifest["kind"], manifest["metadata"]["name"]
        if key in self.objects:
            raise Conflict("is there")
        self.objects[key] = manifest
        self.asked.append(("create", key[0], manifest))
        return manifest

    def patch(self, kind: str, name: str, change: Any, **_: Any) -> dict[str, Any] | None:
        self.asked.append(("patch", kind, change))
        return self.objects.get((kind, name))

    def delete(self, kind: str, name: str, **options: Any) -> bool:
        self.asked.append(("delete", kind, {"name": name, **options}))
        return True

    def reasons(self) -> list[str]:
        return [change["reason"] for verb, kind, change in self.asked if (verb, kind) == ("create", "Event")]

    def resizes(self) -> list[int]:
        return [
            change["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"]
            for verb, kind, change in self.asked
            if verb == "patch" and "spec" in change
        ]


class Known(Pictures):
    """The same picture of each run."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture

    def of(self, job: Job) -> Picture:
        return self._picture

    def keep(self, uids: Any) -> None:
        pass


def rounds(
    *jobs: Job, picture: Picture | None = None, settings: Settings = AT_ONCE, may_act: bool = True
) -> tuple[Rounds, Recording]:
    there = []
    for each in jobs:
        made = manifest(each.name, workers=each.replicas)
        made["metadata"] |= {"resourceVersion": "7", "annotations": dict(each.annotations)}
        there.append({"kind": "PyTorchJob", **made})
    client = Recording(*there)
    lines: list[str] = []
    return Rounds(
        Hands(client, "me", lines.append, may_act=lambda: may_act), Known(picture or Picture()), settings
    ), client


def at_work(each: Job) -> tuple[Any, ...]:
    return tuple(pod(f"{each.name}-worker-{n}", on="a", job=each.name) for n in range(each.replicas))


ALLOWED = Picture(allowed=(1, 2, 3, 4))


def test_it_grows_once_there_has_been_room_for_long_enough() -> None:
    each = job()
    patient = dataclasses.replace(AT_ONCE, settle=0.05)
    operator, client = rounds(each, picture=ALLOWED, settings=patient)
    world = World(jobs=(each,), pods=at_work(each), nodes=(node("a", gpus=3),))
    operator.turn(world)
    assert client.resizes() == []
    time.sleep(0.1)
    operator.turn(World(jobs=(each,), pods=at_work(each), nodes=(node("a", gpus=2),)))  # the room is gone for a moment
    operator.turn(world)
    assert client.resizes() == []
    time.sleep(0.1)
    operator.turn(world)
    assert client.resizes() == [3] and client.reasons() == ["Phase", "Resized"]


def test_a_size_that_somebody_changed_meanwhile_is_left_alone() -> None:
    each = job()
    operator, client = rounds(each, picture=ALLOWED)
    client.objects["PyTorchJob", "run"]["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 1
    operator.turn(World(jobs=(each,), pods=at_work(each), nodes=(node("a", gpus=3),)))
    assert client.resizes() == []


def test_after_a_person_changed_it_the_cool_down_begins() -> None:
    each, resting = job(), dataclasses.replace(AT_ONCE, cool_down=1000)
    operator, client = rounds(each, picture=ALLOWED, settings=resting)
    nodes = (node("a", gpus=4),)
    fewer = dataclasses.replace(each, replicas=1)
    operator.turn(World(jobs=(fewer,), pods=(), nodes=nodes))
    operator.turn(World(jobs=(each,), pods=at_work(each), nodes=nodes))
    assert client.resizes() == []


@pytest.mark.parametrize(
    ("change", "picture"),
    [
        ({"annotations": {"shardline.io/autoscale": "false"}}, ALLOWED),
        ({"phase": "suspended"}, ALLOWED),
        ({"phase": "succeeded"}, ALLOWED),
        ({"deleted": True}, ALLOWED),
        ({"namespace": "other"}, ALLOWED),
        ({"least": 2, "most": 2}, ALLOWED),
        ({}, Picture()),
    ],
)
def test_a_size_that_is_not_its_to_change(change: dict[str, Any], picture: Picture) -> None:
    each = dataclasses.replace(job(), **change)
    operator, client = rounds(each, picture=picture)
    operator.turn(World(jobs=(each,), pods=at_work(each), nodes=(node("a", gpus=9),)))
    assert client.resizes() == []


@pytest.mark.parametrize(
    ("part", "value", "why"),
    [
        ("elasticPolicy", {"minReplicas": 1, "maxReplicas": 4, "metrics": [{}]}, "HorizontalPodAutoscaler"),
        ("runPolicy", {"managedBy": "kueue.x-k8s.io/multikueue"}, "managed by kueue.x-k8s.io/multikueue"),
        ("labels", {"shardline.io/run": "run", "kueue.x-k8s.io/queue-name": "team"}, "Kueue has admitted it"),
    ],
)
def test_it_refuses_in_one_event(part: str, value: dict[str, Any], why: str) -> None:
    made = manifest()
    (made["metadata"] if part == "labels" else made["spec"])[part] = value
    each = facts.job(made)
    assert each is not None
    operator, client = rounds(each, picture=ALLOWED)
    world = World(jobs=(each,), pods=at_work(each), nodes=(node("a", gpus=9),))
    for _ in range(3):
        operator.turn(world)
    assert client.resizes() == [] and client.reasons().count("AutoscalingRefused") == 1
    assert any(why in change["message"] for _, kind, change in client.asked if kind == "Event")


def test_a_job_that_another_operator_spoke_of_is_not_told_twice() -> None:
    """A restarted operator finds the Event of the one before, and counts it up; what is said once stays as it is."""
    each, client = job(), Recording()
    for again in (Notice("Resized", "x"), Notice("AutoscalingRefused", "y", once=True)):
        for _ in range(2):
            Hands(client, "me", lambda line: None, may_act=lambda: True).say(each, again)
    assert [(verb, kind) for verb, kind, _ in client.asked] == [
        ("create", "Event"),
        ("patch", "Event"),
        ("create", "Event"),
    ]
    assert client.asked[1][2]["count"] == 2


def test_little_is_said_in_a_short_time() -> None:
    limit = Limit()
    assert limit.allows("job", Notice("A", "x"), now=0) and not limit.allows("job", Notice("A", "x"), now=599)
    assert sum(limit.allows("job", Notice("B", str(n)), now=1) for n in range(50)) == 9
    assert limit.allows("another", Notice("B", "1"), now=1)
    assert limit.allows("job", Notice("A", "x"), now=601)
    limit.forget({"job"})
    assert limit.allows("another", Notice("B", "1"), now=602)


def test_an_event_is_of_the_job_and_no_longer_than_may_be() -> None:
    found = notices.event(job(), Notice("A", "x" * 5000), instance="me")
    assert len(found["message"]) == 1024 and found["involvedObject"]["uid"] == "uid-run"
    assert found["metadata"]["namespace"] == "team"


def test_pods_that_a_dead_node_holds_are_deleted_only_if_a_person_asks() -> None:
    each = job()
    pods = (pod("run-worker-0", on="gone", job="run", ending=True), pod("run-worker-1", on="a", job="run", ending=True))
    world = World(jobs=(each,), pods=pods, nodes=(node("gone", ready=False), node("a")))
    operator, client = rounds(each)
    operator.turn(world)
    assert "PodHeld" in client.reasons() and not [verb for verb, *_ in client.asked if verb == "delete"]
    asked = dataclasses.replace(each, annotations={"shardline.io/force-delete": "true"})
    operator, client = rounds(asked)
    operator.turn(dataclasses.replace(world, jobs=(asked,)))
    (deleted,) = [change for verb, _, change in client.asked if verb == "delete"]
    assert deleted == {"name": "run-worker-0", "namespace": "team", "uid": "run-worker-0", "grace": 0}
    everywhere, client = rounds(each, settings=dataclasses.replace(AT_ONCE, force_delete=True))
    everywhere.turn(world)
    assert "PodForceDeleted" in client.reasons()
    not_here = {"shardline.io/force-delete": "false"}
    assert not deadnodes.is_asked_for(not_here, dataclasses.replace(AT_ONCE, force_delete=True))


def test_it_waits_before_it_calls_a_node_dead() -> None:
    each = dataclasses.replace(job(), annotations={"shardline.io/force-delete": "true"})
    pods = (pod("run-worker-0", on="gone", job="run", ending=True),)
    operator, client = rounds(each, settings=dataclasses.replace(AT_ONCE, dead_node=1000))
    operator.turn(World(jobs=(each,), pods=pods, nodes=()))
    assert not [verb for verb, *_ in client.asked if verb == "delete"]


@pytest.mark.parametrize(("clean", "deleted"), [("Running", True), ("All", True), ("None", False)])
def test_a_job_whose_run_is_done(clean: str, deleted: bool) -> None:
    each = dataclasses.replace(job(), clean=clean)
    operator, client = rounds(each, picture=Picture(done={"finished": "2026-01-02T00:00:00Z"}, allowed=(1, 2, 3, 4)))
    operator.turn(World(jobs=(each,), pods=at_work(each), nodes=(node("a", gpus=9),)))
    assert [change["name"] for verb, _, change in client.asked if verb == "delete"] == ["run"] * deleted
    assert "RunDone" in client.reasons() and client.resizes() == []


@pytest.mark.parametrize("done", [None, {}, {"finished": "2025-12-31T23:59:59Z"}, {"finished": "soon"}])
def test_a_record_that_is_not_of_this_job(done: dict[str, Any] | None) -> None:
    assert not ending.done_for(job(), done)


def test_how_a_run_is() -> None:
    assert progress.told_by(STATUS) == {
        "shardline.io/generation": "3",
        "shardline.io/step": "40/100",
        "shardline.io/loss": "2.346",
        "shardline.io/tokens-per-second": "1234",
        "shardline.io/eta": "2026-01-01T00:01Z",
    }
    assert progress.told_by({**STATUS, "phase": "evaluate"}) == {} == progress.told_by(None)
    odd = progress.told_by({**STATUS, "loss": "nan", "eta_seconds": "inf", "heartbeat": "?"})
    assert "shardline.io/loss" not in odd and "shardline.io/eta" not in odd

    def phase(running: int, status: dict[str, Any] | None, done: bool = False, **changes: Any) -> str:
        return progress.phase(dataclasses.replace(job(), **changes), running=running, status=status, done=done)

    assert phase(0, STATUS) == "pending" and phase(1, None) == "starting" and phase(1, STATUS) == "training"
    assert phase(1, STATUS, phase="failed") == "failed" and phase(0, None, phase="suspended") == "suspended"
    assert phase(1, STATUS, done=True) == "done"


def test_what_is_told_already_is_not_told_again() -> None:
    each = job()
    operator, client = rounds(each, picture=Picture(status=STATUS))
    operator.turn(World(jobs=(each,), pods=at_work(each)))
    (change,) = [change for verb, kind, change in client.asked if (verb, kind) == ("patch", "PyTorchJob")]
    assert change["metadata"]["labels"] == {"shardline.io/phase": "training"}
    told = dataclasses.replace(each, labels={**each.labels, **change["metadata"]["labels"]})
    told = dataclasses.replace(told, annotations=change["metadata"]["annotations"])
    again, client = rounds(told, picture=Picture(status=STATUS))
    again.turn(World(jobs=(told,), pods=at_work(told)))
    assert client.asked == []


def test_a_restarted_operator_keeps_to_the_cool_down_of_the_one_before() -> None:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    told = f'{{"at": "{at}", "from": 1, "to": 2, "setbacks": 0}}'
    each = dataclasses.replace(job(), annotations={"shardline.io/resized": told})
    operator, client = rounds(each, picture=ALLOWED, settings=dataclasses.replace(AT_ONCE, cool_down=1000))
    operator.turn(World(jobs=(each,), pods=at_work(each), nodes=(node("a", gpus=9),)))
    assert client.resizes() == []


def test_for_how_long_something_holds() -> None:
    since = Since(longest=100)
    since.hold(["a"], now=0)
    since.hold(["a", "b"], now=5)
    assert (since.seconds("a", now=7), since.seconds("b", now=7), since.seconds("c", now=7)) == (7, 2, 0)
    since.hold(["b"], now=8)
    since.hold(["a"], now=9)
    assert since.seconds("a", now=10) == 1 and not since.holds("b")
    since.hold(["a"], now=110)  # nobody looked for long: the API server was away, or this process stood still
    assert since.seconds("a", now=111) == 1


def test_what_may_not_act_any_more_does_nothing() -> None:
    each = job()
    operator, client = rounds(each, picture=ALLOWED, may_act=False)
    with pytest.raises(ClusterLost, match="another process may act"):
        operator.turn(World(jobs=(each,), pods=at_work(each), nodes=(node("a", gpus=9),)))
    assert client.asked == []


def test_pods_that_could_not_be_made_wait_and_a_job_without_any_is_left_alone() -> None:
    """A quota stops some; none at all may mean that the training operator is away."""
    each = job(workers=3)
    operator, client = rounds(each, picture=ALLOWED)
    operator.turn(World(jobs=(each,), pods=at_work(job(workers=2)), nodes=()))
    assert client.resizes() == [2]
    operator, client = rounds(each, picture=ALLOWED)
    operator.turn(World(jobs=(each,), nodes=()))
    assert client.resizes() == []


def picture_of(tmp_path: Path, *overrides: str) -> Picture:
    text = CONFIG.format(run="run", root=tmp_path, corpus=tmp_path, steps=10)
    config = configs.parse(text, source="run", overrides=overrides, ignore_environment=True).config
    run = run_storage(config)
    run.write(CONFIG_FILE, configs.dump(config).encode())
    write_json(run, DATASET_FILE, {"key": "x", "vocab": 400})
    pictures = Pictures(Settings(progress=0))
    each = dataclasses.replace(job(most=5), storage=str(tmp_path))
    deadline = time.monotonic() + 30
    while (found := pictures.of(each)) == Picture() and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def test_the_sizes_that_have_a_layout_are_the_planner_s(tmp_path: Path) -> None:
    assert picture_of(tmp_path / "any").allowed == (1, 2, 3, 4, 5)
    assert picture_of(tmp_path / "pairs", "training.layout={pp: 2}").allowed == (2, 4)


def test_a_run_that_cannot_be_read_is_told_of(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "run"
    run.mkdir(parents=True)
    (run / "status.json").write_text("{")
    pictures = Pictures(Settings(progress=0))
    each = dataclasses.replace(job(), storage=str(tmp_path))
    deadline = time.monotonic() + 30
    while (found := pictures.of(each)) == Picture() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert found.problem is not None and "is not what was written" in found.problem and found.allowed is None
    operator, client = rounds(each, picture=found)
    operator.turn(World(jobs=(each,)))
    assert "RunUnreadable" in client.reasons()


def test_of_a_long_stream_only_the_newest_segments_are_read(tmp_path: Path) -> None:
    from shardline.components.common.storage import Storage

    storage = Storage(str(tmp_path))
    for generation in (1, 2):
        with StreamWriter(storage, generation=generation, writer="w") as writer:
            for number in range(5):
                writer.append("train", {"number": number})
                writer.flush()
    reader = StreamReader(storage, newest=2)
    assert sorted((each["generation"], each["data"]["number"]) for each in reader.new()) == [
        (1, 3),
        (1, 4),
        (2, 3),
        (2, 4),
    ]
    with StreamWriter(storage, generation=2, writer="w") as writer:
        writer.append("train", {"number": 5})
    assert [each["data"]["number"] for each in reader.new()] == [5]


@pytest.mark.parametrize(
    ("spec", "uid", "ended"),
    [({"activeDeadlineSeconds": 0}, "flow", True), ({}, "flow", False), ({"activeDeadlineSeconds": 0}, "other", False)],
)
def test_a_job_whose_workflow_was_cancelled_is_ended(spec: dict[str, Any], uid: str, ended: bool) -> None:
    """Not by the word of a later Workflow of that name."""
    each = job(owner="flow")
    operator, client = rounds(each)
    client.objects["Workflow", "flow"] = {"metadata": {"uid": uid}, "spec": spec}
    operator.turn(World(jobs=(each,), pods=at_work(each), nodes=(node("a"),)))
    deleted = [given for verb, kind, given in client.asked if (verb, kind) == ("delete", "PyTorchJob")]
    assert bool(deleted) is ended and ("RunCancelled" in client.reasons()) is ended
    assert not ended or deleted[0]["uid"] == each.uid
