"""The run config: every mistake gets one message with the key, where it was set, its value and what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from shardline.components.common import config as configs
from shardline.components.common.config import RunConfig
from shardline.components.common.config.identity import check_resume, identity_hash, identity_of
from shardline.components.common.errors import ConfigError, UserError
from shardline.components.common.runfolder import adopt_config, read_config
from shardline.components.common.storage import Storage

BASE = """\
version: 1
run: try
storage: /data
corpus: /texts/*.txt
training:
  steps: 20
  global_batch: 8
  microbatch: 2
  sequence: 64
"""


def load(text: str = BASE, *overrides: str) -> RunConfig:
    return configs.parse(text, source="run.yaml", overrides=overrides).config


def problems(text: str = BASE, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(text, *overrides)
    return caught.value.problems


def test_float8_goes_with_no_cpu() -> None:
    assert load(BASE, "training.precision=float8").training.precision == "float8"
    (problem,) = problems(BASE, "training.precision=float8", "resources.device=cpu")
    rule = "needs GPUs of compute capability 8.9 or more, and resources.device is cpu; take bf16"
    assert problem == f'--set: training.precision = "float8": {rule}'


def test_a_model_of_ones_own_goes_with_no_foreign_values_and_no_tied_embeddings() -> None:
    own = "model.class=mine.models:Decoder"
    assert load(configs.dump(load(BASE, own))).model.class_ == "mine.models:Decoder"
    assert identity_of(load(BASE, own))["model.class"] == "mine.models:Decoder"
    wrong = problems(BASE, own, "model.url=/somewhere", "tokenizer.url=/somewhere/tokenizer.json")
    assert wrong[0].startswith('--set: model.class = "mine.models:Decoder": can\'t stand beside model.url')
    (tied,) = problems(BASE, own, "model.tie_embeddings=true")
    assert tied.startswith("--set: model.tie_embeddings = true: is not for a model.class")


def test_shorthands() -> None:
    config = load(BASE + "  layout: auto\n")
    assert config.corpus.urls == ["/texts/*.txt"]
    assert config.training.layout.pp == "auto"


def test_round_trip() -> None:
    config = load(BASE, "training.layout.pp=2", "sharding.unit=3MiB")
    assert load(configs.dump(config)) == config


def test_unknown_key_names_the_nearest_and_its_line() -> None:
    assert problems(BASE + "  stepps: 3\n") == [
        "run.yaml:10: training.stepps: unknown key; did you mean training.steps or training.stages?"
    ]


def test_set_is_named_as_the_source_of_an_unknown_section() -> None:
    assert problems(BASE, "traning.steps=3") == ["--set: traning: unknown key; did you mean training?"]


def test_unknown_key_in_the_wrong_section() -> None:
    assert problems(BASE + "global_batch: 3\n") == [
        "run.yaml:10: global_batch: unknown key; did you mean training.global_batch?"
    ]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ('training.sequence="64"', '--set: training.sequence = "64": should be a valid integer'),
        ("training.steps=true", "--set: training.steps = true: should be a valid integer"),
        ("training.optimizer.eps=.inf", "--set: training.optimizer.eps = Infinity: should be a finite number"),
        ("training.steps=0", "--set: training.steps = 0: should be greater than or equal to 1"),
        (
            "training.global_batch=7",
            "--set: training.global_batch = 7: must be a multiple of training.microbatch (2), ",
        ),
        ("training.sequence=4096", "--set: training.sequence = 4096: must not exceed model.max_positions (2048)"),
        ("training.layout.pp=8", "--set: training.layout.pp = 8: 8 stages need as many layers; the model has 4"),
        (
            "training.optimizer.name=sgd",
            '--set: training.optimizer.name = "sgd": has a form that is not allowed. `adamw`, or one of your own',
        ),
        (
            "model.class=mine.Decoder",
            '--set: model.class = "mine.Decoder": has a form that is not allowed. A model of your own as `module:name`',
        ),
        ("model.heads=3", "--set: model.heads = 3: must divide model.dim (128)"),
        ("model.head_dim=7", "--set: model.head_dim = 7: must be even: the rotary embedding turns pairs"),
        (
            "model.rope_scaling.high_freq_factor=0.5",
            "--set: model.rope_scaling.high_freq_factor = 0.5: must be above low_freq_factor (1.0)",
        ),
        ("model.kv_heads=3", "--set: model.kv_heads = 3: must divide model.heads (4)"),
        ("model.vocab=300", "--set: model.vocab = 300: must be at least tokenizer.vocab (4096)"),
        ("training.precision=fp8", "--set: training.precision = \"fp8\": should be 'fp32', 'bf16', 'fp64' or 'float8'"),
        ("sharding.unit=5 MoB", '--set: sharding.unit = "5 MoB": should be a size such as 64MiB'),
        ("sharding.codec=zstd:99", '--set: sharding.codec = "zstd:99": has a form that is not allowed. Compression'),
        ("corpus=[]", "--set: corpus.urls: value should have at least 1 item"),
        ("corpus=s3://", '--set: corpus.urls.0 = "s3://": must name a file, a folder or a glob'),
        ("run=My Run", '--set: run = "My Run": has a form that is not allowed. The run\'s name: lower-case'),
        ("version=2", "--set: version = 2: should be 1"),
        ("training.layout=pp", '--set: training.layout = "pp": should be a mapping of keys. `auto`, or any of'),
    ],
)
def test_one_message_with_what_would_be_right(override: str, message: str) -> None:
    found = problems(BASE, override)
    assert len(found) == 1
    assert found[0].startswith(message)


def test_missing_keys_say_what_they_are() -> None:
    found = problems("run: x\ncorpus: a\n")
    assert found[0] == "run.yaml: version: is missing; set version: 1"
    assert found[1].startswith("run.yaml: storage: is missing. The folder or fsspec URL")
    assert found[2] == "run.yaml: training: is missing; it must have steps, global_batch, microbatch, sequence"
    assert len(found) == 3


def test_layout_must_fit_the_processes() -> None:
    overrides = ("training.layout={dp_replicate: 1, dp_shard: 2, pp: 2}", "resources.processes=3")
    assert "does not fit resources.processes (3)" in problems(BASE, *overrides)[0]


def test_a_pipeline_with_too_few_microbatches_is_refused() -> None:
    found = problems(BASE, "training.layout.pp=2", "training.global_batch=2")
    assert "needs at least 2 microbatches" in found[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\n", "run.yaml:2: not valid YAML"),
        ("- a\n", "run.yaml: should be a mapping of keys"),
        ("", "run.yaml: should be a mapping of keys"),
        (BASE + "d: 2026-13-45\n", "run.yaml: not valid YAML"),
        (BASE + "run: again\n", "run.yaml:10: run: is set twice (first at run.yaml:2)"),
    ],
)
def test_what_is_no_config_at_all(text: str, message: str) -> None:
    assert problems(text)[0].startswith(message)


@pytest.mark.parametrize("override", ["training.steps", "=3", "run.a.b=3", "a..b=1"])
def test_bad_override(override: str) -> None:
    assert problems(BASE, override)[0].startswith(f"--set {override}: ")


def test_missing_and_binary_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not found"):
        configs.load(str(tmp_path / "none.yaml"))
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not a UTF-8 text file"):
        configs.load(str(tmp_path / "b.yaml"))
    with pytest.raises(UserError, match="is a folder; name a YAML file"):
        configs.load(str(tmp_path))


def test_the_root_comes_from_option_then_environment_then_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load().storage == "/data"
    monkeypatch.setenv("SHARDLINE_ROOT", "/env")
    assert load().storage == "/env"
    assert configs.parse(BASE, source="x", root="/option").config.storage == "/option"
    assert configs.parse(BASE, source="x", ignore_environment=True).config.storage == "/data"


def test_identity_ignores_layout_and_steps_but_not_the_seed() -> None:
    base = load()
    assert identity_hash(base) == identity_hash(load(BASE, "training.layout.pp=2", "training.steps=30", "run=other"))
    assert identity_hash(base) != identity_hash(load(BASE, "training.seed=1"))
    assert not any(path.startswith("training.layout") for path in identity_of(base))


def test_resume_refuses_another_identity_with_both_values() -> None:
    loaded = configs.parse(BASE, source="run.yaml", overrides=["training.seed=5", "training.steps=10"])
    with pytest.raises(ConfigError) as caught:
        check_resume(load(), loaded.config, sources=loaded.sources)
    assert caught.value.problems == [
        "--set: training.seed = 5: this run began with 0; set it back, or give the new run another name"
    ]


@pytest.mark.parametrize("steps", [10, 30])
def test_steps_and_layout_may_change_on_resume(steps: int) -> None:
    check_resume(load(), load(BASE, f"training.steps={steps}", "training.layout.pp=2"))


def test_every_key_says_what_a_change_means() -> None:
    def roles(schema: dict[str, object], name: str) -> list[str]:
        properties = schema.get("properties", {})
        assert isinstance(properties, dict)
        return [f"{name}.{key}" for key, value in properties.items() if "x-role" not in str(value)]

    schema = RunConfig.model_json_schema()
    missing = roles(schema, "") + [key for name, part in schema["$defs"].items() for key in roles(part, name)]
    assert missing == []
    yaml.safe_dump(schema)


def test_extending_a_run_keeps_the_learning_rate_on_its_curve(tmp_path: Path) -> None:
    run = Storage(str(tmp_path))
    assert not adopt_config(run, load(BASE, "training.seed=9"))
    # Nothing was made yet: a mistake can be mended.
    assert adopt_config(run, load())
    run.write("dataset.json", b"{}")
    assert read_config(run).training.schedule.decay_steps == 20
    assert adopt_config(run, load(BASE, "training.steps=50"))
    extended = read_config(run).training
    assert (extended.steps, extended.schedule.decay_steps) == (50, 20)
    assert adopt_config(run, load(BASE, "training.steps=10"))
    assert read_config(run).training.steps == 10
    with pytest.raises(ConfigError, match=r"decay_steps = 50: this run began with 20"):
        adopt_config(run, load(BASE, "training.schedule.decay_steps=50"))


SOURCES = """\
version: 1
run: try
storage: /data
corpus: {sources: {a: {urls: /a}, b: {urls: /b}, new: {urls: /n, appended: true}}}
training:
  steps: 20
  global_batch: 8
  microbatch: 2
  sequence: 64
  mixture: {a: 2, b: 1}
  stages: [{at: 5, sequence: 32, global_batch: 16}, {at: 9, mixture: {a: 1, b: 1, new: 1}}]
  skip: [{at: 7, batches: 2}]
"""


def test_sources_and_stages() -> None:
    config = load(SOURCES)
    assert list(config.corpus.named_sources()) == ["a", "b", "new"] and config.block == 64
    # 5 steps of 8 x 64, then 15 of 16 x 32.
    assert config.training.tokens == 5 * 8 * 64 + 15 * 16 * 32
    assert load(configs.dump(config)) == config


@pytest.mark.parametrize(
    ("override", "path", "rule"),
    [
        ("training.stages=[{at: 5, sequence: 48}]", "stages.0.sequence", "must divide the longest sequence (64)"),
        ("training.stages=[{at: 5}, {at: 5}]", "training.stages.1.at", "later than the one before it (5)"),
        ("training.stages=[{at: 5, global_batch: 9}]", "stages.0.global_batch", "multiple of training.microbatch"),
        ("training.stages=[{at: 5, mixture: {a: 1, x: 1}}]", "mixture.x", "there is no source 'x'"),
        ("training.stages=[{at: 5, mixture: {a+b: 1, new: 1}}]", "mixture.a+b", "its samples would come again"),
        ("training.mixture={a: 1, a+b: 1}", "mixture.a+b", "names the source 'a' a second time"),
        ("training.stages=[]", "corpus.sources.new", "is in no mixture"),
        ("training.mixture={a: 0, b: 1}", "training.mixture.a", "greater than 0"),
        ("corpus.urls=/c", "corpus.sources.a", "set appended: true"),
        ("corpus.sources.a.appended=true", "", ""),
        (
            "training.skip=[{at: 9, batches: 1}, {at: 3, batches: 1}]",
            "training.skip.1.at",
            "must not be before the one before it (9)",
        ),
    ],
)
def test_a_data_policy_that_makes_no_sense(override: str, path: str, rule: str) -> None:
    if not path:
        load(SOURCES, override)
        return
    found = problems(SOURCES, override)
    assert any(path in problem and rule in problem for problem in found), found


def test_a_source_may_be_appended_to_a_run_and_no_other_change_of_its_corpus(tmp_path: Path) -> None:
    before = load(SOURCES.replace(", new: {urls: /n, appended: true}", "").replace(", new: 1", ""))
    check_resume(before, load(SOURCES))
    assert identity_hash(before) == identity_hash(load(SOURCES))
    with pytest.raises(ConfigError, match=r"corpus\.sources\.a\.urls"):
        check_resume(before, load(SOURCES, "corpus.sources.a.urls=/other"))
