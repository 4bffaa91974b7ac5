"""`shardline compile`: the training pipeline as a KFP package, a YAML file to upload in the Kubeflow UI.

The config becomes the default of the pipeline's parameter, so whoever starts a run can edit it there.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from shardline.components.common.config import Loaded, dump_line, refuse_relative
from shardline.components.common.errors import UserError

#: In characters. A workflow must fit into one Kubernetes object, where the config stands more than once; here it is one
#: argument of a process (128 KiB on Linux).
LARGEST_CONFIG = 60_000


def compile_pipeline(loaded: Loaded) -> bytes:
    """The package as YAML; the same config always gives the same bytes.

    Raises:
        ConfigError: a key that a cluster needs is missing, or names a place that only this machine has.
        UserError: the config is too large for a pipeline parameter.
    """
    config = loaded.config
    if config.kubernetes.image is None:
        raise loaded.problem(
            "kubernetes.image", "is needed to compile: the image that each step runs in, with shardline installed in it"
        )
    refuse_relative(loaded)
    text = parameter(loaded)
    # Imported here: it takes seconds, and whoever made a mistake above should not wait for them.
    from kfp import compiler

    from shardline.pipelines.podsettings import pod_settings
    from shardline.pipelines.training import training_pipeline

    parts = config.kubernetes.sharding.parts
    pipeline = training_pipeline(name=config.kubeflow.pipeline, pods=pod_settings(config), parts=parts)
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "pipeline.yaml"
        compiler.Compiler().compile(pipeline, str(package), pipeline_parameters={"config": text})
        return package.read_bytes()


def parameter(loaded: Loaded) -> str:
    """The config as the pipeline's parameter.

    One line: KFP copies a default into a comment at the package's head, where a second line would not be a comment.

    Raises:
        UserError: it is too large.
    """
    text = dump_line(loaded.config)
    size = len(json.dumps(text))
    if size > LARGEST_CONFIG:
        raise UserError(
            f"the config takes {size:,} characters as a pipeline parameter; at most {LARGEST_CONFIG:,} fit",
            where=loaded.source,
            hint="name many corpus files by a folder or a glob instead of a list",
        )
    return text
