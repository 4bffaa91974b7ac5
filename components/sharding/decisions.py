"""What a run itself has decided about its data, beside its config: samples that a roll-back passes over.

Called by training, which decides, and by whatever wants a run's order. Each decision is a file of its own in
`decisions/` of the run folder, made once and never changed, so that the data policy only grows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from shardline.components.common.config import RunConfig
from shardline.components.common.errors import DamagedData, PeerLost
from shardline.components.common.storage import Storage
from shardline.components.sharding.order import DataPolicy, Skip, policy_of

FOLDER = "decisions"


def policy_of_run(run: Storage, config: RunConfig) -> DataPolicy:
    """The data policy that `config` asks for, with what the run has decided.

    Raises:
        DamagedData: a decision is not what was written.
    """
    return policy_with(decided(run), config)


def policy_with(decided: Sequence[Skip], config: RunConfig) -> DataPolicy:
    """The data policy that `config` asks for, with decisions that were read."""
    policy = policy_of(config)
    skips = sorted((*policy.skips, *decided), key=lambda skip: skip.step)
    return replace(policy, skips=tuple(skips))


def decided(run: Storage) -> list[Skip]:
    """The run's decisions, in the order in which they were made."""
    return [_read(run, f"{FOLDER}/{name}") for name in sorted(run.names(FOLDER)) if name.startswith("skip-")]


def decide(run: Storage, skip: Skip, *, about: Mapping[str, Any]) -> None:
    """Pass the samples of `skip` over, from now on.

    Args:
        about: why, for a person.

    Raises:
        PeerLost: another process has decided something at the same time.
    """
    path = f"{FOLDER}/skip-{len(decided(run)):06d}.json"
    if not run.create(path, (json.dumps({"skip": asdict(skip), **about}, indent=1) + "\n").encode()):
        raise PeerLost("another process decided about this run's data just now", where=run.url_of(path))


def _read(run: Storage, path: str) -> Skip:
    try:
        return Skip(**json.loads(run.read(path))["skip"])
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedData("is not a decision", where=run.url_of(path), hint="bring the file back") from error
