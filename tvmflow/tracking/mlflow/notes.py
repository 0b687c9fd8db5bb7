"""What a measurement's run notes of how it was made: tags that one filters runs by, the rest as parameters.

A name is `cell`, or `recipe.build` of a group; a group is one parameter, as JSON: names of tools have characters that
MLflow refuses in parameters. Older versions made all of it tags. `notes_of` reads both, so nothing is converted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

TVM_VERSION = "toolchain.tvm"  # the one tool whose version stays a tag
_PARAMS = ("library.dvc_md5", "network.dvc_md5", "device.key", "device.build")
_GROUPS = ("toolchain", "recipe", "code", "gpu")


def param_of(name: str) -> str | None:
    """Return the parameter of a run that has a note, None for one that is a tag."""
    group = name.partition(".")[0]
    if name in _PARAMS:
        return name
    return group if group in _GROUPS and name not in (TVM_VERSION, group) else None


def is_of_notes(param: str) -> bool:
    """Return whether a parameter of a run has notes, and is none of a stage."""
    return param in _PARAMS or param in _GROUPS


def split(notes: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the tags and the parameters of a run. An empty text is no parameter."""
    tags: dict[str, str] = {}
    params: dict[str, str] = {}
    groups: dict[str, dict[str, str]] = {}
    for name, text in notes.items():
        param = param_of(name)
        if param is None:
            tags[name] = text
        elif param in _GROUPS:
            groups.setdefault(param, {})[name.removeprefix(f"{param}.")] = text
        elif text:
            params[param] = text
    return tags, params | {group: json.dumps(of_group, sort_keys=True) for group, of_group in groups.items()}


def notes_of(data: Any) -> dict[str, str]:
    """Return name -> text of the notes of a run, and its other tags. data: tags and params."""
    notes = {name: data.params[name] for name in _PARAMS if name in data.params}
    for group in _GROUPS:
        notes |= {f"{group}.{name}": text for name, text in _group(data.params.get(group, "{}")).items()}
    return {**notes, **data.tags}


def _group(text: str) -> dict[str, str]:
    """Return a group; nothing of one that somebody else wrote."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return {str(name): one for name, one in found.items() if isinstance(one, str)} if isinstance(found, dict) else {}
