from __future__ import annotations

import json

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from shardline.components.common.errors import UserError
from shardline.components.sharding import tokenizer as module
from shardline.components.sharding.tokenizer import Tokenizer, train

TEXTS = ["def f(x):\n    return x  # it's 1,234.5\n\n\n", "naïve λ → 日本語\r\n", "we'll see 'tis  \t done\x0b\x1c"] * 5
DATA = train(TEXTS, vocab=330, end_of_text="<|end|>")
OURS = Tokenizer(DATA, end_of_text="<|end|>", where="test")
THEIRS = tokenizers.Tokenizer.from_str(DATA.decode())
THEIRS.encode_special_tokens = True

ascii_text = st.text(st.characters(codec="ascii"), max_size=80)
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)


@given(st.lists(ascii_text | any_text | st.sampled_from(TEXTS), max_size=5))
def test_the_fast_way_gives_the_ids_of_the_library_and_the_text_comes_back(texts: list[str]) -> None:
    encoded = OURS.encode(texts)
    assert [ids.tolist() for ids in encoded] == [THEIRS.encode(text, add_special_tokens=False).ids for text in texts]
    assert [OURS.decode(ids) for ids in encoded] == texts


@given(ascii_text | any_text)
def test_bytes_are_counted_token_by_token(text: str) -> None:
    (ids,) = OURS.encode([text])
    sizes = OURS.byte_sizes(ids, len(text.encode()))
    assert sizes.sum() == len(text.encode())
    cut = int(np.searchsorted(np.cumsum(sizes), len(text.encode()) // 2))
    assert sizes[:cut].sum() == len(b"".join(bytes_of(number) for number in ids[:cut].tolist()))


def bytes_of(number: int) -> bytes:
    """The bytes of a token, by the table of GPT-2: printable characters stand for themselves."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
    return bytes(table[character] for character in THEIRS.id_to_token(number))


def test_training_is_repeatable_and_smaller_texts_give_fewer_tokens() -> None:
    assert train(iter(TEXTS), vocab=330, end_of_text="<|end|>") == DATA
    tiny = Tokenizer(train(["ab"], vocab=5000, end_of_text="<|end|>"), end_of_text="<|end|>", where="test")
    assert tiny.vocab == 257 and tiny.dtype == np.uint16


def test_text_that_spells_the_separator_is_text() -> None:
    for text in ("a<|end|>b", "é<|end|>b"):
        (ids,) = OURS.encode([text])
        assert OURS.end_of_text not in ids.tolist() and OURS.decode(ids) == text


def test_a_long_text_is_encoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONGEST", 10)
    text = "éa\nbc\n" * 9 + "λ" * 35
    (ids,) = OURS.encode([text])
    assert OURS.decode(ids) == text


def test_a_large_id_does_not_wrap_around() -> None:
    words = tokenizers.models.WordLevel({"<|end|>": 0, "a": 1, "zzz": 70_000}, unk_token="a")
    given_one = tokenizers.Tokenizer(words)
    given_one.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    large = Tokenizer(given_one.to_str().encode(), end_of_text="<|end|>", where="test")
    (ids,) = large.encode(["a zzz b"])
    assert 70_000 in ids.tolist() and ids.dtype == np.uint32 and large.vocab == 70_001


def test_a_tokenizer_that_changes_the_text_has_the_bytes_spread() -> None:
    description = json.loads(DATA)
    description["normalizer"] = {"type": "Lowercase"}
    description["pre_tokenizer"]["add_prefix_space"] = True
    changing = Tokenizer(json.dumps(description).encode(), end_of_text="<|end|>", where="test")
    (ids,) = changing.encode(["İİİ and some"])
    sizes = changing.byte_sizes(ids, 15)
    assert sizes.sum() == 15 and sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"{}", "not a tokenizer.json"), (b"\xff", "not a tokenizer.json"), (DATA, r"has no token '</s>'")],
)
def test_a_tokenizer_that_will_not_do_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Tokenizer(data, end_of_text="</s>", where="given.json")
