"""The cluster that these tests run on: the one of KUBECONFIG, else three nodes on this machine (box/).

The box is brought up before the first test, outside any test's time limit: the first time it has to be built. What
this session started, it ends, unless SHARDLINE_BOX_KEEP is set. Without a cluster, one line says what is missing.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import s3fs
import urllib3
from kubernetes.client.exceptions import ApiException
from kubernetes.config import ConfigException

from shardline.components.common.runfolder import run_storage
from shardline.components.common.storage import Storage
from shardline.components.common.storage.s3client import PatientS3FileSystem
from shardline.components.elasticity.local import local_agent
from shardline.components.sharding import step as sharding
from shardline.components.training import step as training
from tests.cluster import paced, scripts
from tests.cluster.jobs import BUCKET, CORPUS, KEYS, OVERRIDES, STEPS, ClusterRun, Make, cluster_run, of_checkout
from tests.cluster.kube import Cluster, Namespace, await_removal, fresh_namespace
from tests.cluster.pods import ROOT, S3, NodePython, s3_server
from tests.contract.servers import lacking
from tests.distributed import runs

HERE = Path(__file__).parent
SPARE_NODE = "n2"  # n0 has the DNS and the operator
_CLUSTER = pytest.StashKey[Cluster]()
_ENDS_BOX = pytest.StashKey[bool]()
_FAILED = pytest.StashKey[bool]()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Before pytest prints anything: the one line stands alone."""
    _find(session.config)


def pytest_collection_finish(session: pytest.Session) -> None:
    config = session.config
    if config.option.collectonly or not any(item.path.is_relative_to(HERE) for item in session.items):
        return
    if _CLUSTER not in config.stash:
        _find(config)  # where this file was loaded late: `pytest tests`
    if _CLUSTER not in config.stash:
        with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            _start(config)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.stash.get(_ENDS_BOX, False):
        scripts.down()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


def _find(config: pytest.Config) -> None:
    """Loads the cluster of KUBECONFIG, or sees whether one can be started here; else pytest.UsageError."""
    where = os.environ.get("KUBECONFIG")
    if where:
        config.stash[_CLUSTER] = _theirs(where)
    elif what := scripts.lacking():
        raise pytest.UsageError(
            "set KUBECONFIG to a cluster that has the training operator (kind, minikube, ...); "
            f"to start one here, this machine lacks {what}"
        )


def _theirs(where: str) -> Cluster:
    try:
        cluster = Cluster.load(None, box=False)
        version, has_pytorchjob = cluster.version(), cluster.has_pytorchjob()
    except (ConfigException, ApiException, urllib3.exceptions.HTTPError) as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise pytest.UsageError(f"no cluster at KUBECONFIG={where}: {first}") from None
    if not has_pytorchjob:
        raise pytest.UsageError(
            f"the cluster at KUBECONFIG={where} ({version}) has no training operator: no PyTorchJob"
        )
    return cluster


def _start(config: pytest.Config) -> None:
    config.stash[_ENDS_BOX] = not scripts.answers() and not os.environ.get("SHARDLINE_BOX_KEEP")
    began = time.monotonic()
    print(f"\ncluster: starting three nodes, from what was built in {scripts.folder()} or will be, in some 15 minutes")
    try:
        scripts.up()
    except subprocess.CalledProcessError as error:
        pytest.exit(f"the cluster did not start: {error} (logs: {scripts.folder() / 'log'})", returncode=1)
    print(f"cluster: up after {time.monotonic() - began:.0f} s")
    config.stash[_CLUSTER] = Cluster.load(scripts.kubeconfig(), box=True)


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """The cluster; at the end no namespace of this session is left in it."""
    yield pytestconfig.stash[_CLUSTER]
    await_removal(pytestconfig.stash[_CLUSTER])


@pytest.fixture
def namespace(cluster: Cluster, failed: Callable[[], bool]) -> Iterator[Namespace]:
    """A namespace of the test's own in which pods have to keep to the restricted Pod Security Standard."""
    with fresh_namespace(cluster, level="restricted", failed=failed) as made:
        yield made


@pytest.fixture
def privileged_namespace(cluster: Cluster, failed: Callable[[], bool]) -> Iterator[Namespace]:
    """A namespace of the test's own for the pods of `node_python`, which on the box mount folders of the node."""
    with fresh_namespace(cluster, level="privileged", failed=failed) as made:
        yield made


@pytest.fixture(scope="session")
def node_python(cluster: Cluster) -> NodePython:
    """How a pod runs this checkout; on a cluster that is not the box, out of the image SHARDLINE_TEST_IMAGE."""
    if cluster.box:
        return NodePython.of_checkout()
    image = os.environ.get("SHARDLINE_TEST_IMAGE")
    if not image:
        lacking(
            "SHARDLINE_TEST_IMAGE has to name an image with this checkout, its extra `dev`, and a PYTHONPATH by which "
            "`tests` is found, for the cluster's pods"
        )
    return NodePython(str(image), "python3")


@pytest.fixture
def s3_in_cluster(cluster: Cluster, node_python: NodePython, failed: Callable[[], bool]) -> Iterator[S3]:
    """An empty S3 server in a namespace of its own."""
    with (
        fresh_namespace(cluster, level="privileged", failed=failed) as own,
        s3_server(own, node_python) as server,
    ):
        yield server


@pytest.fixture
def spare_node(cluster: Cluster) -> Iterator[str]:
    """A node that the test may cut off with `scripts.node("kill", ...)`; ready again at the end."""
    if not cluster.box:
        pytest.skip("the nodes of KUBECONFIG's cluster are not ours to cut off")
    yield SPARE_NODE
    scripts.node("up", SPARE_NODE)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    """What every run of `make` comes to, by one process of this machine that nothing disturbs."""
    root = tmp_path_factory.mktemp("undisturbed")
    runs.write_corpus(root / "corpus")
    config = runs.make_config(root, run="undisturbed", steps=STEPS, overrides=(*OVERRIDES, "resources.processes=1"))
    sharding.run(config)
    training.run(config, agent=local_agent(config))
    return run_storage(config)


@pytest.fixture
def failed(request: pytest.FixtureRequest) -> Callable[[], bool]:
    """Asked when the test is over: whether it failed."""
    return lambda: bool(request.node.stash.get(_FAILED, False))


@pytest.fixture
def corpus_in_s3(cluster: Cluster, s3_in_cluster: S3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> S3:
    """The S3 server with the corpus of every run on it; the environment of the test leads there, and to the cluster."""
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": s3_in_cluster.outside}.items():
        monkeypatch.setenv(name, value)
    if cluster.box:
        monkeypatch.setenv("KUBECONFIG", str(scripts.kubeconfig()))
    PatientS3FileSystem.clear_instance_cache()  # a server of the test before had another address
    files = s3fs.S3FileSystem(skip_instance_cache=True)
    files.mkdir(BUCKET)
    runs.write_corpus(tmp_path / "corpus")
    files.put(str(tmp_path / "corpus"), CORPUS, recursive=True)
    return s3_in_cluster


@pytest.fixture
def make(privileged_namespace: Namespace, node_python: NodePython, corpus_in_s3: S3) -> Make:
    """Makes a run whose corpus and storage are on an S3 server in the cluster.

    `slow_below` is a number of workers: with fewer a step takes a second, so that the run is still there when they
    come.
    """

    def make(
        name: str, *, workers: dict[str, object], overrides: tuple[str, ...] = (), slow_below: int = 0
    ) -> ClusterRun:
        env = {"PYTHONPATH": str(ROOT)} if node_python.folders else {}
        if slow_below:
            env[paced.WORKERS] = str(slow_below)
            overrides += (f"training.optimizer.name={paced.NAME}",)
        return cluster_run(
            name,
            namespace=privileged_namespace,
            image=node_python.image,
            patch=of_checkout(node_python, name),
            s3=corpus_in_s3,
            env=env,
            workers=workers,
            overrides=(*OVERRIDES, *overrides),
        )

    return make
