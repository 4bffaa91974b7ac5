"""The plan step: the layout that training will use here, what it needs and why it was taken, as `plan.json`.

Called by the pipeline's plan component; `shardline plan` shows the plan alone. It decides nothing for good: each
generation of workers chooses again, by the same function.
"""

from __future__ import annotations

from typing import Any

from shardline.components.common.config import RunConfig
from shardline.components.common.machine import processes_and_why
from shardline.components.common.runfolder import DATASET_FILE, read_json, run_storage, with_model, write_json
from shardline.components.common.step import stepping
from shardline.components.planning.choose import choose

PLAN_FILE = "plan.json"


def plan(config: RunConfig) -> dict[str, Any]:
    """The plan as JSON; nothing is written.

    Raises:
        UserError: no layout fits, or the model to start from is not there.
    """
    if config.model.is_open:
        config = with_model(config)
    vocab = _vocabulary(config)
    world, why = processes_and_why(config)
    training = config.training
    choice = choose(config, world=world, vocab=vocab)
    return {
        "processes": world,
        "processes_from": why,
        "parameters": config.model.shape(vocab).parameters,
        "tokens_per_step": training.global_batch * training.sequence,
        "tokens": training.tokens,
        **choice.to_json(),
    }


def _vocabulary(config: RunConfig) -> int:
    """Tokens of the run's tokenizer; as many as it may get, while there is none."""
    dataset = read_json(run_storage(config), DATASET_FILE)
    return int(dataset["vocab"]) if dataset else config.model.vocab or config.tokenizer.vocab


def run(config: RunConfig, *, sources: dict[str, str] | None = None) -> dict[str, Any]:
    """Write the plan into the run folder; returns it."""
    with stepping(config, "plan", sources=sources) as context:
        planned = plan(context.config)
        write_json(context.run, PLAN_FILE, planned)
        context.summary.update({"layout": planned["layout"], "reason": planned["reason"]})
        return planned
