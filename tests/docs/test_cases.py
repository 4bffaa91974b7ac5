"""The table of cases names tests that exist, and no row is without one."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")


def test_each_case_has_a_test_that_exists() -> None:
    rows = [line for line in (TESTS / "cases.md").read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    cases = [row for row in rows if not row.startswith("| Case |")]
    assert len(cases) > 30
    for row in cases:
        named = NAMED.findall(row)
        assert named or row.endswith("| the same |"), row
        for path, test in named:
            assert f"\ndef {test}(" in (TESTS / path).read_text(encoding="utf-8"), f"{path}::{test}"
