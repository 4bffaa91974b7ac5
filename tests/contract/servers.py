"""The real servers that the contract suite runs against, each a process of its own on this machine.

Called by the fixtures of conftest.py. What a server needs is made once and kept in the user's cache folder. What the
machine lacks is told in the one line of a skip, except in CI, where nothing may be left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

JAVA = Path(__file__).parent / "java"
_OPENED = [f"--add-opens=java.base/java.{each}=ALL-UNNAMED" for each in ("lang", "nio")]


#: moto's server. It compares an ETag and writes in two steps, between which another writer may come; S3 does not.
MOTO = """
import threading
from moto.s3.responses import S3Response
from moto.server import main
lock, put = threading.Lock(), S3Response.put_object
def put_alone(self):
    with lock:
        return put(self)
S3Response.put_object = put_alone
main()
"""


@contextlib.contextmanager
def moto() -> Iterator[str]:
    """moto's S3; gives its address."""
    port = free_port()
    command = [sys.executable, "-c", MOTO, "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with ended(process):
        yield answering(f"http://127.0.0.1:{port}", process)


@contextlib.contextmanager
def hdfs(folder: Path) -> Iterator[str]:
    """Hadoop's MiniDFSCluster with its files in `folder`; gives `hdfs://HOST:PORT`."""
    with _java("hdfs", "MiniHdfs", str(folder)) as port:
        yield f"hdfs://127.0.0.1:{port}"


@contextlib.contextmanager
def alluxio(folder: Path) -> Iterator[str]:
    """Alluxio's minicluster and its proxy; gives `HOST:PORT` of the S3 API."""
    with _java("alluxio", "MiniAlluxio", str(free_port()), cwd=folder) as port:
        answering(f"http://localhost:{port}/api/v1/s3/", None)
        yield f"localhost:{port}"


@contextlib.contextmanager
def _java(name: str, program: str, *arguments: str, cwd: Path | None = None) -> Iterator[str]:
    jars = _jars(name)
    command = ["java", "-Xmx768m", *_OPENED, "-cp", f"{jars}/*", str(JAVA / name / f"{program}.java"), *arguments]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=cwd or JAVA
    )
    with ended(process):
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("port "):
                break
        else:
            pytest.fail(f"{program} ended with {process.wait()}: {' '.join(command)}")
        yield line.removeprefix("port ").strip()


def _jars(name: str) -> Path:
    """The folder with the jars of java/NAME/pom.xml, fetched by Maven with the user's settings if it is not there."""
    for tool, package in (("javac", "a JDK (default-jdk-headless)"), ("mvn", "Maven (maven)")):
        if shutil.which(tool) is None:
            lacking(f"{name}: this needs {package}")
    pom = JAVA / name / "pom.xml"
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shardline-tests"
    folder = caches / f"{name}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"
    if not folder.is_dir():
        making = folder.with_name(f"{folder.name}.{os.getpid()}")
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={making}"]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        if done.returncode:
            shutil.rmtree(making, ignore_errors=True)
            lacking(f"{name}: Maven could not fetch its jars: {done.stdout.strip().splitlines()[:1]}")
        with contextlib.suppress(OSError):  # another process was first
            making.rename(folder)
        shutil.rmtree(making, ignore_errors=True)
    return folder


def promtool() -> str:
    """Prometheus' tool for rules; beside it is Prometheus itself."""
    for name in ("prometheus", "promtool"):
        if shutil.which(name) is None:
            lacking(f"{name}: this needs Prometheus (prometheus)")
    return "promtool"


@contextlib.contextmanager
def prometheus(folder: Path, config: str) -> Iterator[str]:
    """Prometheus with its data in `folder`; gives its address."""
    promtool()
    (folder / "prometheus.yaml").write_text(config, encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    with open(folder / "prometheus.log", "wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    with ended(process):
        answering(f"http://{address}/-/ready", process, well=True)
        yield f"http://{address}"


def lacking(what: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def answering(url: str, process: subprocess.Popen[bytes] | None, *, well: bool = False) -> str:
    """`url`, once a server answers there: whatever it answers, or no error if it has to be `well`."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (process is None or process.poll() is None):
        try:
            with urllib.request.urlopen(url, timeout=5):
                return url
        except urllib.error.HTTPError as error:
            error.close()
            if not well:
                return url
            time.sleep(0.1)
        except OSError:
            time.sleep(0.1)
    pytest.fail(f"no server at {url}")


@contextlib.contextmanager
def ended(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream:
                stream.close()
