"""A run's training metrics, as its summary, its report and the training step itself read them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import fmean
from typing import Any

from shardline.components.common.storage import Storage
from shardline.components.common.streams import by_step, read_all

#: Steps over which the loss is averaged where one number stands for the run: that of one batch jumps.
RECENT = 20


def read_metrics(run: Storage, *, events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """A record for each optimizer step that the run's model has learned from, in order.

    Steps that were done and lost, with a process that was killed after its last checkpoint, do not count once training
    has ended before them.

    Args:
        events: those of the run.
    """
    records = [record for record in read_all(run.at("metrics")) if record["name"] == "train"]
    ends = [event for event in events if event["name"] in ("training.finished", "training.skipped")]
    if ends:
        last, step = ends[-1]["generation"], ends[-1]["data"]["step"]
        records = [record for record in records if record["generation"] > last or record["data"]["step"] < step]
    return list(by_step(records))


def recent_loss(records: Iterable[dict[str, Any]]) -> float | None:
    """The mean loss, in nats a token, of the last `RECENT` of `records`; None when none of them is finite."""
    losses = [record["data"].get("loss") for record in list(records)[-RECENT:]]
    finite = [float(loss) for loss in losses if isinstance(loss, int | float) and math.isfinite(loss)]
    return fmean(finite) if finite else None
