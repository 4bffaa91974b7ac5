"""What goes wrong below the pods, for the length of a `with` block; on the box alone: its processes are this machine's.

Called by the tests.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.cluster import scripts


@contextlib.contextmanager
def silent_api_server() -> Iterator[None]:
    """It takes connections and requests, and answers none."""
    pid, _ = (scripts.folder() / "run/kube-apiserver.pid").read_text().split()
    with _stopped([int(pid)]):
        yield


@contextlib.contextmanager
def silent_pod(pod: Any) -> Iterator[None]:
    """No process of the pod does anything."""
    with _stopped(processes_in(pod)):
        yield


@contextlib.contextmanager
def no_connection(pod: Any, other: Any) -> Iterator[None]:
    """What either of two pods sends to the other is lost on the way; all else goes on."""
    into = ["nsenter", "--net", "--target", str(processes_in(pod)[0]), "nft"]
    rules = (
        "add table inet cut; add chain inet cut input { type filter hook input priority 0; }; "
        f"add rule inet cut input ip saddr {other.status.pod_ip} drop"
    )
    subprocess.run([*into, rules], check=True)
    try:
        yield
    finally:
        subprocess.run([*into, "delete table inet cut"], check=True)


def run_out_of_memory(pod: Any) -> None:
    """Use up the memory that a pod's container may have until the system has killed its worker for it."""
    pid, *_ = workers_in(pod)
    # The one to be killed first: not every system lets a process be spared.
    Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
    paths = dict(line.split(":")[1:] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines())
    if "memory" in paths:
        folder, kills = f"/sys/fs/cgroup/memory{paths['memory']}", "memory.oom_control"
    else:
        folder, kills = f"/sys/fs/cgroup{paths['']}", "memory.events"
    subprocess.run([sys.executable, "-c", _EATER, folder, kills], check=True, timeout=120)


#: Of a process that moves to a cgroup and takes memory there until something else was killed for it.
_EATER = """
import pathlib, sys, os
folder, kills = pathlib.Path(sys.argv[1]), sys.argv[2]
def killed():
    lines = (folder / kills).read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
before = killed()
(folder / "cgroup.procs").write_text(str(os.getpid()))
taken = []
while killed() == before:
    taken.append(b"x" * (16 << 20))
"""


def workers_in(pod: Any) -> list[int]:
    """Those of them that train."""
    found = [pid for pid in processes_in(pod) if Path(f"/proc/{pid}/comm").read_text().startswith("rank ")]
    assert found, f"no worker runs in {pod.metadata.name}"
    return found


def processes_in(pod: Any) -> list[int]:
    """Of a pod's containers, as this machine numbers them."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ends meanwhile
            if f"pod{pod.metadata.uid}" in (folder / "cgroup").read_text():
                found.append(int(folder.name))
    assert found, f"no process of {pod.metadata.name} runs on this machine"
    return sorted(found)


@contextlib.contextmanager
def _stopped(pids: list[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
