"""The fast path of S3's reads: obstore, where it is installed (the extra `obstore`).

Called by `s3.S3Backend`, which repeats what fails: obstore's own retries are off. It takes endpoint, region and
credentials from the client that s3fs has made, so that both go to the same place as the same user. Where it can't do
what s3fs is told to do (hosts named after buckets), there is no fast path.
"""

from __future__ import annotations

import re
from datetime import timedelta
from functools import partial
from typing import Any, cast

import obstore
from botocore.exceptions import NoCredentialsError
from fsspec.asyn import sync
from obstore.exceptions import BaseError, PermissionDeniedError, PreconditionError, UnauthenticatedError
from obstore.store import S3Store

from shardline.components.common.storage.backend import Changed
from shardline.components.common.storage.s3 import Fetched, Reader, checked
from shardline.components.common.storage.s3client import PatientS3FileSystem

_PAST_THE_END = 416
_FINAL = range(400, 500)
_MAY_PASS = {408, 429}


def reader(fs: PatientS3FileSystem) -> Reader | None:
    """Reads by obstore with the settings of `fs`; None where it has no such setting."""
    client = fs.s3
    style = (client.meta.config.s3 or {}).get("addressing_style")
    if style == "virtual" or fs.req_kw or fs.client_kwargs.get("verify") is not None:
        return None
    return ObstoreReader(fs, endpoint=client.meta.endpoint_url.rstrip("/"), region=client.meta.region_name)


class ObstoreReader:
    """See `s3.Reader`."""

    def __init__(self, fs: PatientS3FileSystem, *, endpoint: str, region: str | None) -> None:
        self._fs = fs
        self._endpoint = endpoint
        self._region = region or "us-east-1"
        self._stores: dict[str, S3Store] = {}

    def fetch(self, bucket: str, key: str, *, start: int, end: int, etag: str | None) -> Fetched:
        store = self._stores.get(bucket) or self._stores.setdefault(bucket, self._store(bucket))
        try:
            answer = obstore.get(store, key, options=_options(start, end, etag))
            data = bytes(answer.bytes())
        except PreconditionError as error:
            raise Changed("changed while it was being read") from error
        except BaseError as error:
            if _status(error) == _PAST_THE_END or "Wanted range starting at" in str(error):
                return Fetched(b"", 0, "")
            raise _translated(error) from error
        return checked(data, start, end, answer.meta["size"], answer.meta["e_tag"] or "")

    def _store(self, bucket: str) -> S3Store:
        settings: dict[str, Any] = {"skip_signature": True} if self._fs.anon else {}
        return S3Store(
            bucket,
            endpoint=self._endpoint,
            region=self._region,
            virtual_hosted_style_request=False,
            client_options={
                "allow_http": True,
                "connect_timeout": timedelta(seconds=self._fs.connect_timeout),
                "read_timeout": timedelta(seconds=self._fs.read_timeout),
            },
            retry_config={"max_retries": 0},
            credential_provider=None if self._fs.anon else cast(Any, partial(_credentials, self._fs)),
            **settings,
        )


def _options(start: int, end: int, etag: str | None) -> Any:
    return {"range": (start, end), **({"if_match": etag} if etag else {})}


def _credentials(fs: PatientS3FileSystem) -> Any:
    """What s3fs's client signs with now."""
    holder = fs.s3._get_credentials()
    if holder is None:
        raise NoCredentialsError
    found = sync(fs.loop, holder.get_frozen_credentials)
    return {
        "access_key_id": found.access_key,
        "secret_access_key": found.secret_key,
        "token": found.token,
        "expires_at": getattr(holder, "_expiry_time", None),  # None: they are good for ever
    }


def _translated(error: BaseError) -> Exception:
    """The error that s3fs raises for the same answer."""
    text = str(error)
    line = text.partition("\n")[0]
    if "RequestTimeTooSkewed" in text:
        return PermissionError("RequestTimeTooSkewed")
    if "NoCredentialsError" in text:  # of `_credentials`, through obstore
        lacking: Exception = NoCredentialsError()
        return lacking
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return PermissionError(line)
    status = _status(error)
    if status in _FINAL and status not in _MAY_PASS:
        return OSError(line)
    return ConnectionError(line)


def _status(error: BaseError) -> int | None:
    # obstore has no other word for it than in the text.
    found = re.search(r"status(?: code)?:? (\d{3})\b", str(error))
    return int(found[1]) if found else None
