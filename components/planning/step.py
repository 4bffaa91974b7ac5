"""The plan step: the layout that training will use here, what it needs and why it was taken, as `plan.json`.

Called by the pipeline's plan component and by `shardline plan`. It decides nothing for good: each generation of workers
chooses again, by the same function.
"""

from __future__ import annotations

from typing import Any

from shardline.components.common.config import RunConfig
from shardline.components.common.machine import processes
from shardline.components.common.runfolder import write_json
from shardline.components.common.step import stepping
from shardline.components.planning.choose import choose

PLAN_FILE = "plan.json"


def plan(config: RunConfig, *, vocab: int | None = None) -> dict[str, Any]:
    """The plan as JSON, without writing it.

    Args:
        vocab: tokens of the tokenizer; that of the config when the data set isn't there yet.

    Raises:
        UserError: no layout fits.
    """
    size = vocab or config.model.vocab or config.tokenizer.vocab
    world = processes(config)
    shape = config.model.shape(size)
    training = config.training
    choice = choose(config, world=world, vocab=size)
    return {
        "processes": world,
        "parameters": shape.parameters,
        "tokens_per_step": training.global_batch * training.sequence,
        "tokens": training.steps * training.global_batch * training.sequence,
        **choice.to_json(),
    }


def run(config: RunConfig, *, vocab: int | None = None, sources: dict[str, str] | None = None) -> dict[str, Any]:
    """Write the plan into the run folder; returns it."""
    with stepping(config, "plan", sources=sources) as context:
        planned = plan(config, vocab=vocab)
        write_json(context.run, PLAN_FILE, planned)
        context.summary.update({"layout": planned["layout"], "reason": planned["reason"]})
        return planned
