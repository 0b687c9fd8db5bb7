"""Pages of the documentation site that are generated: every command, every parameter, the README and the changelog.

A hook of MkDocs (mkdocs.yml names it). The functions return Markdown and need no MkDocs, so that tests can read them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
_LIMITS = {
    "minimum": ">= {}",
    "exclusiveMinimum": "> {}",
    "maximum": "<= {}",
    "exclusiveMaximum": "< {}",
    "minItems": "at least {}",
    "maxItems": "at most {}",
    "pattern": "`{}`",
}


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages to the site."""
    from mkdocs.structure.files import File

    pages = {
        "index.md": at_the_root("README.md"),
        "changelog.md": at_the_root("CHANGELOG.md"),
        "contributing.md": at_the_root("CONTRIBUTING.md"),
        "examples.md": examples_page(),
        "commands.md": commands_page(),
        "functions.md": functions_page(),
        "notebook.md": notebook_page(),
        "parameters.md": parameters_page(),
    }
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def at_the_root(name: str) -> str:
    """Return a page of the repository, its links to other pages made relative to docs/."""
    text = re.sub(r"\]\(docs/", "](", (REPOSITORY / name).read_text(encoding="utf-8"))
    text = re.sub(r"\]\((CONTRIBUTING|CHANGELOG)\.md\)", lambda link: link[0].lower(), text)
    return re.sub(r"\]\(examples/README\.md\)", "](examples.md)", text)


def on_page_markdown(markdown: str, **_given: Any) -> str:
    """Link the page of examples where a page links their folder."""
    return markdown.replace("](../examples/README.md)", "](examples.md)")


def examples_page() -> str:
    """Return all example projects on one page, each with its params.yaml, and all example apps."""
    folder = REPOSITORY / "examples"
    parts = [re.sub(r"\]\((\S+)/README\.md\)", r"](#\1)", (folder / "README.md").read_text(encoding="utf-8"))]
    for path in (*sorted(folder.glob("*/README.md")), *sorted(folder.glob("apps/*/README.md"))):
        title, _, text = path.read_text(encoding="utf-8").partition("\n")
        parts += [f'<a id="{path.parent.relative_to(folder)}"></a>\n\n#{title}', text.strip()]
        params = path.parent / "params.yaml"
        if params.is_file():
            parts.append(f"```yaml\n{params.read_text().strip()}\n```")
    return "\n\n".join(parts).replace("](../docs/", "](") + "\n"


def commands_page() -> str:
    """Return every command with its arguments and options, from Typer."""
    import typer
    from typer.main import get_command

    from tvmflow.cli import app

    root: Any = get_command(app)
    parts = [
        "# Commands",
        "Generated from the command line itself.",
        "## tvmflow",
        *_command(root, typer.Context(root, info_name="tvmflow")),
    ]
    for name, command in root.commands.items():
        parts += [f"## tvmflow {name}", *_command(command, typer.Context(command, info_name=f"tvmflow {name}"))]
    return "\n\n".join(parts) + "\n"


def _command(command: Any, context: Any) -> Iterator[str]:
    yield " ".join((command.help or "").split())
    yield f"```\n{context.get_usage().removeprefix('Usage: ')}\n```"
    records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
    rows = [f"| `{_cell(record[0])}` | {_cell(record[1])} |" for record in records if record]
    yield "\n".join(["| argument or option | meaning |", "|---|---|", *rows])


def functions_page() -> str:
    """Return every function and value of the API with its signature and docstring."""
    import inspect

    from tvmflow import api

    parts = [
        "# Functions and values of the API",
        "Generated from `tvmflow.api`. How they belong together: [Python API](api.md).",
    ]
    for name in sorted(api.__all__, key=str.lower):
        value = getattr(api, name)
        text = inspect.getdoc(value) or ""
        if inspect.isfunction(value):
            signature = str(inspect.signature(value)).replace("'", "")
        else:
            fields = [f"{one}: {kind}" for one, kind in getattr(value, "__annotations__", {}).items() if one[0] != "_"]
            signature = f"({', '.join(fields)})" if fields else ""
        parts += [f"## {name}", f"```python\n{name}{signature}\n```", text.replace("<", "&lt;")]
    return "\n\n".join(parts) + "\n"


def notebook_page() -> str:
    """Return docs/notebook.ipynb as a page, with the outputs that it has."""
    cells = json.loads((REPOSITORY / "docs" / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    parts = ["The file itself: [notebook.ipynb](notebook.ipynb)."]
    for cell in cells:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            lines = output.get("text") or output.get("data", {}).get("text/plain") or ()
            parts.append(f"```text\n{''.join(lines).rstrip()}\n```")
    title, _, rest = parts[1].partition("\n")
    return "\n\n".join([title, parts[0], rest.strip(), *parts[2:]]) + "\n"


def parameters_page() -> str:
    """Return every key of params.yaml with type, bounds and default, from the models that validate it."""
    from tvmflow.setup.params_schema import params_schema

    schema = params_schema()
    parts = [
        "# Parameters",
        "Every key of params.yaml, generated from the models that validate it. What the keys mean: "
        "[params.yaml](params.md). `NAME` is a name of your choice.",
    ]
    for name, block in schema["properties"].items():
        rows = [f"| `{key}` | {kind} | {default} |" for key, kind, default in _rows(name, block, schema["$defs"])]
        parts += [f"## {name}", "\n".join(["| key | value | default |", "|---|---|---|", *rows])]
    return "\n\n".join(parts) + "\n"


def _rows(name: str, field: dict[str, Any], definitions: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    field = _plain(field, definitions)
    if "properties" in field:
        for key, inner in field["properties"].items():
            yield from _rows(f"{name}.{key}", inner, definitions)
    elif isinstance(field.get("additionalProperties"), dict) and "properties" in _plain(
        field["additionalProperties"], definitions
    ):
        yield from _rows(f"{name}.NAME", field["additionalProperties"], definitions)
    else:
        yield name, _cell(_kind(field, definitions)), _default(field)


def _plain(field: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Follow a reference; of a value that may be null return the rest."""
    if "anyOf" in field:
        kinds = [kind for kind in field["anyOf"] if kind.get("type") != "null"]
        if len(kinds) == 1:
            return _plain({**kinds[0], **{k: v for k, v in field.items() if k != "anyOf"}}, definitions)
    if "$ref" in field:
        definition = definitions[field["$ref"].rpartition("/")[2]]
        return {**definition, **{k: v for k, v in field.items() if k != "$ref"}}
    return field


def _default(field: dict[str, Any]) -> str:
    value = field.get("default")
    return "" if value is None else f"`{_cell(value if isinstance(value, str) else json.dumps(value))}`"


def _kind(field: dict[str, Any], definitions: dict[str, Any]) -> str:
    field = _plain(field, definitions)
    if "anyOf" in field:
        return " or ".join(_kind(kind, definitions) for kind in field["anyOf"])
    if "const" in field or "enum" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    kind = str(field.get("type", "any value"))
    limits = ", ".join(text.format(_number(field[limit])) for limit, text in _LIMITS.items() if limit in field)
    if kind == "array" and "items" in field:
        return f"list of {_kind(field['items'], definitions)}" + (f" ({limits})" if limits else "")
    if kind == "object" and isinstance(field.get("additionalProperties"), dict):
        keys = field.get("propertyNames", {}).get("enum")
        of = f" by {', '.join(f'`{key}`' for key in keys)}" if keys else ""
        return f"mapping{of} to {_kind(field['additionalProperties'], definitions)}"
    return f"{kind} {limits}".strip()


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
