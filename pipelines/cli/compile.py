"""`shardline compile`: the pipeline as a KFP package."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from shardline.pipelines.cli.options import ConfigPath, Overrides, Root
from shardline.pipelines.cli.output import note


def compile_config(
    config: ConfigPath,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Where the package goes; - is standard output.")
    ] = "pipeline.yaml",
    overrides: Overrides = None,
    root: Root = None,
) -> None:
    """Compile the pipeline to a package for Kubeflow.

    It is a YAML file to upload in the Kubeflow UI. The config becomes the default of the pipeline's parameter. It needs
    kubernetes.image, and a storage root that a cluster sees.
    """
    from shardline.components.common.config import load
    from shardline.components.common.storage import Storage
    from shardline.pipelines.package import compile_pipeline

    package = compile_pipeline(load(config, overrides=overrides or (), root=root))
    if output == "-":
        sys.stdout.write(package.decode())
        return
    folder, name = os.path.split(os.path.abspath(output))
    Storage(folder).write(name, package)
    note(f"wrote {output}: upload it in the Kubeflow UI (Pipelines, Upload pipeline)")
