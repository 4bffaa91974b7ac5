"""Sharding in parts, as the pipeline does it: the loop that is compiled, and what its tasks do when they are run.

No postponed annotations here: KFP reads the types of a pipeline's parameters from the function itself.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import dsl, local

from shardline.components.common.config import RunConfig, parse
from shardline.components.common.runfolder import DATASET_FILE, error_file, read_json, run_storage
from shardline.components.common.streams import read_all
from shardline.components.sharding import parts, step
from shardline.pipelines.package import compile_pipeline
from shardline.pipelines.training import sharding
from tests.commands import SMALL

pytestmark = pytest.mark.usefixtures("handlers")

CLUSTER = ("storage=s3://bucket/folder", "kubernetes.image=full:1", "kubernetes.light_image=light:1")


def compiled(*overrides: str) -> tuple[dict[str, Any], dict[str, Any]]:
    loaded = parse(SMALL, source="config.yaml", overrides=[*CLUSTER, *overrides])
    pipeline, platform = yaml.safe_load_all(compile_pipeline(loaded))
    return pipeline, platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]


def steps_of(pipeline: dict[str, Any]) -> dict[str, Any]:
    root = pipeline["root"]["dag"]["tasks"]
    group = next(name for name in root if name != "report")
    return dict(pipeline["components"][root[group]["componentRef"]["name"]]["dag"]["tasks"])


def test_each_part_is_a_pod_and_the_step_comes_after_all() -> None:
    pipeline, platform = compiled("kubernetes.sharding.parts=3", "kubernetes.sharding.cpu=7")
    tasks = steps_of(pipeline)
    (name,) = set(tasks) - {"shard", "plan", "train", "evaluate"}
    loop = tasks[name]
    assert yaml.safe_load(loop["parameterIterator"]["items"]["raw"]) == [0, 1, 2]
    assert tasks["shard"]["dependentTasks"] == [name]
    assert tasks["shard"]["inputs"]["parameters"]["parts"]["taskOutputParameter"]["producerTask"] == name
    part = pipeline["components"][loop["componentRef"]["name"]]["dag"]["tasks"]["shard-part"]
    assert part["inputs"]["parameters"]["parts"] == {"runtimeValue": {"constant": 3.0}}
    assert not part["cachingOptions"].get("enableCache")
    container = pipeline["deploymentSpec"]["executors"]["exec-shard-part"]["container"]
    assert (container["image"], container["resources"]["resourceCpuLimit"]) == ("light:1", "7")
    assert platform["exec-shard-part"]["securityContext"] == platform["exec-train"]["securityContext"]


def test_one_part_is_no_loop() -> None:
    pipeline, _ = compiled()
    assert set(steps_of(pipeline)) == {"shard", "plan", "train", "evaluate"}
    assert "shard-part" not in str(pipeline)


@pytest.fixture
def text(tmp_path: Path) -> str:
    folder = tmp_path / "corpus"
    folder.mkdir()
    words = [f"{first}{last}" for first in ("al", "be", "ga", "de", "ze") for last in ("ma", "ro", "ki", "lu", "ne")]
    for number in range(12):
        chosen = [words[(place * place + number * (place + 7)) % len(words)] for place in range(300 + number)]
        (folder / f"{number}.txt").write_text(f"Document {number}: {' '.join(chosen)}\n")
    return (
        SMALL.replace("256KiB", "4KiB")
        .replace("workers: 2", "workers: 1")
        .replace("./data", str(tmp_path / "data"))
        .replace('"stdlib:asyncio"', str(folder))
    )


def config_of(text: str, run: str, *overrides: str) -> RunConfig:
    return parse(text, source="", overrides=[f"run={run}", *overrides]).config


def test_the_loop_makes_the_data_set_of_the_undivided_step(text: str, tmp_path: Path) -> None:
    """By KFP's own runner, which goes through the loop and collects what its tasks return."""
    alone = step.run(config_of(text, "alone", f"storage={tmp_path / 'other'}"))

    @dsl.pipeline(name="sharding-in-parts")
    def pipeline(config: str, scheduled: bool = False) -> None:
        sharding({"config": config, "scheduled": scheduled, "due": ""}, parts=2)

    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "kfp"), raise_on_error=True)
    pipeline(config=text)  # type: ignore[call-arg]
    run = run_storage(config_of(text, "small"))
    assert read_json(run, DATASET_FILE)["fingerprint"] == alone["fingerprint"]
    begun = [event["data"] for event in read_all(run.at("events")) if event["name"] == "sharding.part_started"]
    assert sorted(each["part"] for each in begun) == [0, 1]


def test_a_run_that_has_its_data_set_needs_no_corpus(text: str, tmp_path: Path) -> None:
    config = config_of(text, "small")
    made = step.run(config)
    shutil.rmtree(tmp_path / "corpus")
    for part in range(2):
        parts.run(config, part, 2)
    assert step.run(config, merging=True)["key"] == made["key"]


def test_no_part_works_for_a_run_with_another_corpus(text: str, tmp_path: Path) -> None:
    """The step that comes after it refuses the run, and says why."""
    config = config_of(text, "small")
    made = step.run(config)
    (tmp_path / "corpus" / "12.txt").write_text("one more")
    parts.run(config, 0, 2)
    assert [path.name for path in (tmp_path / "data" / "datasets").iterdir()] == [made["key"]]


def test_a_part_that_fails_leaves_its_error_as_the_step_does(text: str, tmp_path: Path) -> None:
    config = config_of(text, "small")
    shutil.rmtree(tmp_path / "corpus")
    with pytest.raises(Exception, match="corpus"):
        parts.run(config, 0, 2)
    run = run_storage(config)
    record = read_json(run, error_file("shard"))
    assert record["exit_code"] == 2
    assert [each["name"] for each in read_all(run.at("events"))][-1] == "step.failed"
