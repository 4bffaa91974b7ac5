"""From a URL to the file system and the path that it names.

Called by `Storage` and by whatever lists a corpus. Owns which package stands behind a scheme.
"""

from __future__ import annotations

import importlib.util
import os
import posixpath

import fsspec
from fsspec.core import url_to_fs

from shardline.components.common.errors import EnvironmentLacking, UserError

#: scheme: the module behind it, its package, and the extra of this distribution that brings it
_PACKAGES = {
    "gs": ("gcsfs", "gcsfs", "gs"),
    "gcs": ("gcsfs", "gcsfs", "gs"),
    "az": ("adlfs", "adlfs", "az"),
    "abfs": ("adlfs", "adlfs", "az"),
    "abfss": ("adlfs", "adlfs", "az"),
    "hdfs": ("hdfs_native", "hdfs-native", "hdfs"),
    "viewfs": ("hdfs_native", "hdfs-native", "hdfs"),
}


def split_url(url: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """The file system and the path within it that `url` names.

    Raises:
        UserError: the scheme is unknown.
        EnvironmentLacking: the scheme needs a package that is not installed, or a setting.
    """
    local = local_path(url)
    if local is not None:
        return fsspec.filesystem("file"), local
    scheme, _, rest = url.partition("://")
    try:
        _check_package(scheme, url)
        if scheme in {"s3", "s3a"}:
            from shardline.components.common.storage.s3client import PatientS3FileSystem

            # The path as it stands: s3fs would take what follows a `?` for a version.
            return PatientS3FileSystem(), rest.strip("/")
        if scheme == "alluxio":
            from shardline.components.common.storage.s3client import alluxio

            return alluxio(rest, url)
        if scheme in {"hdfs", "viewfs"}:
            from shardline.components.common.storage.hdfsclient import connect

            return connect(scheme, rest, url)
        return url_to_fs(url)  # type: ignore[no-any-return]
    except ValueError as error:
        raise UserError(f"not a storage URL: {error}", where=url) from error
    except ImportError as error:
        raise EnvironmentLacking(str(error), where=url, hint="install that package") from error


def local_path(url: str) -> str | None:
    """The path on this machine that `url` is; None where it has a scheme."""
    # It is never a pattern or a chain of URLs, whatever characters are in it.
    return None if "://" in url else os.path.abspath(os.path.expanduser(url))


def _check_package(scheme: str, url: str) -> None:
    module, package, extra = _PACKAGES.get(scheme, ("", "", ""))
    if module and importlib.util.find_spec(module) is None:
        raise EnvironmentLacking(
            f"{scheme}:// needs the package {package}", where=url, hint=f"pip install 'shardline[{extra}]'"
        )


def join(url: str, *parts: str) -> str:
    """`url` with `parts` below it."""
    return posixpath.join(url.rstrip("/") or "/", *parts)
