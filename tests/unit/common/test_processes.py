"""Signals, in real processes: nothing on the way may swallow one."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.commands import environment

SCRIPT = """
import sys, time
from shardline.components.common.errors import Stopped, exit_code_of
from shardline.components.common.processes import raise_on_signals

def carry_on():
    # As libraries do: whatever goes wrong with one thing, go on with the next.
    while True:
        try:
            time.sleep(0.01)
        except Exception:
            pass

class Finaliser:
    def __del__(self):
        print("ready", flush=True)
        time.sleep(60)

raise_on_signals()
try:
    if sys.argv[1] == "library":
        print("ready", flush=True)
        carry_on()
    Finaliser()
    time.sleep(60)
except Stopped as stopped:
    sys.exit(exit_code_of(stopped))
"""


def start(kind: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, kind],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_code_that_goes_on_after_any_error_does_not_go_on_after_a_signal(signum: int, code: int) -> None:
    with start("library") as process:
        process.send_signal(signum)
        assert process.wait(30) == code


def test_a_signal_that_got_lost_can_be_sent_again() -> None:
    with start("finaliser") as process:
        process.send_signal(signal.SIGTERM)
        # No exception leaves a finaliser: the first one is lost.
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
