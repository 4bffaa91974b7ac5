"""k8s/: what is generated is what the builders make now, and what is written by hand fits it."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardline.components.common.config import Loaded, parse
from shardline.components.common.kubernetes import generate
from shardline.components.common.kubernetes.kinds import KINDS
from shardline.components.common.kubernetes.render import render
from tests.kustomize import build
from tests.manifests import pods_of, violations

ROOT = Path(__file__).parents[2]
K8S = ROOT / "k8s"
KUSTOMIZATIONS = sorted(
    path.parent
    for path in K8S.rglob("kustomization.yaml")
    if yaml.safe_load(path.read_text())["kind"] == "Kustomization"
)
COMPONENTS = sorted(path.name for path in (K8S / "components").iterdir())
#: What changes the training job. The two that exclude each other are in no combination.
TRAINING = ["elastic", "gpu", "kueue", "rdma"]
COMBINATIONS = [
    names
    for count in range(len(TRAINING) + 1)
    for names in itertools.combinations(TRAINING, count)
    if not {"elastic", "kueue"} <= set(names)
]


def shown(path: Path) -> str:
    return str(path.relative_to(K8S))


def one(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [each for each in objects if each["kind"] == kind]
    return found


def test_the_generated_files_are_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for path, text in generate.files("examples/cluster.yaml").items():
        assert (K8S / path).read_text(encoding="utf-8") == text, f"k8s/{path}: run `make manifests`"


def test_every_other_file_is_a_kustomization_or_read_by_people(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    generated = set(generate.files("examples/cluster.yaml"))
    others = {shown(path) for path in K8S.rglob("*") if path.is_file()} - generated
    assert {Path(path).name for path in others} == {"kustomization.yaml", "README.md"}


@pytest.mark.parametrize("folder", KUSTOMIZATIONS, ids=shown)
def test_a_kustomization_renders_to_objects_that_we_know(folder: Path) -> None:
    objects = build(folder)
    assert objects
    for each in objects:
        kind = KINDS[each["kind"]]
        assert each["apiVersion"] == kind.version
        assert each["metadata"].get("namespace") == ("shardline" if kind.namespaced else None)
    assert [violation for pod in pods_of(objects) for violation in violations(pod)] == []
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("folder", KUSTOMIZATIONS, ids=shown)
def test_kubectl_renders_the_same(folder: Path) -> None:
    if not (kubectl := shutil.which("kubectl")):
        return  # the test above is for machines without it
    done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=True)

    def by_name(objects: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
        return {(each["kind"], each["metadata"]["name"]): each for each in objects}

    assert by_name(list(yaml.safe_load_all(done.stdout))) == by_name(build(folder))


def rendered(overrides: list[str]) -> Loaded:
    path = ROOT / "examples" / "cluster.yaml"
    return parse(path.read_text(), source=str(path), overrides=overrides, ignore_environment=True)


def overrides_of(container: dict[str, Any]) -> list[str]:
    """What the command of a worker sets in the config that it reads."""
    command = container["command"]
    assert command[:3] == ["shardline", "worker", "/etc/shardline/config.yaml"]
    assert command[3::2] == ["--set"] * len(command[3::2])
    return list(command[4::2])


@pytest.mark.parametrize("components", COMBINATIONS, ids="+".join)
def test_objects_and_the_config_that_their_pods_read_say_the_same(components: tuple[str, ...], tmp_path: Path) -> None:
    shutil.copytree(K8S, tmp_path / "k8s")
    folder = tmp_path / "k8s" / "overlays" / "try"
    folder.mkdir()
    names = [f"../../components/{name}" for name in components]
    (folder / "kustomization.yaml").write_text(yaml.safe_dump({"resources": ["../../jobs"], "components": names}))
    job = one(build(folder), "PyTorchJob")
    check_same(job, extra={"rdma/hca_shared_devices_a"})


def check_same(job: dict[str, Any], *, extra: set[str]) -> None:
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    (container,) = worker["template"]["spec"]["containers"]
    loaded = rendered(overrides_of(container))
    expected = one(render(loaded, only=["train"]), "PyTorchJob")
    other = expected["spec"]["pytorchReplicaSpecs"]["Worker"]
    assert job["spec"].get("elasticPolicy") == expected["spec"].get("elasticPolicy")
    assert job["metadata"]["labels"] == expected["metadata"]["labels"]
    assert worker["replicas"] == other["replicas"]
    (wanted,) = other["template"]["spec"]["containers"]
    limits = {key: value for key, value in container["resources"]["limits"].items() if key not in extra}
    assert limits.keys() == wanted["resources"]["limits"].keys()
    devices = {key: value for key, value in limits.items() if key not in ("cpu", "memory")}
    assert devices == {key: value for key, value in wanted["resources"]["limits"].items() if key in devices}
    assert container["resources"]["requests"] == container["resources"]["limits"]


@pytest.mark.parametrize("overlay", ["kind", "staging", "prod"])
def test_an_overlay_trains_what_its_config_says(overlay: str) -> None:
    objects = build(K8S / "overlays" / overlay / "train")
    job = one(objects, "PyTorchJob")
    check_same(job, extra={"rdma/hca_shared_devices_a"})
    loaded = rendered(overrides_of(job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]))
    budget = one(render(loaded, only=["train"]), "PodDisruptionBudget")
    assert one(objects, "PodDisruptionBudget")["spec"] == budget["spec"]


def test_each_component_is_in_some_overlay() -> None:
    used = [
        Path(name).name
        for path in (K8S / "overlays").rglob("kustomization.yaml")
        for name in yaml.safe_load(path.read_text()).get("components", [])
    ]
    assert set(used) == set(COMPONENTS)
