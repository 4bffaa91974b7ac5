"""The whole main job by one command, on real text, with several processes: from the corpus to the report."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, LlamaForCausalLM

from shardline.components.common.storage import Storage
from shardline.components.common.streams import read_all
from tests.commands import SMALL, Started, eventually, shardline, write
from tests.distributed.runs import losses, samples

# Whole runs, on whatever machine: far above what they take.
pytestmark = pytest.mark.timeout(900)

STEPS = 20
CONFIG = (
    SMALL.replace("processes: 1", "processes: 2, cache: {use: always, folder: data/cache}")
    .replace("steps: 4", f"steps: {STEPS}")
    .replace("global_batch: 4", "global_batch: 8, checkpoint: {every: 5}, precision: fp64, layout: {pp: 2}")
)


class Finished:
    """A run that is done, and what it left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = Storage(str(folder / "data" / "runs" / "small"))

    def json(self, path: str) -> Any:
        return json.loads(self.run.read(path))

    @property
    def evaluation(self) -> Any:
        return self.json(f"evaluation/step-{STEPS:012d}.json")

    @property
    def events(self) -> list[str]:
        return [record["name"] for record in read_all(self.run.at("events"))]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    folder = tmp_path_factory.mktemp("whole")
    write(folder, CONFIG)
    done = shardline("run", "config.yaml", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout)
    yield Finished(folder)


def test_the_ranks_of_a_node_share_what_they_read(finished: Finished) -> None:
    (used,) = [record["data"] for record in read_all(finished.run.at("events")) if record["name"] == "cache.used"]
    assert used["off"] is None and used["read_bytes"] > 0
    # Two pipeline ranks read the same row groups, and each was fetched by one of them.
    entries = list((finished.folder / "data" / "cache" / "blocks-1" / "entries").iterdir())
    assert 0 < used["misses"] <= len(entries) and used["damaged"] == used["evictions"] == 0


def test_each_ranks_memory_is_reported(finished: Finished) -> None:
    (found,) = [record["data"] for record in read_all(finished.run.at("events")) if record["name"] == "memory.peak"]
    assert len(found["ranks"]) == 2
    # A process that has imported torch, in bytes: more than 100 MB, less than 100 GB.
    assert all(1e8 < rank["host"] < 1e11 and rank["device"] == 0 for rank in found["ranks"])


def test_everything_is_there(finished: Finished) -> None:
    assert sorted(path.name for path in finished.folder.iterdir()) == ["config.yaml", "data"]
    names = finished.run.names()
    expected = "checkpoints config.yaml dataset.json done.json evaluation events logs metrics model owner.json"
    assert set(expected.split()) <= set(names)
    assert {"plan.json", "report.html", "samples", "status.json"} <= set(names)
    assert len(losses(finished.run)) == STEPS
    for name in ("layout.chosen", "checkpoint.committed", "evaluation.finished", "gate.decided", "report.written"):
        assert name in finished.events


def test_the_evaluation_is_of_all_held_out_text(finished: Finished) -> None:
    result, data = finished.evaluation, finished.json("dataset.json")
    assert result["tokens"] == data["held_out"]["tokens"]
    assert result["bytes"] == data["held_out"]["bytes"]
    assert result["decoded"]["lossless"]
    # An untrained model needs about log2(512) bits a token; anything trained needs less, and no one beats zero.
    assert 0 < result["bits_per_byte"] < 9 * result["tokens"] / result["bytes"]
    assert 0 < result["compressors"]["xz"] < 8
    assert finished.json("plan.json")["layout"]["pp"] == 2


def test_the_model_opens_in_transformers(finished: Finished) -> None:
    folder = str(finished.run.local_path("model"))
    model = LlamaForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = tokenizer.decode(model.generate(**tokenizer("def ", return_tensors="pt"), max_new_tokens=4)[0])
    assert text.startswith("def ")


def test_another_run_goes_on_from_the_model(finished: Finished, tmp_path: Path) -> None:
    model = finished.run.local_path("model")
    start = f"model: {{url: {model}}}\ntokenizer: {{url: {model}/tokenizer.json}}\n"
    write(tmp_path, CONFIG.replace("tokenizer: {vocab: 512}\n", start).replace(f"steps: {STEPS}", "steps: 4"))
    done = shardline("run", "config.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"model.imported: the run starts from {model}" in done.stderr
    before, after = losses(finished.run), losses(Finished(tmp_path).run)
    # Nearer to where the other one ended than to where it began.
    assert after[0] < (before[0] + before[-1]) / 2
    assert LlamaForCausalLM.from_pretrained(str(tmp_path / "data" / "runs" / "small" / "model"))


def test_the_report_stands_alone(finished: Finished) -> None:
    page = finished.run.read("report.html").decode()
    assert "<svg" in page
    assert "http://" not in page.replace("http://www.w3.org", "") and "https://" not in page


def test_a_run_that_is_done_is_left_alone(finished: Finished) -> None:
    before = finished.run.read("done.json")
    done = shardline("run", "config.yaml", cwd=finished.folder)
    assert done.returncode == 0
    assert "done already" in done.stderr
    assert finished.run.read("done.json") == before


def test_an_edited_identity_key_is_refused_with_both_values(finished: Finished) -> None:
    done = shardline("run", "config.yaml", "--set", "training.seed=7", cwd=finished.folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert "training.seed = 7" in done.stderr and "began with 0" in done.stderr


def test_killed_in_every_step_it_ends_with_the_same_result(finished: Finished, tmp_path: Path) -> None:
    write(tmp_path, CONFIG)
    for name, step in (("step.started", "shard"), ("checkpoint.committed", 5), ("step.started", "evaluate")):
        with killed(Started(tmp_path)) as started:
            started.wait_for(name, step=step)

    done = shardline("run", "config.yaml", "--set", "training.layout={dp_shard: 2, pp: 1}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    again = Finished(tmp_path)
    assert again.json("dataset.json")["fingerprint"] == finished.json("dataset.json")["fingerprint"]
    assert samples(again.run) == samples(finished.run)
    pairs = zip(losses(again.run), losses(finished.run), strict=True)
    assert max(abs(a - b) for a, b in pairs) <= 1e-11
    assert again.evaluation["bits_per_byte"] == pytest.approx(finished.evaluation["bits_per_byte"], abs=1e-6)


@contextlib.contextmanager
def killed(started: Started) -> Iterator[Started]:
    """Kill the command, and it alone, at the end of the block, whatever happens in it; nothing may be left."""
    try:
        yield started
    finally:
        started.process.kill()
        started.process.communicate()
        eventually(started.all_gone, seconds=10)
