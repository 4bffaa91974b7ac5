"""`done.json`: the last thing a run writes, and what says that there is nothing left to do.

Called by the pipeline's last task, which writes it, and by the command line, which reads it. `adopt_config` removes it
when the run is extended or changed.
"""

from __future__ import annotations

from typing import Any

from shardline.components.common.config import RunConfig
from shardline.components.common.events import EventLog
from shardline.components.common.owner import hold
from shardline.components.common.runfolder import DONE_FILE, REPORT_FILE, read_json, run_storage, write_json
from shardline.components.common.steps import STEPS
from shardline.components.common.storage import Storage
from shardline.components.common.streams import now, read_all

#: The events between which a step is at work.
_TURNS = ("step.started", "step.stopped", "step.failed", "step.finished")


def steps_done(config: RunConfig) -> bool:
    """Whether each step before the report has ended well, one after the other, and none has begun again since.

    In the order of generations, as the clocks of two nodes may differ.
    """
    turns = [event for event in read_all(run_storage(config).at("events")) if event["name"] in _TURNS]
    turns.sort(key=lambda event: (event["generation"], event["seq"]))
    last = {str(event["data"]["step"]): (place, event["name"]) for place, event in enumerate(turns)}
    ends = [last.get(name, (-1, "")) for name in STEPS[:-1]]
    return all(name == "step.finished" for _, name in ends) and ends == sorted(ends)


def finish(config: RunConfig) -> None:
    """Record that every step of `config`'s run is done.

    Raises:
        PeerLost: another process has taken the run over.
    """
    run = run_storage(config)
    with hold(run) as lease:
        with EventLog(run, generation=lease.next_generation(), writer="run") as events:
            events.emit("run.finished", {"run": config.run})
        lease.check()
        write_json(run, DONE_FILE, {"version": 1, "run": config.run, "finished": now(), "steps": config.training.steps})


def finished(run: Storage) -> dict[str, Any] | None:
    """The record in `done.json`, when the run is done and its report is still there."""
    record = read_json(run, DONE_FILE)
    return dict(record) if record and run.exists(REPORT_FILE) else None
