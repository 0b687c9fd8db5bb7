"""Generate the JSON schema of params.yaml for editors, from the models that validate it and from all registries.

Some checks cannot be expressed in a schema (crons, processor names, references between blocks): an accepted file may
still be invalid, a rejected one always is.
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
_NAMED = ("models", "targets", "cells", "apps")  # blocks with user-defined names as keys
_SOURCES = ("url", "file", "zoo", "seeded", "train")


def params_schema() -> dict[str, Any]:
    """Return the schema as plain data, with the default of every key and the current names of the registries."""
    schema = Params.model_json_schema()
    definitions = schema["$defs"]
    _add_rows(definitions)
    needs = definitions.pop("SwitchedOff")["properties"]["needs"]
    del schema["properties"]["switched_off"]  # written under cells:
    definitions["Cell"]["properties"] |= {"enabled": {"type": "boolean", "default": True}, "needs": needs}
    definitions["Weights"]["oneOf"] = [{"required": [name]} for name in _SOURCES]
    definitions["TuneParams"]["properties"]["tuner"]["enum"] = sorted(TUNERS)
    definitions["ModelEntry"]["properties"]["framework"]["enum"] = sorted(FRONTENDS)
    del schema["required"]  # missing keys have defaults
    defaults = Params.model_validate({}).model_dump(mode="json")
    for name, block in schema["properties"].items():
        block.pop("default", None)
        if name in _NAMED:
            block["propertyNames"] = {"pattern": NAME_PATTERN}
        elif "$ref" in block:
            _add_defaults(definitions[block["$ref"].rpartition("/")[2]], defaults[name], definitions)
        schema["properties"][name] = {"anyOf": [block, {"type": "null"}]}  # null: a block whose lines are comments
    _drop_titles(schema)
    return {"$schema": DIALECT, "title": "params.yaml of tvmflow", **schema}


def write_schema(folder: Path) -> None:
    """Write the schema beside params.yaml, whose first line refers to it, unless it is up to date."""
    path, text = folder / FILE, json.dumps(params_schema(), indent=2) + "\n"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_atomic(path, text)


def _add_rows(definitions: dict[str, Any]) -> None:
    """Insert the blocks of backends and the keys of transports in place of `options`."""
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
    """Add the default of each key, including those of nested blocks."""
    for name, value in values.items():
        field = definition["properties"][name]
        inner = definitions.get(field.get("$ref", "").rpartition("/")[2])
        if inner is None:
            field["default"] = value
        else:
            field.pop("default", None)
            _add_defaults(inner, value, definitions)


def _drop_titles(node: Any) -> None:
    """Remove pydantic's generated titles, since editors show the names anyway."""
    if isinstance(node, dict):
        if isinstance(node.get("title"), str):
            del node["title"]
        for value in node.values():
            _drop_titles(value)
    elif isinstance(node, list):
        for value in node:
            _drop_titles(value)
