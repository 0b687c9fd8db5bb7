"""Record stages with DVC and push them: `python -m tvmflow.tracking.dvc.commit` in a DVC repository.

In:  standard input: JSON {"cells": {CELL: [STAGE, ...]}, "also": [STAGE, ...], "push": true or false,
     "entries": {CELL: what `remote_recipes` writes to the remote}}
Out: standard output: JSON {CELL: [why it was not recorded, the remote that did not take it or ""]}

Equivalent to `dvc commit --force` and `dvc push` of the stages. Those read every dvc.yaml and dvc.lock of the
repository once per stage, so their time grows with the square of the cells; this reads only the files of the stages,
once, and pushes the objects of their outputs. Stages that no dvc.yaml names any more are dropped from the dvc.lock
files. A cell is recorded as a whole or not at all. Stages of "also" are left out if a file that they read is missing.
"""

from __future__ import annotations

import copy
import functools
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tvmflow.support.files import write_atomic
from tvmflow.tracking.dvc.pipelines import lock_text
from tvmflow.tracking.dvc.recipe_entries import Entries, write_entries
from tvmflow.tracking.dvc.remote import Remote


def _parse_once() -> None:
    """Let DVC parse each text once: for each stage it reads params.yaml and similar files again."""
    from dvc.utils import strictyaml
    from dvc.utils.serialize import _yaml

    parse = _yaml.parse_yaml

    @functools.cache
    def parsed(text: str, path: str) -> Any:
        return parse(text, path)

    def parse_yaml(text: str, path: str, typ: str = "safe") -> Any:
        return copy.deepcopy(parsed(text, path)) if typ == "safe" else parse(text, path, typ)

    _yaml.parse_yaml = strictyaml.parse_yaml = parse_yaml


class _Files:
    """The dvc.yaml files of a repository, each loaded once."""

    def __init__(self, repo: Any) -> None:
        self._repo = repo
        self._files: dict[str, Any] = {}
        self._saved: dict[str, list[Any]] = {}

    def stage(self, address: str) -> Any:
        """Return a stage by its address, such as `build@digits` or `pipelines/digits/dvc.yaml:build@digits`."""
        from dvc.dvcfile import load_file

        path, _, name = address.rpartition(":")
        path = str(Path(path or "dvc.yaml").absolute())
        if path not in self._files:
            self._files[path] = load_file(self._repo, path)
        return self._files[path].stages[name]

    def add(self, stages: Iterable[Any]) -> None:
        """Remember stages whose content is to be written."""
        for stage in stages:
            self._saved.setdefault(str(Path(stage.path).absolute()), []).append(stage)

    def write(self) -> None:
        """Write the dvc.lock files in DVC's format, without stages that no dvc.yaml names."""
        from dvc.stage.serialize import to_lockfile

        for path, stages in self._saved.items():
            file = self._files[path]
            known, lock = set(file.stages), dict(file.lockfile_contents)
            entries = {name: entry for name, entry in (lock.get("stages") or {}).items() if name in known}
            for stage in stages:
                entries |= to_lockfile(stage)
            _write_lock(Path(path).with_suffix(".lock"), {"schema": "2.0", **lock, "stages": entries})


def _write_lock(file: Path, lock: Mapping[str, Any]) -> None:
    text = lock_text(_plain(lock))
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        write_atomic(file, text)


def _plain(value: Any) -> Any:
    """Return a value of DVC as plain dicts and lists, which the dumper knows."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _reason(error: Exception) -> str:
    reasons = [str(one) for one in (error, error.__cause__) if one is not None]
    return ", ".join(reason or type(error).__name__ for reason in reasons)


def _save(files: _Files, addresses: Sequence[str], optional: bool = False) -> list[Any]:
    """Put the outputs of stages into DVC's cache. Returns the stages."""
    stages = [files.stage(address) for address in addresses]
    if optional:
        stages = [stage for stage in stages if all(dep.exists for dep in stage.deps)]
    for stage in stages:
        stage.save(run_cache=False)  # the recipe key finds what was made before
        stage.commit()
    files.add(stages)
    return stages


def _push(repo: Any, stages: Iterable[Any], entries: Entries) -> None:
    """Copy the objects of the outputs of stages to their remotes, then the entries to the default one."""
    remote = repo.cloud.get_remote()
    if remote.worktree or remote.fs.version_aware:  # files there have versions instead of digests
        repo.push(targets=[stage.addressing for stage in stages])
        return
    objects: dict[Any, set[Any]] = {}
    for stage in stages:
        for out in stage.outs:
            for odb, used in out.get_used_objs(push=True).items():
                objects.setdefault(odb, set()).update(used)
    failed = sum(len(repo.cloud.push(some, odb=odb).failed) for odb, some in objects.items() if some)
    if failed:
        raise OSError(f"{failed} files were not copied to the remote {remote.name}")
    write_entries(Remote(remote.fs, remote.path), entries)


def _remote_name(repo: Any) -> str:
    """Return the name and place of the default remote, such as `s3 (s3://bucket/models at http://server:9000)`."""
    name = repo.config["core"].get("remote", "")
    known = repo.config["remote"].get(name, {})
    server = f" at {known['endpointurl']}" if known.get("endpointurl") else ""
    return f"{name} ({known.get('url', 'it is not configured')}{server})"


def record(
    cells: Mapping[str, Sequence[str]], also: Sequence[str], push: bool, entries: Mapping[str, Entries]
) -> dict[str, tuple[str, str]]:
    """Record stages by cell, and push them. Returns cell -> why it was not recorded or pushed, and for the latter the
    remote.
    """
    from dvc.repo import Repo, lock_repo

    failed: dict[str, tuple[str, str]] = {}
    saved: dict[str, list[Any]] = {}
    with Repo() as repo, lock_repo(repo):
        files = _Files(repo)
        for cell, addresses in cells.items():
            try:
                saved[cell] = _save(files, addresses)
            except Exception as error:  # errors of DVC and of the libraries below it
                failed[cell] = (_reason(error), "")
        if saved:
            _save(files, also, optional=True)
            files.write()
        if saved and push:
            try:
                known = {key: entry for cell in saved for key, entry in entries.get(cell, {}).items()}
                _push(repo, [stage for stages in saved.values() for stage in stages], known)
            except Exception as error:
                failed |= dict.fromkeys(saved, (_reason(error), _remote_name(repo)))
    return failed


def main() -> None:
    """Record the stages of the request; exit with 1 and DVC's message if nothing could be."""
    request = json.load(sys.stdin)
    _parse_once()
    try:
        failed = record(request["cells"], request["also"], request["push"], request["entries"])
    except Exception as error:  # errors of DVC and of the libraries below it
        sys.exit(f"ERROR: {_reason(error)}")
    json.dump(failed, sys.stdout)


if __name__ == "__main__":
    main()
