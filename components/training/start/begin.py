"""A run's first checkpoint, made of those that `training.start` names.

Called by the train step before its workers start, and by the commands that make such a run; both by the run's owner.
Killed at any moment, it is done again: what was not committed does not count. Once a checkpoint is there, the run goes
on from it as any run does, under any layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shardline.components.common.config import RunConfig
from shardline.components.common.config.identity import changes, identity_hash, identity_of
from shardline.components.common.events import EventLog
from shardline.components.common.owner import Lease
from shardline.components.common.storage import Storage
from shardline.components.common.streams import now
from shardline.components.sharding.dataset import Dataset
from shardline.components.training.checkpoint import catalog
from shardline.components.training.checkpoint.record import COUNTERS, CheckpointRecord, describe, folder_of
from shardline.components.training.start.copying import copy
from shardline.components.training.start.origins import Origin, check, check_data, leading, origins_of

OnPart = Callable[[int, int], None]


def has_begun(run: Storage) -> bool:
    """Whether the run has, or ever had, a checkpoint of its own."""
    return bool(catalog.committed(run) or catalog.damaged(run)) or catalog.latest_step(run) is not None


def begin(
    config: RunConfig,
    run: Storage,
    *,
    lease: Lease,
    generation: int,
    events: EventLog,
    data: Dataset | None = None,
    on_part: OnPart = lambda done, total: None,
) -> CheckpointRecord | None:
    """Make the first checkpoint of `run`, unless it needs none or has begun.

    Args:
        data: the run's data set, where that may be another than its parents'.
        on_part: told how many bytes are done, of how many.

    Raises:
        UserError: a parent is not there, or does not fit the config or the others.
        DamagedData: a file of a parent is not what was written.
        Superseded: another process has taken the run over.
    """
    if not config.training.start or has_begun(run):
        return None
    origins = origins_of(config)
    check(config, origins)
    lead = leading(origins)
    if data is not None:
        check_data(lead, data, storage=Storage(config.storage))
    target = folder_of(lead.record.step)
    for folder in catalog.unfinished(run, []):
        # Of an attempt that was cut short. What was copied whole is used.
        if folder != target or len(origins) > 1:
            run.delete_tree(folder)
    record = _record(config, origins, run=run, generation=generation, on_part=_adding(origins, on_part))
    # What happened is to be known once it counts.
    _tell(events, config, origins, record)
    events.flush()
    catalog.commit(run, record, check=lease.check)
    events.emit("checkpoint.committed", describe(record), reason="what the run begins from")
    events.flush()
    return record


def _adding(origins: Sequence[Origin], on_part: OnPart) -> Callable[[int], None]:
    total, done = leading(origins).record.bytes, 0

    def add(size: int) -> None:
        nonlocal done
        done += size
        on_part(done, total)

    return add


def _record(
    config: RunConfig, origins: Sequence[Origin], *, run: Storage, generation: int, on_part: Callable[[int], None]
) -> CheckpointRecord:
    """The commit record of what was copied or averaged, whose files are all there."""
    before = leading(origins).record
    if len(origins) == 1:
        copy(origins[0].run, before, run=run, on_part=on_part)
        files, index, state = before.files, before.index, before.state
    else:
        # Needs torch, which a copy does not.
        from shardline.components.training.start.merging import merge

        folder = run.at(before.folder)
        written, index = merge(origins, folder=folder, prefix=f"g{generation:06d}", on_part=on_part)
        files = {file.name: {"size": file.size, "sha256": file.sha256} for file in written}
        # The losses of no parent are those of the mean: the guard has to see its own first.
        state = {name: before.state[name] for name in (*COUNTERS, "policy")}
    return CheckpointRecord(
        step=before.step,
        generation=generation,
        files=files,
        index=index,
        state=state,
        identity=identity_hash(config),
        identity_keys=identity_of(config),
        layout=before.layout,
        time=now(),
    )


def _tell(events: EventLog, config: RunConfig, origins: Sequence[Origin], record: CheckpointRecord) -> None:
    lead = leading(origins)
    differ = changes(lead.config, config)
    differ.pop("training.start", None)
    told: dict[str, Any] = {
        "parents": [origin.to_json() for origin in origins],
        "step": record.step,
        "position": record.state["position"],
        "changes": differ,
    }
    whence = ", ".join(f"step {origin.record.step} of {origin.run.url}" for origin in origins)
    otherwise = f"from here on with another {', '.join(differ)}" if differ else "nothing is changed"
    if len(origins) == 1:
        events.emit("run.forked", told, reason=f"training.start names {whence}; {otherwise}")
    else:
        told["position_of"] = lead.run.url
        events.emit("run.merged", told, reason=f"training.start names {whence}, averaged by their weights; {otherwise}")
