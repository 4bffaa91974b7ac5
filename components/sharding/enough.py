"""Whether a corpus will do, once it has been looked through. Called by the step. Pure: counts in, a `UserError` out."""

from __future__ import annotations

from shardline.components.common.config import RunConfig
from shardline.components.common.errors import UserError
from shardline.components.sharding.job import Job, Left


def check_budget(config: RunConfig, left: Left, total: int) -> None:
    """Raises UserError when more than `corpus.bad_budget` of the corpus's `total` bytes had to be left out."""
    budget = config.corpus.bad_budget
    if left.bytes > budget * total:
        raise UserError(
            f"{left.documents} document(s), {left.bytes} of {total} bytes, cannot be used: more than corpus.bad_budget "
            f"({budget}) allows; the first: {', '.join(left.first[:3])}",
            where="corpus",
            hint="leave those files out of corpus.urls, set corpus.format, or raise corpus.bad_budget",
        )


def check_counts(job: Job, counts: dict[str, int], left: Left) -> None:
    """Raises UserError when a split that is wanted has no document; `counts` is by split."""
    share, total = job.held_out, sum(counts.values())
    if not total:
        raise UserError(
            f"there is no document in the corpus ({left.documents} skipped)",
            where=", ".join(source.name for source in job.sources),
            hint="name files that hold text in corpus.urls",
        )
    if share > 0 and not counts["held_out"]:
        raise UserError(
            f"none of the corpus's {total} document(s) falls into the share that is held out for evaluation ({share})",
            where="sharding.held_out",
            hint="give more documents, raise it, or set it to 0 to evaluate nothing",
        )
    if not counts["train"]:
        raise UserError(
            f"all of the corpus's {total} document(s) are held out for evaluation",
            where="sharding.held_out",
            hint="give more documents, or lower it",
        )
