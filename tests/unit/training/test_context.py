"""What context parallelism gives each rank of a sample."""

from __future__ import annotations

import torch
from torch import Tensor

from shardline.components.training.context import share


def places(length: int, size: int) -> list[Tensor]:
    return [share(torch.arange(length).unsqueeze(0), rank=rank, size=size)[0] for rank in range(size)]


def test_every_token_is_on_one_rank_and_causal_work_is_even() -> None:
    for size in (1, 2, 4):
        shares = places(48, size)
        assert sorted(torch.cat(shares).tolist()) == list(range(48))
        # A token attends to itself and all before it.
        work = [int((share + 1).sum()) for share in shares]
        assert len(set(work)) == 1
        assert all(len(share) == 48 // size for share in shares)


def test_a_rank_has_a_chunk_from_either_end() -> None:
    assert places(8, 2)[0].tolist() == [0, 1, 6, 7]
    assert places(8, 2)[1].tolist() == [2, 3, 4, 5]
