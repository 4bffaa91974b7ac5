"""The objects of a run: safe pods, names that fit, and the fields that a training job's survival hangs on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardline.components.common.config import RunConfig, parse
from shardline.components.common.errors import ConfigError, UserError
from shardline.components.common.kubernetes.documents import to_yaml
from shardline.components.common.kubernetes.jobs import recurring
from shardline.components.common.kubernetes.names import longest
from shardline.components.common.kubernetes.objects import Manifest
from shardline.components.common.kubernetes.quantities import amount, is_label_value, is_subdomain
from shardline.components.common.kubernetes.render import PARTS, Kind, render
from tests.manifests import BASE, FULL, containers_of, loaded, pods_of, violations

GOLDEN = Path(__file__).parents[3] / "golden" / "kubernetes.yaml"
#: Set it to write the golden file anew, after a change that is meant.
UPDATE_VARIABLE = "SHARDLINE_UPDATE_GOLDEN"


def one(kind: str, *overrides: str, text: str = BASE, name: str | None = None) -> Manifest:
    found = [
        each
        for each in render(loaded(*overrides, text=text), kind="trainjob" if kind.startswith("Train") else "pytorchjob")
        if each["kind"] == kind and name in (None, each["metadata"]["name"])
    ]
    assert len(found) == 1
    return found[0]


def worker_of(job: Manifest) -> dict[str, Any]:
    (pod,) = pods_of(job)
    return pod


def test_the_objects_are_the_golden_ones() -> None:
    text = to_yaml(render(loaded(text=FULL)))
    if os.environ.get(UPDATE_VARIABLE):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8"), f"if the change is meant, run this test with {UPDATE_VARIABLE}=1"


@pytest.mark.parametrize("text", [BASE, FULL])
@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob"])
def test_every_pod_is_restricted_and_states_what_it_takes(text: str, kind: Kind) -> None:
    fixed = ["kubernetes.workers={replicas: 3}"] if kind == "trainjob" else []
    config = loaded(*fixed, "kubernetes.sharding.parts=3", "kubernetes.patch=[]", text=text)
    objects = [*render(config, kind=kind), recurring(config.config, schedule="0 3 * * 0")]
    pods = [*pods_of(objects)]
    assert len(pods) == 6
    assert [violation for pod in pods for violation in violations(pod)] == []
    for pod in pods:
        for container in containers_of(pod):
            assert container["resources"]["requests"] == container["resources"]["limits"]
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            assert mounted == {volume["name"] for volume in pod["volumes"]} >= {"config", "tmp"}


def test_a_pod_that_breaks_a_rule_is_seen() -> None:
    pod = worker_of(one("PyTorchJob"))
    assert violations(pod) == []
    broken = json.loads(json.dumps(pod))
    broken["initContainers"] = [{"name": "wait", "image": "x"}]
    broken["volumes"].append({"name": "node", "hostPath": {"path": "/"}})
    found = violations(broken)
    assert "volume node" in found and "wait: no limits.memory" in found and "wait: capabilities" in found


def test_labels_and_names_are_valid_and_lead_to_the_run() -> None:
    for each in render(loaded(text=FULL)):
        meta = each["metadata"]
        assert is_subdomain(meta["name"])
        assert all(is_label_value(value) for value in meta["labels"].values())
        assert meta["namespace"] == "team"
        if each["kind"] not in ("ServiceAccount", "Role", "RoleBinding"):
            assert meta["labels"]["shardline.io/run"] == "try"
            assert meta["annotations"]["shardline.io/storage"] == "s3://bucket/root"


def test_the_selectors_find_the_pods() -> None:
    labels = one("PyTorchJob")["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["metadata"]["labels"]
    pod = worker_of(one("PyTorchJob"))
    selectors = [one("PodDisruptionBudget")["spec"]["selector"], pod["topologySpreadConstraints"][0]["labelSelector"]]
    for selector in selectors:
        assert selector["matchLabels"].items() <= labels.items()


def test_a_training_job_is_worker_only_and_restarts_by_exit_code() -> None:
    job = one("PyTorchJob")
    spec, worker = job["spec"], job["spec"]["pytorchReplicaSpecs"]["Worker"]
    assert list(spec["pytorchReplicaSpecs"]) == ["Worker"]
    assert (spec["nprocPerNode"], worker["restartPolicy"]) == ("1", "ExitCode")
    assert spec["runPolicy"] == {"cleanPodPolicy": "Running", "ttlSecondsAfterFinished": 86400}
    assert "elasticPolicy" not in spec and "restartPolicy" not in worker["template"]["spec"]
    pod = worker["template"]["spec"]
    (container,) = pod["containers"]
    assert container["name"] == "pytorch"
    assert container["command"] == ["shardline", "worker", "/etc/shardline/config.yaml"]
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"
    variables = {each["name"] for each in container["env"]}
    assert variables == {
        "POD_NAME", "POD_NAMESPACE", "POD_IP", "POD_UID", "NODE_NAME", "HOME", "OMP_NUM_THREADS"
    }  # fmt: skip
    shm = next(volume for volume in pod["volumes"] if volume["name"] == "shm")
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}
    assert worker["template"]["metadata"]["annotations"] == {"sidecar.istio.io/inject": "false"}


def test_policies_stand_where_the_operator_reads_them() -> None:
    job = one("PyTorchJob", text=FULL)
    assert job["spec"]["runPolicy"] == {
        "cleanPodPolicy": "Running",
        "suspend": True,
        "ttlSecondsAfterFinished": 86400,
        "schedulingPolicy": {"minAvailable": 2, "priorityClass": "shardline-training"},
    }
    assert job["spec"]["elasticPolicy"] == {"minReplicas": 2, "maxReplicas": 4, "maxRestarts": 3}
    assert worker_of(job)["schedulerName"] == "volcano"
    assert "ttlSecondsAfterFinished" not in one("PyTorchJob", "kubernetes.ttl=null")["spec"]["runPolicy"]


def test_requests_for_devices_disk_and_the_rest() -> None:
    (container,) = worker_of(one("PyTorchJob", text=FULL))["containers"]
    assert container["resources"]["limits"] == {
        "cpu": "8",
        "memory": "64Gi",
        "ephemeral-storage": "20Gi",
        "nvidia.com/mig-1g.10gb": "2",
    }
    assert container["envFrom"] == [{"secretRef": {"name": "tracking"}}]
    env = {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}
    assert env["AWS_ACCESS_KEY_ID"] == {"secretKeyRef": {"name": "s3", "key": "AWS_ACCESS_KEY_ID"}}
    assert env["HTTPS_PROXY"] == "http://proxy.example:3128" and env["OMP_NUM_THREADS"] == "2"
    assert len(env) == len(container["env"])


@pytest.mark.parametrize("secrets", [[], ["one"], ["one", "two"]])
def test_every_pod_has_the_pull_secrets(secrets: list[str]) -> None:
    for pod in pods_of(render(loaded(f"kubernetes.image_pull_secrets={secrets}"))):
        assert [each["name"] for each in pod.get("imagePullSecrets", [])] == secrets


def test_only_workers_talk_to_the_api_server() -> None:
    for pod in pods_of(render(loaded())):
        worker = pod["serviceAccountName"] == "shardline-worker"
        assert pod["automountServiceAccountToken"] == worker
    own = render(loaded("kubernetes.service_account=storage-reader"))
    assert {pod["serviceAccountName"] for pod in pods_of(own)} == {"storage-reader"}
    names = {each["metadata"]["name"] for each in own if each["kind"] == "ServiceAccount"}
    assert names == {"shardline-launcher", "shardline-operator", "shardline-viewer"}
    bound = {each["roleRef"]["name"]: each["subjects"][0]["name"] for each in own if each["kind"] == "RoleBinding"}
    assert bound["shardline-worker"] == "storage-reader"


def test_no_role_asks_for_everything_or_for_secrets() -> None:
    roles = [each for each in render(loaded(), only=["access"]) if each["kind"] == "Role"]
    assert len(roles) == 4
    for role in roles:
        for rule in role["rules"]:
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            assert "secrets" not in rule["resources"]
    viewer = next(role for role in roles if role["metadata"]["name"] == "shardline-viewer")
    assert {verb for rule in viewer["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}


@pytest.mark.parametrize(
    ("workers", "least"),
    [("{replicas: 1}", 0), ("{replicas: 4}", 3), ("{replicas: 4, min: 2, max: 8}", 2), ("{replicas: 2, min: 2}", 1)],
)
def test_a_drain_may_always_take_one(workers: str, least: int) -> None:
    budget = one("PodDisruptionBudget", f"kubernetes.workers={workers}")
    assert budget["spec"]["minAvailable"] == least


def test_sharding_in_parts() -> None:
    job = one("Job", "kubernetes.sharding.parts=3", name="try-shard")
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 3, 3)
    (container,) = worker_of(job)["containers"]
    assert container["command"][-2:] == ["--part", "$(JOB_COMPLETION_INDEX)/3"]
    assert worker_of(one("Job", "kubernetes.sharding.parts=3", name="try-merge"))["containers"][0]["command"][-1] == (
        "--merge"
    )
    whole = render(loaded())
    assert "try-merge" not in [each["metadata"]["name"] for each in whole]
    assert "completionMode" not in one("Job", name="try-shard")["spec"]


def test_the_light_image_is_for_what_needs_no_torch() -> None:
    images = {}
    for each in render(loaded("kubernetes.light_image=light", "kubernetes.sharding.parts=2")):
        for pod in pods_of(each):
            images[each["metadata"]["name"]] = pod["containers"][0]["image"]
    full = "registry.example/shardline:1"
    assert images == {
        "try-shard": "light", "try-merge": "light", "try": full, "try-evaluate": full, "try-report": "light"
    }  # fmt: skip


def test_kueue_gets_its_label_and_a_fixed_size() -> None:
    for each in render(loaded("kubernetes.queue=team", "kubernetes.workers.replicas=4")):
        labelled = each["metadata"]["labels"].get("kueue.x-k8s.io/queue-name") == "team"
        assert labelled == (each["kind"] in ("Job", "PyTorchJob"))
    job = one("PyTorchJob", "kubernetes.queue=team")
    # Set to false it would be applied over Kueue's true.
    assert "suspend" not in job["spec"]["runPolicy"] and "elasticPolicy" not in job["spec"]


def test_a_trainjob_has_the_same_pod_and_a_fixed_size() -> None:
    runtime, job = one("TrainingRuntime"), one("TrainJob")
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    pod, other = worker_of(runtime), worker_of(one("PyTorchJob"))
    assert pod["containers"][0] == {**other["containers"][0], "name": "node"}
    assert {**pod, "containers": []} == {**other, "containers": [], "restartPolicy": "Never"}
    with pytest.raises(ConfigError, match="a TrainJob has a fixed size"):
        render(loaded("kubernetes.workers.max=2"), kind="trainjob")


def test_the_config_map_holds_the_config_and_its_name_follows_it() -> None:
    found = one("ConfigMap")
    text = found["data"]["config.yaml"]
    assert parse(text, source="x", ignore_environment=True).config == loaded().config
    assert found["immutable"] is True
    assert worker_of(one("PyTorchJob"))["volumes"][0]["configMap"]["name"] == found["metadata"]["name"]
    assert one("ConfigMap", "training.steps=30")["metadata"]["name"] != found["metadata"]["name"]


def test_a_config_larger_than_an_object_is_refused() -> None:
    urls = ", ".join(f"s3://bucket/{number:0200d}" for number in range(5500))
    with pytest.raises(UserError, match=r"a ConfigMap holds 1,044,480; name many corpus files"):
        render(loaded(f"corpus=[{urls}]"))


def config_named(length: int, workers: int) -> RunConfig:
    return loaded(f"run={'r' * length}", f"kubernetes.workers.replicas={workers}").config


@pytest.mark.parametrize("length", [40, 50])
def test_a_name_that_fits_is_taken(length: int) -> None:
    config = loaded(f"run={'r' * length}", "kubernetes.workers.replicas=12", "kubernetes.sharding.parts=100")
    objects = render(config)
    assert longest(config.config, kind="pytorchjob") == "r" * length + "-worker-11"
    assert max(len(each["metadata"]["name"]) for each in objects if each["kind"] != "ConfigMap") <= 63


@pytest.mark.parametrize("length", [55, 63, 64])
def test_a_name_that_does_not_is_refused(length: int) -> None:
    with pytest.raises(ConfigError, match="has a form that is not allowed"):
        loaded(f"run={'r' * length}")


def test_the_limit_follows_from_the_longest_name_that_is_made() -> None:
    fits = "r" * 47
    render(loaded(f"run={fits}", "kubernetes.workers.replicas=12"), kind="trainjob")
    with pytest.raises(ConfigError, match=r"may have 47 characters and has 48, .* r{48}-node-0-11-xxxxx"):
        render(loaded(f"run={fits}r", "kubernetes.workers.replicas=12"), kind="trainjob")
    with pytest.raises(ConfigError, match="may have 46 characters and has 47"):
        render(loaded(f"run={fits}", "kubernetes.workers.replicas=120"), kind="trainjob")


def test_a_name_that_begins_with_a_digit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r'^--set: run = "7b": must begin with a letter'):
        render(loaded("run=7b"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("kubernetes.image=null", "kubernetes.image = null: is needed to render"),
        ("storage=./data", 'storage = "./data": is relative to a folder of this machine'),
        ("corpus=texts", "corpus.urls.0"),
        ("kubernetes.patch=[{kind: Deployment, patch: {a: b}}]", 'patch.0.kind = "Deployment": is of no object'),
        ("kubernetes.patch=[{kind: Job, name: other, patch: {a: b}}]", "is of no Job of the run, which has try-shard"),
        ("kubernetes.patch=[{kind: Job, patch: {metadata: {name: x}}}]", "must not change kind or name"),
        ("kubernetes.patch=[{kind: Job, patch: {spec: {$patch: keep}}}]", "$patch should be delete or replace"),
    ],
)
def test_what_a_cluster_cannot_use_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        render(loaded(override))
    assert message in str(caught.value)


def test_the_parts_come_in_order_and_the_config_before_them() -> None:
    whole = render(loaded("kubernetes.sharding.parts=2"))
    kinds = list(dict.fromkeys(each["kind"] for each in whole))
    assert kinds == [
        "ServiceAccount", "Role", "RoleBinding", "ConfigMap", "Job", "PodDisruptionBudget", "PyTorchJob"
    ]  # fmt: skip
    assert [each["metadata"]["name"] for each in whole if each["kind"] in ("Job", "PyTorchJob")] == [
        "try-shard", "try-merge", "try", "try-evaluate", "try-report"
    ]  # fmt: skip
    parts = [each for part in PARTS for each in render(loaded("kubernetes.sharding.parts=2"), only=[part])]
    assert [each for each in parts if each["kind"] != "ConfigMap"] == [
        each for each in whole if each["kind"] != "ConfigMap"
    ]
    assert [each["kind"] for each in render(loaded(), only=["train"])] == [
        "ConfigMap", "PodDisruptionBudget", "PyTorchJob"
    ]  # fmt: skip


def test_the_yaml_reads_back_and_shows_the_config_as_it_is() -> None:
    objects = render(loaded(text=FULL))
    text = to_yaml(objects)
    assert list(yaml.safe_load_all(text)) == objects
    assert "&id" not in text and "\n    version: 1\n    run: try\n" in text


def test_patches_come_last() -> None:
    assert one("PyTorchJob", text=FULL)["metadata"]["annotations"]["team"] == "research"
    assert "ttlSecondsAfterFinished" not in one("Job", text=FULL, name="try-report")["spec"]
    assert "ttlSecondsAfterFinished" in one("Job", text=FULL, name="try-shard")["spec"]


def test_a_run_that_comes_again_is_named_after_its_job() -> None:
    job = recurring(loaded().config, schedule="0 3 * * 0")
    assert job["spec"]["concurrencyPolicy"] == "Forbid"
    (container,) = worker_of(job)["containers"]
    assert container["command"] == ["shardline", "run", "/etc/shardline/config.yaml", "--set", "run=$(JOB_NAME)"]
    assert "JOB_NAME" in [each["name"] for each in container["env"]]


def test_shared_memory_is_part_of_memory() -> None:
    (container,) = worker_of(one("PyTorchJob"))["containers"]
    assert amount("1Gi") < amount(container["resources"]["limits"]["memory"])
