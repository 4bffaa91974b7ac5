"""How the operator works, as its command line has it. Called by all of it."""

from __future__ import annotations

from dataclasses import dataclass

#: On a job: "false" leaves its size alone.
AUTOSCALE = "shardline.io/autoscale"
#: On a job: "true" has pods of it that a dead node holds force-deleted, "false" never.
FORCE_DELETE = "shardline.io/force-delete"
#: On a job, by the operator: what it last did to its size.
RESIZED = "shardline.io/resized"
#: A label on a job, by the operator: how it is.
PHASE_LABEL = "shardline.io/phase"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All times in seconds.

    Attributes:
        namespace: whose jobs are looked after; None: all.
        interval: between two rounds.
        progress: between two looks at a run's folder, and at the Workflow that a job belongs to.
        autoscale: whether sizes are changed at all.
        pending: after which pods that do not get to run make their job smaller.
        settle: for how long there must have been room before a job grows into it.
        cool_down: between two changes of a job's size.
        gain: the least that another worker must add, as a share of what the workers did on average before it came.
        done: after which a job is ended whose run was done meanwhile.
        dead_node: after which a pod is force-deleted that ends on a node which is not ready.
        force_delete: whether that is done for jobs that say nothing about it.
    """

    namespace: str | None = None
    interval: float = 5.0
    progress: float = 15.0
    autoscale: bool = True
    pending: float = 120.0
    settle: float = 30.0
    cool_down: float = 300.0
    gain: float = 0.5
    done: float = 120.0
    dead_node: float = 300.0
    force_delete: bool = False
