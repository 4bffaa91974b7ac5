"""`shardline evaluate`: the evaluation step alone."""

from __future__ import annotations

from shardline.pipelines.cli.options import AsJson, ConfigPath, Overrides, Root, read_config
from shardline.pipelines.cli.output import note, print_json, print_table


def evaluate(config: ConfigPath, overrides: Overrides = None, root: Root = None, as_json: AsJson = False) -> None:
    """Evaluate the last checkpoint and export the model.

    It measures loss and bits per byte on the held-out text, and writes a Hugging Face folder. Exits with 4 when the
    gate refuses the model.
    """
    loaded = read_config(config, overrides=overrides, root=root)

    from shardline.components.common.runfolder import run_storage
    from shardline.components.elasticity.local import local_agent
    from shardline.components.evaluation import step
    from shardline.components.evaluation.gate import enforce
    from shardline.pipelines import results
    from shardline.pipelines.cli.stepping import run_step

    agent = local_agent(loaded.config)
    result = run_step("evaluate", loaded, lambda: step.run(loaded.config, agent=agent, sources=loaded.sources))
    if result["step"] < loaded.config.training.steps:
        note(f"note: this is the checkpoint of optimizer step {result['step']} of {loaded.config.training.steps}")
    run = run_storage(loaded.config)
    model = None if loaded.config.model.class_ else run.url_of(step.MODEL_FOLDER)
    print_json(result) if as_json else print_table(results.evaluation(result, model=model))
    enforce(result, where=run.url)
