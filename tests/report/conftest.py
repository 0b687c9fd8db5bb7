"""Provide the fixtures of tests/tracking, a browser and a page of the report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import Browser, browser_path, open_browser
from tests.report.report_data import report_data
from tests.tracking.conftest import empty_store, ledger
from tvmflow.report.page import write_page

__all__ = ["empty_store", "ledger"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = browser_path()
    if program is None:
        pytest.skip("needs Chromium: 'apt-get install chromium'")
    with open_browser(program, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_page(report_data(), path)
    return path
