"""What a measurement's run notes of how it was made: tags that one filters runs by, the rest as parameters.

Older versions made all of it tags. `notes_of` reads both, so nothing is converted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TVM_VERSION = "toolchain.tvm"  # the one tool whose version stays a tag
_PARAMS = ("library.dvc_md5", "network.dvc_md5", "device.key", "device.build")
_PARAMS_WITH = ("toolchain.", "recipe.", "code.", "gpu.")


def is_param(name: str) -> bool:
    """Return whether a note is a parameter of its run, and not a tag."""
    return name in _PARAMS or (name.startswith(_PARAMS_WITH) and name != TVM_VERSION)


def split(notes: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the tags and the parameters of a run. An empty text is no parameter."""
    tags = {name: text for name, text in notes.items() if not is_param(name)}
    return tags, {name: text for name, text in notes.items() if is_param(name) and text}


def notes_of(data: Any) -> dict[str, str]:
    """Return name -> text of the notes of a run, and its other tags and parameters. data: tags and params."""
    return {**data.params, **data.tags}
