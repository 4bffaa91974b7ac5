"""The report step: what a run did, on one self-contained page in its folder.

Called by the pipeline's last task and by `shardline report`, at any point of a run; run again it replaces the page.
"""

from __future__ import annotations

from importlib.metadata import version

from shardline.components.common.config import RunConfig
from shardline.components.common.runfolder import REPORT_FILE, read_config
from shardline.components.common.step import stepping
from shardline.components.common.storage import Storage
from shardline.components.common.streams import now
from shardline.components.monitoring.page import page
from shardline.components.monitoring.records import read


def run(config: RunConfig, *, sources: dict[str, str] | None = None) -> str:
    """Write `report.html` into the run folder; returns its URL.

    Raises:
        UserError: another live process owns the run.
        ConfigError: the run began under another identity.
    """
    with stepping(config, "report", sources=sources) as context:
        context.events.flush()
        # The run's own config: it has what was filled in when the run began.
        records = read(read_config(context.run), root=Storage(config.storage), run=context.run)
        text = page(records, written=now(), version=version("shardline"))
        context.run.write(REPORT_FILE, text.encode())
        url = context.run.url_of(REPORT_FILE)
        context.events.emit("report.written", {"url": url, "bytes": len(text.encode())})
        context.summary["report"] = url
        return url
