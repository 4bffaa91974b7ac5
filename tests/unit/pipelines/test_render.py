"""`shardline render` from outside: documents on stdout, words on stderr, and one message for each mistake."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from tests.commands import shardline, write
from tests.manifests import BASE
from tests.serving import serving


def test_documents_come_in_the_order_in_which_they_are_applied(tmp_path: Path) -> None:
    write(tmp_path, BASE)
    done = shardline("render", "config.yaml", "--set", "kubernetes.sharding.parts=2", cwd=tmp_path)
    assert done.returncode == 0
    kinds = [each["kind"] for each in yaml.safe_load_all(done.stdout)]
    assert kinds[0] == "ServiceAccount" and kinds.index("ConfigMap") < kinds.index("Job") < kinds.index("PyTorchJob")
    assert done.stderr == (
        "note: shard, merge, train, evaluate, report follow one another: apply each with --only when the one before is "
        "complete\n"
    )
    again = shardline("render", "config.yaml", "--set", "kubernetes.sharding.parts=2", cwd=tmp_path, PYTHONHASHSEED="7")
    assert again.stdout == done.stdout


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        (["--only", "train"], ["ConfigMap", "PodDisruptionBudget", "PyTorchJob"]),
        (
            ["--only", "train", "--kind", "trainjob"],
            ["ConfigMap", "PodDisruptionBudget", "TrainingRuntime", "TrainJob"],
        ),
        (["--only", "evaluate", "--only", "shard"], ["ConfigMap", "Job", "Job"]),
    ],
)
def test_only_what_is_asked_for(options: list[str], kinds: list[str], tmp_path: Path) -> None:
    write(tmp_path, BASE)
    done = shardline("render", "config.yaml", *options, cwd=tmp_path)
    assert [each["kind"] for each in yaml.safe_load_all(done.stdout)] == kinds
    assert done.stderr.count("note: ") == (len(options) == 4 and "--kind" not in options)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["kubernetes.image=null"], "--set: kubernetes.image = null: is needed to render"),
        (["storage=data"], '--set: storage = "data": is relative to a folder of this machine'),
        (["run=7b"], '--set: run = "7b": must begin with a letter'),
        (["kubernetes.workers={min: 3, max: 2}"], "--set: kubernetes.workers.min = 3: leaves no number"),
    ],
)
def test_a_mistake_is_one_message_and_no_document(overrides: list[str], message: str, tmp_path: Path) -> None:
    write(tmp_path, BASE)
    options = [word for override in overrides for word in ("--set", override)]
    done = shardline("render", "config.yaml", *options, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {message}") and len(done.stderr.splitlines()) == 1


class _Handler(BaseHTTPRequestHandler):
    """A cluster with no operator and no rights for the rest: it knows no other answer."""

    def do_PATCH(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        code, body = 404, b"404 page not found\n"
        if "kubeflow.org" not in self.path:
            code, body = 403, b'{"message": "x is forbidden: User \\"me\\" cannot patch resource"}'
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Path]:
    """A kubeconfig for it."""
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), _Handler)) as server:
        config = {
            "current-context": "a",
            "clusters": [{"name": "a", "cluster": {"server": f"http://127.0.0.1:{server.server_address[1]}"}}],
            "users": [{"name": "a", "user": {}}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        }
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        yield path


def test_what_the_cluster_refuses_is_said_for_each_reason_and_nothing_is_printed(cluster: Path, tmp_path: Path) -> None:
    write(tmp_path, BASE)
    done = shardline("render", "config.yaml", "--only", "train", "--check", cwd=tmp_path, KUBECONFIG=str(cluster))
    assert (done.returncode, done.stdout) == (3, "")
    assert [line.partition(";")[0] for line in done.stderr.splitlines()] == [
        "error: namespace shardline: me may not patch configmaps",
        "error: namespace shardline: me may not patch poddisruptionbudgets",
        "error: PyTorchJob try in namespace shardline: the cluster does not know PyTorchJob (kubeflow.org/v1)",
        "the cluster refuses 3 of 3 objects",
    ]


def test_no_cluster_to_check_against(tmp_path: Path) -> None:
    write(tmp_path, BASE)
    done = shardline("render", "config.yaml", "--check", cwd=tmp_path, KUBECONFIG=str(tmp_path / "none"))
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("error: no cluster to talk to: ") and "Traceback" not in done.stderr
