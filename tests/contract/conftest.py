"""The stores that the suite runs over. Each server starts once, when the first test asks for it."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from s3fs import S3FileSystem

from shardline.components.common.storage import Storage
from shardline.components.common.storage.s3client import PatientS3FileSystem
from tests.contract import servers
from tests.contract.faults import Proxy, proxy

BUCKET = "data"
#: On these `create` and `swap` promise that no update is lost; the others look first.
ATOMIC = ["local", "memory", "s3", "s3-plain", "hdfs"]
STORES = [*ATOMIC, "alluxio"]


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    with servers.moto() as address:
        S3FileSystem(endpoint_url=address, key="test", secret="test").mkdir(BUCKET)
        yield address


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.hdfs(tmp_path_factory.mktemp("hdfs")) as url:
        yield url


@pytest.fixture(scope="session")
def alluxio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.alluxio(tmp_path_factory.mktemp("alluxio")) as address:
        Storage(f"alluxio://{address}/{BUCKET}")._backend._fs.mkdir(BUCKET)  # type: ignore[attr-defined]
        yield address


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """No setting of the person's own, and none of another test's."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("SHARDLINE_STORAGE_SECONDS", "20")
    PatientS3FileSystem.clear_instance_cache()
    yield monkeypatch
    PatientS3FileSystem.clear_instance_cache()


@pytest.fixture
def s3(aws: pytest.MonkeyPatch, moto: str) -> str:
    """The URL of an empty folder of moto's."""
    aws.setenv("AWS_ENDPOINT_URL", moto)
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


@pytest.fixture
def no_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if obstore were not installed."""
    monkeypatch.setitem(sys.modules, "shardline.components.common.storage.fast", None)


@pytest.fixture
def by(request: pytest.FixtureRequest) -> None:
    """Which package reads: `obstore` or `s3fs`."""
    if request.param == "s3fs":
        request.getfixturevalue("no_fast_path")


@pytest.fixture
def server(aws: pytest.MonkeyPatch, moto: str, by: None) -> Iterator[Proxy]:
    """What moto's S3 is reached through."""
    with proxy(moto) as found:
        aws.setenv("AWS_ENDPOINT_URL", found.address)
        yield found


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty folder on the store that the test is parametrized with."""
    folder = uuid.uuid4().hex
    match request.param:
        case "local":
            return str(tmp_path / "root")
        case "memory":
            return f"memory://{folder}"
        case "s3-plain":
            request.getfixturevalue("no_fast_path")
            return str(request.getfixturevalue("s3"))
        case "s3":
            return str(request.getfixturevalue("s3"))
        case "hdfs":
            return f"{request.getfixturevalue('hdfs')}/{folder}"
        case "alluxio":
            request.getfixturevalue("aws")
            return f"alluxio://{request.getfixturevalue('alluxio')}/{BUCKET}/{folder}"
    raise ValueError(request.param)


@pytest.fixture
def storage(url: str) -> Storage:
    return Storage(url)
