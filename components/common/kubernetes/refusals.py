"""What an API server's refusal means to the user: a status and a body in, an error with a remedy out. Pure.

Called by the client. The bodies are `Status` objects (meta/v1); what is told apart is their `reason`, and where that is
too coarse, the words of the message, which Kubernetes' own tests hold fixed.

    UserError              the object is wrong: its fields, a webhook's rule, a namespace's Pod Security level
    └── Absent             it is not there
    EnvironmentLacking     rights, quota, login, a namespace or a kind that is missing
    ├── Forbidden          rights: with the rule of a Role that would give them
    └── NotInstalled       a kind that the server does not know
    PeerLost
    ├── Conflict           an object of that name is there, or another writer was first
    └── ClusterLost        the API server did not answer, for longer than the client has patience
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardline.components.common.errors import EnvironmentLacking, PeerLost, ShardlineError, UserError
from shardline.components.common.kubernetes.kinds import INSTALLS, Kind

#: Worth asking again: too many requests, a server that starts or ends, a webhook that is being replaced.
TRANSIENT = frozenset({429, 500, 502, 503, 504})


class Absent(UserError):
    pass


class Forbidden(EnvironmentLacking):
    pass


class NotInstalled(EnvironmentLacking):
    pass


class Conflict(PeerLost):
    """An object of that name is there already, or it was changed since it was read."""


class ClusterLost(PeerLost):
    pass


@dataclass(frozen=True)
class Request:
    """What was asked for.

    Args:
        verb: as RBAC has it: get, list, watch, create, patch, delete.
        part: a part of the object with rights of its own, such as log or status.
    """

    verb: str
    kind: Kind
    namespace: str | None
    name: str | None
    part: str | None = None

    @property
    def resource(self) -> str:
        return self.kind.resource + (f"/{self.part}" if self.part else "")

    @property
    def path(self) -> str:
        """Where it is asked for."""
        of_all = self.verb in ("list", "watch") or (self.verb == "create" and self.part is None)
        return self.kind.path(self.namespace, None if of_all else self.name, part=self.part)

    @property
    def where(self) -> str:
        """What messages call the object."""
        place = f"{self.kind.name} {self.name}" if self.name else self.kind.resource
        return f"{place} in namespace {self.namespace}" if self.namespace and self.kind.namespaced else place


def parse(body: str | bytes | None) -> Mapping[str, Any]:
    """The Status object in `body`; a text that is none becomes its message."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else body or ""
    try:
        status = json.loads(text)
    except ValueError:
        status = None
    return status if isinstance(status, dict) else {"message": text.strip()}


def refused(code: int, status: Mapping[str, Any], request: Request) -> ShardlineError:
    """The error that the answer `code` with `status` to `request` means."""
    message = str(status.get("message") or f"HTTP {code}")
    if "admission webhook" in message and "denied the request" in message:
        return _by_webhook(message, request)
    if code == 401:
        return EnvironmentLacking(
            "the cluster does not accept the credentials: they are wrong, or the token has expired",
            where=request.where,
            hint="log in to the cluster again, or renew the token that KUBECONFIG names",
        )
    if code == 403:
        return _forbidden(message, request)
    if code == 404:
        return _missing(message, status, request)
    if code == 409:
        return Conflict(message, where=request.where)
    if code in (400, 413, 415, 422):
        return UserError(f"the cluster refuses it: {_causes(status) or message}", where=request.where)
    return ClusterLost(f"the API server failed ({code}): {message}", where=request.where)


def _by_webhook(message: str, request: Request) -> ShardlineError:
    webhook, _, reason = message.partition(" denied the request")
    webhook = webhook.partition("admission webhook ")[2].strip('"')
    return UserError(f"the webhook {webhook} refuses it{reason}", where=request.where)


def _forbidden(message: str, request: Request) -> ShardlineError:
    if "exceeded quota" in message or "failed quota" in message:
        reason = message[message.find("exceeded quota" if "exceeded quota" in message else "failed quota") :]
        return EnvironmentLacking(
            f"the namespace's quota does not allow it: {reason}",
            where=request.where,
            hint="ask for a larger quota, or for less: kubernetes.workers, kubernetes.sharding",
        )
    if "violates PodSecurity" in message:
        return UserError(
            f"the namespace's Pod Security level does not allow it: {message.partition('violates ')[2]}",
            where=request.where,
            hint="look for what kubernetes.patch changes in the pods",
        )
    if "being terminated" in message:
        return EnvironmentLacking("the namespace is being deleted", where=request.where, hint="wait, or name another")
    if " cannot " not in message:  # not RBAC's words: an admission plugin or a policy engine
        return EnvironmentLacking(f"the cluster refuses it: {message}", where=request.where)
    group = json.dumps(request.kind.group)
    rule = f"{{apiGroups: [{group}], resources: [{request.resource}], verbs: [{request.verb}]}}"
    kind = "Role" if request.kind.namespaced else "ClusterRole"
    who = message.partition('User "')[2].partition('"')[0]
    return Forbidden(
        f"{who or 'this user'} may not {request.verb} {request.resource}",
        where=f"namespace {request.namespace}" if request.namespace and request.kind.namespaced else "the cluster",
        hint=f"add to a {kind} that is bound to it the rule {rule}; `shardline render CONFIG --only access` has the "
        "Roles that shardline needs",
    )


def _missing(message: str, status: Mapping[str, Any], request: Request) -> ShardlineError:
    details = status.get("details") or {}
    if details.get("kind") == "namespaces" and request.kind.name != "Namespace":
        name = details.get("name")
        return EnvironmentLacking(
            f"there is no namespace {name}", where=request.where, hint=f"`kubectl create namespace {name}`"
        )
    if details.get("name") == request.name and details.get("kind") == request.kind.resource:
        return Absent("is not there", where=request.where)
    if request.kind.group in INSTALLS:
        return NotInstalled(
            f"the cluster does not know {request.kind.name} ({request.kind.version})",
            where=request.where,
            hint=f"install {INSTALLS[request.kind.group]}",
        )
    return EnvironmentLacking(
        f"the cluster does not have {request.kind.name} in {request.kind.version}: {message}",
        where=request.where,
        hint="a newer Kubernetes is needed",
    )


def _causes(status: Mapping[str, Any]) -> str:
    """Each wrong field with what is wrong about it, without the object's name over and over."""
    causes = (status.get("details") or {}).get("causes") or []
    return "; ".join(
        f"{cause.get('field')}: {cause.get('message')}" for cause in causes if cause.get("field") not in (None, "<nil>")
    )
