"""The one client of a Kubernetes API server: plain mappings in and out, and errors that say what to do.

Called by `shardline render --check` and by all that creates, follows or ends objects. Requests are repeated while the
server fails for a moment (`transport`). What is repeated may have been done: `create` may then find its own object
(`Conflict`), which is why names are deterministic and finding one's own is no error.

Errors: see `refusals`.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from shardline.components.common.errors import EnvironmentLacking
from shardline.components.common.kubernetes.kinds import KINDS, kind_of
from shardline.components.common.kubernetes.objects import Manifest
from shardline.components.common.kubernetes.refusals import TRANSIENT, Absent, Request, refused
from shardline.components.common.kubernetes.transport import TIMEOUT, Transport
from shardline.components.common.kubernetes.watching import differences, lines, selected

#: Whose fields are whose: what `apply` sets belongs to this name until another one takes it.
FIELD_MANAGER = "shardline"
#: The server's "that was too long ago": a watch has to begin anew.
_GONE = 410


class Client:
    """One cluster, and the namespace of the objects that name none. Any number of threads may use it."""

    def __init__(self, transport: Transport, *, namespace: str | None = None) -> None:
        self.namespace = namespace or transport.namespace
        self._transport = transport

    @classmethod
    def connect(
        cls, *, namespace: str | None = None, patience: float = 60.0, timeout: tuple[float, float] = TIMEOUT
    ) -> Client:
        """The cluster that this pod is in, or the one that KUBECONFIG or ~/.kube/config names.

        Nothing is asked yet: whether the cluster answers shows with the first request.

        Args:
            namespace: where objects are that name none; the pod's or the context's unless given.
            patience: seconds for which what fails for a moment is tried again.
            timeout: seconds to connect, and to wait for an answer.

        Raises:
            EnvironmentLacking: there is neither, or the file is no kubeconfig.
        """
        return cls(Transport.connect(patience=patience, timeout=timeout), namespace=namespace)

    def get(self, kind: str, name: str, *, namespace: str | None = None) -> Manifest | None:
        """The object, or None when it is not there."""
        request = self._request("get", kind, name, namespace)
        return self._found(request, lambda: self._call(request, "GET"))

    def list(
        self, kind: str, *, namespace: str | None = None, labels: Mapping[str, str] | None = None
    ) -> list[Manifest]:
        """The objects of a kind that have all of `labels`."""
        return [*self._listed(self._request("list", kind, None, namespace), labels)[0]]

    def create(self, manifest: Manifest, *, dry_run: bool = False) -> Manifest:
        """Make the object; returns it as the server has it.

        Raises:
            Conflict: one of that name is there.
        """
        kind = kind_of(manifest)
        meta = manifest["metadata"]
        request = self._request("create", kind.name, meta.get("name"), meta.get("namespace"))
        return self._call(request, "POST", body=manifest, query=_strict(dry_run))

    def apply(self, manifest: Manifest, *, dry_run: bool = False, force: bool = True) -> Manifest:
        """Make the object, or bring its fields in line with `manifest` and leave all others alone (server-side apply).

        Args:
            force: take over fields that belong to others, such as `kubectl`.

        Raises:
            Conflict: without `force`, naming the fields and whose they are.
        """
        kind = kind_of(manifest)
        meta = manifest["metadata"]
        request = self._request("patch", kind.name, meta["name"], meta.get("namespace"))
        query = {"fieldManager": FIELD_MANAGER, "force": str(force).lower(), **_strict(dry_run)}
        return self._call(request, "PATCH", body=manifest, query=query, content="application/apply-patch+yaml")

    def patch(
        self,
        kind: str,
        name: str,
        change: Mapping[str, Any],
        *,
        namespace: str | None = None,
        part: str | None = None,
        dry_run: bool = False,
    ) -> Manifest | None:
        """Merge `change` into the object (a JSON merge patch: null takes out); None when it is not there.

        Args:
            change: with metadata.resourceVersion only if nobody changed it since.
            part: the part of the object that it is for, such as status or scale.

        Raises:
            Conflict: somebody changed it since.
        """
        request = self._request("patch", kind, name, namespace, part)
        content = "application/merge-patch+json"
        return self._found(
            request, lambda: self._call(request, "PATCH", body=change, query=_dry(dry_run), content=content)
        )

    def delete(
        self,
        kind: str,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        grace: int | None = None,
        dry_run: bool = False,
    ) -> bool:
        """Delete the object and, in the background, what belongs to it; False when it was not there.

        Args:
            uid: only this very object, not a later one of its name.
            grace: seconds that a pod has; its own unless given.

        Raises:
            Conflict: it has another uid.
        """
        request = self._request("delete", kind, name, namespace)
        body: Manifest = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        return self._found(request, lambda: self._call(request, "DELETE", body=body, query=_dry(dry_run))) is not None

    def evict(self, pod: str, *, namespace: str | None = None, uid: str | None = None) -> bool:
        """Ask a pod to go as a drain of its node does, within its grace; False when it was not there.

        Args:
            uid: only this very pod, not a later one of its name.

        Raises:
            ClusterLost: its disruption budget did not allow it for as long as the client has patience.
        """
        request = self._request("create", "Pod", pod, namespace, "eviction")
        body: Manifest = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
        if uid is not None:
            body["deleteOptions"] = {"preconditions": {"uid": uid}}
        return self._found(request, lambda: self._call(request, "POST", body=body)) is not None

    def watch(
        self,
        kind: str,
        *,
        seconds: float,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
        name: str | None = None,
        spread: float = 0.0,
        listed: Callable[[], None] = lambda: None,
    ) -> Iterator[tuple[str, Manifest]]:
        """What is there and what becomes of it: ("ADDED", "MODIFIED" or "DELETED", object), for `seconds`.

        Begins with all objects as ADDED. A connection that ends, or that the server cannot go on from, is made anew;
        what happened meanwhile is told then, each object at most once.

        Args:
            name: of the one object to follow.
            spread: seconds over which many that watch the same come again when the server has ended their connections.
            listed: called whenever all has been told of what is there.
        """
        deadline = time.monotonic() + seconds
        request = self._request("watch", kind, name, namespace)
        listing = self._request("list", kind, None, namespace)
        fields = {"fieldSelector": f"metadata.name={name}"} if name else {}
        known: dict[str, Manifest] = {}
        while time.monotonic() < deadline:
            objects, version = self._listed(listing, labels, fields)
            yield from differences(known, {each["metadata"]["uid"]: each for each in objects})
            listed()
            for event, each in self._stream(request, version, labels, fields, deadline):
                uid = each["metadata"]["uid"]
                known.pop(uid, None) if event == "DELETED" else known.update({uid: each})
                yield event, each
            time.sleep(random.uniform(0, spread))

    def _stream(
        self,
        request: Request,
        version: str,
        labels: Mapping[str, str] | None,
        fields: Mapping[str, str],
        deadline: float,
    ) -> Iterator[tuple[str, Manifest]]:
        """The events since `version`, until the connection ends in whatever way."""
        from urllib3.exceptions import HTTPError

        left = max(1, int(deadline - time.monotonic()))
        query = {"watch": "true", "resourceVersion": version, "timeoutSeconds": str(left), **selected(labels), **fields}
        answer = self._transport.answer(
            request, "GET", query=query, timeout=(TIMEOUT[0], left + TIMEOUT[1]), stream=True
        )
        try:
            for line in lines(answer.stream(None)):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    code = event["object"].get("code", 500)
                    if code != _GONE and code not in TRANSIENT:
                        raise refused(code, event["object"], request)
                    return
                yield event["type"], event["object"]
        except (HTTPError, ValueError):
            return  # cut off in mid-sentence: what is missing comes with the next list
        finally:
            answer.close()

    def _listed(
        self, request: Request, labels: Mapping[str, str] | None, fields: Mapping[str, str] | None = None
    ) -> tuple[Sequence[Manifest], str]:
        answer = self._call(request, "GET", query={**selected(labels), **(fields or {})})
        # The items of a list do not say of what kind they are.
        common = {"apiVersion": request.kind.version, "kind": request.kind.name}
        return [{**common, **item} for item in answer["items"]], answer["metadata"]["resourceVersion"]

    def _request(
        self, verb: str, kind: str, name: str | None, namespace: str | None, part: str | None = None
    ) -> Request:
        return Request(verb, KINDS[kind], namespace or self.namespace, name, part)

    def _found(self, request: Request, call: Callable[[], Manifest]) -> Manifest | None:
        """What `call` returns, or None when the object itself is not there."""
        try:
            return call()
        except Absent:
            return None

    def _call(
        self,
        request: Request,
        method: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        content: str = "application/json",
    ) -> Manifest:
        answer = self._transport.answer(request, method, body=body, query=query, content=content)
        try:
            return dict(json.loads(answer.data))
        except ValueError as error:
            raise EnvironmentLacking(
                f"what answers is no API server: {answer.data[:80]!r}",
                where=request.where,
                hint="check the address in the kubeconfig, and for a proxy in between",
            ) from error


def _dry(dry_run: bool) -> dict[str, str]:
    return {"dryRun": "All"} if dry_run else {}


def _strict(dry_run: bool) -> dict[str, str]:
    # Otherwise the server drops a field that it does not know without a word.
    return {"fieldValidation": "Strict", **_dry(dry_run)}
