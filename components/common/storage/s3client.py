"""The file systems behind `s3://` and `alluxio://`: s3fs with this project's retries.

Called by `split_url`. The settings are those of every S3 client: AWS_* variables and ~/.aws; an endpoint of its own
(AWS_ENDPOINT_URL) may have a path and a slash at its end, and buckets then stay part of the path.

Owns the retries: those of s3fs, botocore and aiohttp are off, and each request, also inside listings and uploads of
parts, is repeated as `patience` says, by one handler on botocore's `needs-retry` event.
"""

from __future__ import annotations

import getpass
import time
from typing import Any

from aiobotocore.httpsession import AIOHTTPSession
from s3fs import S3FileSystem

from shardline.components.common.errors import EnvironmentLacking, UserError
from shardline.components.common.storage import patience

_ALLUXIO_PORT = 39999


class _OnceSession(AIOHTTPSession):  # type: ignore[misc]
    """aiohttp without the repetition of its own, which tells nobody: a PUT may be done twice and look refused."""

    async def _get_session(self, proxy_url: Any) -> Any:
        session = await super()._get_session(proxy_url)
        session._retry_connection = False
        return session


class PatientS3FileSystem(S3FileSystem):  # type: ignore[misc]
    """s3fs, with `patience` in place of its own retries and botocore's, and without a memory for listings."""

    retries = 1

    def __init__(self, **settings: Any) -> None:
        once = {"retries": {"mode": "standard", "total_max_attempts": 1}, "http_session_cls": _OnceSession}
        config = {**once, **settings.pop("config_kwargs", {})}
        super().__init__(config_kwargs=config, use_listings_cache=False, **settings)
        self._watched: Any = None

    async def set_session(self, refresh: bool = False, kwargs: Any = None) -> Any:
        client = await super().set_session(refresh)
        if client is not self._watched:
            client.meta.events.register("needs-retry.s3", _delay, unique_id="shardline-patience")
            client.meta.events.register("after-call.s3.ListObjectsV2", _check_listing, unique_id="shardline-listing")
            self._watched = client
        return client


def _delay(
    *, response: Any = None, attempts: int = 1, caught_exception: Any = None, request_dict: Any = None, **_: Any
) -> float | None:
    """botocore's question after each attempt: the seconds to wait before the next one, or None."""
    context = request_dict["context"]
    since = context.setdefault("shardline_since", time.monotonic())
    parsed = response[1] if response else None
    if not (patience.is_transient(caught_exception) or (parsed and patience.is_transient_answer(parsed))):
        return None
    wait = patience.wait_before(attempts, since=since)
    if wait is not None:
        reason = str(caught_exception or parsed)
        patience.note(f"{request_dict.get('url')}: {reason}", wait)
    return wait


def _check_listing(*, parsed: dict[str, Any], **_: Any) -> None:
    # botocore takes a page without a token for the last one, whatever the store says of it.
    if parsed.get("IsTruncated") and not parsed.get("NextContinuationToken"):
        raise EnvironmentLacking(
            f"the store cut its list of files after {parsed.get('KeyCount')} and gave no token to go on with",
            where=str(parsed.get("Name")),
            hint="use a store that keeps to S3's ListObjectsV2",
        )


def alluxio(rest: str, url: str) -> tuple[PatientS3FileSystem, str]:
    """The file system and path of `alluxio://HOST[:PORT]/FOLDER/...`: the S3 API of an Alluxio proxy.

    Alluxio shows each folder below its root as a bucket, and takes the access key for the name of the user: AWS's
    settings have no part in it, the user is that of this process.
    """
    host, _, path = rest.partition("/")
    if not host or not path:
        raise UserError("not a storage URL: alluxio://HOST[:PORT]/FOLDER names a proxy and a folder", where=url)
    host = host if ":" in host else f"{host}:{_ALLUXIO_PORT}"
    return AlluxioFileSystem(host=host), path.strip("/")


class AlluxioFileSystem(PatientS3FileSystem):
    protocol = ("alluxio",)

    def __init__(self, *, host: str, **settings: Any) -> None:
        # It does not know the checksums that newer S3 clients add to a body.
        config = {"request_checksum_calculation": "when_required", "response_checksum_validation": "when_required"}
        super().__init__(
            endpoint_url=f"http://{host}/api/v1/s3",
            key=getpass.getuser(),
            secret="unused",
            config_kwargs=config,
            **settings,
        )
        self.host = host

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, str) and path.startswith("alluxio://"):
            path = path.removeprefix("alluxio://").partition("/")[2]
        return super()._strip_protocol(path)

    def unstrip_protocol(self, name: str) -> str:
        return f"alluxio://{self.host}/{self._strip_protocol(name)}"
