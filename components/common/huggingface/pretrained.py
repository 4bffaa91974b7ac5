"""A trained model to start from: its shape, where its tensors lie, and a fingerprint; and what it makes of a config.

`resolved` is called when a run adopts its config, `Pretrained` by the workers that read the weights.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from shardline.components.common.config import RunConfig
from shardline.components.common.config.presets import ModelShape
from shardline.components.common.config.schema import SIZES, Model, Rope
from shardline.components.common.errors import ConfigError, DamagedData, UserError
from shardline.components.common.huggingface.names import EMBEDDING, HEAD, exported_name, parameter_shapes
from shardline.components.common.huggingface.reading import shape_of
from shardline.components.common.huggingface.weights import Weights
from shardline.components.common.storage import Storage

CONFIG = "config.json"
#: Buffers that some versions of transformers kept in the files: they follow from config.json.
_BUFFER = ".self_attn.rotary_emb.inv_freq"


class Pretrained:
    """A Hugging Face Llama folder at any storage URL. Its tensors are exactly those that its config.json asks for.

    Raises:
        ConfigError: config.json asks for something that is not supported.
        UserError: it is no model folder, or holds pickles.
        DamagedData: a file is missing, cut short, or holds other tensors than config.json says.
    """

    def __init__(self, url: str) -> None:
        self._folder = Storage(url)
        try:
            self._config = self._folder.read(CONFIG)
        except FileNotFoundError:
            raise UserError(
                "not found", where=self._folder.url_of(CONFIG), hint="set model.url to a Hugging Face model folder"
            ) from None
        self.shape: ModelShape = shape_of(self._content(), where=self._folder.url_of(CONFIG))
        self.weights = Weights(self._folder)
        self._check_tensors()

    def _content(self) -> dict[str, Any]:
        try:
            content = json.loads(self._config)
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise DamagedData("is not a JSON mapping", where=self._folder.url_of(CONFIG))
        return content

    def _check_tensors(self) -> None:
        expected = {exported_name(name): sizes for name, sizes in parameter_shapes(self.shape).items()}
        found = self.weights.tensors
        for name, sizes in expected.items():
            if name not in found:
                raise DamagedData(f"has no tensor {name}", where=self._folder.url, hint="copy the model once more")
            if found[name].shape != sizes:
                raise DamagedData(
                    f"{name} is {list(found[name].shape)}; by {CONFIG} it is {list(sizes)}",
                    where=self._folder.url_of(found[name].file),
                )
        if self.shape.tied and HEAD in found:
            # Some tools write the head out though it is the embedding. One that isn't would be lost.
            if self.weights.sample(HEAD) != self.weights.sample(EMBEDDING):
                raise UserError(
                    f"tie_word_embeddings is true, and {HEAD} differs from {EMBEDDING}",
                    where=self._folder.url_of(CONFIG),
                )
            expected[HEAD] = expected[EMBEDDING]
        for name in found:
            if name not in expected and not name.endswith(_BUFFER):
                raise UserError(
                    f"holds the tensor {name}, which a model of this {CONFIG} does not have",
                    where=self._folder.url_of(found[name].file),
                )

    @cached_property
    def fingerprint(self) -> str:
        """Of config.json and the weights, see `Weights.digest`."""
        digest = hashlib.blake2b(self._config, digest_size=16)
        digest.update(self.weights.digest())
        # With a prefix it is never a number, whichever digits it has.
        return f"blake2b-{digest.hexdigest()}"


def resolved(config: RunConfig, *, before: RunConfig | None = None, sources: dict[str, str] | None = None) -> RunConfig:
    """`config` with the sizes and the fingerprint of the model at `model.url`; as it is when it names none.

    Args:
        before: the config that the run began with. Where it has the same URL its values are taken: a run that goes on
            needs its model no more.
        sources: where each key was set, for messages.

    Raises:
        ConfigError: a size that the config sets is not the model's, or config.json asks for what is not supported.
        UserError: there is no model, or it holds pickles.
        DamagedData: a file of it is not what it should be.
    """
    model = config.model
    if model.url is None:
        return config
    if before is not None and before.model.url == model.url and not before.model.is_open:
        known = before.model
    else:
        known = _model_of(Pretrained(model.url))
    changes: dict[str, Any] = {}
    problems = []
    for name in (*SIZES, "head_dim", "vocab", "tie_embeddings", "fingerprint", "rope_scaling"):
        value, found = getattr(model, name), getattr(known, name)
        if value is None or (name == "rope_scaling" and value == Rope()):
            changes[name] = found.model_dump() if isinstance(found, Rope) else found
        elif value != found:
            place = (sources or {}).get(f"model.{name}") or (sources or {}).get("model")
            text = f"model.{name} = {_shown(value)}: the model at {model.url} has {_shown(found)}; leave it out"
            problems.append(f"{place}: {text}" if place else text)
    if problems:
        raise ConfigError(problems)
    return config.model_copy(update={"model": _checked({**model.model_dump(), **changes}, url=model.url)})


def _checked(keys: dict[str, Any], *, url: str) -> Model:
    try:
        return Model.model_validate(keys)
    except ValidationError as error:
        # What the model's own config.json says is outside what a config may say.
        texts = [f"{'.'.join(map(str, each['loc']))} = {each['input']}: {each['msg']}" for each in error.errors()]
        raise ConfigError([f"{url}: model.{text}" for text in texts]) from None


def _model_of(pretrained: Pretrained) -> Model:
    """The keys of the config's `model` that say what `pretrained` is."""
    shape = pretrained.shape
    sizes: dict[str, Any] = {name: getattr(shape, name) for name in SIZES}
    rope = Rope() if shape.rope_scaling is None else Rope().model_copy(update=asdict(shape.rope_scaling))
    return Model().model_copy(
        update={
            **sizes,
            "head_dim": shape.head_dim,
            "vocab": shape.vocab,
            "tie_embeddings": shape.tied,
            "rope_scaling": rope,
            "fingerprint": pretrained.fingerprint,
        }
    )


def _shown(value: Any) -> str:
    return json.dumps(value.model_dump() if isinstance(value, Rope) else value)
