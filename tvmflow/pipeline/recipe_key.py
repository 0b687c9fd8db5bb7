"""Compute the recipe key, which decides whether a stage may be skipped.

A recipe contains everything that may change the output of a stage: the stage, the digests of its inputs, the parameters
that it reads, the versions of the tools that it uses, and the source of the code that it uses. The key is its sha256.
Not included: timeouts, retries, worker counts, paths, the clock, the host's name.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tvmflow.support.files import canonical_json
from tvmflow.support.paths import CODE_ROOT

RECIPE_SCHEMA = 1
_OWN_PACKAGES = ("tasks", "tvmflow")
# Packages that run, observe, record or print outputs and cannot change them. Parameters and tool versions are in the
# recipe as values, so the code that reads them is not.
_NOT_IN_KEY = (
    "tasks.__main__",
    "tasks.table",
    "tvmflow.api",
    "tvmflow.cli",
    "tvmflow.config",
    "tvmflow.evaluation.kernel_agreement",  # compiles both libraries that it compares; the one it judges is an input
    "tvmflow.frontends.pytorch.operators",  # refuses files; nothing else depends on what it lets in
    "tvmflow.pipeline",
    "tvmflow.report",
    "tvmflow.sandbox",
    "tvmflow.support",
    "tvmflow.targets.gpu_drivers",  # as the next one; what it said is in the settings
    "tvmflow.targets.probed_processors",  # a cache of what a device said; what it said is in the target
    "tvmflow.toolchain",
    "tvmflow.tracking",
)
_EXCEPTIONS = (
    "tvmflow.config.buckets",  # computes the input sizes that a library is built for
    "tvmflow.support.files",  # writes arrays
    "tvmflow.support.json_values",  # writes what stages make, and reads it
    "tvmflow.support.runtime_binding",  # runs network.so
    "tvmflow.support.tvm_import",  # decides what TVM finds when it is imported
    "tvmflow.toolchain.debian_packages",  # unpacks the drivers that software GPUs run on
    "tvmflow.toolchain.environments",  # runs MXNet and TensorFlow in environments of their own
    "tvmflow.toolchain.software_gpus",
)

_LEFT_OUT = tuple(f"{name}." for name in _NOT_IN_KEY)
_TAKEN_IN = tuple(f"{name}." for name in _EXCEPTIONS)

# Tables whose rows import when they are called.
TABLES = BACKENDS, FRONTENDS = ("tvmflow.backends.", "tvmflow.frontends.registry")

_IMPORT = re.compile(
    rb"^(?P<indent>[ \t]*)(?P<statement>from[ \t]+[\w.]+[ \t]+import[ "
    rb"\t]+(?:\((?:[^)#]|#[^\n]*)*\)|[^\n(]+)|import[ \t][^\n]+)",
    re.MULTILINE,
)

_MAY_BE_OURS = re.compile(rb"\b(?:" + b"|".join(name.encode() for name in _OWN_PACKAGES) + rb")\b|\bfrom[ \t]+\.")

_ABSENT = object()
_LONGEST = 60  # characters of a changed value


def make_recipe(
    stage: str,
    inputs: Mapping[str, str],
    settings: Mapping[str, Any],
    toolchain: Mapping[str, str],
    code: Mapping[str, str],
) -> dict[str, Any]:
    """Return the recipe as a JSON-able value for `recipe_key`. code: not copied, as thousands of recipes share it."""
    return {
        "schema": RECIPE_SCHEMA,
        "stage": stage,
        "inputs": dict(inputs),
        "params": dict(settings),
        "toolchain": dict(toolchain),
        "code": code,
    }


def recipe_key(recipe: Mapping[str, Any]) -> str:
    """Return the sha256 of a recipe's canonical JSON. That of the code, which thousands of recipes share, is kept."""
    parts = (
        f"{_name(name)}:{_text_of(recipe[name]) if name == 'code' else canonical_json(recipe[name])}"
        for name in sorted(recipe)
    )
    return hashlib.sha256(f"{{{','.join(parts)}}}".encode()).hexdigest()


_name = functools.cache(canonical_json)
_texts: dict[int, tuple[Mapping[str, str], str]] = {}  # of code by its identity: hashing it takes as long as writing it
_MOST_TEXTS = 64


def _text_of(code: Mapping[str, str]) -> str:
    known = _texts.get(id(code))
    if known is None:
        if len(_texts) >= _MOST_TEXTS:
            _texts.clear()
        known = _texts[id(code)] = (code, canonical_json(code))  # what is kept keeps its identity
    return known[1]


@functools.cache
def code_of(module: str, runs: tuple[str, ...] = TABLES, without: tuple[str, ...] = ()) -> dict[str, str]:
    """Return file -> sha256 of all our source files that a module imports, directly or indirectly.

    Found by parsing import statements, also those inside functions. runs: the tables whose entries are run. Of the
    other tables a stage uses only names and checks, so imports inside their entries' functions do not count. without:
    modules that are imported and not used.
    """
    todo, seen, files = [module], set[str](without), {}
    while todo:
        name = todo.pop()
        if name in seen or _is_left_out(name) or (source := _source_of(name)) is None:
            continue
        seen.add(name)
        if source.digest:
            files[source.path] = source.digest
        asked = any(name.startswith(table) and table not in runs for table in TABLES)
        todo.extend(source.imports_when_loaded if asked else source.imports)
    return dict(sorted(files.items()))


@dataclass(frozen=True)
class _Source:
    """A source file of ours. digest: sha256, '' for an empty file; imports: all of them, and those executed on load."""

    path: str
    digest: str
    imports: tuple[str, ...]
    imports_when_loaded: tuple[str, ...]


def _is_left_out(module: str) -> bool:
    name = f"{module}."
    return name.startswith(_LEFT_OUT) and not name.startswith(_TAKEN_IN)


@functools.cache
def _source_of(module: str) -> _Source | None:
    if module.split(".")[0] not in _OWN_PACKAGES:
        return None
    base = CODE_ROOT.joinpath(*module.split("."))
    path = next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)
    if path is None:
        return None
    source = path.read_bytes()
    digest = hashlib.sha256(source).hexdigest() if source.strip() else ""
    return _Source(path.relative_to(CODE_ROOT).as_posix(), digest, *_imports_of(module, source))


@functools.cache
def _imports_of(module: str, source: bytes) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the imports of a module's source: all of them, and those executed on load.

    Only lines with import statements are parsed, which takes half a second for all of our sources. Such lines inside
    texts count too: they may be code that another process runs.
    """
    anywhere, loaded = list[str](), list[str]()
    for match in _IMPORT.finditer(source):
        if not _MAY_BE_OURS.search(match["statement"]):
            continue
        names = list(_imports(module, _parsed(match["statement"])))
        anywhere += names
        loaded += [] if match["indent"] else names
    return tuple(anywhere), tuple(loaded)


@functools.cache
def _parsed(statement: bytes) -> list[ast.stmt]:
    """Return what a statement is, which stands in many sources; nothing for a sentence that begins as an import
    does.
    """
    try:
        return ast.parse(statement).body
    except SyntaxError:
        return []


def forget_code() -> None:
    """Make `code_of` read all files again; unchanged files are not parsed again."""
    code_of.cache_clear()
    _source_of.cache_clear()


def _imports(module: str, statements: Iterable[ast.AST]) -> Iterator[str]:
    for node in statements:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"{module} uses a relative import; write it in full, the recipe key reads it")
            if node.module:
                yield node.module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def changed_parts(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the differing leaves of two recipes, such as `params.trials: 16 -> 32`."""
    lines = []
    for name in sorted({*old, *new}):
        before, after = old.get(name, _ABSENT), new.get(name, _ABSENT)
        if before == after and type(before) is type(after):
            continue
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            lines += changed_parts(before, after, f"{prefix}{name}.")
        elif prefix in ("code.", "inputs."):
            lines.append(f"{prefix}{name}: {_how(before, after)}")
        else:
            lines.append(f"{prefix}{name}: {' -> '.join(_short(_text(before), _text(after)))}")
    return lines


def _how(before: object, after: object) -> str:
    if before is _ABSENT:
        return "added"
    return "removed" if after is _ABSENT else "changed"


def _text(value: object) -> str:
    return "absent" if value is _ABSENT else str(value)


def _short(*texts: str) -> tuple[str, ...]:
    """Return the beginnings of texts; if these are equal, the parts where the texts differ."""
    cut = tuple(text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..." for text in texts)
    equal = sum(1 for _ in itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*texts, strict=False)))
    start = equal - _LONGEST // 2
    if len(set(cut)) > 1 or start <= 0:
        return cut
    return _short(*(f"...{text[start:]}" for text in texts))
