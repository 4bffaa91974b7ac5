"""The light image as images/build.sh makes it, in pods that keep to the restricted Pod Security Standard.

What runs in them is the image's own, by the manifests that ship; only its name is another, and where the S3 server is.
Pods that train run this checkout, if any do: the training image holds 5 GB of CUDA libraries, which would be on this
machine once in the builder and twice on each of three nodes. tests/images builds it, on a base that brings its torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardline.components.common import config as configs
from shardline.components.common.kubernetes.client import Client
from shardline.components.common.runfolder import REPORT_FILE, STATUS_FILE, write_json
from shardline.components.common.streams import now
from shardline.components.sharding import step as sharding
from shardline.components.sharding.dataset import Dataset
from shardline.components.sharding.step import find_dataset
from tests.cluster import scripts
from tests.cluster.jobs import BUCKET, KEYS, ClusterRun, Make, cluster_run
from tests.cluster.kube import Cluster, Namespace
from tests.cluster.operating import Sleepers, slots
from tests.cluster.pods import S3, NodePython, pod
from tests.contract.servers import lacking
from tests.images import containers
from tests.kustomize import build

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(600)

#: What a pipeline's plan and train tasks run, between the artifacts that KFP hands to them and takes from them.
TASKS = """
import os, pathlib, types
from shardline.components.planning.component import plan
from shardline.components.training.component import train
config, layout, checkpoint = (
    types.SimpleNamespace(path=f"/tmp/{name}", metadata={}) for name in ("config", "layout", "checkpoint")
)
pathlib.Path(config.path).write_text(os.environ["CONFIG"])
plan.python_func(config=config, dataset=None, layout=layout)
train.python_func(config=config, layout=layout, checkpoint=checkpoint)
print(pathlib.Path(checkpoint.path).read_text())
"""


@pytest.fixture(scope="module")
def image(cluster: Cluster) -> Iterator[str]:
    """The name under which the nodes have the light image; on another cluster it is in SHARDLINE_TEST_LIGHT_IMAGE."""
    if not cluster.box:
        given = os.environ.get("SHARDLINE_TEST_LIGHT_IMAGE")
        if not given:
            lacking("SHARDLINE_TEST_LIGHT_IMAGE has to name the light image of this checkout, for the cluster's pods")
        yield str(given)
        return
    if missing := containers.lacking():
        lacking(f"the light image needs {missing} (Debian: buildah, runc, debootstrap)")
    with containers.builder() as builder:
        built = f"shardline-light:{containers.VERSION}"
        done = builder.build("light", base=builder.base())
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
        # By its content: another checkout's tests may be at work on the same nodes.
        name = f"localhost/shardline-light:{builder.identity(built)[:12]}"
        archive = builder.folder / "light.tar"
        builder.save(built, archive, called=name)
        with scripts.on_nodes(archive, name=name):
            yield name


def test_a_corpus_is_sharded_by_three_pods_and_reported(
    namespace: Namespace, image: str, corpus_in_s3: S3, tmp_path: Path
) -> None:
    run = cluster_run("parts", namespace=namespace, image=image, s3=corpus_in_s3, workers={})
    for step in ("shard", "merge", "report"):
        run.apply(step)
        run.completed(step)
    pods = namespace.pods()
    assert len(pods) == 5
    assert {each.status.container_statuses[0].image_id for each in pods} == {image_id_of(pods[0])}
    text = configs.dump(run.loaded.config)
    here = configs.parse(text, source="here", overrides=(f"storage={tmp_path / 'here'}",)).config
    sharding.run(here)
    there, expected = find_dataset(run.loaded.config), find_dataset(here)
    assert isinstance(there, Dataset) and there.manifest.fingerprint == expected.manifest.fingerprint
    assert b"<html" in run.run.read(REPORT_FILE)


def image_id_of(found: Any) -> str:
    return str(found.status.container_statuses[0].image_id)


def test_the_operator_that_ships_is_ready_and_tells_how_a_run_is(
    namespace: Namespace, image: str, corpus_in_s3: S3
) -> None:
    """By the objects of k8s/ alone, its Roles among them."""
    secret = {"metadata": {"name": "s3-credentials"}, "stringData": KEYS}
    namespace.create({"apiVersion": "v1", "kind": "Secret", **secret})
    client = Client.connect(namespace=namespace.name)
    objects = shipped_operator(namespace.name, image=image, s3=corpus_in_s3.inside)
    try:
        for each in objects:
            client.apply(each)
        job = Sleepers(
            namespace, NodePython(image, "python3"), f"s3://{BUCKET}/store", "watched", workers=1, least=1, most=1
        )
        with slots(namespace, {"n0": 1}):
            job.create()
            namespace.until(lambda: ready_operators(namespace) == 2, "both pods of the operator are ready")
            job.until_running(1)
            write_json(job.run, STATUS_FILE, {"phase": "train", "generation": 1, "heartbeat": now(), "step": 40})
            namespace.until(lambda: job.meta["labels"].get("shardline.io/phase") == "training", "it says training")
            assert job.meta["annotations"]["shardline.io/step"].startswith("40")
    finally:
        for each in objects:
            if each["kind"] == "ClusterRoleBinding":
                client.delete(each["kind"], each["metadata"]["name"])


def shipped_operator(namespace: str, *, image: str, s3: str) -> list[dict[str, Any]]:
    """What k8s/overlays/prod has of the operator, in another namespace, with another image and S3 server."""
    found = [each for each in build(ROOT / "k8s/overlays/prod") if "shardline-operator" in each["metadata"]["name"]]
    text = json.dumps(found)
    for shipped, wanted in {
        '"namespace": "shardline"': f'"namespace": "{namespace}"',
        '"--namespace", "shardline"': f'"--namespace", "{namespace}"',
        '"shardline-operator-shardline"': f'"shardline-operator-{namespace}"',
        f'"shardline-light:{containers.VERSION}"': f'"{image}"',
        '"http://s3.shardline.svc:9000"': f'"{s3}"',
    }.items():
        assert shipped in text, shipped
        text = text.replace(shipped, wanted)
    return list(json.loads(text))


def ready_operators(namespace: Namespace) -> int:
    found = namespace.get("apps/v1", "Deployment", "shardline-operator")
    return 0 if found is None else int(found["status"].get("readyReplicas") or 0)


def launch(run: ClusterRun, image: str, s3: S3) -> None:
    """Start a pipeline's plan and train tasks as one pod, with the launcher's ServiceAccount and its Role."""
    env = {**KEYS, "AWS_ENDPOINT_URL": s3.inside, "CONFIG": configs.dump(run.loaded.config)}
    rights = {"serviceAccountName": "shardline-launcher", "automountServiceAccountToken": True}
    run.namespace.create(pod("launcher", NodePython(image, "python3").spec("-c", TASKS, env=env, **rights)))


def test_the_launcher_makes_a_job_and_follows_it_to_its_end(make: Make, image: str, corpus_in_s3: S3) -> None:
    run = make("launched", workers={"replicas": 1}, overrides=("training.steps=20",))
    run.shard()
    launch(run, image, corpus_in_s3)
    log = run.namespace.succeeded("launcher", seconds=300)
    assert f"created PyTorchJob {run.name}" in log
    assert run.phase() == "succeeded" and run.run.exists("plan.json")
    assert json.loads(log[log.index("{\n") :])["step"] == 20


def test_the_launcher_tells_what_ended_the_workers(namespace: Namespace, image: str, corpus_in_s3: S3) -> None:
    """They have the light image here, too, and so no torch."""
    run = cluster_run("lacking", namespace=namespace, image=image, s3=corpus_in_s3, workers={"replicas": 1})
    run.shard()
    launch(run, image, corpus_in_s3)
    namespace.until(lambda: namespace.phase("launcher") == "Failed", "the launcher has failed")
    found = namespace.pod("launcher")
    assert found is not None and found.status.container_statuses[0].state.terminated.exit_code == 3
    assert "this needs torch, which is not installed" in namespace.logs("launcher")
