from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardline.components.sharding.batch import details_of
from shardline.components.sharding.bestfit import BestFit
from shardline.components.sharding.blocks import Blocks, concatenate
from shardline.components.sharding.order import Places
from shardline.components.sharding.packing import Packer, Piece

EOS = 0

Documents = list[list[int]]
documents_of = st.lists(st.lists(st.integers(1, 999), max_size=40), min_size=1, max_size=12)
KINDS = st.sampled_from([Packer, BestFit])


def quiet_of(number: int, tokens: list[int]) -> int:
    return min(len(tokens), number * 3 % 7)


def piece(number: int, tokens: list[int]) -> Piece:
    ids, sizes = np.array(tokens, np.uint16), np.array([token % 5 for token in tokens], np.int32)
    place = {"file": number, "offset": number * 10}
    return Piece(ids=ids, sizes=sizes, quiet=quiet_of(number, tokens), weight=weight_of(number), **place)


def weight_of(number: int) -> float:
    return number % 4 / 2


def packed(
    documents: Documents, *, sequence: int, row_group: int, kind: type[Packer] | type[BestFit] = Packer
) -> list[Blocks]:
    packer = kind(sequence=sequence, row_group=row_group, dtype=np.uint16, end_of_text=EOS)
    groups: list[Blocks] = []
    for number, tokens in enumerate(documents):
        groups += packer.add(piece(number, tokens))
    groups += packer.finish()
    assert packer.totals.documents == len(documents)
    assert packer.totals.bytes == sum(int(each.bytes.sum()) for each in groups)
    assert packer.totals.text_bytes == sum(token % 5 for tokens in documents for token in tokens)
    return groups


def targets_of(blocks: Blocks) -> list[int]:
    return [t for row, length in zip(blocks.tokens, blocks.length, strict=True) for t in row[1:length].tolist()]


def stream_of(documents: Documents) -> list[int]:
    return [token for document in documents for token in [EOS, *document]] + [EOS]


@given(documents_of, st.integers(1, 20), st.integers(1, 5))
def test_every_token_but_the_first_is_a_target_exactly_once(documents: Documents, sequence: int, group: int) -> None:
    groups = packed(documents, sequence=sequence, row_group=group)
    blocks = concatenate(groups)
    assert targets_of(blocks) == stream_of(documents)[1:]
    assert np.array_equal(blocks.tokens[1:, 0], blocks.tokens[:-1, -1])
    assert [len(each) for each in groups[:-1]] == [group] * (len(groups) - 1) and len(groups[-1]) <= group
    assert (blocks.length[:-1] == sequence + 1).all() and blocks.length[-1] >= 2
    assert blocks.numbers.tolist() == list(range(len(blocks)))


def counted(blocks: Blocks, *, sequence: int) -> list[tuple[int, int]]:
    """For each target that counts, the document that it belongs to (as its file) and the token."""
    zeros = np.zeros(len(blocks), np.int64)
    places = Places(blocks=blocks.numbers, offsets=zeros, hidden=zeros)
    details = details_of(blocks, places, sequence=sequence, whole=True, rows=len(blocks))
    found = []
    for row in range(len(blocks)):
        entries = range(int(blocks.bounds[row]), int(blocks.bounds[row + 1]))
        owner = [int(blocks.files[entries[number]]) for number in details.documents[row].tolist()]
        targets = blocks.tokens[row, 1:].tolist()
        mask = details.loss_mask[row].tolist()
        counts = [(owner[at], targets[at]) for at in range(sequence) if mask[at]]
        weights = [weight_of(owner[at]) if mask[at] else 0.0 for at in range(sequence)]
        assert details.loss_weights[row].tolist() == weights
        # Of token t, t % 5 bytes; none of the end-of-text tokens'.
        assert int(details.bytes[row]) == sum(token % 5 for _, token in counts)
        found += counts
    return found


@given(KINDS, documents_of, st.integers(2, 20), st.integers(1, 5))
def test_every_token_but_those_of_prompts_is_trained_on_exactly_once(
    kind: type[Packer] | type[BestFit], documents: Documents, sequence: int, group: int
) -> None:
    groups = packed(documents, sequence=sequence, row_group=group, kind=kind)
    found = counted(concatenate(groups), sequence=sequence)
    expected = [
        (number, token)
        for number, tokens in enumerate(documents)
        for token in [*tokens[quiet_of(number, tokens) :], EOS]
    ]
    assert sorted(found) == sorted(expected)
    if kind is Packer:
        assert found == expected


@given(documents_of, st.integers(2, 20), st.integers(1, 5))
def test_best_fit_cuts_no_document_that_fits(documents: Documents, sequence: int, group: int) -> None:
    blocks = concatenate(packed(documents, sequence=sequence, row_group=group, kind=BestFit))
    for number, tokens in enumerate(documents):
        parts = np.count_nonzero(blocks.files == number)
        assert parts == max(1, -(-(len(tokens) + 1) // sequence))
    assert (blocks.length <= sequence + 1).all()
    assert blocks.numbers.tolist() == list(range(len(blocks)))
    # Best fit: no two blocks that could share one.
    room = [sequence + 1 - int(length) for length in blocks.length]
    begun = [int(blocks.starts[blocks.bounds[row]]) for row in range(len(blocks))]
    assert all(start == 0 for start in begun)
    alone = [(int(length) - 1, free) for length, free in zip(blocks.length, room, strict=True)]
    whole = [each for row, each in enumerate(alone) if blocks.tokens[row, 0] == EOS]
    assert not any(a is not b and a[0] <= b[1] for a in whole for b in whole)


def test_that_check_notices_blocks_that_do_not_overlap() -> None:
    documents = [list(range(1, 30))]
    stream = np.array(stream_of(documents), np.uint16)
    apart = stream[:30].reshape(6, 5)
    targets = [token for row in apart for token in row[1:].tolist()]
    assert targets != stream_of(documents)[1:]


@given(documents_of, st.integers(1, 20), st.integers(1, 5))
def test_each_block_says_which_documents_it_holds_from_where(documents: Documents, sequence: int, group: int) -> None:
    blocks = concatenate(packed(documents, sequence=sequence, row_group=group))
    owner = [number for number, document in enumerate(documents) for _ in [EOS, *document]]
    for row in range(len(blocks)):
        here = owner[row * sequence : row * sequence + min(sequence, int(blocks.length[row]) - 1)]
        expected = [(at, number) for at, number in enumerate(here) if at == 0 or here[at - 1] != number]
        entries = slice(int(blocks.bounds[row]), int(blocks.bounds[row + 1]))
        found = zip(blocks.starts[entries].tolist(), blocks.files[entries].tolist(), strict=True)
        assert list(found) == expected
        assert (blocks.offsets[entries] == blocks.files[entries] * 10).all()


@given(documents_of, st.data())
def test_rows_are_taken_with_all_that_belongs_to_them(documents: Documents, data: st.DataObject) -> None:
    blocks = concatenate(packed(documents, sequence=7, row_group=3))
    rows = data.draw(st.lists(st.integers(0, len(blocks) - 1), max_size=10))
    taken = blocks.take(rows)
    for at, row in enumerate(rows):
        one, same = slice(*taken.bounds[at : at + 2].tolist()), slice(*blocks.bounds[row : row + 2].tolist())
        assert taken.tokens[at].tolist() == blocks.tokens[row].tolist()
        assert taken.numbers[at] == row and taken.length[at] == blocks.length[row]
        assert taken.starts[one].tolist() == blocks.starts[same].tolist()
        assert taken.quiet[one].tolist() == blocks.quiet[same].tolist()
        assert taken.files[one].tolist() == blocks.files[same].tolist()
        assert taken.weights[one].tolist() == blocks.weights[same].tolist()
