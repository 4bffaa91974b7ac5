"""What a failed request to Kubeflow Pipelines means to the person who made it. Pure: an exception in, an error out.

Called by `client` alone.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass

import urllib3
from kfp_server_api.exceptions import ApiException

from shardline.components.common.config.kubeflow_schema import Kubeflow
from shardline.components.common.errors import EnvironmentLacking, PeerLost, ShardlineError, UserError

_LONGEST_REASON = 300


class Unreachable(EnvironmentLacking):
    """No answer: a wrong address, or a server that is away for a moment."""


class Conflict(UserError):
    """There is one of that name already."""


class Absent(UserError):
    """There is nothing of that name or id."""


@dataclass(frozen=True)
class Asked:
    """What was asked for: `verb` and `resource` as Kubernetes' rights have them, and the thing itself in words."""

    verb: str
    resource: str
    thing: str

    def __str__(self) -> str:
        return f"{self.verb} {self.thing}"


def explain(error: Exception, *, asked: Asked, kubeflow: Kubeflow, host: str) -> ShardlineError:
    """The error to show for `error`, which ended the request `asked` to `host`."""
    if isinstance(error, ApiException):
        if not error.status:  # there was an answer, which the generated client cannot read
            return not_understood(str(error.reason), host=host)
        return _of_status(int(error.status), _reason(error), asked=asked, kubeflow=kubeflow, host=host)
    return _without_answer(error, host=host)


def not_understood(what: str, *, host: str) -> EnvironmentLacking:
    hint = "is its version far from 2.17, which this is made for?"
    return EnvironmentLacking(f"its answer is not understood: {what}", where=host, hint=hint)


def not_kubeflow(kubeflow: Kubeflow, *, host: str) -> EnvironmentLacking:
    """The error for an answer that is a web page: mostly that of a login."""
    hint = "check the address: that of Kubeflow Pipelines often ends in /pipeline"
    if kubeflow.auth.kind == "cookie":
        hint = "the session has ended: log in with a browser and copy the cookie anew"
    elif kubeflow.auth.kind == "none":
        hint += "; or it asks for a login: set kubeflow.auth"
    return EnvironmentLacking("answers with a web page, not as Kubeflow Pipelines does", where=host, hint=hint)


def too_old(host: str) -> EnvironmentLacking:
    return EnvironmentLacking(
        "has no API of version v2beta1",
        where=host,
        hint="Kubeflow Pipelines 2 is needed; if it is there, the address lacks its path, such as /pipeline",
    )


def _of_status(status: int, reason: str, *, asked: Asked, kubeflow: Kubeflow, host: str) -> ShardlineError:
    said = f": {reason}" if reason else ""
    if 300 <= status < 400:
        return not_kubeflow(kubeflow, host=host)
    if status == 401:
        return EnvironmentLacking(f"refused to say who asks{said}", where=host, hint=_WHO[kubeflow.auth.kind])
    if status == 403:
        where = f"namespace {kubeflow.namespace}" if kubeflow.namespace else host
        rule = f"apiGroups [pipelines.kubeflow.org], resources [{asked.resource}], verbs [{asked.verb}]"
        hint = f"it takes a Role with {rule}, bound to whoever asks; Kubeflow's kubeflow-edit has it"
        return EnvironmentLacking(f"no right to {asked}{said}", where=where, hint=hint)
    if status == 404:
        return Absent(f"there is no {asked.thing}{said}", where=host)
    if status == 409:
        return Conflict(f"there is already a {asked.thing}{said}", where=host)
    if status == 429 or status >= 500:
        return PeerLost(f"failed to {asked} (HTTP {status}){said}", where=host, hint="try again; else look at its logs")
    return UserError(f"refused to {asked} (HTTP {status}){said}", where=host)


_WHO = {
    "none": "set kubeflow.auth to a kind that this Kubeflow accepts",
    "token": "the token has expired or is not for this Kubeflow: put a new one where kubeflow.auth says",
    "service-account": "the token's audience must be pipelines.kubeflow.org, and its ServiceAccount be known",
    "cookie": "the session has ended: log in with a browser and copy the cookie anew",
}


def _reason(error: ApiException) -> str:
    """What the server says, in one line: the inner cause, without the names of its functions."""
    body = error.body or ""
    try:
        content = json.loads(body)
    except ValueError:
        return "" if "<" in body else _short(body)
    if not isinstance(content, dict):
        return ""
    return _short(str(content.get("message") or content.get("error") or ""))


def _short(text: str) -> str:
    line = re.sub(r"\s+", " ", text).strip().rstrip(".")
    return line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]} ..."


def _without_answer(error: Exception, *, host: str) -> ShardlineError:
    causes = list(_causes(error))
    text = " ".join(str(cause) for cause in causes)
    tls = any(isinstance(cause, ssl.SSLError | urllib3.exceptions.SSLError) for cause in causes) or "SSLError" in text
    if tls and "CERTIFICATE_VERIFY_FAILED" in text:
        found = re.search(r"CERTIFICATE_VERIFY_FAILED\] [^:]*: ([^(\"']+)", text)
        hint = "name the file with its authority's certificate as kubeflow.ca_file"
        message = f"its certificate is not to be trusted{': ' + found[1].strip() if found else ''}"
        return EnvironmentLacking(message, where=host, hint=hint)
    if tls:
        hint = "is it http:// instead of https://?"
        return EnvironmentLacking("does not speak TLS as it should", where=host, hint=hint)
    hint = "check kubeflow.host; inside the cluster alone it is reached by `kubectl port-forward` (docs/kubeflow.md)"
    return Unreachable(f"Kubeflow Pipelines cannot be reached: {_plain(causes)}", where=host, hint=hint)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """`error` and what it came from, inner ones last."""
    seen: set[int] = set()
    waiting: list[object] = [error]
    while waiting:
        current = waiting.pop(0)
        if isinstance(current, BaseException) and id(current) not in seen:
            seen.add(id(current))
            yield current
            waiting += [getattr(current, "reason", None), current.__cause__, current.__context__]


def _plain(causes: list[BaseException]) -> str:
    """The system's word for it, where there is one."""
    for cause in reversed(causes):
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror.lower()
    if any(isinstance(cause, urllib3.exceptions.TimeoutError) for cause in causes):
        return "no answer in time"
    return _short(str(causes[-1])) or type(causes[-1]).__name__
