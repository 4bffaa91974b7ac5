"""The config and the folder of a run that begins from checkpoints of others.

Called by `shardline fork` and `shardline merge`. A command that is refused leaves nothing behind; one that was killed
is called again and ends the same. The parents are read and never written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from shardline.components.common.config import Loaded, RunConfig, absolute
from shardline.components.common.config.data_schema import Skip, Stage
from shardline.components.common.config.derive import derive
from shardline.components.common.config.identity import changes
from shardline.components.common.config.training_schema import Parent
from shardline.components.common.errors import UserError
from shardline.components.common.events import EventLog
from shardline.components.common.owner import hold
from shardline.components.common.runfolder import (
    CONFIG_FILE,
    DATASET_FILE,
    adopt_config,
    as_adopted,
    read_config,
    run_storage,
)
from shardline.components.common.storage import Storage
from shardline.components.sharding.decisions import policy_of_run
from shardline.components.training.checkpoint.inspect import find
from shardline.components.training.checkpoint.record import fingerprint
from shardline.components.training.start.begin import OnPart, begin, has_begun
from shardline.components.training.start.origins import check, leading, origins_of


@dataclass(frozen=True, kw_only=True)
class Named:
    """A checkpoint as a command names it: a run's folder, its newest checkpoint where no step is given, its weight."""

    run: Storage
    step: int | None = None
    weight: float = 1.0


def config_from(
    parents: Sequence[Named],
    *,
    name: str,
    position_of: int | None = None,
    overlay: str | None = None,
    overrides: Iterable[str] = (),
    root: str | None = None,
) -> Loaded:
    """The config of a new run that begins from `parents`: that of the one whose position it has, with other values.

    Where global batch, sequence or mixture are to be others, they are so from the first new step on: a stage says so.
    What the parent had decided to pass over is passed over, too.

    Args:
        name: of the new run, below the storage that its config names.
        position_of: which of the parents gives step, data position and policy, where they do not agree.
        overlay, overrides, root: as `derive` has them.

    Raises:
        UserError: there is no such checkpoint, or the file cannot be read.
        ConfigError: a key is wrong.
    """

    def config_of(steps: Sequence[int | None]) -> Loaded:
        options = {"overlay": overlay, "overrides": tuple(overrides), "root": root}
        return _config_of(parents, steps, name=name, position_of=position_of, options=options)

    wanted = [parent.step for parent in parents]
    loaded = config_of(wanted)
    # What is left open stays what it was when the command was called before: the parent may have gone on meanwhile.
    before = _start_of(run_storage(loaded.config))
    if None in wanted and [each.run for each in before] == [place_of(parent.run) for parent in parents]:
        return config_of([step or each.step for step, each in zip(wanted, before, strict=True)])
    return loaded


def place_of(run: Storage) -> str:
    """The URL of a run as a config has it, which means the same from any working directory."""
    return str(run.local_path("")) if run.is_local else run.url


def _start_of(run: Storage) -> list[Parent]:
    return read_config(run).training.start if run.exists(CONFIG_FILE) else []


def _config_of(
    parents: Sequence[Named],
    steps: Sequence[int | None],
    *,
    name: str,
    position_of: int | None,
    options: dict[str, Any],
) -> Loaded:
    lead = parents[position_of or 0]
    before = read_config(lead.run)
    start = [
        _parent(each, step=step, position=number == position_of)
        for number, (each, step) in enumerate(zip(parents, steps, strict=True))
    ]
    begun = start[position_of or 0].step
    skips = [Skip(at=skip.step, batches=skip.batches) for skip in policy_of_run(lead.run, before).skips]
    base = _of_run(before, name=name, start=start)
    base = base.model_copy(update={"training": base.training.model_copy(update={"skip": skips})})
    loaded = derive(
        base,
        source=f"the config of {lead.run.url}",
        **options,
        settle=lambda config: _from_here(base, _of_run(config, name=name, start=start), step=begun),
    )
    return replace(loaded, config=absolute(loaded.config))


def _parent(named: Named, *, step: int | None, position: bool) -> Parent:
    record = find(named.run, step)
    return Parent(
        run=place_of(named.run),
        step=record.step,
        weight=named.weight,
        position=position,
        fingerprint=fingerprint(record),
    )


def _of_run(config: RunConfig, *, name: str, start: list[Parent]) -> RunConfig:
    """`config` as that of the run `name`, which takes its first values from `start` and from nothing else."""
    model = config.model.model_copy(update={"url": None, "fingerprint": None})
    training = config.training.model_copy(update={"start": start})
    return config.model_copy(update={"run": name, "model": model, "training": training})


def _from_here(before: RunConfig, config: RunConfig, *, step: int) -> RunConfig:
    """`config` with what it sets of the first stage otherwise than `before` put into a stage at `step`."""
    names = ("global_batch", "sequence", "mixture")
    old, new = before.training, config.training
    changed = {name: getattr(new, name) for name in names if getattr(new, name) != getattr(old, name)}
    if not changed:
        return config
    if changed.get("mixture", ...) is None:
        changed["mixture"] = config.first_mixture
    there = next((stage for stage in new.stages if stage.at == step), Stage(at=step))
    stages = [stage for stage in new.stages if stage.at != step]
    stages.append(there.model_copy(update=changed))
    kept = {name: getattr(old, name) for name in names}
    ordered = sorted(stages, key=lambda stage: stage.at)
    return config.model_copy(update={"training": new.model_copy(update={**kept, "stages": ordered})})


def make(loaded: Loaded, *, command: Literal["fork", "merge"], on_part: OnPart) -> dict[str, Any]:
    """Make the run of `loaded`, as `config_from` gives it.

    Returns:
        `run`, `url`, `step`, `position`, `parents` and `changes`, as the event has them; `bytes` of the checkpoint, or
        None where it is the train step that makes it, once the run has a data set of its own; `made`: whether it was
        made now.

    Raises:
        UserError: the parents do not fit, something else is at the run's place, or a live process owns it.
        DamagedData: a file of a parent is not what was written.
    """
    config, run = loaded.config, run_storage(loaded.config)
    if run.exists(CONFIG_FILE) and [each.run for each in _start_of(run)] != [
        each.run for each in config.training.start
    ]:
        raise UserError("another run is here already", where=run.url, hint="give the new one another name")
    begun = run.exists(CONFIG_FILE) and has_begun(run)
    if begun:
        as_adopted(run, config, sources=loaded.sources)  # refuses another identity
    else:
        check(config, origins_of(config))
        _begin(loaded, run, command=command, on_part=on_part)
    origins = origins_of(config)
    lead = leading(origins)
    made = find(run, lead.record.step).bytes if has_begun(run) else None
    differ = changes(lead.config, config)
    differ.pop("training.start", None)
    return {
        "run": config.run,
        "url": run.url,
        "parents": [origin.to_json() for origin in origins],
        "step": lead.record.step,
        "position": lead.record.state["position"],
        "changes": differ,
        "bytes": made,
        "made": not begun,
    }


def _begin(loaded: Loaded, run: Storage, *, command: str, on_part: OnPart) -> None:
    config = loaded.config
    lead = leading(origins_of(config))
    with hold(run) as lease:
        # What an earlier call has left may still become another run: nothing in it counts.
        run.delete(DATASET_FILE)
        adopt_config(run, config, sources=loaded.sources)
        same_data = (config.storage, config.corpus) == (lead.config.storage, lead.config.corpus)
        if not same_data or not lead.run.exists(DATASET_FILE):
            return
        run.write(DATASET_FILE, lead.run.read(DATASET_FILE))
        generation = lease.next_generation()
        with EventLog(run, generation=generation, writer=command) as events:
            begin(read_config(run), run, lease=lease, generation=generation, events=events, on_part=on_part)
