"""Provide a page template for `dvc plots` that works offline, since DVC's own loads scripts from a CDN.

`tvmflow init` writes it to .dvc/plots.html and refers to it in .dvc/config.local; git ignores both. Without them, DVC
uses its own page. The scripts in vega/ are unmodified copies.
"""

from __future__ import annotations

from pathlib import Path

from tvmflow.support.files import write_atomic

PAGE = "plots.html"
SCRIPTS = ("vega.min.js", "vega-lite.min.js", "vega-embed.min.js")  # in the order in which they need each other
_STYLE = "body { font-family: sans-serif; margin: 1rem } table { border-spacing: 1rem } td, th { text-align: left }"


def page() -> str:
    """Return the page template; DVC inserts the plots at {plot_divs}."""
    folder = Path(__file__).with_name("vega")
    scripts = "\n".join(f"<script>{(folder / name).read_text(encoding='utf-8')}</script>" for name in SCRIPTS)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>DVC '
        f"plots</title>\n{{refresh_tag}}\n"
        f"<style>{_STYLE}</style>\n{scripts}\n</head>\n<body>\n{{plot_divs}}\n</body>\n</html>\n"
    )


def install(dvc_folder: Path) -> None:
    """Write the page beside DVC's configuration and refer to it there, unless the user has set another page."""
    path, text = dvc_folder / PAGE, page()
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_atomic(path, text)
    local = dvc_folder / "config.local"
    known = local.read_text(encoding="utf-8") if local.is_file() else ""
    shared = (dvc_folder / "config").read_text(encoding="utf-8")
    if "html_template" not in known + shared:
        write_atomic(local, f"{known}[plots]\n    html_template = {PAGE}\n")
    ignored = dvc_folder / ".gitignore"
    lines = ignored.read_text(encoding="utf-8") if ignored.is_file() else ""
    if f"/{PAGE}" not in lines.splitlines():
        write_atomic(ignored, f"{lines}/{PAGE}\n")
