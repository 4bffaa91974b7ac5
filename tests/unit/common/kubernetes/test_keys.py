"""The keys of `kubernetes`: what a cluster would let through, or refuse late, is refused at once with its key."""

from __future__ import annotations

import pytest

from shardline.components.common.config.kubernetes_schema import Workers
from shardline.components.common.errors import ConfigError
from shardline.components.common.kubernetes.quantities import amount
from tests.manifests import BASE, FULL, loaded

K = "kubernetes"


def test_everything_can_be_set() -> None:
    assert loaded(text=FULL).config.kubernetes.workers.gpu.count == 2
    assert loaded(f"{K}.workers.gpu=8").config.kubernetes.workers.processes_a_pod == 8
    assert loaded().config.kubernetes.workers.processes_a_pod == 1


@pytest.mark.parametrize(
    ("overrides", "key", "rule"),
    [
        (["workers={replicas: 3, min: 4, max: 2}"], "workers.min", "leaves no number: min is 4, max is 2"),
        (["workers={replicas: 3, min: 5}"], "workers.min", "leaves no number: min is 5, max is 3"),
        (["workers={replicas: 3, max: 2}"], "workers.max", "leaves no number: min is 3, max is 2"),
        (["workers={replicas: 9, min: 1, max: 4}"], "workers.replicas", "workers.min (1) to max (4)"),
        (["workers.replicas=0"], "workers.replicas", "greater than or equal to 1"),
        (["workers.cpu=4cores"], "workers.cpu", "should be a quantity as Kubernetes writes it, such as 500m"),
        (["workers.cpu=0"], "workers.cpu", "should be above zero"),
        (["workers.memory=16GiB"], "workers.memory", "such as 500m, 4, 16Gi"),
        (["workers.memory=[1]"], "workers.memory", "should be a valid string"),
        (["workers.shm=16Gi"], "workers.shm", "must be below kubernetes.workers.memory (16Gi)"),
        (["workers.gpu={count: 1, resource: 'nvidia.com/'}"], "workers.gpu.resource", "a key such as nvidia.com/gpu"),
        (["workers={gpu: 2, processes: 1}"], "workers.processes", "number of devices of a pod"),
        (["workers.processes=0"], "workers.processes", "at least 1, or auto"),
        (["queue=team", "workers={replicas: 2, min: 1}"], "workers.min", "Kueue admits a fixed number"),
        (["queue=team", "workers={replicas: 2, max: 3}"], "workers.max", "Kueue admits a fixed number"),
        (["queue=Team"], "queue", "lower-case letters, digits and hyphens"),
        (["namespace=" + "n" * 64], "namespace", "at most 63"),
        (["namespace=team_a"], "namespace", "lower-case letters"),
        (["priority_class=High"], "priority_class", "the name of an object"),
        (["node_selector={pool: a b}"], "node_selector", "a label's value"),
        (["image_pull_secrets=registry"], "image_pull_secrets", "should be a valid list"),
        (["secrets={s3: [2KEY]}"], "secrets", "the name of an environment variable"),
        (["secrets={S3: all}"], "secrets", "the name of an object"),
        (["secrets={a: [KEY], b: [KEY]}"], "secrets", "b sets KEY a second time (first by the secret a)"),
        (["secrets={a: [KEY]}", "env={KEY: x}"], "env", "KEY is set by the secret a already"),
        (["env={POD_NAME: x}"], "env", "POD_NAME is set by shardline"),
        (["env={A-B: x}"], "env", "the name of an environment variable"),
        (["tolerations=[{key: a, operator: Exists, value: b}]"], "tolerations.0.value", "operator: Exists"),
        (["tolerations=[{value: b}]"], "tolerations.0.key", "is needed with operator: Equal"),
        (["tolerations=[{key: a, value: b, seconds: 3}]"], "tolerations.0.seconds", "effect: NoExecute"),
        (["scheduler.min_available=3"], "scheduler.min_available", "kubernetes.workers.replicas (1)"),
        (["scheduler.min_available=1", "workers={replicas: 3, min: 2}"], "scheduler.min_available", "fewest workers"),
        (["grace=60"], "grace", "must be above elastic.grace (60)"),
        (["user=0"], "user", "greater than or equal to 1"),
        (["patch=[{kind: Job, patch: {}}]"], "patch.0.patch", "at least 1 item"),
        (["pod_monitor={release: a b}"], "pod_monitor", "a label's value"),
        (["workers.replica=1"], "workers.replica", "did you mean kubernetes.workers.replicas"),
    ],
)
def test_a_mistake_is_one_message_that_names_the_key(overrides: list[str], key: str, rule: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(*(f"{K}.{override}" for override in overrides))
    (problem,) = caught.value.problems
    assert problem.startswith(f"--set: {K}.{key}") and rule in problem


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS_SECRET_ACCESS_KEY", "hunter2"),
        ("HF_TOKEN", "hunter2"),
        ("DB_PASSWORD", "hunter2"),
        ("HTTPS_PROXY", "http://me:hunter2@proxy.example"),
    ],
)
def test_a_secret_among_the_variables_is_refused_and_not_told(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} looks like a secret") as caught:
        loaded(f"{K}.env={{{name}: '{value}'}}")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "AWS_WEB_IDENTITY_TOKEN_FILE", "NCCL_DEBUG"])
def test_what_only_sounds_like_one_is_not(name: str) -> None:
    assert loaded(f"{K}.env={{{name}: 'x'}}").config.kubernetes.env == {name: "x"}


@pytest.mark.parametrize(
    ("text", "number"), [("500m", 0.5), ("4", 4), ("1.5G", 1.5e9), ("16Gi", 16 * 2**30), ("2e3", 2000), (".5", 0.5)]
)
def test_quantities(text: str, number: float) -> None:
    assert float(amount(text)) == number


@pytest.mark.parametrize("text", ["", "4 Gi", "-1", "1GB", "Gi", "1e", "٣", "1.2.3", "0", "0Mi"])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="should be"):
        amount(text)


def test_bounds_that_are_not_set_are_the_number() -> None:
    assert (Workers(replicas=3).elastic, Workers(replicas=3).least, Workers(replicas=3).most) == (False, 3, 3)
    assert (Workers(replicas=3, max=5).elastic, Workers(replicas=3, max=5).least) == (True, 3)


def test_where_a_run_computes_is_no_part_of_what_it_is() -> None:
    from shardline.components.common.config.identity import identity_of

    assert identity_of(loaded(text=BASE).config) == identity_of(loaded(text=FULL).config)
