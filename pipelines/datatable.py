"""What the `data` commands show of a data set, as lines and tables for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shardline.components.common.config import RunConfig
from shardline.components.common.errors import UserError
from shardline.components.common.runfolder import run_storage
from shardline.components.common.streams import read_all
from shardline.pipelines.progress import size

_SHOWN_CHARACTERS = 400


def info_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """`inspect.facts` as names and values."""
    rows = [("data set", facts["url"]), ("fingerprint", facts["fingerprint"])]
    if facts["base"]:
        rows.append(("appended to", facts["base"]))
    rows.append(
        ("block", f"{facts['sequence']:,} tokens and one, {facts['dtype']}; {facts['row_group']} in a row group")
    )
    rows.append(("vocabulary", f"{facts['vocab']:,} tokens"))
    for name, split in facts["splits"].items():
        what = f"{split['documents']:,} documents, {split['tokens']:,} tokens, {size(split['bytes'])} of text"
        kept = f"{split['blocks']:,} blocks in {split['shards']:,} shards, {size(split['size'])}"
        rows += [(name, what), ("", kept + (f", {split['ratio']:.3f} of the tokens" if split["ratio"] else ""))]
    for source in facts["sources"]:
        blocks = ", ".join(f"{count:,} {split}" for split, count in source["blocks"].items())
        weights = f"; weights: {source['weight_field']}" if source["weight_field"] else ""
        about = f"{source['name']}: {source['files']:,} files, {size(source['bytes'])}; blocks: {blocks}{weights}"
        rows.append(("source", about))
    for codec, (count, total) in facts["codecs"].items():
        rows.append(("codec", f"{codec}: {count:,} shards, {size(total)}"))
    for label, name in (("skipped", "skipped"), ("near-duplicates", "near_duplicates")):
        left = facts[name]
        rows.append((label, f"{left['documents']:,} documents, {size(left['bytes'])}"))
        rows += [("", place) for place in left["first"][:3]]
    return rows


def block_lines(block: Mapping[str, Any]) -> Iterator[str]:
    """A block or a sample: where it is from, and the beginning of each document's text."""
    if "sample" in block:
        step = f", step {block['step']}" if block.get("step") is not None else ""
        place = f"block {block['block']} of {block['source']}, from token {block['offset']}"
        yield f"sample {block['sample']}{step}: {place}"
    else:
        yield f"block {block['block']} of {block['source']}"
    for document in block["documents"]:
        prompt = f", {document['prompt_tokens']} of a prompt" if document["prompt_tokens"] else ""
        weight = f", weight {document['weight']:g}" if document["weight"] != 1 else ""
        yield f"  {document['file']}:{document['at']} ({document['tokens']} tokens{prompt}{weight})"
        text = document["text"]
        shown = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
        yield from (f"    {line}" for line in shown.splitlines())


def shuffle_rows(found: list[dict[str, Any]], window: int) -> list[tuple[str, str]]:
    """`quality.Quality` of some windows as a table; `window` is the run's own."""
    rows = [("window", f"{'clumping':>9}  {'shared':>7}  {'memory':>9}")]
    for each in found:
        name = "true shuffle" if each["window"] is None else f"{each['window']:,}"
        mark = "  (this run's)" if each["window"] == window else ""
        rows.append((name, f"{each['clumping']:>9.2f}  {each['shared']:>7.1%}  {size(each['memory']):>9}{mark}"))
    return rows


def recorded_blocks(config: RunConfig, step: int) -> list[int] | None:
    """The blocks that an optimizer step has used, as its ranks recorded them; None when it was not done."""
    records = [record for record in read_all(run_storage(config).at("samples")) if record["data"]["step"] == step]
    if not records:
        return None
    # For a step that was done again the highest generation counts.
    newest = max(record["generation"] for record in records)
    data = [record["data"] for record in records if record["generation"] == newest]
    parts = {each["microbatch"]: each["indices"] for each in data}
    return [int(block) for _, part in sorted(parts.items()) for block in part]


def parse_mixture(text: str) -> dict[str, float]:
    """Weights from `a=3,b=1`.

    Raises:
        UserError: it has another form.
    """
    weights = {}
    for part in text.split(","):
        name, _, weight = part.partition("=")
        try:
            weights[name.strip()] = float(weight)
        except ValueError:
            raise UserError(f"{part!r} should be NAME=WEIGHT", where="--mixture", hint="as in corpus=3,new=1") from None
    return weights
