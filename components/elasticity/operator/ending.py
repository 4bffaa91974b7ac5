"""What to do with a job whose run is done. Pure. Called by `turn`.

The workers of a done run leave with 0, and the training operator then completes the job; that is waited for. After it a
job is left that nothing completes: a pod that came late and waits for a node, or one that hangs. Its status is the
training operator's to write, and suspended it would be adopted by the next launcher and never run; so it is deleted,
unless its cleanPodPolicy keeps what runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from shardline.components.elasticity.operator.facts import Job


def done_for(job: Job, done: Mapping[str, Any] | None) -> bool:
    """Whether the record in `done.json` is of what `job` does: one that is older than the job is of a run before."""
    if done is None:
        return False
    try:
        return datetime.fromisoformat(str(done["finished"])) >= datetime.fromisoformat(job.created)
    except (KeyError, ValueError, TypeError):
        return False


def ends(job: Job) -> tuple[bool, str]:
    """Whether a job that is left over is to be deleted, and why or why not."""
    if job.clean == "None":
        return False, "its run is done; its pods stay, as its cleanPodPolicy is None: delete it when they are read"
    return True, (
        f"its run is done and nothing has completed it: it is deleted, as its cleanPodPolicy is {job.clean} and what "
        "ran is to go"
    )
