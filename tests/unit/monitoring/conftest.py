"""A run folder as the steps leave it, made by hand: what the report is tested on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from shardline.components.common.config import parse
from shardline.components.common.events import EventLog
from shardline.components.common.runfolder import adopt_config, run_storage, write_json
from shardline.components.common.storage import Storage
from shardline.components.common.streams import StreamWriter, now

CONFIG = """
version: 1
run: quickstart
storage: {root}
corpus: "stdlib:"
training: {{steps: 240, global_batch: 16, microbatch: 2, sequence: 256}}
gate: {{max_bits_per_byte: 2.5}}
"""


class MadeRun:
    """A run of 240 optimizer steps, of which each method adds a part."""

    #: Must never reach the page as it is.
    hostile = '<script>alert("x")</script> & "quotes"'
    steps = 240

    def __init__(self, root: Path) -> None:
        self.config = parse(CONFIG.format(root=root), source="config.yaml", ignore_environment=True).config
        self.folder = run_storage(self.config)
        adopt_config(self.folder, self.config)

    def add_dataset(self) -> None:
        shard = {"hash": "ab" * 16, "size": 5_500_000, "blocks": 5000, "groups": 20, "footer": 1, "footer_hash": "00"}
        reasons = {"not UTF-8": 2, "binary": 1}
        skips = {"documents": 3, "bytes": 70_000, "reasons": reasons, "first": [f"stdlib:{self.hostile}"]}
        near = {"documents": 2, "bytes": 9000, "reasons": {"near": 2}, "first": ["stdlib:a.py"]}
        train = {"documents": 1583, "tokens": 8_410_000, "bytes": 29_800_000, "blocks": 33_000, "shards": [shard]}
        held_out = {"documents": 17, "tokens": 91_000, "bytes": 322_000, "blocks": 360, "shards": [shard]}
        manifest = {
            "key": "feedface",
            "fingerprint": "3b1f9d0a5a6e4d1f8e7c6b5a49382716",
            "vocab": 4096,
            "train": train,
            "held_out": held_out,
            "skipped": skips,
            "near_duplicates": near,
            "files": {"hash": "", "size": 1, "count": 1605},
        }
        write_json(Storage(self.config.storage), "datasets/feedface/manifest.json", manifest)
        write_json(self.folder, "dataset.json", {"key": "feedface"})
        with EventLog(self.folder, generation=1, writer="shard") as events:
            events.emit("step.started", {"step": "shard"})
            events.emit("sharding.finished", {"key": "feedface", "documents": 1600, "tokens": 8_501_000})
            events.emit("step.finished", {"step": "shard"})

    def add_training(self, *, generation: int = 2, first: int = 0, last: int = 240) -> None:
        layout = {"dp_replicate": 1, "dp_shard": 2, "pp": 2, "schedule": "1F1B", "stages_per_rank": 1}
        with (
            EventLog(self.folder, generation=generation, writer="train") as events,
            StreamWriter(self.folder.at("metrics"), generation=generation, writer="rank0") as metrics,
        ):
            reason = "the least idle time (20%), then the least memory, of 3 layouts of 4 processes"
            events.emit("layout.chosen", {"for": generation, "layout": layout, "candidates": []}, reason=reason)
            if first:
                events.emit("checkpoint.loaded", {"step": first}, reason="the newest that is whole")
            for step in range(first, last):
                metrics.append("train", self._metric(step))
            saved = {"step": last, "bytes": 14_000_000, "files": 6, "position": last * 16, "seconds": 0.21}
            events.emit("checkpoint.committed", saved, reason="every 50 steps")
            if last < self.steps:
                events.emit("worker.lost", {"rank": 3}, reason="rank 3 ended with signal 9")

    def _metric(self, step: int) -> dict[str, Any]:
        noise = math.sin(step * 12.9898) * 43758.5453
        noise -= math.floor(noise) + 0.5
        warm, left = min(1.0, (step + 1) / 10), 0.5 + 0.5 * math.cos(math.pi * step / self.steps)
        return {
            "step": step,
            "loss": 3.05 + 5.3 * math.exp(-step / 45) + 0.25 * noise,
            "lr": 1e-3 * warm * (0.1 + 0.9 * left),
            "grad_norm": 0.6 + 2 * math.exp(-step / 20) + 0.1 * noise,
            "tokens": 4096,
            "samples": 16,
            "seconds": 0.31 + 0.02 * noise,
            "tokens_per_second": 4096 / (0.31 + 0.02 * noise),
        }

    def add_evaluation(self, **changes: Any) -> None:
        result = {
            "version": 1,
            "step": self.steps,
            "time": now(),
            "dataset": {"key": "feedface"},
            "settings": {"temperature": 0.8},
            "loss": 3.1234,
            "perplexity": 22.7,
            "bits_per_byte": 1.2744,
            "tokens": 91_000,
            "bytes": 322_000,
            "documents": 17,
            "compressors": {"gzip_9": 1.823, "xz": 1.611},
            "decoded": {"bytes": 322_000, "lossless": True},
            "samples": [
                {"prompt": "The ", "text": f"value of the argument is {self.hostile}\n    by the caller.\n"},
                {"prompt": "def ", "text": "_get_value(self, name):\n        return self._values.get(name)\n"},
            ],
            "gate": {"passed": True, "reason": "1.2744 is within 2.5", "max_bits_per_byte": 2.5},
            **changes,
        }
        write_json(self.folder, "model/export.json", {"files": {"model.safetensors": {"size": 7_340_032}}})
        write_json(self.folder, f"evaluation/step-{self.steps:012d}.json", result)
        with EventLog(self.folder, generation=9, writer="evaluate") as events:
            events.emit("evaluation.finished", {"step": self.steps, "loss": 3.1234, "bits_per_byte": 1.2744})
            events.emit("gate.decided", {"passed": True}, reason="1.2744 is within gate.max_bits_per_byte (2.5)")


@pytest.fixture
def made(tmp_path: Path) -> MadeRun:
    return MadeRun(tmp_path / "root")
