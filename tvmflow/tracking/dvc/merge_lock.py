"""Merge dvc.lock by cell instead of by line: `python -m tvmflow.tracking.dvc.merge_lock BASE OURS THEIRS`.

Two branches that each ran another cell add their stages at the same position, which is a conflict of lines but not of
content. The stages of a cell depend on each other, so a cell is taken as a whole from the side that changed it. If both
did, ours stays, the cells are reported, and the file stays marked as conflicting; it is valid in any case. `tvmflow
init` registers this as git's merge driver for the files in .gitattributes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tvmflow.support.files import write_atomic

DRIVER = "tvmflow"
KEEP_DRIVER = f"{DRIVER}-written"  # files that the next command writes anew
ATTRIBUTES = "".join(
    f"{files} merge={driver}\n"
    for files, driver in (
        ("pipelines/cells.json", KEEP_DRIVER),
        ("pipelines/*/dvc.yaml", KEEP_DRIVER),
        ("pipelines/_settings/*.json", KEEP_DRIVER),
        ("dvc.lock", DRIVER),  # in every folder
    )
)
Lock = dict[str, Any]


def merge(base: Lock, ours: Lock, theirs: Lock) -> tuple[Lock, list[str]]:
    """Return the merged content of dvc.lock, and the cells that both sides changed, of which ours are kept."""
    sides = [_by_cell(lock) for lock in (base, ours, theirs)]
    merged: Lock = {}
    conflicts = []
    for cell in dict.fromkeys(cell for side in sides for cell in side):
        before, here, there = (side.get(cell) for side in sides)
        if here not in (before, there) and there != before and any("@" in name for name in here or there or {}):
            conflicts.append(cell)  # stages of no cell follow from params.yaml
        merged |= (there if here == before else here) or {}
    head = {key: value for key, value in (theirs | ours).items() if key != "stages"}
    return head | {"stages": merged}, conflicts


def _by_cell(lock: Lock) -> dict[str, Lock]:
    by_cell: dict[str, Lock] = {}
    for name, stage in (lock.get("stages") or {}).items():
        by_cell.setdefault(name.rpartition("@")[2], {})[name] = stage
    return by_cell


def install(root: Path) -> None:
    """Register the merge driver in a workspace's repository, and list the files in .gitattributes."""
    command = f'"{sys.executable}" -m tvmflow.tracking.dvc.merge_lock %O %A %B'
    for driver, name, value in (
        (DRIVER, "dvc.lock, cell by cell", command),
        (KEEP_DRIVER, "files that tvmflow writes from params.yaml", "true"),  # ours stays until they are written anew
    ):
        for key, text in (("name", name), ("driver", value)):
            subprocess.run(["git", "config", f"merge.{driver}.{key}", text], cwd=root, check=False, capture_output=True)
    path = root / ".gitattributes"
    known = path.read_text(encoding="utf-8") if path.is_file() else ""
    missing = [line for line in ATTRIBUTES.splitlines() if line not in known.splitlines()]
    if missing:
        write_atomic(path, known + "\n".join(missing) + "\n")


def main(arguments: list[str]) -> int:
    """Merge three files and write the second; returns git's code: 0 merged, 1 conflicts, 129 not a lock file."""
    paths = [Path(text) for text in arguments]
    try:
        locks = [yaml.safe_load(path.read_text(encoding="utf-8")) or {} for path in paths]
        merged, conflicts = merge(*locks)
    except (OSError, ValueError, TypeError, AttributeError, yaml.YAMLError, RecursionError) as error:
        sys.stderr.write(f"dvc.lock is not merged: {error}\n")
        return 129
    write_atomic(paths[1], yaml.safe_dump(merged, sort_keys=False, width=200))
    for cell in conflicts:
        sys.stderr.write(
            f"both sides ran {cell}: ours is kept; 'tvmflow run {cell}' brings it up to date, 'git add' accepts it\n"
        )
    return 1 if conflicts else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
