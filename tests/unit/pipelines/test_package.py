"""The compiled pipeline: what is in it, that it is the same each time, and what is refused."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardline.components.common.config import Loaded, load, parse
from shardline.components.common.errors import UserError
from shardline.components.common.steps import STEPS
from shardline.pipelines.package import compile_pipeline, parameter
from tests.commands import SMALL, shardline, write

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "pipeline.yaml"
#: Set it to write the golden file anew, after a change that is meant.
UPDATE_VARIABLE = "SHARDLINE_UPDATE_GOLDEN"
CLUSTER = ["storage=s3://bucket/folder", "kubernetes.image=registry.example/shardline:1"]


def loaded(*overrides: str, text: str = SMALL) -> Loaded:
    return parse(text, source="config.yaml", overrides=[*CLUSTER, *overrides])


@pytest.fixture(scope="module")
def package() -> dict[str, Any]:
    return dict(yaml.safe_load(compile_pipeline(loaded("kubeflow.pipeline=my-pipeline"))))


def test_the_package_is_the_golden_one() -> None:
    text = compile_pipeline(load(str(ROOT / "examples" / "quickstart.yaml"), overrides=CLUSTER))
    if os.environ.get(UPDATE_VARIABLE):
        GOLDEN.write_bytes(text)
    assert text == GOLDEN.read_bytes(), f"if the change is meant, run this test with {UPDATE_VARIABLE}=1"


def test_each_task_is_there_in_order_without_a_cache(package: dict[str, Any]) -> None:
    tasks = package["root"]["dag"]["tasks"]
    assert set(tasks) == set(STEPS)
    for before, after in pairwise(STEPS):
        assert before in tasks[after]["dependentTasks"]
    assert all(not task["cachingOptions"].get("enableCache") for task in tasks.values())


def test_names_and_images_are_those_of_the_config(package: dict[str, Any]) -> None:
    assert package["pipelineInfo"]["name"] == "my-pipeline"
    containers = [executor["container"] for executor in package["deploymentSpec"]["executors"].values()]
    assert {container["image"] for container in containers} == {"registry.example/shardline:1"}
    assert "pip install" not in str(containers)


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
    tree = yaml.safe_load(compile_pipeline(config))
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


def test_the_command_writes_the_same_file_in_any_environment(tmp_path: Path) -> None:
    write(tmp_path)
    options = [argument for override in CLUSTER for argument in ("--set", override)]
    done = shardline("compile", "config.yaml", *options, cwd=tmp_path, PYTHONHASHSEED="1")
    assert (done.returncode, done.stdout) == (0, "")
    other = shardline("compile", "config.yaml", "-o", "-", *options, cwd=tmp_path, PYTHONHASHSEED="2", LC_ALL="C")
    assert other.stdout == (tmp_path / "pipeline.yaml").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "pipeline.yaml"]
