"""The compiled pipeline: what is in it, that it is the same each time, and what is refused."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import dsl

from shardline.components.common.config import Loaded, load, parse
from shardline.components.common.config.kubernetes_schema import Toleration
from shardline.components.common.errors import UserError
from shardline.components.common.steps import STEPS
from shardline.pipelines import podsettings
from shardline.pipelines.package import compile_pipeline, parameter
from shardline.pipelines.podsettings import PodSettings, Room
from tests.commands import SMALL, shardline, write

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "pipeline.yaml"
#: Set it to write the golden file anew, after a change that is meant.
UPDATE_VARIABLE = "SHARDLINE_UPDATE_GOLDEN"
CLUSTER = ["storage=s3://bucket/folder", "kubernetes.image=registry.example/shardline:1"]


def loaded(*overrides: str, text: str = SMALL) -> Loaded:
    return parse(text, source="config.yaml", overrides=[*CLUSTER, *overrides])


def compiled(*overrides: str, pods: PodSettings | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The pipeline, and what it asks of Kubernetes for each executor."""
    with pytest.MonkeyPatch.context() as patch:
        if pods:
            patch.setattr(podsettings, "pod_settings", lambda config: pods)
        pipeline, platform = yaml.safe_load_all(compile_pipeline(loaded(*overrides)))
    return pipeline, platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]


@pytest.fixture(scope="module")
def package() -> dict[str, Any]:
    return compiled("kubeflow.pipeline=my-pipeline")[0]


def containers(pipeline: dict[str, Any]) -> dict[str, dict[str, Any]]:
    executors = pipeline["deploymentSpec"]["executors"].items()
    return {name.removeprefix("exec-"): executor["container"] for name, executor in executors}


def test_the_package_is_the_golden_one() -> None:
    text = compile_pipeline(load(str(ROOT / "examples" / "quickstart.yaml"), overrides=CLUSTER))
    if os.environ.get(UPDATE_VARIABLE):
        GOLDEN.write_bytes(text)
    assert text == GOLDEN.read_bytes(), f"if the change is meant, run this test with {UPDATE_VARIABLE}=1"


def test_each_task_is_there_in_order_without_a_cache(package: dict[str, Any]) -> None:
    root = package["root"]["dag"]["tasks"]
    group = next(name for name in root if name != "report")
    tasks = package["components"][root[group]["componentRef"]["name"]]["dag"]["tasks"]
    assert set(tasks) == set(STEPS[:-1]) and set(root) == {group, "report"}
    for before, after in pairwise(STEPS[:-1]):
        assert before in tasks[after]["dependentTasks"]
    # Whatever happens to the others, the report is written.
    assert root["report"]["dependentTasks"] == [group]
    assert root["report"]["triggerPolicy"] == {"strategy": "ALL_UPSTREAM_TASKS_COMPLETED"}
    assert all(not task["cachingOptions"].get("enableCache") for task in (*tasks.values(), root["report"]))


def test_names_and_images_are_those_of_the_config(package: dict[str, Any]) -> None:
    assert package["pipelineInfo"]["name"] == "my-pipeline"
    found = containers(package)
    assert {container["image"] for container in found.values()} == {"registry.example/shardline:1"}
    assert "pip install" not in str(found)
    lighter = PodSettings(image="full:1", light_image="light:1")
    images = {name: each["image"] for name, each in containers(compiled(pods=lighter)[0]).items()}
    assert images == {name: "full:1" if name == "evaluate" else "light:1" for name in STEPS}


def test_every_pod_keeps_to_the_rules_of_a_restricted_namespace(package: dict[str, Any]) -> None:
    context = {"runAsUser": "10001", "runAsGroup": "10001", "runAsNonRoot": True}
    executors = compiled()[1]
    assert set(executors) == {f"exec-{step}" for step in STEPS}
    assert all(executor["securityContext"] == context for executor in executors.values())


def test_every_pod_asks_for_room_and_is_limited_to_it(package: dict[str, Any]) -> None:
    for container in containers(package).values():
        asked = container["resources"]
        assert asked["resourceCpuRequest"] == asked["resourceCpuLimit"]
        assert asked["resourceMemoryRequest"] == asked["resourceMemoryLimit"]
    shm = [{"medium": "Memory", "mountPath": "/dev/shm", "sizeLimit": "1Gi", "volumeName": "shm"}]
    assert compiled()[1]["exec-evaluate"]["emptyDirMounts"] == shm


@pytest.mark.parametrize("secrets", [(), ("registry",), ("registry", "mirror")])
def test_every_pod_has_the_pull_secrets(secrets: tuple[str, ...]) -> None:
    executors = compiled(pods=PodSettings(image="a:1", image_pull_secrets=secrets))[1]
    assert set(executors) == {f"exec-{step}" for step in STEPS}
    for executor in executors.values():
        assert tuple(each["secretName"] for each in executor.get("imagePullSecret", [])) == secrets


def test_a_pull_secret_cannot_be_a_parameter_of_the_pipeline() -> None:
    parameter_of_pipeline: Any = dsl.pipeline_channel.PipelineParameterChannel(name="secret", channel_type="String")
    for name in (parameter_of_pipeline, "{{$.inputs.parameters['secret']}}"):
        with pytest.raises(UserError, match="no pipeline parameter"):
            PodSettings(image="a:1", image_pull_secrets=(name,))


def test_what_the_pods_settings_say_is_in_every_pod() -> None:
    gpu = Room(cpu="8", memory="64Gi", gpus=2, gpu_resource="nvidia.com/mig-1g.10gb", shm="8Gi")
    pods = PodSettings(
        image="a:1",
        secrets={"s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")},
        env={"HTTPS_PROXY": "http://proxy:3128"},
        node_selector={"pool": "training"},
        tolerations=(Toleration(key="gpu", operator="Exists", effect="NoSchedule", seconds=60),),
        rooms=dict.fromkeys(STEPS, gpu),
    )
    pipeline, executors = compiled(pods=pods)
    for executor in executors.values():
        (secret,) = executor["secretAsEnv"]
        assert secret["secretName"] == "s3"
        assert {each["envVar"]: each["secretKey"] for each in secret["keyToEnv"]} == {
            "AWS_ACCESS_KEY_ID": "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY": "AWS_SECRET_ACCESS_KEY",
        }
        assert executor["nodeSelector"]["labels"] == {"pool": "training"}
        assert executor["tolerations"] == [
            {"key": "gpu", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": "60"}
        ]
    for container in containers(pipeline).values():
        assert container["env"] == [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]
        accelerator = container["resources"]["accelerator"]
        assert (accelerator["resourceType"], accelerator["resourceCount"]) == ("nvidia.com/mig-1g.10gb", "2")


def test_the_parameter_is_the_config(package: dict[str, Any]) -> None:
    default = package["root"]["inputDefinitions"]["parameters"]["config"]["defaultValue"]
    assert parse(default, source="parameter").config == loaded("kubeflow.pipeline=my-pipeline").config


@pytest.mark.parametrize(
    "prompt", ["two\nlines: [", "\u2028\x85\x7f", "emoji \U0001f600", "'}\" # {{$}}", "/usr/lib/python3.11"]
)
def test_any_text_survives(prompt: str) -> None:
    config = loaded()
    prompts = config.config.evaluation.model_copy(update={"prompts": [prompt]})
    config = Loaded(config.config.model_copy(update={"evaluation": prompts}), config.sources, config.source)
    tree, _ = yaml.safe_load_all(compile_pipeline(config))
    default = tree["root"]["inputDefinitions"]["parameters"]["config"]["defaultValue"]
    assert parse(default, source="parameter").config == config.config


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("kubernetes.image=null", "kubernetes.image"),
        ("storage=./data", "storage"),
        ("corpus=[s3://bucket/a, texts/b.txt]", "corpus.urls.1"),
        ("tokenizer.url=tokenizer.json", "tokenizer.url"),
    ],
)
def test_what_a_cluster_cannot_use_is_refused(override: str, key: str) -> None:
    with pytest.raises(UserError, match=rf"^--set: {key} = "):
        compile_pipeline(loaded(override))


def test_a_large_config_is_refused_with_a_hint() -> None:
    urls = ", ".join(f"s3://bucket/{number:040d}" for number in range(1500))
    with pytest.raises(UserError, match="a folder or a glob"):
        parameter(loaded(f"corpus=[{urls}]"))
    assert len(parameter(loaded(f"corpus=[{urls[:50_000].rpartition(',')[0]}]"))) > 50_000


@pytest.mark.parametrize("characters", [12_000, 50_000])
def test_a_config_that_fits_is_cut_nowhere(characters: int) -> None:
    urls = [f"s3://bucket/{number:040d}" for number in range(characters // 55)]
    pipeline, _ = compiled(f"corpus=[{', '.join(urls)}]")
    default = pipeline["root"]["inputDefinitions"]["parameters"]["config"]["defaultValue"]
    assert parse(default, source="parameter").config.corpus.urls == urls


def test_the_command_writes_the_same_file_in_any_environment(tmp_path: Path) -> None:
    write(tmp_path)
    options = [argument for override in CLUSTER for argument in ("--set", override)]
    done = shardline("compile", "config.yaml", *options, cwd=tmp_path, PYTHONHASHSEED="1")
    assert (done.returncode, done.stdout) == (0, "")
    other = shardline("compile", "config.yaml", "-o", "-", *options, cwd=tmp_path, PYTHONHASHSEED="2", LC_ALL="C")
    assert other.stdout == (tmp_path / "pipeline.yaml").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "pipeline.yaml"]
