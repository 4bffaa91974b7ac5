from __future__ import annotations

import gzip
import subprocess

import pytest

from shardline.components.evaluation.compression import compare

DOCUMENTS = ["zwölf Boxkämpfer\n", "", "數學 is 🎲 fun", "def f(x):\n    return x\n" * 50, "a"]


def test_sizes_are_those_of_the_command_line_tools() -> None:
    text = "".join(DOCUMENTS).encode()
    compared = compare(DOCUMENTS, expected_bytes=len(text))
    assert compared is not None
    assert compared.lossless
    assert compared.decoded_bytes == len(text)
    assert compared.gzip_9 == 8 * len(gzip.compress(text, 9)) / len(text)
    xz = subprocess.run(["xz", "--stdout"], input=text, capture_output=True, check=True).stdout
    assert compared.xz == pytest.approx(8 * len(xz) / len(text))


def test_a_text_that_lost_bytes_is_not_called_the_same() -> None:
    compared = compare(["abc"], expected_bytes=4)
    assert compared is not None
    assert not compared.lossless


def test_no_text_has_no_comparison() -> None:
    assert compare([], expected_bytes=0) is None
    assert compare(["", ""], expected_bytes=0) is None
