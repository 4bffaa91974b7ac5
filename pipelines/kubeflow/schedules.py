"""Training that recurs: schedules made, found and fired by hand.

Called by `shardline schedule`. Each firing is a run of its own, named by its time (`components.common.firing`): under
one name the second firing would find that everything is done.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from shardline.components.common import firing
from shardline.components.common.config import Loaded, RunConfig
from shardline.components.common.config.kubeflow_schema import Kubeflow
from shardline.components.common.errors import UserError
from shardline.pipelines.kubeflow.client import Client
from shardline.pipelines.kubeflow.cron import Cron
from shardline.pipelines.kubeflow.records import KubeflowRun, Schedule, parameters
from shardline.pipelines.kubeflow.submit import name_now, upload
from shardline.pipelines.package import parameter

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def check_names(config: RunConfig, *, name: str) -> None:
    """Refuse, before anything is made, a schedule or runs of it that could have no name.

    Raises:
        UserError: `name` cannot be that of a schedule, or the run's name leaves no room for a time.
    """
    if not _NAME.fullmatch(name):
        hint = "it becomes the name of an object in the cluster"
        raise UserError(
            f"{name!r} should be at most 63 lower-case letters, digits and hyphens, no hyphen at an end",
            where="--name",
            hint=hint,
        )
    firing.at(config, datetime.now(UTC))


def create(loaded: Loaded, client: Client, *, name: str, cron: Cron, package: bytes) -> Schedule:
    """A schedule that starts the pipeline of `loaded` at the times of `cron`.

    Raises:
        UserError: there is one of that name already.
        ShardlineError: as `Client` has it.
    """
    config = loaded.config
    if any(each.name == name for each in _all(client, config.kubeflow)):
        raise UserError(
            f"there is a schedule {name!r} already",
            where=f"experiment {config.kubeflow.experiment}",
            hint=f"`shardline schedule delete {name}` first, or give this one another --name",
        )
    uploaded = upload(loaded, client, package=package)
    return client.make_schedule(
        name,
        cron=cron.for_kubeflow(),
        experiment=uploaded.experiment,
        pipeline=uploaded.pipeline,
        parameters=parameters(parameter(loaded), scheduled=True),
        service_account=config.kubeflow.service_account,
    )


def listing(client: Client, kubeflow: Kubeflow) -> list[Schedule]:
    """The schedules of the experiment.

    Raises:
        UserError: there is no such experiment.
        ShardlineError: as `Client` has it.
    """
    return client.schedules(experiment_of(client, kubeflow))


def find(client: Client, kubeflow: Kubeflow, schedule: str) -> Schedule:
    """The schedule of that name or id in the experiment.

    Raises:
        UserError: there is none, or there are several of that name.
        ShardlineError: as `Client` has it.
    """
    found = [each for each in listing(client, kubeflow) if schedule in (each.id, each.name)]
    where = f"experiment {kubeflow.experiment}"
    if not found:
        raise UserError(
            f"there is no schedule {schedule!r}", where=where, hint="`shardline schedule list` has them all"
        )
    if len(found) > 1:
        ids = ", ".join(each.id for each in found)
        raise UserError(
            f"there are {len(found)} schedules {schedule!r}", where=where, hint=f"give the id of one: {ids}"
        )
    return found[0]


def trigger(client: Client, schedule: Schedule) -> KubeflowRun:
    """Start the run of a schedule that would be due now.

    Raises:
        UserError: it is no schedule of this pipeline.
        ShardlineError: as `Client` has it.
    """
    config = firing.at(schedule.config(), datetime.now(UTC))
    return client.start(
        name_now(config.run),
        experiment=schedule.experiment,
        pipeline=schedule.pipeline,
        parameters=parameters(parameter(Loaded(config, {}, f"schedule {schedule.name}"))),
        service_account=schedule.service_account,
    )


def experiment_of(client: Client, kubeflow: Kubeflow) -> str:
    """The id of the config's experiment.

    Raises:
        UserError: it is not there.
        ShardlineError: as `Client` has it.
    """
    found = client.experiment(kubeflow.experiment)
    if found is None:
        place = f"namespace {client.namespace}" if client.namespace else client.host
        raise UserError(
            f"there is no experiment {kubeflow.experiment!r}",
            where=place,
            hint="`shardline submit` makes it; or set kubeflow.experiment to the one that is meant",
        )
    return found


def _all(client: Client, kubeflow: Kubeflow) -> list[Schedule]:
    experiment = client.experiment(kubeflow.experiment)
    return client.schedules(experiment) if experiment else []
