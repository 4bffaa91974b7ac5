"""One optimizer step again, under any layout: what it saw, and what came of it.

Called by `shardline replay` (`replay`) and, in each of its worker processes, by the agent (`work`). Training is done
again from the nearest checkpoint before the step; nothing is written into the run's folder.

Errors: those of training; `UserError` for a step that the run has not done.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from shardline.components.common.config import RunConfig
from shardline.components.common.errors import UserError
from shardline.components.common.events import EventLog
from shardline.components.common.machine import device as device_of
from shardline.components.common.owner import hold
from shardline.components.common.runfolder import adopt_config, read_config
from shardline.components.common.scratch import scratch_folder
from shardline.components.common.storage import Storage
from shardline.components.common.streams import by_step, read_all
from shardline.components.common.workers import Agent, Job, WorkerContext
from shardline.components.planning.choose import choose
from shardline.components.planning.layout import Layout
from shardline.components.sharding.dataset import Dataset
from shardline.components.sharding.decisions import policy_of_run
from shardline.components.sharding.inspect import Viewer
from shardline.components.sharding.order import DataPolicy, policy_of
from shardline.components.sharding.step import find_dataset
from shardline.components.training.checkpoint import catalog
from shardline.components.training.checkpoint.catalog import CheckpointRecord
from shardline.components.training.checkpoint.inspect import find
from shardline.components.training.dtensors import whole_of
from shardline.components.training.guard import Watch
from shardline.components.training.session import Session, StepResult, open_session

ENTRY = "shardline.components.training.replay:work"
_RESULTS = "replay"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What to replay: optimizer step `step` of the run at `run`, with or without what its roll-backs pass over."""

    run: str
    step: int
    roll_backs: bool = True

    def policy(self, config: RunConfig) -> DataPolicy:
        return policy_of_run(Storage(self.run), config) if self.roll_backs else policy_of(config)


def replay(wanted: Wanted, *, config: RunConfig, agent: Agent) -> dict[str, Any]:
    """Do the step again, with workers of `agent`.

    Args:
        config: the run's, under the layout that is wanted.

    Returns:
        `step`, `from_step` (of the checkpoint), `layout`; `loss` and `gradient_norm` with what the run `recorded`, if
        it did; `parameters`: for each its norm, its gradient's and how many numbers of either are not finite;
        `samples`: the documents that the step saw, with their text.
    """
    run = Storage(wanted.run)
    recorded = {int(each["data"]["step"]): each["data"] for each in by_step(read_all(run.at("metrics")))}
    if wanted.step >= max((*(step + 1 for step in recorded), *(each.step for each in catalog.committed(run)), 0)):
        raise UserError(f"the run has not done optimizer step {wanted.step}", where=run.url)
    record = _nearest(run, wanted.step)
    if record is None and config.training.start:
        raise UserError(
            f"this run begins with optimizer step {config.training.first_step}, from a checkpoint of another run",
            where=run.url,
            hint="replay that one: " + ", ".join(parent.run for parent in config.training.start),
        )
    data = find_dataset(config)
    chosen: dict[str, Any] = {}

    def arguments(_: int, world: int) -> dict[str, Any]:
        chosen.update(choose(config, world=world, vocab=data.manifest.vocab).layout.to_json())
        return {
            "wanted": {"run": wanted.run, "step": wanted.step, "roll_backs": wanted.roll_backs},
            "dataset": data.manifest.key,
            "layout": chosen,
            "device": device_of(config, world=world),
            "begin": None if record is None else record.step,
        }

    with scratch_folder() as folder:
        scratch = Storage(str(folder / "run"))
        with hold(scratch) as lease, EventLog(scratch, generation=0, writer="replay") as events:
            adopt_config(scratch, config)
            agent.run(Job(name="replay", entry=ENTRY, arguments=arguments), run=scratch, lease=lease, events=events)
        parts = [json.loads(scratch.read(f"{_RESULTS}/{name}")) for name in sorted(scratch.names(_RESULTS))]
    parameters = {name: facts for part in parts for name, facts in part.pop("parameters").items()}
    found = recorded.get(wanted.step, {})
    return {
        **parts[0],
        "recorded": {"loss": found.get("loss"), "gradient_norm": found.get("grad_norm")},
        "from_step": record.step if record else 0,
        "layout": chosen,
        "parameters": dict(sorted(parameters.items())),
        "samples": Viewer(data).step(wanted.policy(config), wanted.step),
    }


def _nearest(run: Storage, step: int) -> CheckpointRecord | None:
    """The last sound checkpoint before `step`; None when training has to be done again from the start."""
    records = sorted(catalog.committed(run), key=lambda record: record.step, reverse=True)
    return next((each for each in records if each.step <= step and catalog.damage(run, each) is None), None)


def work(
    context: WorkerContext,
    *,
    wanted: dict[str, Any],
    dataset: str,
    layout: dict[str, Any],
    device: str,
    begin: int | None,
) -> None:
    """As rank `context.rank`: train from the checkpoint of step `begin` (None: the start), and look at the step."""
    config, asked = read_config(context.run), Wanted(**wanted)
    run = Storage(asked.run)
    data = Dataset.open(Storage(config.storage), dataset, cache=config.resources.cache)
    place = Layout.from_json(layout)
    with open_session(
        replace(context, run=run), config=config, layout=place, vocab=data.manifest.vocab, device=device
    ) as session:
        done = _load(run, begin, session=session)
        result, parameters = _train(asked, done, config=config, data=data, session=session)
        # Of every stage one rank: the others hold parts of the same parameters.
        if session.parts.place.leads_stage:
            facts: dict[str, Any] = {"step": asked.step, "loss": result.loss, "gradient_norm": result.gradient_norm}
            facts |= {"learning_rate": result.learning_rate, "tokens": result.tokens, "verdict": result.verdict.value}
            content = json.dumps({**facts, "parameters": parameters}).encode()
            context.run.write(f"{_RESULTS}/{context.rank:05d}.json", content)


def _load(run: Storage, begin: int | None, *, session: Session) -> int:
    if begin is None:
        return 0
    session.load(find(run, begin), with_optimizer=True)
    return begin


def _train(
    wanted: Wanted, done: int, *, config: RunConfig, data: Dataset, session: Session
) -> tuple[StepResult, dict[str, Any]]:
    """Do the steps up to the one that is wanted; what came of it, and its parameters before the update."""
    split = data.split("train")
    order = split.order(wanted.policy(config))
    watch = Watch(config.training.guard.model_copy(update={"spike": "off"}))
    parameters: dict[str, Any] = {}
    with session.loader(split, order=order, position=order.position_at(done)) as loader:
        for step in range(done, wanted.step + 1):
            look = (lambda: parameters.update(_facts(session))) if step == wanted.step else None
            result = session.step(next(loader), step=step, watch=watch, look=look)
    return result, parameters


def _facts(session: Session) -> dict[str, dict[str, Any]]:
    """Collective over the ranks that hold parts of the same parameters."""
    found = {}
    for name, parameter in session.parts.named_parameters():
        facts: dict[str, Any] = {"shape": list(parameter.shape), **_measures("", parameter.detach())}
        if parameter.grad is not None:
            facts |= _measures("gradient_", parameter.grad)
        found[name] = facts
    return found


def _measures(prefix: str, tensor: Tensor) -> dict[str, Any]:
    norm, wrong = torch.linalg.vector_norm(tensor), (~torch.isfinite(tensor)).sum()
    return {f"{prefix}norm": float(whole_of(norm)), f"{prefix}not_finite": int(whole_of(wrong))}
