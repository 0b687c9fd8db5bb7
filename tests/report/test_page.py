"""Test the report as a browser renders it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.browser import Browser
from tests.report.report_data import HOSTILE, card, cell, history, report_data
from tests.tracking.ledger_bench import LedgerBench
from tvmflow.config.overrides import CellOverrides
from tvmflow.report.page import collect, search_page, write_page
from tvmflow.report.search_tables import search_data
from tvmflow.shipping.search.goals import Candidate, Goals, Numbers, choose, pareto
from tvmflow.support.errors import StoreError, UsageError
from tvmflow.tracking.mlflow.history import newest_measurements
from tvmflow.tracking.mlflow.registry import version_by_sha256
from tvmflow.tracking.mlflow.releases import promote

CHARTS = {
    *("pareto", "peers", "compare", "trend", "layers", "spread", "memory", "profile", "roofline", "curve", "noise"),
    *("accelerator", "stages"),
}
WIDTHS = (390, 800, 1400)
# Text elements whose color is too near to that of what is behind them; 4.5 is what WCAG asks of text of this size.
CONTRAST = """(() => {
  const light = (rgb) => rgb.map(c => (c /= 255) <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
    .reduce((s, c, i) => s + c * [.2126, .7152, .0722][i], 0);
  const rgb = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = rgb(getComputedStyle(e).backgroundColor);
      if (c.length === 3 || c[3] > .5) return c.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const faint = [];
  for (const e of document.querySelectorAll('body *')) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
    if (!e.getClientRects().length || e.closest('script, option')) continue;
    const style = getComputedStyle(e), inSvg = e.closest('svg') !== null;
    const ink = rgb(inSvg && style.fill !== 'none' ? style.fill : style.color).slice(0, 3);
    const [a, b] = [light(ink), light(behind(e))].sort((x, y) => y - x);
    const ratio = (a + .05) / (b + .05);
    if (ratio < 4.5) faint.push(`${e.tagName} ${e.textContent.slice(0, 30)} ${ratio.toFixed(2)}`);
  }
  return faint;
})()"""


def _pictures(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("TVMFLOW_PICTURES", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _open_all(browser: Browser) -> None:
    """Open what is folded, and wait until the browser has said so and the page has filled it."""
    browser.ask("document.querySelectorAll('details').forEach(one => one.open = true)")
    browser.ask("new Promise(done => setTimeout(done, 50))")
    assert browser.ask("[...document.querySelectorAll('details')].every(one => one.children.length > 1)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_of_a_search_shows_each_target(browser: Browser, tmp_path: Path, width: int, scheme: str) -> None:
    rows = [
        Candidate(f"cats@{target}:{precision}", CellOverrides(), 8, "", state=state, why="<b>no</b>", numbers=numbers)
        for target in ("phone", "board")
        for precision, state, numbers in (
            ("float32", "measured", Numbers(0.0, 6.0, 5.9, 6.1, 2e6, 1e6, "others used 50%")),
            ("int8", "measured", Numbers(0.004, 2.0, 1.9, 2.1, 1e6, 1e6)),
            ("float16", "failed", Numbers()),
        )
    ]
    goals = Goals(max_drop=0.005, max_latency_ms=8)
    data = search_data("cats", {"drop": 0.005, "latency_ms": 8.0}, rows, pareto(rows), choose(rows, goals))
    path = tmp_path / "search.html"
    path.write_text(search_page(data))
    browser.open(path.as_uri(), width, scheme=scheme)
    assert browser.problems == [] and browser.ask("[innerWidth, document.documentElement.scrollWidth]") == [width] * 2
    sections = browser.ask("""[...document.querySelectorAll('section')].map(one => [one.dataset.target,
        one.querySelectorAll('svg [aria-label=dot] > *').length,
        [...one.querySelectorAll('tbody tr')].map(row => row.lastChild.textContent)])""")
    best = "no other is better in everything: <b>no</b>"
    assert sections == [[target, 2, ["★ chosen", best, "failed: <b>no</b>"]] for target in ("board", "phone")]
    assert browser.ask(CONTRAST) == []
    browser.picture(_pictures(tmp_path) / f"search-{scheme}-{width}.png")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_chart_is_drawn_and_fits(browser: Browser, page: Path, tmp_path: Path, width: int, scheme: str) -> None:
    browser.open(page.as_uri(), width, scheme=scheme)
    _open_all(browser)
    assert browser.problems == [] and browser.ask("document.querySelector('.error')") is None
    assert browser.ask("[innerWidth, document.documentElement.scrollWidth]") == [width, width]
    drawn = browser.ask("""[...document.querySelectorAll('figure[data-chart]')].map(f => {
        const box = f.getBoundingClientRect();
        const marks = ['dot', 'line', 'rule', 'rect'].map(kind => `svg [aria-label$=${kind}] > *`).join(', ');
        return [f.dataset.chart, f.querySelectorAll(marks).length,
                f.scrollWidth <= f.clientWidth + 1 && box.left >= 0 && box.right <= innerWidth, box.height]; })""")
    assert {name for name, *_ in drawn} == CHARTS and browser.ask(
        "document.querySelectorAll('[data-empty]').length"
    ) == 0
    for name, marks, fits, height in drawn:
        assert marks > 1 and fits and height > 80, (name, marks, fits, height)
    # What is written inside a chart is not cut off at its sides.
    outside = browser.ask("""[...document.querySelectorAll('figure svg text')]
        .filter(t => t.textContent.trim())
        .filter(t => {
            const a = t.getBoundingClientRect(), b = t.ownerSVGElement.getBoundingClientRect();
            return a.left < b.left - 1 || a.right > b.right + 1; })
        .map(t => t.textContent)""")
    assert outside == []
    assert browser.ask(CONTRAST) == []
    browser.picture(_pictures(tmp_path) / f"report-{width}-{scheme}.png")


def test_cpu_and_accelerator_are_side_by_side(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri(), 1400)
    tables = "document.querySelectorAll('#accelerator table')"
    read = f"[...{tables}[1].querySelectorAll('tr')].map(row => [...row.children].map(cell => cell.textContent))"
    names, *rows = browser.ask(read)
    assert names[2:] == ["digits@local-cpu:float32", "digits@vta-sim:vta_int8"]
    assert rows[0][:3] == ["latency", "ms", "20, measured"]
    assert rows[-2][:2] + rows[-2][3:] == ["operations of the accelerator", "operations", "5,000,000, measured"]


def test_the_fleet_and_what_got_worse_on_it_are_shown(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri(), 1400)
    _open_all(browser)
    text = browser.ask("document.querySelector('#fleet').textContent")
    assert "3 units of 2 kinds of devices; compared with the champions: 11, worse: 2" in text
    assert "latency 1.150, 1.120 to 1.180: slower" in text and "of one unit" in text and HOSTILE in text
    rows = "document.querySelectorAll('#fleet table')[%d].querySelectorAll('tbody tr').length"
    assert browser.ask(rows % 0) == 1, "the other cell was not measured here: it is no line of this page"
    assert browser.ask(rows % 1) == 3


def test_execution_times_stand_side_by_side_and_the_waits_for_a_gpu(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri(), 1400)
    read = """[...document.querySelectorAll('#times table')].map(t => [...t.querySelectorAll('tbody tr')]
        .map(r => [...r.children].map(c => c.textContent)))"""
    times, starts = browser.ask(read)
    rows = report_data()["cells"]
    assert len(times) == len(rows) and [row[1] for row in times if "vta-sim" in row[0]] == ["\u2013"]
    assert next(row for row in times if "rk3399" in row[0])[1:] == ["40 ms"] * 5
    assert [row[1:] for row in starts] == [["900 ms22.5 runs", "90 ms2.25 runs", "40 ms", "4 ms10.00 % of a run"]]


def test_a_tie_is_neither_green_nor_red(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri(), 1400)
    _open_all(browser)
    fills = browser.ask(
        """[...document.querySelectorAll('figure[data-chart=peers] circle')].map(c => c.getAttribute('fill'))"""
    )
    advantages = [row for one in report_data()["cells"] for row in one["card"]["advantages"].values()]
    assert len(fills) == len(advantages)
    wanted = {"var(--tie)": 0, "var(--good)": 0, "var(--bad)": 0}
    for row in advantages:
        wanted["var(--good)" if row["low"] > 1 else "var(--bad)" if row["high"] < 1 else "var(--tie)"] += 1
    assert all(wanted.values()) and {name: fills.count(name) for name in wanted} == wanted
    classes = browser.ask("""[...document.querySelectorAll('#trend details')][0].querySelectorAll('tbody tr').values()
        .map(row => row.children[4].firstElementChild?.className ?? '').toArray()""")
    assert classes == [
        "",
        "tie",
        "tie",
        "good",
        "bad",
        "good",
    ]  # the second has nothing to be compared with by interval


def test_phones_are_not_compared_with_each_other_nor_with_themselves_before_an_update(
    browser: Browser, tmp_path: Path
) -> None:
    """In the history each has its own line; chosen by hand, the ratio is said, and that it is no verdict."""
    rows = history("digits@phone:float32", 4.0)[1:]
    for at, (device, unit, build) in enumerate(
        [
            ("cpu-a76", "8A1X", "fake/1"),
            ("cpu-a76", "9B2Y", "fake/1"),
            ("cpu-a76", "9B2Y", "fake/2"),
            ("cpu-a55", "9B2Y", "fake/2"),
            ("cpu-a55", "9B2Y", "fake/2"),
        ]
    ):
        rows[at] |= {"device": device, "unit": unit, "build": build}
    phone = cell("digits", "phone", "float32", 4.0, history=rows)
    write_page(report_data() | {"cells": [phone], "unmeasured": []}, tmp_path / "phones.html")
    browser.open((tmp_path / "phones.html").as_uri(), 1400)
    _open_all(browser)
    said = browser.ask("""[...document.querySelectorAll('#trend details')][0].querySelectorAll('tbody tr').values()
        .map(row => [row.children[4].textContent, row.children[4].firstElementChild?.className ?? '']).toArray()""")
    assert said[0][1] == ""
    assert said[1:4] == [["\u2013", ""]] * 3, "there is none like it before"
    assert said[4][1] == "good" and "faster" in said[4][0]
    choose = (
        "(at) => { const s = document.getElementById('compare-A'); s.selectedIndex = at; s.dispatchEvent(new "
        "Event('change')); return document.querySelector('#compare p').textContent; }"
    )
    chosen = (
        "(at) => { const s = document.getElementById('compare-B'); s.selectedIndex = at; s.dispatchEvent(new "
        "Event('change')); }"
    )
    browser.ask(f"({chosen})(2)")
    assert "different units of the device: no verdict" in browser.ask(f"({choose})(0)")
    assert "different builds of the device's system: no verdict" in browser.ask(f"({choose})(1)")
    assert browser.ask("document.querySelectorAll('figure[data-chart=compare]').length") == 0 and browser.problems == []


def test_filters_and_choices_draw_anew(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri(), 1400)
    rows = "document.querySelectorAll('#peers tbody tr').length"
    assert browser.ask(rows) == 9
    browser.ask("document.querySelector('#filter-precision input[value=float32]').click()")
    assert browser.ask(rows) == 5 and browser.ask("document.querySelectorAll('#sections .error').length") == 0
    browser.ask(
        "document.querySelector('#filter-text').value = 'MOBILE'; "
        "document.querySelector('#filter-text').dispatchEvent(new Event('input'))"
    )
    assert browser.ask(rows) == 2
    assert "1 cell was never measured here" in browser.ask("document.querySelector('#overview').textContent")
    choose = (
        "(name, value) => { const s = document.getElementById(name); s.value = value ?? "
        "s.options[s.options.length - 1].value; s.dispatchEvent(new Event('change')); return "
        "document.getElementById(name).selectedIndex; }"
    )
    assert browser.ask(f"({choose})('profile-cell')") == 1
    last = browser.ask("document.getElementById('compare-B').options.length") - 1
    assert browser.ask(f"({choose})('compare-B')") == last
    browser.ask(
        "document.querySelector('#filter-text').value = 'nothing'; "
        "document.querySelector('#filter-text').dispatchEvent(new Event('input'))"
    )
    assert "leave no cell" in browser.ask("document.querySelector('#sections').textContent")
    assert browser.problems == []


def test_the_time_of_a_simulator_is_not_shown(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri(), 1400)
    shown = browser.ask(
        "[...document.querySelectorAll('#matrix td')].find(td => td.textContent.includes('simulated')).textContent"
    )
    assert shown == "≈ 0.5 ms, simulated99.25 % (source 99.25 %)no champion"


def test_a_bound_is_shown_where_there_is_one_and_why_where_there_is_none(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri(), 1400)
    _open_all(browser)
    column = "[...document.querySelectorAll('#{} thead th')].findIndex(one => one.textContent === '{}')"
    shown = "[...document.querySelectorAll('#{} tbody tr')].map(row => row.children[{}].textContent)"
    said = browser.ask(shown.format("peers", column.format("peers", "bound")))
    assert said[0].startswith("no bound: busy machine (others 50%, at most 10%)")
    assert said[1:6] == [f"at least {ms} ms, 60 % reached" for ms in ("10.8", "6.3", "2.22", "1.33", "0.777")]
    assert said[6:] == ["\u2013", "at least 0.6 ms, 60 % reached", "\u2013"]  # a board, a busy machine, a simulator
    browser.ask(
        "(s => { s.selectedIndex = 1; s.dispatchEvent(new Event('change')); })(document.getElementById('profile-cell'))"
    )
    _open_all(browser)
    kept = "[...document.querySelectorAll('#kernels details:last-of-type tbody tr')].map(row => row.textContent)"
    assert browser.ask(kept)[0] == "fused_conv2d_nchwc0_add_relufeatures.0.conv9 ms46 %2.25 ms25 %"
    kernels = sorted(cell("", "", "", 18.0)["workloads"], key=lambda row: -row["total_ms"])
    reached = browser.ask(shown.format("kernels details:first-of-type", column.format("kernels", "of the bound")))
    assert reached == [f"{100 * row['flops'] / 5e11 / (row['best_ms'] * 1e-3):.0f} %" for row in kernels]


def test_the_rounding_error_of_each_winograd_layer_is_shown(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri(), 1400)
    _open_all(browser)
    rows = browser.ask("[...document.querySelectorAll('#tuning details tbody tr')].map(row => row.textContent)")
    assert rows and all(row.endswith("F(6x6)6.6e-5") and HOSTILE[:8] in row for row in rows)


def test_links_lead_to_runs_versions_and_folders(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri(), 1400)
    _open_all(browser)
    links = browser.ask("[...document.querySelectorAll('a')].map(a => a.getAttribute('href'))")
    run = history("mobilenet_v2@local-cpu:int8", 1.0)[0]["run_id"]
    assert f"http://127.0.0.1:5000/#/experiments/3/runs/{run}?workflowType=machine_learning" in links
    assert (
        "http://127.0.0.1:5000/#/models/mobilenet_v2.local-cpu.int8/versions/3?workflowType=machine_learning" in links
    )
    assert "./artifacts/tune/" in links and not [
        address for address in links if not address.startswith(("http://127.0.0.1:5000/#/", "./", "#layer-"))
    ]
    assert HOSTILE.replace("\u2028", "") in browser.ask("document.querySelector('#sources').textContent").replace(
        "\u2028", ""
    )


def test_a_cell_with_nothing_but_a_scorecard_says_what_is_missing(browser: Browser, tmp_path: Path) -> None:
    bare: dict[str, Any] = cell(
        "digits",
        "local-cpu",
        "float32",
        1.0,
        history=[],
        workloads=[],
        curve=[],
        kernels=[],
        ledger={},
        releases=[],
        stage_s={},
    )
    bare["card"] = card("digits@local-cpu:float32", 1.0) | {
        "peers": {},
        "advantages": {},
        "accuracy": None,
        "quantization": {},
    }
    write_page(report_data() | {"cells": [bare], "unmeasured": []}, tmp_path / "bare.html")
    browser.open((tmp_path / "bare.html").as_uri(), 390)
    assert browser.problems == [] and browser.ask("document.querySelector('.error')") is None
    assert set(browser.ask("[...document.querySelectorAll('[data-empty]')].map(e => e.dataset.empty)")) == {
        "peers",
        "trend",
        "curve",
        "stages",
    }
    assert "Two measurements are needed" in browser.ask("document.body.textContent")


def test_the_page_is_collected_from_records_and_history(
    ledger: LedgerBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits = ledger.cell("digits_torch")
    with pytest.raises(StoreError, match="nothing has been measured"):
        collect(ledger.workspace, {}, {})
    first = ledger.measure(digits, "old")["build"].outputs["library.so"].sha256
    version = version_by_sha256(ledger.workspace, digits, first)
    assert version is not None
    promote(ledger.workspace, version, HOSTILE)
    assert collect(ledger.workspace, {}, {})["fleet"]["worse"] == []
    ledger.toolchain = {"tvm": "0.28", "llvm": "20"}
    ledger.latency |= {name: 1.5 * ledger.latency[name] for name in ("median_ms", "low_ms", "high_ms")}
    second = ledger.measure(digits, "new")["build"].outputs["library.so"].sha256
    data = collect(ledger.workspace, *newest_measurements(ledger.workspace, 2), tmp_path / "report.html")
    [cell] = data["cells"]
    assert [row["roles"] for row in cell["history"]] == [["champion"], ["challenger"]]
    assert cell["history"][1]["changed"][0] == "tvm: 0.27 -> 0.28" and cell["releases"][0]["why"] == HOSTILE
    assert dict(cell["digests"])["build/library.so"] == second and {row["model"] for row in data["unmeasured"]} == {
        "digits_keras"
    }
    [tune] = [row for row in cell["stages"] if row["stage"] == "tune"]
    assert (tmp_path / tune["address"]).resolve() == ledger.workspace.folder("tune", digits) and tune[
        "folder"
    ].startswith("artifacts/tune/")
    assert data["mlflow_ui"] == "http://127.0.0.1:5000"
    [unit], [worse] = data["fleet"]["units"], data["fleet"]["worse"]
    assert (unit["cells"], unit["compared"], unit["worse"]) == (1, 1, 1) and worse["cell"] == str(digits)
    assert any("latency" in text for text in worse["worse"]) and "TVM 0.27 -> 0.28" in worse["changed"]
    monkeypatch.setenv("TVMFLOW_MLFLOW_UI", "https://mlflow.example/x/")
    assert collect(ledger.workspace, {}, {})["mlflow_ui"] == "https://mlflow.example/x"
    monkeypatch.setenv("TVMFLOW_MLFLOW_UI", "javascript:alert(1)")
    with pytest.raises(UsageError, match="web address"):
        collect(ledger.workspace, {}, {})
