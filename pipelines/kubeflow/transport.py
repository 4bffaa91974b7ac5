"""The one place that talks to Kubeflow Pipelines: who asks, how long, and what a failure means.

Called by `client`. It stands on `kfp_server_api`, the generated client below `kfp.Client`: that class prints links,
reads and writes ~/.config/kfp, opens a browser for variables of the environment, waits without end, and asks again for
half a minute in its constructor. Nothing here prints, and each request ends in time.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kfp_server_api
import urllib3
from kfp_server_api.exceptions import ApiException

from shardline.components.common.config.kubeflow_schema import Kubeflow, host_problem
from shardline.components.common.errors import UserError
from shardline.pipelines.kubeflow import credentials
from shardline.pipelines.kubeflow.failures import Asked, explain, not_kubeflow, not_understood

HOST_VARIABLE = "KF_PIPELINES_ENDPOINT"
#: How many of a list are asked for at a time.
PAGE = 100
#: Seconds to connect and to wait for an answer; an upload of some 100 kB is the longest request.
_TIMEOUT = (10, 60)


class Transport:
    """Requests to the Kubeflow Pipelines of the config's `kubeflow` section.

    Raises:
        UserError: no host is named, or kubeflow.ca_file cannot be used.
    """

    def __init__(self, kubeflow: Kubeflow) -> None:
        self.host = _host(kubeflow)
        self._kubeflow = kubeflow
        self._configuration = _configuration(kubeflow, self.host)
        self.api = kfp_server_api.ApiClient(self._configuration)

    def identifier(self, answer: Any, name: str) -> str:
        """The id `name` in an answer, without which nothing can be done with what it is about."""
        found = getattr(answer, name)
        if not found:
            raise not_understood(f"it has no {name}", host=self.host)
        return str(found)

    def every(
        self, asked: Asked, call: Callable[..., Any], field: str, *arguments: Any, **options: Any
    ) -> Iterator[Any]:
        """What is in `field` of every page of a list."""
        token = ""
        while True:
            page = self.call(asked, call, *arguments, **_given(options), page_size=PAGE, page_token=token)
            yield from getattr(page, field) or ()
            token = page.next_page_token or ""
            if not token:
                return

    def call(self, asked: Asked, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """The answer to one request: `call` of the generated client, with its arguments; `asked` is for messages.

        Raises:
            ShardlineError: what `failures.explain` makes of a failure.
        """
        auth = self._kubeflow.auth
        if (token := credentials.token(auth)) is not None:
            self._configuration.api_key["authorization"] = token
            self._configuration.api_key_prefix["authorization"] = "Bearer"
        self.api.cookie = credentials.cookie(auth)
        try:
            answer = call(*arguments, **options, _request_timeout=_TIMEOUT)
        except (ApiException, urllib3.exceptions.HTTPError, OSError) as error:
            raise explain(error, asked=asked, kubeflow=self._kubeflow, host=self.host) from error
        except ValueError as error:  # a value that the generated types do not allow
            raise not_understood(str(error), host=self.host) from error
        if "json" not in (self.api.last_response.getheader("content-type") or ""):
            raise not_kubeflow(self._kubeflow, host=self.host)
        return answer


def _host(kubeflow: Kubeflow) -> str:
    host = kubeflow.host or os.environ.get(HOST_VARIABLE)
    if not host:
        hint = "set it to the URL of Kubeflow Pipelines, or set KF_PIPELINES_ENDPOINT"
        raise UserError("is not set", where="kubeflow.host", hint=hint)
    if problem := host_problem(host):
        raise UserError(problem, where=HOST_VARIABLE)
    return host.rstrip("/")


def _configuration(kubeflow: Kubeflow, host: str) -> Any:
    configuration = kfp_server_api.Configuration(host=host)
    if kubeflow.ca_file is not None:
        path = str(Path(kubeflow.ca_file).expanduser())
        try:
            ssl.create_default_context(cafile=path)
        except ssl.SSLError as error:
            raise UserError("holds no certificates (PEM)", where=path, hint="kubeflow.ca_file names it") from error
        except OSError as error:
            raise UserError(
                f"cannot be read: {error.strerror}", where=path, hint="kubeflow.ca_file names it"
            ) from error
        configuration.ssl_ca_cert = path
    # A redirect is an answer, mostly the way to a login; a request that may have been done is not made twice.
    configuration.retries = urllib3.Retry(
        total=3, connect=2, read=2, redirect=0, status=0, backoff_factor=0.5, raise_on_redirect=False
    )
    return configuration


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """Without what is None, which the generated client refuses for some arguments."""
    return {name: value for name, value in options.items() if value is not None}
