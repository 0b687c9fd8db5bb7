"""Compare the tools and the code of this machine with those that a stage's recipe names."""

from __future__ import annotations

import functools
import json
import platform
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from tvmflow.pipeline.recipe_key import changed_parts, code_of
from tvmflow.pipeline.stage import AnyStage
from tvmflow.support.errors import ToolchainError
from tvmflow.support.files import digest_of
from tvmflow.toolchain.versions import versions

_PLUGIN = "plugin:"
_BUILDS = "tvmflow.tuning.measure.build_worker"


def check_recipe(stage: AnyStage, settings: Any, recipe: Mapping[str, Any]) -> None:
    """Raise ToolchainError if this machine would make a stage by another recipe."""
    named = recipe["toolchain"]
    tools = versions(tuple(name for name in named if not name.startswith(_PLUGIN)))
    tools |= {name: _package_version(name.removeprefix(_PLUGIN)) for name in named if name.startswith(_PLUGIN)}
    here = {"toolchain": tools, "code": stage.code(settings)}
    _refuse(changed_parts({name: recipe[name] for name in here}, here))


def tools_of_builds(target: Mapping[str, Any]) -> dict[str, str]:
    """Return what the code of a tuner's candidate depends on, as of this machine. target: as JSON."""
    return json.loads(_tools_of_builds(str(target["cc"])))  # type: ignore[no-any-return]


def check_tools(named: Mapping[str, str], target: Mapping[str, Any]) -> None:
    """Raise ToolchainError if this machine would build a candidate with other tools."""
    _refuse(changed_parts(named, tools_of_builds(target)))


@functools.cache
def _tools_of_builds(compiler: str) -> str:
    return json.dumps({**versions(("tvm", "ffi", "llvm", f"cc:{compiler}")), "code": digest_of(code_of(_BUILDS))})


def _package_version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"


def _refuse(changes: list[str]) -> None:
    if changes:
        more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
        raise ToolchainError(
            f"the Dask worker on {platform.node()} would make something else: {'; '.join(changes[:3])}{more}",
            "the tools and the tvmflow of the machine that asks",
            "install the same versions where the workers run, and start them again",
        )
