"""S3 that is slow, resets, is throttled, loses answers: each case on a real socket, with obstore and without."""

from __future__ import annotations

import json
import re
import threading
import uuid

import pytest

from shardline.components.common.errors import ConfigError, EnvironmentLacking, StorageLost
from shardline.components.common.storage import Storage, patience
from tests.contract.conftest import BUCKET
from tests.contract.faults import Proxy, Rule

pytestmark = pytest.mark.parametrize("by", ["obstore", "s3fs"], indirect=True)
CONTENT = bytes(range(256)) * 400


@pytest.fixture
def storage(server: Proxy) -> Storage:
    return Storage(f"s3://{BUCKET}/{uuid.uuid4().hex}")


@pytest.mark.parametrize(
    "fault",
    [
        Rule("answer", status=503, code="SlowDown", times=3),
        Rule("answer", status=500, code="InternalError", times=3),
        Rule("answer", status=429, code="TooManyRequests", times=3),
        Rule("reset", times=3),
        Rule("slow", seconds=0.5, times=3),
        Rule("lost", times=3),
    ],
    ids=lambda rule: f"{rule.kind}-{rule.status}",
)
def test_what_fails_for_a_moment_is_repeated(storage: Storage, server: Proxy, fault: Rule) -> None:
    storage.write("x", CONTENT)
    before = patience.made()

    def harmed(method: str, holding: str = "") -> None:
        server.rules[:] = [Rule(**{**vars(fault), "method": method, "holding": holding, "met": 0})]

    harmed("GET")
    assert storage.read("x") == CONTENT
    harmed("GET")
    assert storage.read_ranges("x", [(0, 10), (100, 50), (100_000, 7)]) == [
        CONTENT[0:10],
        CONTENT[100:150],
        CONTENT[100_000:100_007],
    ]
    harmed("GET", "list-type")
    assert storage.names() == ["x"]
    harmed("HEAD")
    assert storage.size("x") == len(CONTENT)
    harmed("PUT")
    storage.write("y", CONTENT)
    harmed("PUT")
    assert storage.create("z", b"z")
    harmed("PUT")
    assert storage.swap("z", b"z", b"zz")
    harmed("DELETE")
    storage.delete("y")
    server.rules.clear()
    assert (storage.names(), storage.read("z")) == (["x", "z"], b"zz")
    assert fault.kind == "slow" or patience.made() - before >= 3 * 7


@pytest.mark.parametrize("kind", ["answer", "reset", "lost"])
def test_an_upload_of_parts_that_fails_for_a_moment(storage: Storage, server: Proxy, kind: str) -> None:
    piece = bytes(range(256)) * 4096
    server.rules += [Rule(kind, holding=holding, times=2) for holding in ("uploads", "partNumber", "uploadId")]
    with storage.writer("x") as handle:
        for _ in range(52):
            handle.write(piece)
    assert storage.size("x") == 52 * len(piece)
    assert storage.read_range("x", 51 * len(piece), 10) == piece[:10]


@pytest.mark.parametrize("kind", ["answer", "reset", "cut"])
def test_what_fails_for_good_is_told_within_the_limit(
    storage: Storage, server: Proxy, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    storage.write("x", CONTENT)
    monkeypatch.setenv("SHARDLINE_STORAGE_SECONDS", "1")
    server.rules.append(Rule(kind))
    for call in (lambda: storage.read("x"), lambda: storage.read_ranges("x", [(0, 9), (20, 30)])):
        server.requests.clear()
        with pytest.raises(StorageLost, match=re.escape(storage.url_of("x"))) as caught:
            call()
        assert caught.value.exit_code == 175
        assert "\n" not in str(caught.value)
        assert 2 <= len(server.requests) <= 30
    if kind != "cut":
        for write in (storage.write, storage.create):
            with pytest.raises(StorageLost, match=re.escape(storage.url_of("y"))):
                write("y", b"1")
        with pytest.raises(StorageLost, match=re.escape(storage.url)):
            storage.names()
        server.rules.clear()
        assert storage.names() == ["x"]


def test_a_body_that_is_cut_is_asked_for_again(storage: Storage, server: Proxy) -> None:
    storage.write("x", CONTENT)
    server.rules.append(Rule("cut", method="GET", times=2))
    assert storage.read("x") == CONTENT
    server.rules[:] = [Rule("cut", method="GET", times=2)]
    with storage.open("x") as handle:
        assert handle.read() == CONTENT


def test_a_body_that_is_short_but_claims_to_be_whole(storage: Storage, server: Proxy) -> None:
    storage.write("x", CONTENT)
    server.rules.append(Rule("change", method="GET", times=2, change=lambda body: body[:-1]))
    assert storage.read_range("x", 100, 1000) == CONTENT[100:1100]
    server.rules[:] = [Rule("change", method="GET", times=2, change=lambda body: body[:-1])]
    assert storage.read("x") == CONTENT


def test_what_is_known_to_be_there_may_be_gone_for_a_moment(storage: Storage, server: Proxy) -> None:
    storage.write("x", CONTENT)
    server.rules.append(Rule("answer", method="GET", status=404, code="NoSuchKey", times=3))
    assert storage.read_range("x", 0, 4) == CONTENT[:4]
    server.rules[:] = [Rule("answer", method="GET", status=404, code="NoSuchKey", times=1)]
    with pytest.raises(FileNotFoundError):
        storage.read("x")


def test_a_clock_that_is_off_is_named_at_once(storage: Storage, server: Proxy) -> None:
    server.rules.append(Rule("answer", status=403, code="RequestTimeTooSkewed"))
    for call in (
        lambda: storage.read("x"),
        lambda: storage.read_range("x", 0, 1),
        lambda: storage.create("x", b"1"),
        lambda: storage.write("x", b"1"),
        storage.names,
    ):
        server.requests.clear()
        with pytest.raises(EnvironmentLacking, match="clock of this machine is off") as caught:
            call()
        assert caught.value.exit_code == 3
        assert len(server.requests) == 1


def test_no_right_to_it_is_told_at_once(storage: Storage, server: Proxy) -> None:
    server.rules.append(Rule("answer", status=403, code="AccessDenied"))
    for call in (lambda: storage.read("x"), lambda: storage.create("x", b"1"), lambda: storage.read_range("x", 0, 1)):
        server.requests.clear()
        with pytest.raises(EnvironmentLacking, match=r"cannot be used: .*; grant access"):
            call()
        assert len(server.requests) == 1


def test_a_lost_answer_and_another_writer(storage: Storage, server: Proxy) -> None:
    """The request did not arrive, or was done with nobody told; meanwhile another writer was there."""
    storage.write("x", b"1")
    other = Storage(storage.url)

    def meanwhile(kind: str, write: bytes | None) -> None:
        rule = Rule(kind, method="PUT", times=1)
        server.rules[:] = [rule]
        if write is not None:
            waiting = threading.Event()

            def follow() -> None:
                while not rule.met:
                    waiting.wait(0.001)
                other.write("x", write)

            threads.append(threading.Thread(target=follow))
            threads[-1].start()

    threads: list[threading.Thread] = []
    meanwhile("lost", None)
    assert storage.swap("x", b"1", b"2")
    meanwhile("lost", None)
    assert storage.create("y", b"2")
    assert not storage.create("y", b"2")  # the same content, but not by this call
    meanwhile("reset", b"3")
    with pytest.raises(StorageLost, match="answer to a conditional write got lost"):
        storage.swap("x", b"2", b"3")
    for thread in threads:
        thread.join()
    assert storage.read("x") == b"3"


def _count_own(url: str, name: str, times: int) -> None:
    """Add to one's own number among those of all; a lost answer is cleared up by a look at it."""
    storage = Storage(url)
    for goal in range(1, times + 1):
        while True:
            old = storage.read("n")
            numbers = json.loads(old)
            if numbers.get(name) == goal:
                break
            try:
                if storage.swap("n", old, json.dumps({**numbers, name: goal}).encode()):
                    break
            except StorageLost as error:
                assert "answer to a conditional write got lost" in str(error)


def test_no_update_is_lost_when_answers_are(storage: Storage, server: Proxy) -> None:
    storage.write("n", b"{}")
    server.rules.append(Rule("lost", method="PUT", times=15))
    threads = [threading.Thread(target=_count_own, args=(storage.url, str(number), 8)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert json.loads(storage.read("n")) == {"0": 8, "1": 8, "2": 8}


def test_a_listing_that_is_cut_short_is_refused(storage: Storage, server: Proxy) -> None:
    storage.write("x", b"")

    def cut(body: bytes) -> bytes:
        body = body.replace(b"<IsTruncated>false", b"<IsTruncated>true")
        return re.sub(b"<NextContinuationToken>.*?</NextContinuationToken>", b"", body)

    server.rules.append(Rule("change", method="GET", holding="list-type", change=cut))
    with pytest.raises(EnvironmentLacking, match="cut its list of files"):
        storage.names()


def test_a_limit_that_is_no_number(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDLINE_STORAGE_SECONDS", "soon")
    with pytest.raises(ConfigError, match="'soon' is no number of seconds"):
        storage.read("x")
