"""Validate the blocks of params.yaml that belong to a table entry, such as a backend or a transport."""

from __future__ import annotations

import re
import reprlib
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from tvmflow.support.errors import ParamsError, did_you_mean


class Options(BaseModel):
    """The options of a table entry; none by default."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


Block = TypeVar("Block", bound=BaseModel)


def read_options(model: type[Block], block: dict[str, Any], where: str) -> Block:
    """Validate a block by the model of its table entry. Raises ParamsError with a line per error."""
    try:
        return model.model_validate(block)
    except ValidationError as error:
        raise ParamsError("params.yaml is not valid:\n" + "\n".join(explain(error, model, where))) from None


def explain(error: ValidationError, model: type[BaseModel], where: str = "", beside: tuple[str, ...] = ()) -> list[str]:
    """Return a line per error: key, what was found, what is legal. beside: legal keys of the same block outside the
    model.
    """
    return [_line(problem, model, where, beside) for problem in error.errors()]


def _line(error: Any, model: type[BaseModel], where: str, beside: tuple[str, ...]) -> str:
    place = ".".join([*filter(None, [where]), *(str(part) for part in error["loc"] if part != "[key]")])
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        legal = sorted(
            [*_legal_keys(model, error["loc"][:-1], error["loc"][-1]), *(beside if len(error["loc"]) == 1 else ())]
        )
        message = (
            f"unknown key{did_you_mean(str(error['loc'][-1]), legal)}; legal here: {', '.join(legal)}"
            if legal
            else "unknown key"
        )
    elif error["type"] in ("model_type", "model_attributes_type", "dict_type"):
        keys = _legal_keys(model, error["loc"])
        example = (
            f"{{file: {error['input']}}}" if "file" in keys and isinstance(error["input"], str) else ", ".join(keys)
        )
        message = (
            f"expected a block of keys{f', e.g. {example}' if example else ''}; found {reprlib.repr(error['input'])}"
        )
    elif error["type"] == "tuple_type":
        message = f"expected a list, e.g. [1, 3, 224, 224]; found {reprlib.repr(error['input'])}"
    elif error["type"] == "literal_error" and isinstance(error["input"], str):
        legal = [part.strip("'") for part in re.split(r", | or ", error["ctx"]["expected"])]
        message = f"{message}; found {reprlib.repr(error['input'])}{did_you_mean(error['input'], legal)}"
    elif error["type"] != "value_error" and error["type"] != "missing":
        message = f"{message}; found {reprlib.repr(error['input'])}"
    return f"  - {place}: {message}" if place else f"  - {message}"


def _legal_keys(model: type[BaseModel], location: tuple[Any, ...], unknown: Any = None) -> list[str]:
    """Return the legal keys at the location of an error. unknown: a key that is not legal there."""
    kind: Any = model
    for part in location:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            field = kind.model_fields.get(str(part))
            kind = field.annotation if field else None
        elif get_origin(kind) is dict:
            kind = get_args(kind)[1]
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        if get_origin(kind) in (Union, UnionType):
            blocks = [a for a in get_args(kind) if isinstance(a, type) and issubclass(a, BaseModel)]
            if len(blocks) > 1:
                return sorted({key for one in blocks if unknown not in one.model_fields for key in one.model_fields})
            kind = next(a for a in get_args(kind) if a is not type(None))
    return sorted(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []
