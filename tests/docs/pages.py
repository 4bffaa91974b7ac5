"""The snippets of a page, as they stand there. Called by the tests of the pages."""

from __future__ import annotations

import re
from pathlib import Path

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def snippets(page: Path, language: str) -> list[str]:
    """The text of each block of that language, in order."""
    return [text for kind, text in _FENCE.findall(page.read_text(encoding="utf-8")) if kind == language]
