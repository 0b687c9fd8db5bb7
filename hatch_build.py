"""Put the packages `tasks` and `flows` into the wheel as `tvmflow.tasks` and `tvmflow.flows`.

In the repository they lie beside `tvmflow`. Installed under these names they would hide a user's own folders `tasks/`
and `flows/`, or be hidden by them. The wheel is written as usual, and then its files are renamed, with the import
statements of all of them. `tvmflow/support/own_packages.py` tells the names where code gives them as text. Editable
installations have the repository's layout.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import zipfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MOVED = ("tasks", "flows")
_IMPORT = re.compile(rf"^([ \t]*(?:from|import)[ \t]+)({'|'.join(MOVED)})\b", re.MULTILINE)
_ENTRY = re.compile(rf"^([ \t]*(?:- |entrypoint: ))({'|'.join(MOVED)})\.", re.MULTILINE)  # of Prefect's deployments


class WheelLayout(BuildHookInterface):  # type: ignore[misc]
    def finalize(self, version: str, _build_data: dict[str, Any], artifact_path: str) -> None:
        if self.target_name == "wheel" and version == "standard":
            rewrite_wheel(Path(artifact_path))


def rewrite_wheel(path: Path) -> None:
    """Rename the packages in a wheel, which is replaced."""
    new = path.with_suffix(".new")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as made:
        rows, record = [], None
        for info in old.infolist():
            if info.filename.endswith(".dist-info/RECORD"):
                record = info
                continue
            data = rewritten(info.filename, old.read(info))
            info.filename = renamed(info.filename)
            made.writestr(info, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append((info.filename, f"sha256={digest}", str(len(data))))
        if record is None:
            raise ValueError(f"{path} has no RECORD")
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([*rows, (record.filename, "", "")])
        made.writestr(record, text.getvalue())
    os.replace(new, path)


def renamed(name: str) -> str:
    """Return the name of a file in the wheel."""
    return f"tvmflow/{name}" if name.split("/")[0] in MOVED else name


def rewritten(name: str, data: bytes) -> bytes:
    """Return the content of a file in the wheel."""
    pattern = {".py": _IMPORT, ".yaml": _ENTRY}.get(Path(name).suffix)
    if pattern is None or name.split("/")[0] not in ("tvmflow", *MOVED):
        return data
    ending = "." if pattern is _ENTRY else ""
    return pattern.sub(rf"\1tvmflow.\2{ending}", data.decode()).encode()
