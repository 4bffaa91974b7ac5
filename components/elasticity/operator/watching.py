"""The jobs, pods and nodes of a cluster as they are now, kept by kopf in a thread beside the one that acts.

Called by `serve`. The only module that imports kopf. Its indices are filled before anything is given out, so that
nothing is decided on half a cluster. Event and index handlers alone are registered: kopf then writes nothing at all, so
that no finalizer of ours can hold up a deletion and no state of ours is in an object.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import CancelledError
from types import TracebackType
from typing import Any

import kopf

from shardline.components.common.errors import EnvironmentLacking, PeerLost
from shardline.components.common.kubernetes.names import RUN_LABEL
from shardline.components.elasticity.operator import facts
from shardline.components.elasticity.operator.facts import World

_JOBS = ("kubeflow.org", "v1", "pytorchjobs")
#: For an answer of the watching thread, and for its end.
_SECONDS, _END_SECONDS = 10.0, 2.0


class Watch:
    """A cluster that is watched for the length of a `with` block."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._filled = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._indices: dict[str, Any] = {}
        # A daemon: while it starts kopf may not notice for minutes that it is to end.
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(_END_SECONDS)

    def world(self) -> World | None:
        """What there is now; None before all of it is known, and while there is no job to look after.

        Raises:
            EnvironmentLacking: the cluster lets nobody in.
            PeerLost: the watching has ended by itself.
        """
        if not self._thread.is_alive():
            if isinstance(self._failure, kopf.LoginError):
                raise EnvironmentLacking(f"the cluster lets nobody in: {self._failure}", where="KUBECONFIG")
            why = f": {type(self._failure).__name__}: {self._failure}" if self._failure else ""
            raise PeerLost(f"the cluster is not watched any more{why}") from self._failure
        if self._loop is None or not self._filled:
            return None
        try:
            return asyncio.run_coroutine_threadsafe(self._taken(), self._loop).result(_SECONDS)
        except (CancelledError, TimeoutError, RuntimeError):
            return None  # it is ending: the next call tells

    def _run(self) -> None:
        # kopf tells of each object that it sees; what matters we tell ourselves.
        logging.getLogger("kopf").setLevel(logging.ERROR)
        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        # It would look for other kinds and namespaces as they come, and need rights for that.
        settings.scanning.disabled = True
        # For a name of its own it would look for the user's, which a pod's may not have.
        identity: Any = "shardline"
        try:
            kopf.run(
                registry=self._registry(),
                settings=settings,
                identity=identity,
                standalone=True,
                clusterwide=True,
                stop_flag=self._stop,
            )
        except BaseException as error:
            self._failure = error

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        marked = {RUN_LABEL: kopf.PRESENT}
        kopf.on.login(registry=registry)(kopf.login_via_client)
        kopf.on.startup(registry=registry)(self._begin)
        kopf.index(*_JOBS, labels=marked, registry=registry, id="jobs")(_job)
        kopf.index("", "v1", "pods", registry=registry, id="pods")(_pod)
        kopf.index("", "v1", "nodes", registry=registry, id="nodes")(_node)
        kopf.on.event(*_JOBS, labels=marked, registry=registry)(self._seen)
        return registry

    async def _begin(self, **given: Any) -> None:
        self._indices = {name: given[name] for name in ("jobs", "pods", "nodes")}
        self._loop = asyncio.get_running_loop()

    async def _seen(self, **_: Any) -> None:
        """A job: kopf calls no such handler before all indices are filled."""
        self._filled = True

    async def _taken(self) -> World:
        """All there is, taken in the thread of the indices, at one time."""
        jobs, pods, nodes = (_values(self._indices[name]) for name in ("jobs", "pods", "nodes"))
        return World(jobs=jobs, pods=pods, nodes=nodes)


def _values(index: Any) -> tuple[Any, ...]:
    return tuple(value for key in index for value in index[key])


async def _job(*, body: Any, **_: Any) -> Any:
    found = facts.job(body)
    return None if found is None else {found.key: found}


async def _pod(*, body: Any, **_: Any) -> Any:
    found = facts.pod(body)
    return {(found.namespace, found.name): found}


async def _node(*, body: Any, **_: Any) -> Any:
    found = facts.node(body)
    return {found.name: found}
