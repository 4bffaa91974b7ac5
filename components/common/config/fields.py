"""How a key of the run config is declared: its role on resume, and the small types that several keys share."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class Role(StrEnum):
    """What changing a key means for a run that has already begun."""

    IDENTITY = "identity"  #: refused, with both values
    EXTENDABLE = "extendable"  #: may change; what is done stays done
    FREE = "free"  #: may change at will


class Section(BaseModel):
    """A mapping of the run config: strict types, no unknown keys, immutable."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


def identity(default: Any = ..., **constraints: Any) -> Any:
    return Field(default, json_schema_extra={"x-role": Role.IDENTITY.value}, **constraints)


def extendable(default: Any = ..., **constraints: Any) -> Any:
    return Field(default, json_schema_extra={"x-role": Role.EXTENDABLE.value}, **constraints)


def free(default: Any = ..., **constraints: Any) -> Any:
    return Field(default, json_schema_extra={"x-role": Role.FREE.value}, **constraints)


#: The form of `module:name`, for a class that is imported.
OBJECT = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def parse_size(value: object) -> int:
    """Bytes, from a whole number or from text such as `64MiB`."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"should be a size such as 64MiB or 1000000 (units: {', '.join(u for u in _UNITS if u)})")
    return int(float(match[1]) * _UNITS[match[2]])


Size = Annotated[int, BeforeValidator(parse_size), Field(gt=0, json_schema_extra={"type": ["integer", "string"]})]


def as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


Urls = Annotated[list[str], BeforeValidator(as_list, json_schema_input_type=str | list[str]), Field(min_length=1)]
