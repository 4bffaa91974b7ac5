"""What machines give each other from their memory: to whom, and how it is told from what is broken."""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardline.components.common import peers
from shardline.components.common.errors import PeerLost
from shardline.components.common.peers import OWN, Peers, Server
from shardline.components.common.storage import Storage

SNAPSHOT = peers.snapshot_name(generation=3, step=20)
DATA = bytes(range(256)) * 20_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "outside").write_bytes(b"not to be had")
    folder = tmp_path / "memory"
    peers.put(folder / OWN / SNAPSHOT, "data", DATA)
    return folder


@pytest.fixture
def address(root: Path) -> Iterator[str]:
    with Server(root, host="127.0.0.1", secret="hidden") as server:
        yield f"127.0.0.1:{server.port}"


@pytest.fixture
def asking() -> Iterator[Peers]:
    with Peers("hidden") as peers:
        yield peers


def test_a_file_is_given_whole_and_in_parts_over_one_connection(address: str, asking: Peers, tmp_path: Path) -> None:
    assert asking.read(address, SNAPSHOT, "data") == DATA
    assert asking.fetch(address, SNAPSHOT, "data", begin=300, count=77) == DATA[300:377]
    asking.copy(address, SNAPSHOT, "data", folder=tmp_path / "copies" / SNAPSHOT)
    assert (tmp_path / "copies" / SNAPSHOT / "data").read_bytes() == DATA
    assert peers.held(tmp_path / "copies") == {SNAPSHOT: ("data",)}


def test_a_machine_tells_what_was_made_on_it_and_is_whole(address: str, asking: Peers, root: Path) -> None:
    (root / OWN / SNAPSHOT / "early").write_bytes(DATA)
    peers.put(root / peers.COPIES / SNAPSHOT, "copied", DATA)
    assert asking.listing(address) == {SNAPSHOT: ("data",)}
    with Peers("") as stranger, pytest.raises(PeerLost, match="answered 401"):
        stranger.listing(address)


@pytest.mark.parametrize("told", [{"../x": ["data"]}, {SNAPSHOT: ["../../x"]}, [], {SNAPSHOT: 1}])
def test_what_is_told_leads_nowhere_else(
    address: str, asking: Peers, told: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "held", lambda folder: told)
    with pytest.raises(PeerLost, match="told"):
        asking.listing(address)


def test_nothing_is_given_without_the_secret(address: str) -> None:
    for secret in ("", "hidde", "hidden2"):
        with Peers(secret) as stranger, pytest.raises(PeerLost, match="answered 401"):
            stranger.read(address, SNAPSHOT, "data")


@pytest.mark.parametrize(
    "path", ["/../outside", f"/{SNAPSHOT}/../../../outside", "/", f"/{SNAPSHOT}/..", "//etc/passwd"]
)
def test_nothing_is_given_from_elsewhere(address: str, path: str) -> None:
    with contextlib.closing(http.client.HTTPConnection(address)) as connection:
        connection.putrequest("GET", path)
        connection.putheader("Authorization", "Bearer hidden")
        connection.endheaders()
        assert connection.getresponse().status == 404


def test_what_is_not_there_or_not_whole_yet_is_not_given(address: str, asking: Peers, root: Path) -> None:
    (root / OWN / SNAPSHOT / "early").write_bytes(DATA)
    for file in ("early", "missing"):
        with pytest.raises(PeerLost, match="answered 404"):
            asking.read(address, SNAPSHOT, file)
    with pytest.raises(PeerLost, match="gave 10 bytes instead of 20"):
        asking.fetch(address, SNAPSHOT, "data", begin=len(DATA) - 10, count=20)
    assert asking.read(address, SNAPSHOT, "data") == DATA


def test_a_byte_that_is_not_what_was_written_is_noticed(
    address: str, asking: Peers, root: Path, tmp_path: Path
) -> None:
    (root / OWN / SNAPSHOT / "data").write_bytes(b"x" + DATA[1:])
    with pytest.raises(PeerLost, match="did not arrive as it was made"):
        asking.copy(address, SNAPSHOT, "data", folder=tmp_path / "copies" / SNAPSHOT)
    assert peers.held(tmp_path / "copies") == {SNAPSHOT: ()}


def test_a_machine_that_is_gone_is_a_lost_peer(root: Path, asking: Peers) -> None:
    with Server(root, host="127.0.0.1", secret="hidden") as server:
        address = f"127.0.0.1:{server.port}"
    with pytest.raises(PeerLost, match="does not answer"):
        asking.read(address, SNAPSHOT, "data")


def test_a_run_has_one_secret_that_nobody_guesses(tmp_path: Path) -> None:
    run, other = Storage(str(tmp_path / "a")), Storage(str(tmp_path / "b"))
    assert peers.secret_of(run) == peers.secret_of(run) != peers.secret_of(other)
    assert len(peers.secret_of(run)) >= 32
