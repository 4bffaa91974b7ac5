"""`shardline operator`: looks after the PyTorchJobs of runs on a cluster."""

from __future__ import annotations

from typing import Annotated

import typer


def operator(
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", metavar="NAME", help="Whose jobs; this pod's or the context's unless given."),
    ] = None,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="The jobs of all namespaces that it may act in.")
    ] = False,
    interval: Annotated[float, typer.Option(min=0.2, metavar="SECONDS", help="Between two looks at the cluster.")] = 5,
    progress: Annotated[float, typer.Option(min=0.2, metavar="SECONDS", help="Between two looks at a run.")] = 15,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the probes; 0: none.")] = 8080,
    autoscale: Annotated[bool, typer.Option("--autoscale/--no-autoscale", help="Change the number of workers.")] = True,
    pending_after: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="Pods that wait so long make a job smaller."),
    ] = 120,
    settle: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="For so long there must be room for a job to grow."),
    ] = 30,
    cool_down: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Between two changes of a job.")] = 300,
    gain: Annotated[
        float,
        typer.Option(min=0, max=1, metavar="SHARE", help="The least that another worker must add."),
    ] = 0.5,
    done_after: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="A job whose run is done ends after it."),
    ] = 120,
    dead_node_after: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="A pod counts as held by a dead node after it."),
    ] = 300,
    force_delete: Annotated[
        bool,
        typer.Option("--force-delete/--no-force-delete", help="Force-delete such pods of jobs that do not say."),
    ] = False,
) -> None:
    """Look after training jobs on a cluster.

    It changes their number of workers, tells how far they are, and ends what is left of them.

    Any number of these may run; one of them acts, the others wait. In a cluster it is the Deployment of
    k8s/components/operator.
    """
    from shardline.components.common.errors import UserError
    from shardline.components.common.kubernetes.client import Client
    from shardline.components.elasticity.operator.serve import serve
    from shardline.components.elasticity.operator.settings import Settings
    from shardline.pipelines.cli.output import note

    if namespace is not None and all_namespaces:
        raise UserError("does not go with --all-namespaces", where="--namespace", hint="leave one of them out")
    settings = Settings(
        namespace=None if all_namespaces else namespace or Client.connect().namespace,
        interval=interval,
        progress=progress,
        autoscale=autoscale,
        pending=pending_after,
        settle=settle,
        cool_down=cool_down,
        gain=gain,
        done=done_after,
        dead_node=dead_node_after,
        force_delete=force_delete,
    )
    serve(settings, port=port, tell=note)
