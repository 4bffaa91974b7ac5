"""All Kubernetes objects of a run, in the order in which they are applied. Pure: a config in, plain mappings out.

Called by `shardline render`, and by whatever creates a run's objects: what a person applies by hand and what a launcher
creates come from here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal

from shardline.components.common.config import Loaded, RunConfig, refuse_relative
from shardline.components.common.kubernetes import access, avoidance, extras, jobs, monitoring, names, patches
from shardline.components.common.kubernetes.objects import Manifest
from shardline.components.common.kubernetes.pods import config_map
from shardline.components.common.kubernetes.pytorchjob import pytorchjob
from shardline.components.common.kubernetes.trainjob import trainjob

Part = Literal["access", "shard", "merge", "train", "evaluate", "report"]
Kind = Literal["pytorchjob", "trainjob"]

#: In the order in which they are applied: `access` first, then each step after the one before is complete.
PARTS: tuple[Part, ...] = ("access", "shard", "merge", "train", "evaluate", "report")


def render(
    loaded: Loaded,
    *,
    only: Iterable[Part] = PARTS,
    kind: Kind = "pytorchjob",
    leave_out: Collection[str] = (),
    aside: Collection[str] = (),
) -> list[Manifest]:
    """The objects of the parts `only` of the run.

    Args:
        leave_out, aside: nodes that no pod of it may be put on, see `avoidance.without`.

    Raises:
        ConfigError: a key that a cluster needs is missing, or names what a cluster does not have.
        UserError: the config is larger than an object may be.
    """
    config, wanted = loaded.config, set(only)
    _check(loaded, kind=kind)
    objects = {part: _objects(config, part, kind=kind) for part in PARTS}
    shared = [config_map(config)]
    _check_patches(loaded, [*shared, *(each for part in PARTS for each in objects[part])])
    chosen = list(objects["access"]) if "access" in wanted else []
    if wanted - {"access"}:
        chosen += shared
    for part in PARTS[1:]:
        chosen += objects[part] if part in wanted else []
    return [avoidance.without(_patched(loaded, each), leave_out=leave_out, aside=aside) for each in chosen]


def _objects(config: RunConfig, part: Part, *, kind: Kind) -> list[Manifest]:
    if part == "access":
        return access.access(config.kubernetes.namespace, service_account=config.kubernetes.service_account)
    if part == "shard":
        return [jobs.shard_job(config)]
    if part == "merge":
        return [jobs.merge_job(config)] if config.kubernetes.sharding.parts > 1 else []
    if part == "train":
        train = trainjob(config) if kind == "trainjob" else [pytorchjob(config)]
        monitor = [] if config.kubernetes.pod_monitor is None else [monitoring.pod_monitor(config)]
        return [extras.disruption_budget(config), *monitor, *train]
    return [jobs.evaluate_job(config) if part == "evaluate" else jobs.report_job(config)]


def _check(loaded: Loaded, *, kind: Kind) -> None:
    config = loaded.config
    if config.kubernetes.image is None:
        rule = "is needed to render: the image that each step runs in, with shardline installed in it"
        raise loaded.problem("kubernetes.image", rule)
    refuse_relative(loaded)
    if problem := names.problem(config, kind=kind):
        raise loaded.problem("run", problem)
    if kind == "trainjob" and config.kubernetes.workers.elastic:
        rule = "is for a PyTorchJob: a TrainJob has a fixed size, that of kubernetes.workers.replicas"
        raise loaded.problem("kubernetes.workers.min", rule)


def _check_patches(loaded: Loaded, objects: list[Manifest]) -> None:
    """Raises ConfigError for a patch that changes none of `objects`."""
    for index, patch in enumerate(loaded.config.kubernetes.patch):
        there = [each["metadata"]["name"] for each in objects if each["kind"] == patch.kind]
        if not there:
            kinds = ", ".join(dict.fromkeys(each["kind"] for each in objects))
            raise loaded.problem(f"kubernetes.patch.{index}.kind", f"is of no object of the run, which has {kinds}")
        if patch.name is not None and patch.name not in there:
            rule = f"is of no {patch.kind} of the run, which has {', '.join(there)}"
            raise loaded.problem(f"kubernetes.patch.{index}.name", rule)


def _patched(loaded: Loaded, manifest: Manifest) -> Manifest:
    name = manifest["metadata"]["name"]
    for index, patch in enumerate(loaded.config.kubernetes.patch):
        if patch.kind == manifest["kind"] and patch.name in (None, name):
            try:
                manifest = patches.merged(manifest, patch.patch)
            except ValueError as error:
                raise loaded.problem(f"kubernetes.patch.{index}.patch", str(error)) from None
            if (manifest.get("kind"), manifest.get("metadata", {}).get("name")) != (patch.kind, name):
                rule = "must not change kind or name, by which the run's objects are found"
                raise loaded.problem(f"kubernetes.patch.{index}.patch", rule)
    return manifest
