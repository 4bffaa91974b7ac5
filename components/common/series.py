"""The metrics that a training pod serves, in one table: what serves them, the alerts and the dashboard go by it.

A name ends in its unit, as Prometheus has it: `_seconds`, `_bytes`; `_total` is a counter. Each has the label `run`,
one of a worker also `rank`: as many series as there are ranks, however often workers are started again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RUN_LABEL, RANK_LABEL, ROLE_LABEL = "run", "rank", "role"
#: Where they are served unless the config says otherwise, and what a pod calls that port.
DEFAULT_PORT = 9464
PORT_NAME = "metrics"
#: What an agent is in its group.
Role = Literal["leader", "member", "spare"]
ROLES: tuple[Role, ...] = ("leader", "member", "spare")


@dataclass(frozen=True)
class Series:
    """A metric.

    Attributes:
        name: with its unit.
        help: what it says.
        source: who knows it: the agent, each worker, or rank 0's worker alone.
        field: where: of `monitoring.exposition.Standing`, or of `common.vitals.Vitals`.
    """

    name: str
    help: str
    source: Literal["agent", "worker", "rank 0"]
    field: str

    @property
    def kind(self) -> Literal["counter", "gauge"]:
        return "counter" if self.name.endswith("_total") else "gauge"

    def __str__(self) -> str:
        return self.name


AGENT_ROLE = Series(
    "shardline_agent_role", "1 for the role that the agent has in its group, 0 for the others.", "agent", "role"
)
ROUND = Series("shardline_round", "The round in which the agents gather or train.", "agent", "round")
GENERATION = Series("shardline_generation", "The generation of the workers, 0 while none is.", "agent", "generation")
WORLD_SIZE = Series("shardline_world_size", "Workers of the generation, 0 while none is.", "agent", "world")
LEAST_WORLD_SIZE = Series("shardline_least_world_size", "The fewest workers that the run is to have.", "agent", "least")
RESTARTS = Series(
    "shardline_restarts_total", "Times that the leader started the workers again after a loss.", "agent", "restarts"
)
MOST_RESTARTS = Series(
    "shardline_most_restarts",
    "Restarts without a step saved in between, after which the run gives up (elastic.max_restarts).",
    "agent",
    "most_restarts",
)
MEMORY_USED = Series(
    "shardline_memory_used_bytes", "Memory of the pod that cannot be taken back from it.", "agent", "memory_used"
)
MEMORY_LIMIT = Series("shardline_memory_limit_bytes", "The memory limit of the pod.", "agent", "memory_limit")
STEP = Series("shardline_step", "Optimizer steps that are done.", "worker", "step")
STEPS = Series("shardline_steps", "Optimizer steps that are to be done (training.steps).", "worker", "steps")
LOSS = Series("shardline_loss", "Loss of the last optimizer step, in nats a token.", "worker", "loss")
TOKENS_PER_SECOND = Series(
    "shardline_tokens_per_second", "Target tokens a second of all ranks, a running mean.", "worker", "tokens_per_second"
)
LAST_STEP = Series(
    "shardline_last_step_timestamp_seconds", "When the last optimizer step was done.", "worker", "finished"
)
WORKER_START = Series(
    "shardline_worker_start_timestamp_seconds", "When the worker joined its generation.", "worker", "started"
)
SKIPPED = Series(
    "shardline_skipped_steps_total", "Steps of the generation that left the weights alone.", "worker", "skipped"
)
HOST_PEAK = Series("shardline_host_memory_peak_bytes", "The most memory a worker had.", "worker", "host_bytes")
DEVICE_PEAK = Series(
    "shardline_device_memory_peak_bytes", "The most memory a worker had on its device.", "worker", "device_bytes"
)
DEVICE_LIMIT = Series(
    "shardline_device_memory_limit_bytes", "The memory of a worker's device.", "worker", "device_limit"
)
STORAGE_REPEATS = Series(
    "shardline_storage_repeats_total", "Requests to the storage that were repeated.", "worker", "storage_repeats"
)
CHECKPOINT_STEP = Series(
    "shardline_checkpoint_step", "The step of the newest committed checkpoint, 0 for none.", "rank 0", "checkpoint_step"
)
CHECKPOINT_TIME = Series(
    "shardline_checkpoint_timestamp_seconds", "When the newest checkpoint was committed.", "rank 0", "checkpoint_time"
)
CHECKPOINT_EVERY = Series(
    "shardline_checkpoint_every_steps",
    "Steps between checkpoints (training.checkpoint.every).",
    "rank 0",
    "checkpoint_every",
)

#: All of them.
SERIES: tuple[Series, ...] = (
    AGENT_ROLE,
    ROUND,
    GENERATION,
    WORLD_SIZE,
    LEAST_WORLD_SIZE,
    RESTARTS,
    MOST_RESTARTS,
    MEMORY_USED,
    MEMORY_LIMIT,
    STEP,
    STEPS,
    LOSS,
    TOKENS_PER_SECOND,
    LAST_STEP,
    WORKER_START,
    SKIPPED,
    HOST_PEAK,
    DEVICE_PEAK,
    DEVICE_LIMIT,
    STORAGE_REPEATS,
    CHECKPOINT_STEP,
    CHECKPOINT_TIME,
    CHECKPOINT_EVERY,
)
