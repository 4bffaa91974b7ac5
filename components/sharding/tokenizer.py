"""Text to token ids and back. Called by the step (train, open) and the workers (encode); evaluation decodes.

The tokenizer is a `tokenizer.json` of the `tokenizers` library: a byte-level BPE trained here, or one that was given.
Text is encoded as text: a document that spells the end-of-text token does not become two documents.

Errors: `UserError` for a given tokenizer that is none, or lacks the end-of-text token.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from shardline.components.common.errors import UserError
from shardline.components.sharding.blocks import Tokens

#: Longer texts are encoded in parts, cut after the last newline in reach: memory does not grow with a document.
_LONGEST = 1 << 21


def train(texts: Iterable[str], *, vocab: int, end_of_text: str) -> bytes:
    """A byte-level BPE tokenizer of at most `vocab` tokens, as the bytes of its tokenizer.json.

    The same texts give the same bytes. `end_of_text` gets id 0.
    """
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        min_frequency=2,
        special_tokens=[end_of_text],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(iter(texts), trainer)
    return str(tokenizer.to_str(pretty=True)).encode()


class Tokenizer:
    """A tokenizer in use.

    Attributes:
        hash: of its file, blake2b-128 in hexadecimal.
        vocab: the largest token id and one.
        end_of_text: the id of the token that separates documents.
        dtype: the smallest of uint16 and uint32 that holds every id.
    """

    def __init__(self, data: bytes, *, end_of_text: str, where: str) -> None:
        try:
            description = json.loads(data)
            self._tokenizer = tokenizers.Tokenizer.from_str(data.decode())
        except Exception as error:  # the library raises bare Exception for a description it cannot use
            raise UserError(
                f"not a tokenizer.json: {error}",
                where=where,
                hint="set tokenizer.url to one, or leave it out to train one",
            ) from None
        found = self._tokenizer.token_to_id(end_of_text)
        if found is None:
            raise UserError(
                f"has no token {end_of_text!r}",
                where=where,
                hint="set tokenizer.end_of_text to the one it ends texts with",
            )
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        self.hash = hashlib.blake2b(data, digest_size=16).hexdigest()
        self.end_of_text = int(found)
        self._sizes = _byte_sizes(self._tokenizer)
        self.vocab = len(self._sizes)
        self.dtype: np.dtype[np.unsignedinteger[Any]] = np.dtype(np.uint16 if self.vocab <= 1 << 16 else np.uint32)
        self._words = _Words(self._encode_word) if _splits_as_gpt2(description) else None

    def encode(self, texts: list[str]) -> list[Tokens]:
        """The ids of each text, without any special token added."""
        words = self._words
        if words is None:
            return self._encode(texts)
        others = iter(self._encode([text for text in texts if not text.isascii()]))
        return [self._look_up(text, words) if text.isascii() else next(others) for text in texts]

    def _encode(self, texts: list[str]) -> list[Tokens]:
        parts = [list(_parts(text)) for text in texts]
        encoded = iter(self._tokenizer.encode_batch_fast(list(chain.from_iterable(parts)), add_special_tokens=False))
        ids = ([np.array(next(encoded).ids, self.dtype) for _ in some] for some in parts)
        return [some[0] if len(some) == 1 else np.concatenate(some) for some in ids]

    def _look_up(self, text: str, words: _Words) -> Tokens:
        ids = chain.from_iterable(map(words.__getitem__, _GPT2_ASCII.findall(text)))
        return np.fromiter(ids, self.dtype)

    def _encode_word(self, word: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(word, add_special_tokens=False).ids
        return ids

    def byte_sizes(self, ids: Tokens, total: int) -> npt.NDArray[np.int32]:
        """For each token of a document of `total` UTF-8 bytes, the bytes of text it stands for; they sum to `total`.

        Exact for byte-level tokenizers. One that changes the text, or adds to it, has the bytes spread evenly.
        """
        sizes: npt.NDArray[np.int32] = self._sizes[ids]
        if int(sizes.sum()) == total:
            return sizes
        ends = np.arange(len(ids) + 1, dtype=np.int64) * total // max(1, len(ids))
        return np.diff(ends).astype(np.int32)

    def decode(self, ids: npt.ArrayLike) -> str:
        """The text that `ids` stand for."""
        return str(self._tokenizer.decode(np.asarray(ids).tolist(), skip_special_tokens=False))


def _parts(text: str) -> Iterator[str]:
    start = 0
    while len(text) - start > _LONGEST:
        stop = text.rfind("\n", start, start + _LONGEST) + 1 or start + _LONGEST
        yield text[start:stop]
        start = stop
    yield text[start:] if start else text


def _byte_sizes(tokenizer: tokenizers.Tokenizer) -> npt.NDArray[np.int32]:
    """Bytes by token id, for byte-level vocabularies: there, a token is written with one character for each byte."""
    ids = tokenizer.get_vocab(with_added_tokens=True)
    sizes = np.zeros(max(ids.values()) + 1, np.int32)
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    for token, number in ids.items():
        sizes[number] = len(token.encode()) if token in added else len(token)
    return sizes


# The pre-tokenizer that GPT-2 introduced splits text into words, and BPE never joins two of them: encoding a word once
# and remembering it gives the same ids as the library, about four times as fast. Only ASCII text goes this way, where
# the classes of Python's regular expressions and the library's are known to be the same.
_GPT2_ASCII = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", re.ASCII)
_MOST_WORDS = 1 << 19
_LONGEST_WORD = 64


class _Words(dict[str, list[int]]):
    """The ids of words met so far; bounded."""

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        super().__init__()
        self._encode = encode

    def __missing__(self, word: str) -> list[int]:
        ids = self._encode(word)
        if len(word) <= _LONGEST_WORD:
            if len(self) >= _MOST_WORDS:
                self.clear()
            self[word] = ids
        return ids


def _splits_as_gpt2(description: dict[str, Any]) -> bool:
    split = description.get("pre_tokenizer") or {}
    model = description.get("model") or {}
    return (
        split.get("type") == "ByteLevel"
        and split.get("add_prefix_space") is False
        and split.get("use_regex", True) is True
        and model.get("type") == "BPE"
        and not model.get("dropout")
        and description.get("normalizer") is None
        and all(token.get("special") for token in description.get("added_tokens") or [])
    )
