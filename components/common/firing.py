"""The runs of a schedule: each firing is a run of its own, named by the time that it was due.

Called inside the pipeline's tasks and by the command line, which have to come to the same name. A firing that is tried
again has the same time, and so goes on with its own run.
"""

from __future__ import annotations

from datetime import UTC, datetime

from shardline.components.common.config import RunConfig
from shardline.components.common.errors import UserError

_FORMAT = "-%Y%m%d-%H%M"
_LONGEST = 50
#: Characters of a run's name that leave room for the time.
LONGEST_BASE = _LONGEST - len(datetime(2000, 1, 1).strftime(_FORMAT))


def at(config: RunConfig, moment: datetime) -> RunConfig:
    """`config` as the run that was due at `moment`: its name ends in the time, UTC, to the minute.

    Raises:
        UserError: the name leaves no room for the time.
    """
    if len(config.run) > LONGEST_BASE:
        raise UserError(
            f"{config.run!r} has {len(config.run)} characters; each run of a schedule has the time added to its name, "
            f"which leaves {LONGEST_BASE}",
            where="run",
            hint="give the run a shorter name",
        )
    return config.model_copy(update={"run": config.run + moment.astimezone(UTC).strftime(_FORMAT)})


def parse_moment(text: str) -> datetime:
    """The time that Kubeflow hands to a task, RFC 3339.

    Raises:
        UserError: it is none; Kubeflow is too old to fill it in.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(
            f"the pipeline was not told when it was due: {text!r} is no time",
            hint="schedules need a newer Kubeflow Pipelines: they are tested with 2.17",
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
