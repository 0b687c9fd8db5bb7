"""The JSON schema of params.yaml, for editors: made from the models that validate it and from the rows of all tables.

A schema cannot say all that is checked (crons, names of processors, references between blocks): what it accepts may
still be refused, what it refuses always is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tvmflow.backends.registry import BACKENDS
from tvmflow.config.params import Params
from tvmflow.config.value_types import NAME_PATTERN
from tvmflow.devices.registry import TRANSPORTS
from tvmflow.frontends.registry import FRONTENDS
from tvmflow.support.files import write_atomic
from tvmflow.tuning.search.tuners import TUNERS

DIALECT = "https://json-schema.org/draft/2020-12/schema"
FILE = "params.schema.json"
_NAMED = ("models", "targets", "cells", "apps")  # blocks whose keys are names that the user chooses
_SOURCES = ("url", "file", "zoo", "seeded", "train")


def params_schema() -> dict[str, Any]:
    """Return the schema as plain data, with the default of every key and the names that are in the tables now."""
    schema = Params.model_json_schema()
    definitions = schema["$defs"]
    _add_rows(definitions)
    definitions["Weights"]["oneOf"] = [{"required": [name]} for name in _SOURCES]
    definitions["TuneParams"]["properties"]["tuner"]["enum"] = sorted(TUNERS)
    definitions["ModelEntry"]["properties"]["framework"]["enum"] = sorted(FRONTENDS)
    del schema["required"]  # what is left out has a default
    defaults = Params.model_validate({}).model_dump(mode="json")
    for name, block in schema["properties"].items():
        block.pop("default", None)
        if name in _NAMED:
            block["propertyNames"] = {"pattern": NAME_PATTERN}
        else:
            _add_defaults(definitions[block["$ref"].rpartition("/")[2]], defaults[name], definitions)
        schema["properties"][name] = {"anyOf": [block, {"type": "null"}]}  # null: a block whose lines are comments
    _drop_titles(schema)
    return {"$schema": DIALECT, "title": "params.yaml of tvmflow", **schema}


def write_schema(folder: Path) -> None:
    """Write the schema beside a params.yaml, whose first line names it, where it is not there as it is now."""
    path, text = folder / FILE, json.dumps(params_schema(), indent=2) + "\n"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_atomic(path, text)


def _add_rows(definitions: dict[str, Any]) -> None:
    """Put the blocks of backends and the keys of transports where `options` stands for them."""
    target, device = definitions["TargetEntry"]["properties"], definitions["DeviceEntry"]["properties"]
    del target["options"], device["options"]
    target["kind"]["enum"], device["transport"]["enum"] = sorted(BACKENDS), sorted(TRANSPORTS)
    for name, options in sorted(_with_options((name, row.options) for name, row in BACKENDS.items())):
        target[name] = options
    for _, options in sorted(_with_options((name, row.options) for name, row in TRANSPORTS.items())):
        device.update(options["properties"])


def _with_options(rows: Iterable[tuple[str, type[BaseModel]]]) -> Iterable[tuple[str, dict[str, Any]]]:
    return ((name, options.model_json_schema()) for name, options in rows if options.model_fields)


def _add_defaults(definition: dict[str, Any], values: dict[str, Any], definitions: dict[str, Any]) -> None:
    """Write down the default of each key, of blocks within a block too."""
    for name, value in values.items():
        field = definition["properties"][name]
        inner = definitions.get(field.get("$ref", "").rpartition("/")[2])
        if inner is None:
            field["default"] = value
        else:
            field.pop("default", None)
            _add_defaults(inner, value, definitions)


def _drop_titles(node: Any) -> None:
    """Drop the titles that pydantic makes of names: editors show the names anyway."""
    if isinstance(node, dict):
        if isinstance(node.get("title"), str):
            del node["title"]
        for value in node.values():
            _drop_titles(value)
    elif isinstance(node, list):
        for value in node:
            _drop_titles(value)
