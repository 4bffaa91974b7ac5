"""The checkpoints that a run is to begin from, and whether it may.

Called by `begin` and `making`. Other runs are read here and never written, and no lease of theirs is taken: they may be
in training. Errors: `UserError` for what is not there or does not fit, each key with both values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from shardline.components.common.config import RunConfig
from shardline.components.common.config.identity import differing, identity_of
from shardline.components.common.config.training_schema import Parent
from shardline.components.common.errors import UserError
from shardline.components.common.runfolder import DATASET_FILE, find_run, read_config, read_json
from shardline.components.common.storage import Storage
from shardline.components.sharding.dataset import Dataset
from shardline.components.sharding.order import DataPolicy, policy_of
from shardline.components.training.checkpoint.inspect import find
from shardline.components.training.checkpoint.record import COUNTERS, CheckpointRecord, fingerprint

#: Identity keys in which a run may differ from the one that it begins from: how it goes on, not what it is.
_MAY_DIFFER = (
    "training.optimizer.",
    "training.schedule.",
    "training.microbatch",
    "training.precision",
    "training.start",
    "model.url",
    "model.fingerprint",
)
#: Those that say which samples the steps had, and not what the model is.
_OF_THE_ORDER = tuple(f"training.{name}" for name in ("global_batch", "sequence", "mixture", "seed", "window"))


@dataclass(frozen=True, kw_only=True)
class Origin:
    """A checkpoint of another run: that run's folder and config, the record, and what the config says of it."""

    run: Storage
    config: RunConfig
    record: CheckpointRecord
    named: Parent

    @property
    def url(self) -> str:
        return self.run.url_of(self.record.folder)

    @property
    def past(self) -> DataPolicy:
        """The data policy of the optimizer steps that are in it."""
        return DataPolicy.from_json(str(self.record.state["policy"])).before(self.record.step)

    def to_json(self) -> dict[str, Any]:
        """What an event says of it."""
        return {
            "run": self.run.url,
            "step": self.record.step,
            "generation": self.record.generation,
            "weight": self.named.weight,
            "fingerprint": fingerprint(self.record),
        }


def origins_of(config: RunConfig) -> list[Origin]:
    """What `training.start` of `config` names, in its order.

    Raises:
        UserError: a run or its checkpoint is not there, or the checkpoint is another than it was.
    """
    return [_open(parent, config) for parent in config.training.start]


def _open(parent: Parent, config: RunConfig) -> Origin:
    run = find_run(parent.run, root=config.storage)
    record = find(run, parent.step)
    if parent.fingerprint not in (None, fingerprint(record)):
        raise UserError(
            f"is not the checkpoint that this run is to begin from: its fingerprint is {fingerprint(record)}, and "
            f"training.start has {parent.fingerprint}",
            where=run.url_of(record.folder),
            hint="that run was rolled back or trained anew; fork or merge under another name",
        )
    return Origin(run=run, config=read_config(run), record=record, named=parent)


def leading(origins: Sequence[Origin]) -> Origin:
    """The one whose step, data position and data policy the run takes over."""
    return next((each for each in origins if each.named.position), origins[0])


def check(config: RunConfig, origins: Sequence[Origin]) -> None:
    """Refuse to begin the run of `config` from checkpoints that do not fit it, or each other.

    Raises:
        UserError: naming each key that differs, with both values.
    """
    lead = leading(origins)
    for origin in origins:
        _check_keys(config, origin, with_order=origin is lead)
    if lead.past != policy_of(config).before(lead.record.step):
        raise UserError(
            f"the data policy of the {lead.record.step:,} optimizer steps that are done is not the one they were done "
            f"with: {_apart(lead.past, policy_of(config).before(lead.record.step))}",
            where="training.stages",
            hint="set mixture, stages and skip of the steps before it back; those to come may be changed",
        )
    if not lead.named.position:
        for origin in origins:
            _check_position(lead, origin)


def _check_keys(config: RunConfig, origin: Origin, *, with_order: bool) -> None:
    may = _MAY_DIFFER if with_order else (*_MAY_DIFFER, *_OF_THE_ORDER)
    keys = origin.record.identity_keys or identity_of(origin.config)
    # The moments of one optimizer are not those of another.
    differ = differing(config, keys, but=lambda path: path.startswith(may) and path != "training.optimizer.name")
    if config.block != origin.config.block and with_order and not differ:
        differ = [f"the block is of {origin.config.block} tokens there and of {config.block} here"]
    if differ:
        raise UserError(
            f"a run of this config can't begin from it: {'; '.join(differ)}",
            where=origin.url,
            hint="set it back; for other text, or as a start alone, convert the checkpoint and set model.url",
        )


def _check_position(lead: Origin, other: Origin) -> None:
    """Refuse checkpoints that have seen other samples, or as many in another way."""
    mine, its = ({"step": each.record.step, **each.record.state} for each in (lead, other))
    differ = [
        f"{name} is {its[name]:,} there and {mine[name]:,} in {lead.url}"
        for name in _COUNTED
        if its[name] != mine[name]
    ]
    if not differ and other.past != lead.past:
        differ = [f"its samples are others than those of {lead.url}: {_apart(other.past, lead.past)}"]
    if differ:
        raise UserError(
            f"is not as far in the data as the others: {'; '.join(differ)}",
            where=other.url,
            hint="say whose step and data position the run is to have: --position-of RUN, or position: true",
        )


_COUNTED = ("step", *COUNTERS)


def _apart(there: DataPolicy, here: DataPolicy) -> str:
    """The parts in which two data policies differ, with both values."""
    names = [field.name for field in fields(DataPolicy)]
    pairs = [(name, getattr(there, name), getattr(here, name)) for name in names]
    return "; ".join(f"{name} {_short(was)} there and {_short(now)} here" for name, was, now in pairs if was != now)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:197]}..."


def check_data(origin: Origin, data: Dataset, *, storage: Storage) -> None:
    """Refuse a data set that is not the one that `origin` was trained on, nor one that further sources were added to.

    Args:
        data: of the run that is to begin, below the root `storage`.

    Raises:
        UserError: naming both.
    """
    before = read_json(origin.run, DATASET_FILE) or {}
    was = {before.get("key"), before.get("fingerprint")}
    manifest = data.manifest
    while manifest.key not in was and manifest.fingerprint not in was:
        if manifest.base is None:
            raise UserError(
                f"the data set {data.manifest.key} is not the one that {origin.run.url} was trained on "
                f"({before.get('key')}): the data position would mean other samples",
                where=storage.url,
                hint="bring its corpus back as it was",
            )
        manifest = Dataset.open(storage, manifest.base).manifest
