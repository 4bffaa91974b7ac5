"""The config of a drill's own run."""

from __future__ import annotations

from pathlib import Path

from shardline.components.common import config as configs
from shardline.components.common.config.identity import identity_of
from shardline.components.common.kubernetes.render import render
from shardline.pipelines.drill import _own

ROOT = Path(__file__).parents[3]
CHANGE = '{metadata: {annotations: {a: "1"}}}'
PATCHES = f"[{{kind: PyTorchJob, name: mine, patch: {CHANGE}}}, {{kind: Job, name: mine-shard, patch: {CHANGE}}}]"


def test_it_has_the_samples_and_losses_of_the_config_and_another_name() -> None:
    loaded = configs.load(
        str(ROOT / "examples/cluster.yaml"), overrides=["run=mine", "training.steps=70", f"kubernetes.patch={PATCHES}"]
    )
    own = _own(loaded, run="mine-drill-1")
    before, after = identity_of(loaded.config), identity_of(own.config)
    # Where the decay ends was left to the steps, of which there are more now.
    assert before.pop("training.schedule.decay_steps") is None and after.pop("training.schedule.decay_steps") == 70
    assert before == after
    assert own.config.run == "mine-drill-1" and own.config.training.steps > 1_000_000
    job = render(own, only=("train",))[-1]
    assert job["metadata"]["name"] == "mine-drill-1" and job["metadata"]["annotations"]["a"] == "1"
