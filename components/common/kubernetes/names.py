"""What the objects of a run are called: the same names each time, so that what is there already is found. Pure.

Called by the builders and by whoever looks for a run's objects. A controller adds to these names when it makes pods and
Services, whose names may have 63 characters; a name that leaves no room for that would be accepted and then stay stuck,
so it is refused here, by the length of the longest name that comes of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shardline.components.common.config import RunConfig
from shardline.components.common.kubernetes.quantities import DNS_1035, LABEL_LENGTH

#: On every object of a run and on its pods.
RUN_LABEL = "shardline.io/run"
#: The storage root of the run that an object belongs to: two roots may have runs of one name.
STORAGE_ANNOTATION = "shardline.io/storage"
COMPONENT_LABEL = "app.kubernetes.io/component"
#: What stands behind the names of a JobSet's pods; those of PyTorchJob's end with their numbers.
_RANDOM = "-xxxxx"


@dataclass(frozen=True)
class Names:
    """The names of a run's objects, by the run's own."""

    run: str

    @property
    def train(self) -> str:
        """The PyTorchJob, and what belongs to it."""
        return self.run

    def job(self, step: str) -> str:
        """The Job of a step of its own."""
        return f"{self.run}-{step}"

    def config(self, digest: str) -> str:
        """The ConfigMap that holds the config with the hash `digest`."""
        return f"{self.run}-config-{digest}"


#: On every object of ours, and on every pod.
OUR_LABELS = {"app.kubernetes.io/name": "shardline", "app.kubernetes.io/managed-by": "shardline"}


def labels(run: str, component: str) -> dict[str, str]:
    """The labels of an object of `run`, which are also those of its pods."""
    return {
        **OUR_LABELS,
        "app.kubernetes.io/instance": run,
        COMPONENT_LABEL: component,
        RUN_LABEL: run,
    }


def selector(run: str, component: str) -> dict[str, str]:
    """The labels by which the pods of one component of `run` are found."""
    return {RUN_LABEL: run, COMPONENT_LABEL: component}


def longest(config: RunConfig, *, kind: str) -> str:
    """The longest name that comes of the run's: that of the last pod of the training job, the host name of the
    last part of sharding, or a step's Job.

    Args:
        kind: "pytorchjob" or "trainjob".
    """
    names, last = Names(config.run), config.kubernetes.workers.most - 1
    train = f"{names.train}-worker-{last}" if kind == "pytorchjob" else f"{names.train}-node-0-{last}{_RANDOM}"
    part = f"{names.job('shard')}-{config.kubernetes.sharding.parts - 1}"
    return max(train, part, names.job("evaluate"), key=len)


def problem(config: RunConfig, *, kind: str) -> str | None:
    """What is wrong with the run's name as the name of objects, as the rule that it breaks; None: nothing."""
    if re.fullmatch(DNS_1035, config.run) is None:
        return "must begin with a letter: each worker has a Service that is named after the run"
    name = longest(config, kind=kind)
    if len(name) <= LABEL_LENGTH:
        return None
    room = LABEL_LENGTH - (len(name) - len(config.run))
    return (
        f"is too long for a cluster: it may have {room} characters and has {len(config.run)}, as the longest name that "
        f"is made of it is {name}, and Kubernetes allows {LABEL_LENGTH}"
    )
