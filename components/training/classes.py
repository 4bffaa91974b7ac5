"""Models and optimizers of one's own, which a config names as `module:name`, and what they must offer.

Called by `parallel`, `optimizer` and `checkpoint.whole`. A name is only ever one of the run's config, and what it names
is imported as any module is: from where this process's Python looks, never from storage or a checkpoint. Each mistake
is a `UserError`; what the code of a class raises when it runs is left as it is, with its traceback.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from shardline.components.common.config.presets import ModelShape
from shardline.components.common.errors import UserError
from shardline.components.training.attention import Attend, WholeSamples
from shardline.components.training.model import Transformer

MODEL_KEY = "model.class"
OPTIMIZER_KEY = "training.optimizer.name"


class Model(Protocol):
    """A decoder, or the part of it that is one pipeline stage: a `torch.nn.Module`.

    It is built on the meta device, so what it computes from numbers belongs into `forward`: it has no buffers. Every
    parameter is in one stage, under the name and with the shape that it has in the whole model, and there are no random
    numbers: this is what makes the layout leave no trace. All of it is checked before training.

    Attributes:
        layers: those of this stage under their number, as text; each is sharded, compiled and recomputed by itself.
    """

    layers: nn.ModuleDict

    def __init__(self, shape: ModelShape, *, layers: range, attend: Attend, recompute: str) -> None:
        """Make the stage that holds `layers` of a model of `shape`.

        Args:
            layers: the stage with layer 0 also holds what comes before it, the one with the last what comes after.
            attend: how tokens attend to each other, under every layout.
            recompute: what `recompute.recomputed` takes; a layer that does not call it keeps all its activations.
        """
        ...

    def forward(self, x: Tensor, positions: Tensor, documents: Tensor | None = None) -> Tensor:
        """One stage's part.

        Args:
            x: int64[batch, length] token ids for the first stage, else what the one before it gave.
            positions: int64[batch, length], each token's place in its document.
            documents: what `attend.mask` takes.

        Returns:
            [batch, length, vocab] logits from the last stage, else [batch, length, width] hidden states.
        """
        ...

    def initial_scale(self, name: str) -> float | None:
        """The standard deviation of a parameter's initial values, around zero; None for one that begins at 1."""
        ...


class Optimizer(Protocol):
    """A `torch.optim.Optimizer`, called with parameter groups that have their `weight_decay`.

    Parameters are slices of the whole ones, so an update must treat each element by itself, or use what DTensor has
    for those that it mixes. `state` of each parameter is made beforehand: `step`, a number on the CPU which the
    optimizer counts up if it needs it and which is right after a resume, and zeros for each of `moments`.

    Attributes:
        moments: the names in `state` of the tensors, shaped as their parameter, that are kept in a checkpoint.
    """

    moments: tuple[str, ...]

    def __init__(
        self, groups: Iterable[dict[str, Any]], *, lr: float, betas: tuple[float, float], eps: float
    ) -> None: ...


def model_class(name: str | None) -> type[nn.Module]:
    """The class that `model.class` names; the decoder of this package where it names none.

    Raises:
        UserError: there is no such module or name, or it is not a `Model`.
    """
    if name is None:
        return Transformer
    found = _resolved(name, key=MODEL_KEY)
    lacking = _class_problem(found, nn.Module)
    if lacking is None and not callable(getattr(found, "initial_scale", None)):
        lacking = "it has no method initial_scale(name)"
    lacking = lacking or _call_problem(found, ("shape",), ("layers", "attend", "recompute"))
    if lacking:
        raise UserError(f"{name} cannot be a model: {lacking}", where=MODEL_KEY, hint=_SEE)
    return found  # type: ignore[no-any-return]


def optimizer_class(name: str) -> type[torch.optim.Optimizer]:
    """The class of one's own that `training.optimizer.name` names.

    Raises:
        UserError: there is no such module or name, or it is not an `Optimizer`.
    """
    found = _resolved(name, key=OPTIMIZER_KEY)
    lacking = _class_problem(found, torch.optim.Optimizer)
    moments = getattr(found, "moments", None)
    if lacking is None and not (isinstance(moments, tuple) and all(isinstance(each, str) for each in moments)):
        lacking = "its `moments` is not a tuple of names"
    elif lacking is None and (wrong := [each for each in moments or () if not each.isidentifier() or each == "step"]):
        lacking = f"its `moments` has {wrong[0]!r}, which is no name for one"
    lacking = lacking or _call_problem(found, ("groups",), ("lr", "betas", "eps"))
    if lacking:
        raise UserError(f"{name} cannot be an optimizer: {lacking}", where=OPTIMIZER_KEY, hint=_SEE)
    return found  # type: ignore[no-any-return]


_SEE = "docs/extending.md says what it must offer"


def _resolved(name: str, *, key: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            raise UserError(
                f"there is no module {error.name}",
                where=key,
                hint="put the folder that it is in on PYTHONPATH; on a cluster, into the image",
            ) from None
        raise _import_failed(module, error, key=key) from error
    except Exception as error:
        raise _import_failed(module, error, key=key) from error
    if not hasattr(found, attribute):
        near = difflib.get_close_matches(attribute, dir(found), n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"define it in {found.__file__}"
        raise UserError(f"{module} has no {attribute}", where=key, hint=hint)
    return getattr(found, attribute)


def _import_failed(module: str, error: Exception, *, key: str) -> UserError:
    return UserError(
        f"{module} cannot be imported: {type(error).__name__}: {error}",
        where=key,
        hint=f"`python -c 'import {module}'` shows where",
    )


def _class_problem(found: Any, kind: type) -> str | None:
    if isinstance(found, type) and issubclass(found, kind):
        return None
    return f"it is not a class derived from {kind.__module__.removesuffix('.modules.module')}.{kind.__name__}"


def _call_problem(found: Any, places: Sequence[str], names: Sequence[str]) -> str | None:
    try:
        inspect.signature(found).bind(*places, **dict.fromkeys(names))
    except TypeError as error:
        return f"it is not to be called with ({', '.join([*places, *(f'{name}=' for name in names)])}): {error}"
    return None


def check_stages(build: type[nn.Module], shape: ModelShape, *, cuts: Sequence[range], name: str) -> None:
    """Refuse a model of one's own whose stages are not the parts of one model. It takes no memory for values.

    Args:
        cuts: the layers of each stage.
        name: as the config has it.

    Raises:
        UserError: saying what is wrong with it.
    """
    with torch.device("meta"):
        whole, *stages = (
            build(shape, layers=cut, attend=WholeSamples(), recompute="none") for cut in (range(shape.layers), *cuts)
        )
    problem = _whole_problem(whole) or next(
        (found for stage, cut in zip(stages, cuts, strict=True) if (found := _layers_problem(stage, cut))), None
    )
    problem = problem or _parts_problem(_sizes(whole), [_sizes(stage) for stage in stages])
    if problem:
        raise UserError(f"{name} cannot be a model: {problem}", where=MODEL_KEY, hint=_SEE)


def _sizes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}


def _whole_problem(model: nn.Module) -> str | None:
    buffers = [name for name, _ in model.named_buffers()]
    if buffers:
        return f"it has the buffer {buffers[0]}, whose values would be lost: compute it in forward"
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    shared = sorted(names - _sizes(model).keys())
    if shared:
        return f"{shared[0]} is the same parameter as another, which its stages could not keep equal"
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            return f"{name} draws random numbers, which depend on the layout"
    for name, size in _sizes(model).items():
        scale = model.initial_scale(name)  # type: ignore[operator]
        if not (scale is None or (isinstance(scale, int | float) and math.isfinite(scale))):
            return f"initial_scale({name!r}) is {scale!r}, which is neither a number nor None"
        if not size:
            return f"{name} has no dimension, so that it cannot be sharded: give it shape (1,)"
    return None


def _layers_problem(stage: nn.Module, cut: range) -> str | None:
    layers = getattr(stage, "layers", None)
    if isinstance(layers, nn.ModuleDict) and list(layers) == [str(index) for index in cut]:
        return None
    return f"`layers` of the stage of layers {cut.start} to {cut.stop - 1} is no nn.ModuleDict of them by number"


def _parts_problem(whole: Mapping[str, tuple[int, ...]], stages: Sequence[Mapping[str, tuple[int, ...]]]) -> str | None:
    held = Counter(name for stage in stages for name in stage)
    for name, times in held.items():
        if times > 1:
            return f"{times} stages have {name}, which they could not keep equal"
    for stage in stages:
        for name, size in stage.items():
            if whole.get(name) != size:
                told = f"is {list(whole[name])}" if name in whole else "is not there"
                return f"{name} is {list(size)} in its stage, and {told} in the whole model"
    missing = [name for name in whole if name not in held]
    return f"no stage has {missing[0]}" if missing else None
