"""What is shown of checkpoints without torch is what torch would say."""

from __future__ import annotations

import subprocess
import sys

from shardline.components.training.checkpoint import index, inspect


def test_every_type_of_an_index_has_its_size() -> None:
    assert {name: dtype.itemsize for name, dtype in index._DTYPES.items()} == inspect.ITEM_BYTES


def test_a_look_at_checkpoints_does_not_import_torch() -> None:
    modules = "shardline.components.training.checkpoint.inspect, shardline.components.training.checkpoint.retention"
    program = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
