"""What a watch is made of: the query, the lines of the answer, and what became of objects between two lists. Pure.

Called by the client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from shardline.components.common.kubernetes.objects import Manifest


def selected(labels: Mapping[str, str] | None) -> dict[str, str]:
    """The query for objects that have all of `labels`."""
    return {"labelSelector": ",".join(f"{key}={value}" for key, value in labels.items())} if labels else {}


def lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The whole lines in `chunks`; a last one without its end is left out."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from filter(None, whole)


def differences(known: dict[str, Manifest], found: Mapping[str, Manifest]) -> Iterator[tuple[str, Manifest]]:
    """What became of the objects `known` by their uids, now that `found` are there; `known` is brought up to date."""
    for uid in [uid for uid in known if uid not in found]:
        yield "DELETED", known.pop(uid)
    for uid, each in found.items():
        before = known.get(uid)
        known[uid] = each
        if before is None:
            yield "ADDED", each
        elif before["metadata"]["resourceVersion"] != each["metadata"]["resourceVersion"]:
            yield "MODIFIED", each
