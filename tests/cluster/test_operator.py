"""The operator on a real cluster, with the rights of its Roles alone, beside the real training operator.

Most jobs here sleep: of a run the operator sees a folder and a job, and the tests write into the folder what training
would. The last one trains.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shardline.components.common.events import EventLog
from shardline.components.common.runfolder import DONE_FILE, STATUS_FILE, write_json
from shardline.components.common.streams import StreamWriter, now
from tests.cluster import scripts
from tests.cluster.jobs import Make
from tests.cluster.kube import Cluster, Namespace
from tests.cluster.operating import Operators, Sleepers, kubectl, slots
from tests.cluster.pods import NodePython
from tests.distributed import runs
from tests.kustomize import build

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def _login(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    if cluster.box:
        monkeypatch.setenv("KUBECONFIG", str(scripts.kubeconfig()))


@pytest.fixture
def operators(_login: None, privileged_namespace: Namespace, tmp_path: Path) -> Iterator[Operators]:
    started = Operators(privileged_namespace, tmp_path)
    try:
        yield started
    finally:
        started.end()


@pytest.fixture
def sleepers(
    _login: None, privileged_namespace: Namespace, node_python: NodePython, tmp_path: Path
) -> Callable[..., Sleepers]:
    """Makes a job whose workers sleep."""

    def make(name: str = "sleepers", *, workers: int, least: int = 1, most: int = 4) -> Sleepers:
        root = tmp_path / "storage"
        return Sleepers(privileged_namespace, node_python, root, name, workers=workers, least=least, most=most)

    return make


MakeSleepers = Callable[..., Sleepers]


def test_it_grows_into_room_and_shrinks_to_what_runs(operators: Operators, sleepers: MakeSleepers) -> None:
    """Up to the room there is, not to the most; down again when pods find none; and what it tells of it."""
    with slots(operators.namespace, {"n0": 1, "n1": 2}):
        job = sleepers(workers=1).create()
        operators.leading()
        job.until_running(3)
        assert job.resized()["from"] == 1 and job.resized()["to"] == 3
        (event,) = job.events("Resized")
        assert event["message"] == "from 1 to 3 workers: the nodes have room for 2 more workers"
        with slots(operators.namespace, {"n1": 1}):
            pod = next(each for each in operators.namespace.pods() if each.spec.node_name == "n1")
            operators.namespace.cluster.core.delete_namespaced_pod(pod.metadata.name, operators.namespace.name)
            job.until_running(2)
        assert "have not got to run for 6 s" in job.resized()["reason"] and job.resized()["setbacks"] == 1


def test_a_job_keeps_to_the_size_up_to_which_workers_paid(operators: Operators, sleepers: MakeSleepers) -> None:
    with slots(operators.namespace, {"n0": 4, "n1": 4}):
        job = sleepers(workers=1, most=4)
        for generation, (world, rate) in enumerate([(1, 100.0), (2, 190.0), (4, 200.0)], start=1):
            with EventLog(job.run, generation=generation, writer="rank00000") as events:
                events.emit("generation.started", {"world": world})
            with StreamWriter(job.run.at("metrics"), generation=generation, writer="rank00000") as metrics:
                for step in range(20):
                    metrics.append("train", {"step": step, "tokens": rate, "seconds": 1.0, "save_seconds": 0.0})
        job.create()
        operators.leading()
        job.until_running(2)
        operators.client.patch(
            "PyTorchJob", job.name, {"metadata": {"annotations": {"shardline.io/autoscale": "false"}}}
        )
        assert job.replicas == 2


def test_it_refuses_to_share_a_size_with_another(operators: Operators, sleepers: MakeSleepers) -> None:
    with slots(operators.namespace, {"n0": 4}):
        scaled, queued = sleepers("scaled", workers=1), sleepers("queued", workers=1)
        target = {"type": "Utilization", "averageUtilization": 50}
        metric = {"type": "Resource", "resource": {"name": "cpu", "target": target}}
        scaled.manifest["spec"]["elasticPolicy"]["metrics"] = [metric]
        queued.manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "team"
        for each in (scaled, queued):
            each.create()
        other = sleepers("other", workers=1, most=2).create()
        operators.leading()
        other.until_running(2)  # by then the others had their turns, too
        for each, why in ((scaled, "HorizontalPodAutoscaler"), (queued, "Kueue has admitted it to the queue team")):
            assert each.replicas == 1
            (event,) = each.events("AutoscalingRefused")
            assert why in event["message"] and event["count"] == 1


def test_a_job_tells_how_its_run_is(operators: Operators, sleepers: MakeSleepers) -> None:
    with slots(operators.namespace, {"n0": 1}):
        job = sleepers(workers=1).create()
        operators.leading()
        job.until_running(1)
        numbers = {"step": 40, "steps": 1000, "loss": 2.34567, "tokens_per_second": 1234.5, "eta_seconds": 60.0}
        write_json(job.run, STATUS_FILE, {"phase": "train", "generation": 3, "heartbeat": now(), **numbers})
        job.namespace.until(lambda: job.meta["labels"].get("shardline.io/phase") == "training", "it trains")
        told = job.meta["annotations"]
        assert told["shardline.io/step"] == "40/1000" and told["shardline.io/loss"] == "2.346"
        assert told["shardline.io/generation"] == "3" and told["shardline.io/eta"].endswith("Z")
        phases = [each["message"] for each in job.events("Phase")]
        assert "training (generation 3), 1 of 1 workers run" in phases
        if job.namespace.cluster.box:
            where = ("--kubeconfig", str(scripts.kubeconfig()), "-n", job.namespace.name)
            table = kubectl(*where, "get", "pytorchjob", job.name, "-L", "shardline.io/phase")
            assert table.splitlines()[1].split()[-1] == "training"
            described = kubectl(*where, "describe", "pytorchjob", job.name)
            assert "shardline.io/step: 40/1000" in described and "shardline-operator" in described


def test_no_finalizer_holds_up_a_deletion(operators: Operators, sleepers: MakeSleepers) -> None:
    """It was at work on the job, is dead, and nothing of it is on the job but labels and annotations of ours."""
    with slots(operators.namespace, {"n0": 1}):
        job = sleepers(workers=1).create()
        operator = operators.leading()
        job.namespace.until(lambda: job.meta["labels"].get("shardline.io/phase") == "starting", "it was seen")
        assert operator.kill() == -signal.SIGKILL
        meta = job.meta
        assert not meta.get("finalizers")
        assert not [name for name in {**meta["labels"], **meta["annotations"]} if "kopf" in name]
        found = job.get()
        assert found is not None and not [name for name in found.get("status", {}) if "kopf" in name]
        for pod in job.namespace.pods():
            assert not pod.metadata.finalizers
        assert job.client.delete("PyTorchJob", job.name)
        job.namespace.until(lambda: job.get() is None, "the job is gone", seconds=10)


def test_one_of_two_acts_and_the_other_takes_over(operators: Operators, sleepers: MakeSleepers) -> None:
    first, second = operators.leading(), operators.start()
    job = sleepers(workers=1, most=2)
    with slots(operators.namespace, {"n0": 2}):
        operators.namespace.until(lambda: "waiting for Lease" in second.told, "the second waits")
        assert not second.acts()
        first.kill()
        job.create()
        job.until_running(2)
        assert second.acts() and len(job.events("Resized")) == 1
    # What has lost its Lease ends, and not well: its pod is started again, and waits.
    operators.client.patch("Lease", "shardline-operator", {"spec": {"holderIdentity": "another"}})
    assert second.process.wait(30) == 175, second.told
    assert "another process has it now" in second.told


def test_a_signal_ends_it_and_frees_its_lease(operators: Operators) -> None:
    operator = operators.leading()
    assert operator.kill(signal.SIGTERM) == 143, operator.told
    assert operators.holder() is None


@pytest.mark.parametrize("clean", ["Running", "None"])
def test_a_job_whose_run_is_done_ends_as_its_policy_says(
    operators: Operators, sleepers: MakeSleepers, clean: str
) -> None:
    job = sleepers(workers=1)
    job.manifest["spec"]["runPolicy"]["cleanPodPolicy"] = clean
    with slots(operators.namespace, {"n0": 1}):
        write_json(job.run, DONE_FILE, {"finished": "2020-01-01T00:00:00Z"})  # of a run before: it does not count
        job.create()
        operators.leading()
        job.until_running(1)
        write_json(job.run, DONE_FILE, {"finished": "2100-01-01T00:00:00Z"})
        job.namespace.until(lambda: bool(job.events("RunDone")), "its end is told")
        if clean == "Running":
            job.namespace.until(lambda: job.get() is None, "the job is gone")
        else:
            assert job.meta["labels"]["shardline.io/phase"] == "done" and job.running()


def test_a_pod_that_a_dead_node_holds(operators: Operators, sleepers: MakeSleepers, spare_node: str) -> None:
    """It is told of; only when a person asks for it, it is taken out, and the training operator makes another."""
    name = "sleepers-worker-1"
    with slots(operators.namespace, {spare_node: 2}):
        job = sleepers(workers=2, least=2, most=2)
        template = job.manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
        template["spec"]["nodeSelector"] = {"box/node": spare_node}
        job.create()
        operators.leading(**{"dead-node-after": 3})
        job.until_running(2)
        scripts.node("kill", spare_node)
        job.namespace.until(lambda: len(job.events("PodHeld")) == 2, "held pods are told of", seconds=90)
        held = job.namespace.pod(name)
        assert held is not None and held.metadata.deletion_timestamp
        asked = {"annotations": {"shardline.io/force-delete": "true"}}
        job.client.patch("PyTorchJob", job.name, {"metadata": asked})

        def replaced() -> bool:
            now = job.namespace.pod(name)
            return now is not None and now.metadata.uid != held.metadata.uid

        job.namespace.until(replaced, f"another {name} is there")
        assert job.events("PodForceDeleted")


def test_without_its_rights_it_names_them(operators: Operators) -> None:
    operators.client.delete("RoleBinding", "shardline-operator")
    operator = operators.start()
    assert operator.process.wait(60) == 3, operator.told
    assert "may not get, patch, delete pytorchjobs (kubeflow.org), in namespace" in operator.told
    assert "Traceback" not in operator.told


def test_its_manifests_are_accepted(operators: Operators) -> None:
    """By a dry run of the API server, with all of its admission."""
    objects = build(ROOT / "k8s" / "overlays" / "prod")
    ours = [each for each in objects if each["metadata"]["name"].startswith("shardline-operator")]
    assert {each["kind"] for each in ours} >= {"Deployment", "PodDisruptionBudget", "ClusterRole", "ClusterRoleBinding"}
    for each in ours:
        operators.client.apply(moved(each, operators.namespace), dry_run=True)


def test_deployed_it_is_ready_and_one_of_its_pods_acts(
    operators: Operators, sleepers: MakeSleepers, node_python: NodePython
) -> None:
    """As a pod it logs in with its own token, under its own probes, with nothing to write to but /tmp."""
    namespace = operators.namespace
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    namespace.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3-credentials"}, "stringData": keys})
    objects = build(ROOT / "k8s" / "overlays" / "prod")
    (deployment,) = [moved(each, namespace) for each in objects if each["kind"] == "Deployment"]
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["command"][:4] == ["shardline", "operator", "--namespace", "shardline"]
    program = [node_python.python, "-m", "shardline.pipelines.cli.main", "operator", "--namespace", namespace.name]
    container |= {"image": node_python.image, "command": [*program, *container["command"][4:]]}
    for number, folder in enumerate(node_python.folders):
        spec["volumes"].append({"name": f"node-{number}", "hostPath": {"path": str(folder)}})
        container["volumeMounts"].append({"name": f"node-{number}", "mountPath": str(folder), "readOnly": True})
    job = sleepers(workers=1, most=1)
    with slots(namespace, {"n0": 1}):
        job.create()
        namespace.create(deployment)

        def ready() -> bool:
            found = namespace.get("apps/v1", "Deployment", deployment["metadata"]["name"])
            return found is not None and found["status"].get("readyReplicas") == 2

        namespace.until(ready, "both pods are ready")
        namespace.until(lambda: job.meta["labels"].get("shardline.io/phase") == "starting", "one of them acts")
        logs = [namespace.logs(each.metadata.name) for each in namespace.pods("app.kubernetes.io/component=operator")]
        assert ["looking after the jobs" in log for log in logs].count(True) == 1, logs


def moved(manifest: dict[str, Any], namespace: Namespace) -> dict[str, Any]:
    """`manifest` in `namespace`, where it is of one."""
    meta = dict(manifest["metadata"])
    if "namespace" in meta:
        meta["namespace"] = namespace.name
    return {**manifest, "metadata": meta}


def test_a_run_that_it_scales_from_two_to_four_trains_to_its_end(
    make: Make, privileged_namespace: Namespace, tmp_path: Path
) -> None:
    run = make("scaled", workers={"replicas": 2, "min": 2, "max": 4, "cpu": "500m"}, slow_below=4)
    run.shard()
    run.apply("train")
    operators = Operators(privileged_namespace, tmp_path)
    try:
        operators.leading(**{"pending-after": 60, "gain": 0})
        run.until(lambda: runs.worlds(run.run)[-1:] == [4], "four workers train")
        run.trained()
    finally:
        operators.end()
    job = run.client.get("PyTorchJob", run.name)
    assert job is not None and job["metadata"]["labels"]["shardline.io/phase"] in ("training", "succeeded")
    assert len(runs.losses(run.run)) == run.loaded.config.training.steps
