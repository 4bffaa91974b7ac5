"""What is said of workers that ended before their time."""

from __future__ import annotations

import signal

from shardline.components.common.errors import EXIT_DEVICE_FAULT, EXIT_PEER_LOST, PeerLost
from shardline.components.elasticity.failures import End, as_error, classify, reason_of

GLOO = (
    "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
    "[127.0.0.1]:56015. This is typically caused by a remote worker crashing. Check the logs."
)
REAL_TIME = End(rank=1, pid=4242, exit_code=-40)
KILLED = End(rank=1, pid=4242, exit_code=-signal.SIGKILL)
LOST = {"rank": 0, "message": "a peer is gone", "exit_code": EXIT_PEER_LOST}


def test_a_librarys_message_is_cut_to_its_first_sentence() -> None:
    error = classify(RuntimeError(GLOO))
    assert isinstance(error, PeerLost)
    assert error.message == "a peer is gone or silent: Connection closed by peer [127.0.0.1]:56015"


def test_the_rank_that_was_killed_tells_more_than_the_one_that_missed_it() -> None:
    survivor = End(rank=0, pid=4241, exit_code=EXIT_PEER_LOST)
    assert reason_of(LOST, ends=[survivor, KILLED]) == "rank 1 (process 4242) was ended by SIGKILL"
    assert reason_of(LOST, ends=[survivor]) == "rank 0: a peer is gone"
    assert reason_of(None, ends=[survivor]) == "rank 0 (process 4241) ended with exit code 175"
    assert reason_of({"rank": 2, "message": "terminated", "exit_code": 143}, ends=[]) == "rank 2 was terminated"


def test_the_last_error_says_why_there_is_no_further_try() -> None:
    spent = "elastic.max_restarts (3) is used up, 4 times in a row"
    error = as_error(None, why=str(KILLED), spent=spent)
    assert str(error) == f"rank 1 (process 4242) was ended by SIGKILL, and {spent}"
    assert error.exit_code == EXIT_PEER_LOST
    fault = {"rank": 0, "message": "a device failed", "exit_code": EXIT_DEVICE_FAULT}
    assert as_error(fault, why="a device failed", spent=spent).exit_code == EXIT_DEVICE_FAULT


def test_an_error_that_would_come_again_is_shown_as_it_is() -> None:
    error = as_error({"rank": 0, "message": "the loss diverged", "exit_code": 2}, why=str(KILLED), spent="")
    assert (str(error), error.exit_code) == ("the loss diverged", 2)


def test_a_signal_without_a_name_has_its_number() -> None:
    assert str(REAL_TIME) == "rank 1 (process 4242) was ended by signal 40"
