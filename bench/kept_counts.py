"""Keep counts of networks in a JSON file, so that only what is missing is counted again."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.instructions import PEERS
from tvmflow.devices.emulation.system import COUNTER
from tvmflow.support.files import digest_of, sha256_of, write_atomic
from tvmflow.support.paths import CODE_ROOT

SUFFIXES = {"ncnn": ".param", "mnn": ".mnn", "litert": ".tflite", "onnxruntime": ".onnx"}
PROCESSOR = "cortex-a76"
OURS = "tvmflow"


@dataclass
class Counts:
    """Counts of a JSON file, by network, precision, and version of what ran it; a failure is kept as its reason."""

    file: Path
    caches: bool = False  # whether those without misses of the caches are missing
    kept: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.file.is_file():
            self.kept = json.loads(self.file.read_text(encoding="utf-8"))

    def get(self, name: str, precision: str, by: str) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.kept.get(f"{name} {precision} {by}")
        known = found is not None and found["version"] == version_of(by)
        return found if known and found and (found.get("caches", True) or not self.caches) else None

    def set(self, name: str, precision: str, by: str, found: dict[str, Any]) -> None:
        self.kept[f"{name} {precision} {by}"] = {"version": version_of(by), **found}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self.file, json.dumps(self.kept, indent=1, sort_keys=True) + "\n")


_VERSIONS: dict[str, str] = {}


def version_of(by: str) -> str:
    """Return the digest of our code that makes kernels, or the pins of a peer; both with the counter's."""
    if by not in _VERSIONS:
        code = [str(sha256_of(path)) for path in sorted((CODE_ROOT / "tvmflow").rglob("*.py"))] if by == OURS else []
        pins = PEERS[SUFFIXES[by]][0] if by != OURS else []
        _VERSIONS[by] = digest_of([*code, *pins, sha256_of(COUNTER), PROCESSOR])[:16]
    return _VERSIONS[by]
