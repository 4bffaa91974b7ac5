"""How a command shows Kubeflow who it is: what it presents, read from where the config says that it lies.

Called by `client` before each request, so that a token which Kubernetes renews is taken anew. What is read goes into a
request's header and nowhere else: no message, log or file has it.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import time
from pathlib import Path

from shardline.components.common.config.kubeflow_schema import TOKENS, Auth
from shardline.components.common.errors import EnvironmentLacking, UserError

#: Where a pod has the token whose audience is Kubeflow Pipelines, once its projection is mounted (Kubeflow's manual).
TOKEN_FILE = "/var/run/secrets/kubeflow/pipelines/token"
_PRINTABLE = re.compile(r"[\x21-\x7e]+")
_COOKIE = re.compile(r"[\x21-\x7e]+=[\x20-\x7e]+")


def token(auth: Auth) -> str | None:
    """The bearer token to present, or None when none is.

    Raises:
        EnvironmentLacking: it is not where it should be, or has expired.
        UserError: what is there is no token.
    """
    if auth.kind not in TOKENS:
        return None
    found, where = _read(auth)
    if not _PRINTABLE.fullmatch(found):
        raise UserError(
            "holds no token: one line without spaces is expected", where=where, hint="write the token alone"
        )
    if (ended := _expiry(found)) is not None and ended <= time.time():
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(ended))
        raise EnvironmentLacking(f"the token has expired, at {at}", where=where, hint="put a new one there")
    return found


def cookie(auth: Auth) -> str | None:
    """The session cookie to present, NAME=VALUE, or None when none is.

    Raises:
        EnvironmentLacking: it is not where it should be.
        UserError: what is there is no cookie.
    """
    if auth.kind != "cookie":
        return None
    found, where = _read(auth)
    if not _COOKIE.fullmatch(found):
        hint = "copy it from the browser with its name, such as oauth2_proxy_kubeflow=VALUE"
        raise UserError("holds no cookie of the form NAME=VALUE", where=where, hint=hint)
    return found


def _read(auth: Auth) -> tuple[str, str]:
    """What is presented, and what messages call the place it comes from."""
    if auth.variable is not None:
        text = os.environ.get(auth.variable, "").strip()
        if not text:
            hint = "set it in the shell that runs the command; kubeflow.auth.variable names it"
            raise EnvironmentLacking(f"the environment variable {auth.variable} is not set", hint=hint)
        return text, f"the environment variable {auth.variable}"
    path = auth.file or TOKEN_FILE
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise EnvironmentLacking(f"cannot be read: {reason}", where=path, hint=_HINTS[auth.file is None]) from error
    if not text:
        raise EnvironmentLacking("is empty", where=path, hint=_HINTS[auth.file is None])
    return text, path


_HINTS = {
    True: "mount a projected ServiceAccount token with the audience pipelines.kubeflow.org there, see docs/kubeflow.md",
    False: "kubeflow.auth.file names it",
}


def _expiry(found: str) -> float | None:
    """When a JSON web token ends, in seconds since 1970 (RFC 7519, 4.1.4); None for another kind of token."""
    parts = found.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"])
    except (binascii.Error, ValueError, KeyError, TypeError):
        return None
