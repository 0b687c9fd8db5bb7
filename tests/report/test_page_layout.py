"""Test where a browser puts the parts of the report, and when it draws them."""

from __future__ import annotations

import html
from pathlib import Path

from tests.browser import Browser
from tests.report.report_data import report_data, workloads
from tvmflow.report.page import write_page


def test_a_page_that_is_shown_later_is_drawn_then(browser: Browser, page: Path, tmp_path: Path) -> None:
    """A frame that is hidden, as in a folded cell of a notebook, has no width yet."""
    frame = tmp_path / "frame.html"
    inside = html.escape(page.read_text())
    frame.write_text(f'<meta charset="utf-8"><iframe hidden width="800" height="600" srcdoc="{inside}"></iframe>')
    browser.open(frame.as_uri(), 1000)
    browser.ask("new Promise(done => setTimeout(done, 200))")
    assert browser.problems == []
    browser.ask("document.querySelector('iframe').hidden = false")
    drawn = """new Promise(done => { const look = () => {
        const charts = [...document.querySelector('iframe').contentDocument.querySelectorAll('#overview svg')];
        if (charts.length) done(Math.max(...charts.map(one => one.clientWidth))); else setTimeout(look, 20); };
        look(); })"""
    assert browser.ask(drawn) > 100 and browser.problems == []


def test_what_disturbed_a_latency_is_below_the_number(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri(), 1400)
    shown = browser.ask("""['matrix', 'peers'].map(name => [...document.querySelectorAll(`#${name} td b.warn`)]
        .filter(number => / .?s$/.test(number.textContent)).map(number => number.nextSibling.className))""")
    assert all(classes and set(classes) == {"warn"} for classes in shown), shown
    ticks = browser.ask("""[...document.querySelectorAll('#overview figure svg [aria-label^=x-axis] text')]
        .map(one => one.getBoundingClientRect()).map(box => [box.left, box.right, box.top])""")
    for one in ticks:
        assert all(a[1] < b[0] or b[1] < a[0] or a[2] != b[2] for a in [one] for b in ticks if a is not b), ticks


def test_numbers_of_the_smallest_networks_are_not_cut(browser: Browser, tmp_path: Path) -> None:
    """Numbers below a microsecond have many digits, also at the left end of an axis."""
    data, path = report_data(), tmp_path / "small.html"
    for cell in data["cells"]:
        cell["workloads"] = workloads(1e-5)
    write_page(data, path)
    browser.open(path.as_uri(), 1440)
    cut = """new Promise(done => { const look = () => {
        const chart = document.querySelector('#kernels svg[aria-label="time of each kernel"]');
        if (!chart) return setTimeout(look, 20);
        const side = chart.getBoundingClientRect(), texts = [...chart.querySelectorAll('[aria-label^=x-axis] text')];
        done(texts.map(text => [text.textContent, text.getBoundingClientRect()])
            .map(([text, box]) => [text, box.left >= side.left && box.right <= side.right])); };
        look(); })"""
    shown = browser.ask(cut)
    assert len(shown) > 3 and all(fits for _, fits in shown), shown
    seconds = browser.ask("""[...document.querySelectorAll('[aria-label$=stage] [aria-label^=x-axis] text')]
        .map(one => one.textContent)""")
    assert len(seconds) > 3 and not any("e" in text for text in seconds if text[0].isdigit()), seconds
