"""Find the agent for a device in the installed package `tvmflow-agent`."""

from __future__ import annotations

import hashlib
import json
from importlib import metadata
from pathlib import Path

from tvmflow.support.errors import ToolchainError
from tvmflow.toolchain.triples import triple_of

PACKAGE = "tvmflow-agent"
MODULE, FACTS = "tvmflow_agent", "agents.json"


def installed_agent(mtriple: str, sources: str) -> bytes | None:
    """Return the program of the installed wheel for a target; None without one that is made of these sources.

    sources: their digest. Raises ToolchainError for a program that was altered.
    """
    try:
        package = metadata.distribution(PACKAGE)
        facts = json.loads(Path(str(package.locate_file(f"{MODULE}/{FACTS}"))).read_text(encoding="utf-8"))
    except (metadata.PackageNotFoundError, OSError, ValueError):
        return None
    triple = triple_of(mtriple)
    name = f"{triple.architecture}-linux-{triple.ending}"
    if facts.get("sources") != sources or name not in facts.get("agents", {}):
        return None
    program = Path(str(package.locate_file(f"{MODULE}/{name}/tvmflow-agent"))).read_bytes()
    if hashlib.sha256(program).hexdigest() != facts["agents"][name]:
        raise ToolchainError(
            f"the agent for {name} in the package {PACKAGE} was altered",
            "the program that its wheel has",
            f"pip install --force-reinstall {PACKAGE}",
        )
    return program
