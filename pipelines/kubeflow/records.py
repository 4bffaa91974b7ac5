"""What commands know of a run and of a schedule in Kubeflow: the facts that they use, apart from the API's own types.

Made by `client`; pure.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from shardline.components.common import firing
from shardline.components.common.config import RunConfig, parse
from shardline.components.common.errors import UserError
from shardline.components.common.steps import STEPS

#: The states from which a run goes no further.
ENDED = ("SUCCEEDED", "FAILED", "CANCELED", "SKIPPED")
#: The states in which a task is at work, or should be.
AT_WORK = ("PENDING", "RUNNING")

#: The task of a part of the sharding; all other tasks have the name of their step.
PART_TASK = "shard-part"
TASKS = (PART_TASK, *STEPS)

CONFIG_PARAMETER = "config"
SCHEDULED_PARAMETER = "scheduled"


@dataclass(frozen=True)
class Task:
    name: str
    state: str
    pod: str | None


@dataclass(frozen=True)
class KubeflowRun:
    """A run as Kubeflow has it; `parameters` are those of the pipeline."""

    id: str
    name: str
    state: str
    created: datetime | None
    scheduled: datetime | None
    finished: datetime | None
    canceled: bool
    parameters: dict[str, Any]
    tasks: tuple[Task, ...] = ()

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def config(self) -> RunConfig:
        """The run config that it was started with, under the name that its run folder has.

        Raises:
            UserError: it is no run of this pipeline.
        """
        config = config_of(self.parameters, what=f"run {self.id}")
        if not self.parameters.get(SCHEDULED_PARAMETER):
            return config
        due = self.scheduled or self.created
        if due is None:
            raise UserError("Kubeflow does not say when it was due", where=f"run {self.id}")
        return firing.at(config, due)

    def to_json(self) -> dict[str, Any]:
        return {
            "run_id": self.id,
            "name": self.name,
            "state": self.state,
            "canceled": self.canceled,
            "created": _text(self.created),
            "scheduled": _text(self.scheduled),
            "finished": _text(self.finished),
            "tasks": {task.name: task.state for task in self.tasks},
        }


@dataclass(frozen=True)
class Schedule:
    """A recurring run; `cron` has the six fields that Kubeflow reads."""

    id: str
    name: str
    enabled: bool
    cron: str | None
    experiment: str
    pipeline: tuple[str, str]
    service_account: str | None
    parameters: dict[str, Any] = field(default_factory=dict)

    def config(self) -> RunConfig:
        """The run config that each firing starts from.

        Raises:
            UserError: it is no schedule of this pipeline.
        """
        return config_of(self.parameters, what=f"schedule {self.name}")

    def to_json(self) -> dict[str, Any]:
        return {"schedule_id": self.id, "name": self.name, "enabled": self.enabled, "cron": self.cron}


def config_of(parameters: dict[str, Any], *, what: str) -> RunConfig:
    """The run config among a pipeline's parameters.

    Raises:
        UserError: there is none.
    """
    text = parameters.get(CONFIG_PARAMETER)
    if not isinstance(text, str):
        raise UserError("was not started with a run config as its parameter", where=what)
    return parse(text, source=what, ignore_environment=True).config


def parameters(text: str, *, scheduled: bool = False) -> dict[str, Any]:
    """The pipeline's parameters for the run config `text`."""
    return {CONFIG_PARAMETER: text, SCHEDULED_PARAMETER: scheduled}


def filter_by_name(name: str) -> str:
    """The API's filter for what is called `name`."""
    return json.dumps({"predicates": [{"operation": "EQUALS", "key": "display_name", "stringValue": name}]})


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="seconds").replace("+00:00", "Z")
