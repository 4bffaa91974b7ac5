"""Login to a Kubernetes API server, and single requests to it with retries.

Called by `client` alone. The only module that imports `kubernetes`, of which it takes login and transport; that import
takes a second or more and happens in `connect`.

Owns the retries: a server that restarts, is busy, or is replacing a webhook is asked again, with growing waits, until
`patience` is over.

Errors: see `refusals`.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from shardline.components.common.errors import EnvironmentLacking, ShardlineError
from shardline.components.common.kubernetes.refusals import TRANSIENT, ClusterLost, Request, parse, refused

_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
#: Seconds to connect and to wait for an answer.
TIMEOUT = (5.0, 30.0)
#: Seconds for which a server is asked that has never answered: it is more likely a wrong address than a restart.
_FIRST_PATIENCE = 10.0
_LONGEST_WAIT = 5.0


class Transport:
    """A connection to one API server. Any number of threads may use it."""

    def __init__(self, api: Any, *, namespace: str, patience: float, timeout: tuple[float, float] = TIMEOUT) -> None:
        self.namespace = namespace
        self._api = api
        self._patience, self._timeout = patience, timeout
        self._answered = False

    @classmethod
    def connect(cls, *, patience: float, timeout: tuple[float, float] = TIMEOUT) -> Transport:
        """The cluster that this pod is in, or the one that KUBECONFIG or ~/.kube/config names.

        `namespace` is then the pod's, or that of the current context.

        Raises:
            EnvironmentLacking: there is neither, or the file is no kubeconfig.
        """
        from kubernetes import client, config

        settings = client.Configuration()
        try:
            if "KUBECONFIG" not in os.environ and "KUBERNETES_SERVICE_HOST" in os.environ:
                config.load_incluster_config(settings)
                namespace = _POD_NAMESPACE.read_text().strip()
            else:
                # By itself it looks at KUBECONFIG when it is imported, and never again.
                files = os.environ.get("KUBECONFIG")
                config.load_kube_config(files, client_configuration=settings)
                active = config.list_kube_config_contexts(files)[1]
                namespace = active["context"].get("namespace") or "default"
        except (config.ConfigException, yaml.YAMLError, OSError, TypeError, ValueError, LookupError) as error:
            raise EnvironmentLacking(
                f"no cluster to talk to: {' '.join(str(error).split())}",
                hint="set KUBECONFIG to a file that `kubectl` works with, or run in a pod that has a token",
            ) from error
        settings.retries = False  # ours are the retries
        return cls(client.ApiClient(settings), namespace=namespace, patience=patience, timeout=timeout)

    def answer(
        self,
        request: Request,
        method: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        content: str = "application/json",
        timeout: tuple[float, float] | None = None,
        stream: bool = False,
    ) -> Any:
        """The server's answer (urllib3's); asked again while it fails for a moment and patience lasts.

        Args:
            content: the type of `body`.
            stream: leave the answer's body to the caller to read; else all of it is there.
            timeout: seconds to connect, and to wait for the next byte; the connection's own unless given.
        """
        started, attempts = time.monotonic(), 0
        while True:
            attempts += 1
            answer, error = self._once(request, method, body, query, content, timeout or self._timeout, stream)
            if error is None:
                self._answered = True
                return answer
            if not isinstance(error, ClusterLost):
                raise error
            wait = min(_LONGEST_WAIT, 0.1 * 2.0 ** min(attempts, 10)) * random.uniform(0.5, 1)
            patience = self._patience if self._answered else min(self._patience, _FIRST_PATIENCE)
            if time.monotonic() - started + wait > patience:
                raise error if self._answered else self._unreachable(error)
            time.sleep(wait)

    def _once(
        self,
        request: Request,
        method: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, str] | None,
        content: str,
        timeout: tuple[float, float],
        stream: bool,
    ) -> tuple[Any, ShardlineError | None]:
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        try:
            answer = self._api.call_api(
                request.path,
                method,
                query_params=list((query or {}).items()),
                header_params={"Content-Type": content, "Accept": "application/json"},
                body=body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _return_http_data_only=True,
                _request_timeout=timeout,
            )
            if not stream:
                answer.read(cache_content=True)
        except ApiException as error:
            if not error.status:  # nothing was answered: the certificates do not fit
                return None, EnvironmentLacking(
                    f"no safe connection to {self._api.configuration.host}: {str(error.reason).splitlines()[-1]}",
                    hint="check the certificate authority in the kubeconfig",
                )
            self._answered = self._answered or error.status not in TRANSIENT
            status = parse(error.body)
            return None, refused(error.status, status, request)
        except (HTTPError, OSError) as error:
            return None, ClusterLost(f"the API server does not answer: {error}", where=request.where)
        return answer, None

    def _unreachable(self, error: ClusterLost) -> EnvironmentLacking:
        return EnvironmentLacking(
            f"no cluster answers at {self._api.configuration.host}: {error.message}",
            hint="check KUBECONFIG and its current context with `kubectl version`",
        )
