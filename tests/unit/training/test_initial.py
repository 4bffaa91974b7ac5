"""Initial values: known answers of the generator, and independence of the cut."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from shardline.components.common.config.presets import PRESETS
from shardline.components.training.counter import key_of, normal, philox
from shardline.components.training.initial import initialise
from shardline.components.training.model import Transformer

SHAPE = replace(PRESETS["tiny"], vocab=300)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    # From the known-answer tests of the authors' library, Random123.
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]) -> None:
    c0, c1, c2, c3 = (torch.tensor([word]) for word in counter)
    assert tuple(int(word) for word in philox((c0, c1, c2, c3), key)) == expected


def test_normal_values_are_normal_and_independent_between_names() -> None:
    index = torch.arange(200_000)
    first, second = normal(index, key_of(1, "a")), normal(index, key_of(1, "b"))
    assert abs(float(first.mean())) < 0.01
    assert abs(float(first.std()) - 1) < 0.01
    assert abs(float((first * second).mean())) < 0.01
    # Places beyond 32 bits must not repeat those below.
    assert not torch.equal(first, normal(index + 2**32, key_of(1, "a")))


def test_stages_get_the_values_of_the_whole() -> None:
    whole = Transformer(SHAPE)
    initialise(whole, seed=3)
    expected = dict(whole.named_parameters())
    seen = set()
    for layers in (range(1), range(1, 3), range(3, 4)):
        stage = Transformer(SHAPE, layers=layers)
        initialise(stage, seed=3)
        for name, parameter in stage.named_parameters():
            assert torch.equal(parameter, expected[name]), name
            seen.add(name)
    assert seen == set(expected)


def test_another_seed_gives_other_values() -> None:
    first, second = Transformer(SHAPE), Transformer(SHAPE)
    initialise(first, seed=0)
    initialise(second, seed=1)
    pairs = zip(first.named_parameters(), second.named_parameters(), strict=True)
    assert all(torch.equal(a, b) == name.endswith("norm.weight") for (name, a), (_, b) in pairs)


def test_a_large_parameter_is_filled_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    from shardline.components.training import initial

    whole, pieces = Transformer(SHAPE), Transformer(SHAPE)
    initialise(whole, seed=0)
    monkeypatch.setattr(initial, "_CHUNK", 1000)
    initialise(pieces, seed=0)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), pieces.parameters(), strict=True))
