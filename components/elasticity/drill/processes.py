"""A drill's site on this machine: agents that it starts itself, or those of a run that is at work here.

Called by `shardline drill`. An agent that is gone is replaced by another one, as a cluster does with a pod, as long as
the drill has started them. Victims are found as any person would find them: by what /proc says of processes.

Errors: `RecordedError` with the last words of an agent that ended with an error that would come again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shardline.components.common.errors import (
    EXITS_STOPPED,
    FINAL_EXIT_CODES,
    EnvironmentLacking,
    PeerLost,
    RecordedError,
    ShardlineError,
    UserError,
)
from shardline.components.common.owner import owner
from shardline.components.common.processes import child_environment
from shardline.components.common.storage import Storage
from shardline.components.elasticity.drill.ending import stop
from shardline.components.elasticity.drill.plan import Fault, pick
from shardline.components.elasticity.group.board import StorageBoard
from shardline.components.elasticity.process_server import COMMAND

_POLL_SECONDS = 0.1
#: How long a run may take to save and end, and agents that left to be done without.
_PATIENCE = 300.0
#: Agents that may leave by themselves before the drill gives up: one that cannot live is no recovery.
_MOST_LEFT = 50
GROUP = "drill"


@dataclass(frozen=True)
class Victim:
    """A process of a run; `name`: what it is, in words."""

    pid: int
    name: str


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The processes that are at work on a run, on this machine; an agent is seen once it has a server."""

    agents: list[Victim]
    servers: list[Victim]
    workers: list[Victim]


def processes_of(url: str) -> Seen:
    """Those of the run at `url`."""
    seen = Seen(agents=[], servers=[], workers=[])
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda folder: int(folder.name)):
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
            name = (folder / "comm").read_text().strip()
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # it ended meanwhile, or is somebody else's
        if COMMAND[-1].encode() not in command or url.encode() not in command or state in "ZX":
            continue
        if name.startswith("rank "):
            seen.workers.append(Victim(int(folder.name), name))
        else:
            seen.servers.append(Victim(int(folder.name), f"the server of agent {parent}"))
            seen.agents.append(Victim(int(parent), "agent"))
    return seen


class Bystander:
    """A run that others have started: it is disturbed, and nothing else is done to it."""

    def __init__(self, run: Storage) -> None:
        self._run = run
        self._paused: list[tuple[float, Victim]] = []

    def __enter__(self) -> Bystander:
        if not Path("/proc/self/stat").exists():
            raise EnvironmentLacking("a drill on this machine needs /proc", hint="use Linux")
        return self

    def __exit__(self, *exc: object) -> None:
        self._go_on(until=float("inf"))

    def tend(self) -> None:
        self._go_on(until=time.monotonic())
        holder = owner(self._run)
        if holder is None or not (holder["alive"] or processes_of(self._run.url).agents):
            raise UserError("nobody is at work on this run any more", where=self._run.url)

    def strike(self, fault: Fault) -> tuple[str, float] | None:
        seen, one = processes_of(self._run.url), fault.picks[:1]
        match fault.kind:
            case "worker":
                return _send(signal.SIGKILL, pick(seen.workers, one), "killed")
            case "hang":
                return _send(signal.SIGSTOP, pick(seen.workers, one), "stopped")
            case "server":
                return _send(signal.SIGKILL, pick(seen.servers, one), "killed")
            case "agent":
                return _send(signal.SIGKILL, pick(seen.agents, one), "killed")
            case "leader":
                return _send(signal.SIGKILL, self._leading(seen), "killed")
            case "two":
                both = pick([*seen.agents, *seen.workers], fault.picks) if seen.workers else []
                return _send(signal.SIGKILL, both, "killed")
            case "all":
                return _send(signal.SIGKILL, seen.agents, "killed")
            case "terminate":
                return _send(signal.SIGTERM, pick(seen.agents, one), "terminated")
            case "pause":
                victims = pick(seen.agents, one)
                self._paused += [(time.monotonic() + fault.seconds, each) for each in victims]
                return _send(signal.SIGSTOP, victims, f"stopped for {fault.seconds:.1f} s")
        raise UserError(f"{fault.kind} is for agents that the drill itself has started", where="--kill")

    def whole(self) -> int | None:
        return None if self._paused else 0

    def finish(self) -> None:
        """The run goes on: it belongs to others."""

    def _leading(self, seen: Seen) -> list[Victim]:
        """The agent that leads: who holds the run's lease, or the only one."""
        holder = owner(self._run)
        leads = [each for each in seen.agents if holder is not None and each.pid == holder["pid"]]
        found = leads or (seen.agents if len(seen.agents) == 1 else [])
        return [Victim(each.pid, "the agent that leads") for each in found]

    def _go_on(self, *, until: float) -> None:
        due = [victim for moment, victim in self._paused if moment <= until]
        self._paused = [each for each in self._paused if each[0] > until]
        for victim in due:
            with contextlib.suppress(ProcessLookupError):  # another fault has killed it
                os.kill(victim.pid, signal.SIGCONT)


def _send(number: signal.Signals, victims: Sequence[Victim], what: str) -> tuple[str, float] | None:
    """To whom a signal was sent, and when; None when there is nobody."""
    moment = time.time()
    for each in victims:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(each.pid, number)
    who = " and ".join(f"{each.name} (process {each.pid})" for each in victims)
    return (f"{who} {what}", moment) if victims else None


class Agents(Bystander):
    """Agents of a run that the drill starts, and starts again.

    Args:
        command: that starts an agent with the run's config.
        count: agents that train together; `processes`: workers of each.
        logs: a folder for what they say.
    """

    def __init__(self, command: Sequence[str], *, run: Storage, count: int, processes: int, logs: Path) -> None:
        super().__init__(run)
        bounds = ["--group", GROUP, "--host", "127.0.0.1", "--agents", f"1:{count}", "--processes", str(processes)]
        self._command = [*command, *bounds]
        self._threads = max(1, (os.cpu_count() or 1) // (count * processes))
        self._wanted = count
        self._board = StorageBoard(run.at(f"groups/{GROUP}"))
        self._agents: dict[int, tuple[subprocess.Popen[bytes], Path]] = {}
        self._held = self._left = self._begun = 0
        self._logs = logs

    def __enter__(self) -> Agents:
        super().__enter__()
        self._fill()
        return self

    def __exit__(self, *exc: object) -> None:
        for process, _ in self._agents.values():
            process.kill()
            process.wait()

    def tend(self) -> None:
        self._go_on(until=time.monotonic())
        for pid in [pid for pid, (process, _) in self._agents.items() if process.poll() is not None]:
            process, log = self._agents.pop(pid)
            self._judge(process.returncode, log)
        self._fill()

    def strike(self, fault: Fault) -> tuple[str, float] | None:
        if fault.kind == "join":
            return self._join(fault)
        return super().strike(fault)

    def whole(self) -> int | None:
        return None if self._paused else self._generation_of(self._wanted)

    def finish(self) -> None:
        """Raises PeerLost for agents that do not end."""
        stop(self._run, ended=self._all_ended, poll=_POLL_SECONDS, patience=_PATIENCE)
        for process, log in self._agents.values():
            if process.returncode not in (0, *EXITS_STOPPED):
                raise RecordedError({"message": _last_words(log), "exit_code": process.returncode})

    def wait(self) -> None:
        """Return when the run has done its last step, undisturbed."""
        while not self._all_ended():
            time.sleep(_POLL_SECONDS)

    def _all_ended(self) -> bool:
        return all(process.poll() is not None for process, _ in self._agents.values())
        for process, log in self._agents.values():
            if process.returncode:
                raise RecordedError({"message": _last_words(log), "exit_code": process.returncode})

    def _fill(self) -> None:
        while len(self._agents) < self._wanted - self._held:
            self._begun += 1
            path = self._logs / f"{self._begun}.log"
            environment = child_environment()
            environment.setdefault("OMP_NUM_THREADS", str(self._threads))
            with open(path, "wb") as log:
                process = subprocess.Popen(
                    self._command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                )
            self._agents[process.pid] = (process, path)

    def _judge(self, exit_code: int, log: Path) -> None:
        """Whether an agent that ended with `exit_code` is to be replaced, as a pod would be."""
        if exit_code == 0:
            raise UserError(
                "the run has done its last step before the drill was over",
                where=self._run.url,
                hint="raise training.steps, or lower --faults, --every or --for",
            )
        if exit_code in FINAL_EXIT_CODES:
            raise RecordedError({"message": _last_words(log), "exit_code": exit_code})
        self._left += exit_code > 0 and exit_code not in EXITS_STOPPED
        if self._left > _MOST_LEFT:
            raise RecordedError({"message": _last_words(log), "exit_code": exit_code})

    def _join(self, fault: Fault) -> tuple[str, float] | None:
        """Have an agent leave, and when the others train without it, another one come."""
        if self.whole() is None or self._wanted < 2:
            return None
        self._held = 1
        try:
            _send(signal.SIGTERM, pick(processes_of(self._run.url).agents, fault.picks[:1]), "terminated")
            deadline = time.monotonic() + _PATIENCE
            while self._generation_of(self._wanted - 1) is None:
                if time.monotonic() > deadline:
                    raise PeerLost("the others do not go on without an agent that left", where=self._run.url)
                time.sleep(_POLL_SECONDS)
                self.tend()
        finally:
            self._held = 0
        moment = time.time()
        self._fill()
        return f"another agent (process {max(self._agents)}) comes", moment

    def _generation_of(self, count: int) -> int | None:
        """The generation that `count` agents train in; None when no such one does."""
        with contextlib.suppress(ShardlineError):
            state, _ = self._board.state()
            if state is not None and state.phase == "running" and len(state.ranks) == count:
                return state.generation
        return None


def _last_words(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].removeprefix("error: ") if lines else "an agent ended without a word"
