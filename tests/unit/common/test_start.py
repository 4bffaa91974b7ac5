"""A run config that starts from a model: the sizes it gets, what does not fit, what goes on without the model."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from shardline.components.common import config as configs
from shardline.components.common.config import RunConfig
from shardline.components.common.errors import ConfigError, UserError
from shardline.components.common.huggingface.pretrained import Pretrained
from shardline.components.common.runfolder import DATASET_FILE, adopt_config, as_adopted, read_config
from shardline.components.common.storage import Storage
from tests.pretrained import FEATURES, edit, save

ZERO = "blake2b-" + "0" * 32
CONFIG = """\
version: 1
run: try
storage: {root}
corpus: /texts/*.txt
tokenizer: {{url: {model}/tokenizer.json}}
model: {{url: {model}}}
training: {{steps: 20, global_batch: 8, microbatch: 2, sequence: 64}}
"""


def parsed(root: Path, model: Path, *overrides: str) -> RunConfig:
    text = CONFIG.format(root=root, model=model)
    return configs.parse(text, source="run.yaml", overrides=overrides, ignore_environment=True).config


def test_a_run_takes_the_sizes_of_its_model_and_needs_it_no_more(model: Path, tmp_path: Path) -> None:
    config, run = parsed(tmp_path, model), Storage(str(tmp_path / "run"))
    assert config.model.is_open
    with pytest.raises(RuntimeError, match="have not been read"):
        config.model.shape(300)
    adopt_config(run, config)
    run.write(DATASET_FILE, b'{"key": "x"}')
    found = read_config(run).model
    assert found.shape(300) == Pretrained(str(model)).shape
    assert found.fingerprint == Pretrained(str(model)).fingerprint
    shutil.rmtree(model)
    assert as_adopted(run, config).model == found
    with pytest.raises(ConfigError, match=r"model\.layers = 3: the model at .* has 4; leave it out"):
        as_adopted(run, parsed(tmp_path, model, "model.layers=3"))
    with pytest.raises(UserError, match="not found"):
        as_adopted(run, parsed(tmp_path, tmp_path / "another", "tokenizer.url=" + str(model / "tokenizer.json")))


def test_another_model_in_its_place_is_another_run(made: Path, model: Path, tmp_path: Path) -> None:
    run = Storage(str(tmp_path / "run"))
    adopt_config(run, parsed(tmp_path, made))
    run.write(DATASET_FILE, b'{"key": "x"}')
    edit(model, rms_norm_eps=2e-5)
    with pytest.raises(ConfigError) as caught:
        as_adopted(run, parsed(tmp_path, model))
    assert {text.split(" = ")[0] for text in caught.value.problems} >= {
        "model.url",
        "model.fingerprint",
        "model.norm_eps",
    }


def test_a_model_with_every_feature_comes_back_from_the_run_folder(tmp_path: Path) -> None:
    save(tmp_path / "model", **FEATURES["all at once"])
    run = Storage(str(tmp_path / "run"))
    adopt_config(run, parsed(tmp_path, tmp_path / "model"))
    assert read_config(run).model.shape(300) == Pretrained(str(tmp_path / "model")).shape


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.layers=3", "--set: model.layers = 3: the model at {model} has 4; leave it out"),
        ("model.tie_embeddings=true", "model.tie_embeddings = true: the model at {model} has false; leave it out"),
        (f"model.fingerprint={ZERO}", f'model.fingerprint = "{ZERO}": the model at {{model}} has "blake2b-'),
        ("training.sequence=256", "training.sequence = 256: must not exceed model.max_positions (128)"),
        ("training.stages=[{at: 3, sequence: 256}]", "must not exceed model.max_positions (128)"),
        ("training.layout.pp=8", "training.layout.pp = 8: 8 stages need as many layers; the model has 4"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(model: Path, tmp_path: Path, override: str, message: str) -> None:
    loaded = configs.parse(
        CONFIG.format(root=tmp_path, model=model),
        source="run.yaml",
        overrides=[override],
        ignore_environment=True,
    )
    with pytest.raises(ConfigError) as caught:
        as_adopted(Storage(str(tmp_path / "run")), loaded.config, sources=loaded.sources)
    assert message.format(model=model) in str(caught.value)


def test_a_model_comes_with_its_tokens(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.url = null: is needed beside model\.url.*set /m/tokenizer"):
        configs.parse(CONFIG.format(root=tmp_path, model="/m"), source="x", overrides=["tokenizer.url=null"])
    with pytest.raises(ConfigError, match=r"model\.fingerprint = .*model\.url, which is not set"):
        parsed(tmp_path, Path("/m"), "model.url=null", f"model.fingerprint={ZERO}")
