"""The run config's keys for Kubeflow Pipelines. All are free: who starts a run is no part of what it is.

Part of `schema`; docstrings below the keys are the JSON schema's descriptions. No key holds a secret: a token or a
cookie stays in a file or an environment variable, and only its name is here.
"""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from shardline.components.common.config.fields import Section, free

#: The kinds of `auth` that present a token, and those that need a place to take what they present from.
TOKENS = ("token", "service-account")
_NAMED = ("token", "cookie")


class Auth(Section):
    kind: Literal["none", "token", "service-account", "cookie"] = free("none")
    """How a command shows who it is: not at all; by a bearer token; by the token of a ServiceAccount that Kubernetes
    puts into the pod that the command runs in; or by the session cookie of a login in the browser (Dex, OIDC)."""
    file: str | None = free(None, min_length=1)
    """The file that holds the token or the cookie; it is read anew before each request."""
    variable: str | None = free(None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """The environment variable that holds it. Only its name stands here."""


class Kubeflow(Section):
    pipeline: str = free("shardline", pattern=r"^[a-z0-9]([-a-z0-9]{0,118}[a-z0-9])?$")
    """The name under which the pipeline appears."""
    host: str | None = free(None, min_length=1)
    """Its URL, such as https://kubeflow.example.com/pipeline; unless set, that in KF_PIPELINES_ENDPOINT."""
    namespace: str | None = free(None, pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")
    """The profile's namespace, where Kubeflow has several users; null where it has one."""
    experiment: str = free("shardline", pattern=r"^[A-Za-z0-9]([-_. A-Za-z0-9]{0,118}[A-Za-z0-9])?$")
    """The experiment that runs are listed under; it is made when it is not there."""
    service_account: str | None = free(None, pattern=r"^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$")
    """The ServiceAccount of the pipeline's pods; null is Kubeflow's own, pipeline-runner or default-editor."""
    auth: Auth = free(Auth())
    ca_file: str | None = free(None, min_length=1)
    """A file with the certificates (PEM) to trust, where `host` has one of a private authority."""


def host_problem(host: str) -> str | None:
    """What is wrong with `host`, the URL of Kubeflow Pipelines; None when it can be used."""
    try:
        parts = urlsplit(host)
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1)
    except ValueError:  # a port that is no number, a bracket that is not closed
        return "is not a URL such as https://kubeflow.example.com/pipeline"
    if "@" in parts.netloc:
        return "must hold no user name or password: name a file or a variable in kubeflow.auth"
    if not usable:
        return "is not a URL such as https://kubeflow.example.com/pipeline"
    if parts.query or parts.fragment:
        return "must end with the path: no ? and no # (the address of a page of the UI is not that of Kubeflow)"
    return None


def broken_kubeflow_rules(kubeflow: Kubeflow) -> list[tuple[str, str]]:
    """What is wrong between the keys: (key, rule) for each."""
    auth, problems = kubeflow.auth, []
    if kubeflow.host is not None and (problem := host_problem(kubeflow.host)):
        problems.append(("kubeflow.host", problem))
    if auth.file is not None and auth.variable is not None:
        problems.append(("kubeflow.auth.variable", "cannot be set beside kubeflow.auth.file: one of them holds it"))
    elif auth.kind in _NAMED and auth.file is None and auth.variable is None:
        problems.append(
            ("kubeflow.auth.kind", "needs kubeflow.auth.variable or kubeflow.auth.file, which names the place")
        )
    elif auth.kind == "service-account" and auth.variable is not None:
        problems.append(("kubeflow.auth.variable", "is not used: the token of a ServiceAccount is a file"))
    elif auth.kind == "none" and (auth.file or auth.variable):
        problems.append(("kubeflow.auth.kind", "must say what the file or variable holds: token or cookie"))
    return problems
