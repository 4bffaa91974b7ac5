"""A run config to Kubeflow: compiled, uploaded as a version that its content names, and started.

Called by `shardline submit` and `shardline schedule`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime

from shardline.components.common.config import Loaded
from shardline.pipelines.kubeflow.client import Client
from shardline.pipelines.kubeflow.records import KubeflowRun, parameters
from shardline.pipelines.package import parameter

_HASH_DIGITS = 16


@dataclass(frozen=True)
class Uploaded:
    """Where a config's pipeline is in Kubeflow: ids of experiment and of pipeline and version."""

    experiment: str
    pipeline: tuple[str, str]
    version: str


def version_name(package: bytes) -> str:
    """What the version with this content is called, so that the same pipeline is uploaded once."""
    return f"sha256-{hashlib.sha256(package).hexdigest()[:_HASH_DIGITS]}"


def upload(loaded: Loaded, client: Client, *, package: bytes) -> Uploaded:
    """Put the compiled `package` of `loaded` there, and make what it needs, as far as that is not there already.

    Raises:
        ShardlineError: as `Client` has it.
    """
    kubeflow, version = loaded.config.kubeflow, version_name(package)
    experiment = client.make_experiment(kubeflow.experiment)
    pipeline = client.upload(kubeflow.pipeline, version=version, package=package)
    return Uploaded(experiment, pipeline, version)


def submit(loaded: Loaded, client: Client, *, package: bytes) -> KubeflowRun:
    """Start a run of `package`, which `compile_pipeline` made of `loaded`.

    Raises:
        UserError: as `package.parameter` has it.
        ShardlineError: as `Client` has it.
    """
    uploaded = upload(loaded, client, package=package)
    return client.start(
        name_now(loaded.config.run),
        experiment=uploaded.experiment,
        pipeline=uploaded.pipeline,
        parameters=parameters(parameter(loaded)),
        service_account=loaded.config.kubeflow.service_account,
    )


def name_now(run: str) -> str:
    """What a run that is started now is called in Kubeflow: a run that goes on gets a new entry there."""
    return f"{run} {datetime.now(UTC):%Y-%m-%d %H:%M:%S}"
