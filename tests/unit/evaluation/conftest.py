"""A small tokenizer to export with a model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"
TEXT = "def add(a, b):\n    return a + b  # größer, 数\n"


class InMemory:
    """The weights of a model that is there as a whole, in pieces of a few rows."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self.shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}

    def blocks(self, name: str) -> Iterator[torch.Tensor]:
        yield from self._tensors[name].split(7)


@pytest.fixture(scope="session")
def tokenizer() -> bytes:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290, special_tokens=[END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator([TEXT], trainer)
    return made.to_str().encode()
