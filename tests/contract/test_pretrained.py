"""A model to start from at the other end of a network: read by ranges, and what is wrong with it found all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shardline.components.common.errors import DamagedData, UserError
from shardline.components.common.huggingface.pretrained import Pretrained
from shardline.components.common.storage import Storage
from shardline.components.training.model import Transformer
from shardline.components.training.pretrained import fill
from tests.pretrained import save


@pytest.mark.parametrize("url", ["memory", "s3", "s3-plain"], indirect=True)
def test_a_model_elsewhere_is_the_one_that_was_copied(storage: Storage, tmp_path: Path) -> None:
    save(tmp_path)
    for path in tmp_path.iterdir():
        storage.put(path, path.name)
    here, there = Pretrained(str(tmp_path)), Pretrained(storage.url)
    assert (there.shape, there.fingerprint) == (here.shape, here.fingerprint)
    models = [Transformer(here.shape), Transformer(here.shape)]
    for model, found in zip(models, (here, there), strict=True):
        fill(model.named_parameters(), weights=found.weights)
    assert all(torch.equal(a, b) for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True))
    file = sorted(there.weights.sizes)[1]
    storage.write(file, storage.read(file)[:-1])
    with pytest.raises(DamagedData, match=rf"{file}: has \d+ bytes instead of \d+"):
        Pretrained(storage.url)
    storage.delete(file)
    with pytest.raises(DamagedData, match=f"{file}: is missing"):
        Pretrained(storage.url)
    storage.delete("model.safetensors.index.json")
    with pytest.raises(UserError, match=r"has neither model\.safetensors nor"):
        Pretrained(storage.url)
