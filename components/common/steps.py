"""The names of the pipeline's steps."""

from __future__ import annotations

#: In the order in which they run; the same names stand in events, error records and the compiled pipeline.
STEPS = ("shard", "plan", "train", "evaluate", "report")
