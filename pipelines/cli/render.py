"""`shardline render`: the Kubernetes objects of a run."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from shardline.components.common.errors import EnvironmentLacking, ShardlineError
from shardline.pipelines.cli.options import ConfigPath, Overrides, Root
from shardline.pipelines.cli.output import note

#: Storage waits for longer than somebody who asks for a few lines does.
_STORAGE_SECONDS = 10.0


class Part(StrEnum):
    ACCESS = "access"
    SHARD = "shard"
    MERGE = "merge"
    TRAIN = "train"
    EVALUATE = "evaluate"
    REPORT = "report"


class Kind(StrEnum):
    PYTORCHJOB = "pytorchjob"
    TRAINJOB = "trainjob"


Only = Annotated[
    list[Part] | None,
    typer.Option("--only", help="Only the objects of a step, or those of access. Repeatable; all unless given."),
]


def render(
    config: ConfigPath,
    overrides: Overrides = None,
    root: Root = None,
    only: Only = None,
    kind: Annotated[
        Kind,
        typer.Option("--kind", help="What trains: PyTorchJob of the training operator, or TrainJob of Trainer v2."),
    ] = Kind.PYTORCHJOB,
    leave_out: Annotated[
        list[str] | None,
        typer.Option("--leave-out", metavar="NODE", help="Keep all pods away from it. Repeatable."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Have the cluster check each object first; nothing is created.")
    ] = False,
) -> None:
    """Print the Kubernetes objects of a run, for kubectl apply -f -.

    They come in the order in which they are applied; each step begins when the one before is complete, so apply them
    one by one with --only. It needs kubernetes.image, and a storage root that a cluster sees. Nodes that are set aside
    there (`shardline nodes`) are left out.
    """
    from shardline.components.common.config import load
    from shardline.components.common.kubernetes.documents import to_yaml
    from shardline.components.common.kubernetes.render import PARTS
    from shardline.components.common.kubernetes.render import render as objects_of
    from shardline.components.elasticity.budget.nodes import check_name

    for node in leave_out or ():
        check_name(node)
    loaded = load(config, overrides=overrides or (), root=root)
    parts = tuple(part for part in PARTS if only is None or part in only)
    manifests = objects_of(loaded, only=parts, kind=kind.value, leave_out=leave_out or ())
    # A mistake in the config is told before the storage is asked.
    if aside := _aside(loaded.config.storage):
        manifests = objects_of(loaded, only=parts, kind=kind.value, leave_out=leave_out or (), aside=aside)
    if check:
        _check(manifests, namespace=loaded.config.kubernetes.namespace)
    sys.stdout.write(to_yaml(manifests))
    steps = [part for part in parts if part != "access"]
    if len(steps) > 1:
        note(f"note: {', '.join(steps)} follow one another: apply each with --only when the one before is complete")


def _aside(root: str) -> list[str]:
    """The nodes that are set aside, as far as this machine reaches the storage root: it need not, and where it has no
    login for it nothing is said."""
    import threading

    from shardline.components.common.storage import Storage
    from shardline.components.elasticity.budget.nodes import BadNodes

    found: list[str] = []
    why = f"no answer in {_STORAGE_SECONDS:.0f} s"

    def read() -> None:
        nonlocal why
        try:
            found.extend(BadNodes(Storage(root)).names())
            why = ""
        except EnvironmentLacking:
            why = ""
        except ShardlineError as error:
            why = str(error)

    thread = threading.Thread(target=read, name="nodes", daemon=True)
    thread.start()
    thread.join(_STORAGE_SECONDS)
    if why:
        note(f"note: whether nodes are set aside is not known from here: {why}")
    return found


def _check(manifests: list[dict[str, object]], *, namespace: str) -> None:
    """Have the cluster check each of `manifests` by a dry run.

    Raises:
        ShardlineError: what the cluster says to the first that it refuses; the others are told on stderr.
    """
    from shardline.components.common.kubernetes.client import Client
    from shardline.components.common.kubernetes.refusals import ClusterLost

    client = Client.connect(namespace=namespace)
    refusals: list[ShardlineError] = []
    for manifest in manifests:
        try:
            client.apply(manifest, dry_run=True)
        except ClusterLost:
            raise
        except ShardlineError as error:
            refusals.append(error)
    if refusals:
        # A namespace that is missing is missing for all of them.
        reasons: dict[tuple[str, str | None], ShardlineError] = {}
        for refusal in refusals:
            reasons.setdefault((refusal.message, refusal.hint), refusal)
        first, *others = reasons.values()
        for other in others:
            first.add_note(f"error: {other}")
        first.add_note(f"the cluster refuses {len(refusals)} of {len(manifests)} objects")
        raise first
    note(f"the cluster accepts all {len(manifests)} objects")
