"""Test the files of pages: data stays data, scripts of known digests only, pinned libraries."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.report.report_data import report_data
from tvmflow.report.page import ASSETS, page_of, write_page


class _Page(HTMLParser):
    """What elements a page has, as any browser reads them: their attributes, and the text of scripts."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=False)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data


@pytest.fixture(scope="module")
def html() -> str:
    return page_of(report_data())


def test_whatever_names_hold_stays_data(html: str) -> None:
    page = _Page(html)
    assert not {tag for tag, _ in page.elements} & {"img", "iframe", "link", "object", "base", "form"}
    assert not [attributes for _, attributes in page.elements if {"src", "href"} & attributes.keys()]
    assert len(page.scripts) == 10
    assert json.loads(page.scripts[0]) == json.loads(json.dumps(report_data()))
    broken = json.loads(_Page(page_of({"cells": [float("nan"), {1: float("inf")}]})).scripts[0])
    assert broken == {"cells": [None, {"1": None}]}


def test_what_is_not_shown_of_each_measurement_is_not_written(tmp_path: Path) -> None:
    """A team has thousands of them."""
    data = report_data()
    write_page(data, tmp_path / "page.html")
    written = json.loads(_Page((tmp_path / "page.html").read_text()).scripts[0])
    row, kept = data["cells"][0]["history"][0], written["cells"][0]["history"][0]
    assert {"experiment_id"} == row.keys() - kept.keys() and kept.items() <= json.loads(json.dumps(row)).items()


def test_the_policy_names_every_script_and_lets_nothing_be_loaded(html: str) -> None:
    page = _Page(html)
    [policy] = [attributes["content"] for _, attributes in page.elements if "http-equiv" in attributes]
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in page.scripts[1:]]
    assert policy is not None and policy.startswith("default-src 'none'; ")
    assert re.findall(r"'sha256-([^']+)'", policy) == digests
    assert "unsafe-eval" not in policy and "http" not in policy


def test_bundled_libraries_are_the_pinned_ones_with_their_licenses() -> None:
    vendor = ASSETS / "vendor"
    pinned = json.loads((vendor / "vendored.json").read_text())
    assert set(pinned) == {path.name for path in vendor.glob("*.js")}
    for name, entry in pinned.items():
        text = (vendor / name).read_bytes()
        assert hashlib.sha256(text).hexdigest() == entry["sha256"]
        assert f"v{entry['version']} ".encode() in text[:80]
        assert entry["license"] == "ISC" and "Permission to use" in (vendor / entry["license_file"]).read_text()
