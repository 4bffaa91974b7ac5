"""Traces of some optimizer steps by torch.profiler, in Chrome's format.

Called by `worker` around each step. A trace is in `profiles/` of the run folder, a file a rank; Perfetto opens it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from shardline.components.common.config.training_schema import Profile
from shardline.components.common.workers import WorkerContext
from shardline.components.training.recorder import Recorder


class Profiling:
    """The traces of one worker in one generation; `ask` for those that the config does not."""

    def __init__(self, context: WorkerContext, settings: Profile, *, recorder: Recorder) -> None:
        self._context = context
        self._recorder = recorder
        self._running: profile | None = None
        self._at, self._steps, self._ranks = -1, 0, tuple(settings.ranks)
        if settings.at is not None:
            self.ask(settings.at, steps=settings.steps, ranks=settings.ranks)

    def ask(self, at: int, *, steps: int, ranks: Sequence[int]) -> None:
        """Trace `steps` steps from step `at` on, on `ranks`; not while another trace is being made."""
        if self._running is None:
            self._at, self._steps, self._ranks = at, steps, tuple(ranks)

    def before(self, step: int) -> None:
        if step == self._at and self._context.rank in self._ranks:
            activities = [ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(ProfilerActivity.CUDA)
            self._running = profile(activities=activities)
            self._running.start()

    def after(self, step: int) -> None:
        if self._running is None or step + 1 < self._at + self._steps:
            return
        running, self._running = self._running, None
        running.stop()
        path = f"profiles/step-{self._at:012d}/rank-{self._context.rank:05d}.json.gz"
        with tempfile.TemporaryDirectory() as folder:
            local = Path(folder) / "trace.json.gz"
            running.export_chrome_trace(str(local))
            self._context.run.put(local, path)
        if self._recorder.events:
            data = {"path": path, "step": self._at, "steps": step + 1 - self._at}
            self._recorder.events.emit("profile.written", data)
