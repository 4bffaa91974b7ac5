"""Whether a corpus will do, once it has been looked through, and whether it is still the same one.

Called by the step. Pure: counts and names in, a `UserError` or a sentence out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardline.components.common.config import RunConfig
from shardline.components.common.errors import UserError
from shardline.components.sharding.job import Left

_MORE_DOCUMENTS = "a text file is one document: split it, or use JSONL or Parquet, with a document a line or row"


def check_budget(config: RunConfig, left: Left, total: int) -> None:
    """Raises UserError when more than `corpus.bad_budget` of the corpus's `total` bytes had to be left out."""
    budget = config.corpus.bad_budget
    if left.bytes > budget * total:
        raise UserError(
            f"{left.documents} document(s), {left.bytes} of {total} bytes, cannot be used: more than corpus.bad_budget "
            f"({budget}) allows; the first: {', '.join(left.first[:3])}",
            where="corpus",
            hint=_remedy(left),
        )


def _remedy(left: Left) -> str:
    """What helps against the reason that left out the most documents."""
    reason = max(left.reasons, key=lambda each: left.reasons[each], default="")
    if reason.startswith(("no field", "field ")):
        return "set corpus.text_field (and prompt_field, weight_field) to fields that the records have"
    return "leave those files out of corpus.urls, set corpus.format, or raise corpus.bad_budget"


def check_counts(counts: dict[str, int], left: Left, *, share: float, sources: Sequence[str]) -> None:
    """Raises UserError when a split that is wanted has no document.

    Args:
        counts: documents by split.
        share: of the documents, that is held out; `sources`: their names.
    """
    total = sum(counts.values())
    if not total:
        raise UserError(
            f"there is no document in the corpus ({left.documents} skipped)",
            where=", ".join(sources),
            hint="name files that hold text in corpus.urls",
        )
    if share > 0 and not counts["held_out"]:
        raise UserError(
            f"none of the corpus's {total} document(s) falls into the share that is held out for evaluation ({share})",
            where="sharding.held_out",
            hint=f"{_MORE_DOCUMENTS}; or raise it, or set it to 0 to evaluate nothing",
        )
    if not counts["train"]:
        raise UserError(
            f"all of the corpus's {total} document(s) are held out for evaluation",
            where="sharding.held_out",
            hint=f"{_MORE_DOCUMENTS}; or lower it",
        )


def first_change(before: Iterable[tuple[str, int]], now: Iterable[tuple[str, int]]) -> str | None:
    """What became of the first file that differs, by URL, between two corpora of (URL, bytes); None when none does."""
    old, new = dict(before), dict(now)
    for url in sorted(old.keys() | new.keys()):
        if url not in new:
            return f"{url} is gone"
        if url not in old:
            return f"{url} is new"
        if old[url] != new[url]:
            return f"{url} had {old[url]:,} bytes and has {new[url]:,}"
    return None
