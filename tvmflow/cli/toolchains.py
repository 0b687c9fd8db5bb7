"""Define the command compare-toolchains: two versions of TVM on one device, before an upgrade."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tvmflow.cli.app import Json, WaitQuiet, api, app, open_workspace
from tvmflow.cli.completion import complete_cell
from tvmflow.cli.plans import raise_failures
from tvmflow.report.console import show_json, show_table, suggest
from tvmflow.support.json_values import to_json

if TYPE_CHECKING:
    from tvmflow.api import ToolchainComparison

_MOST_KERNELS = 30  # of a network; --json has all


@app.command("compare-toolchains")
def compare_toolchains(
    before: Annotated[str, typer.Argument(metavar="BEFORE", help="A version of TVM, e.g. 0.26.")],
    after: Annotated[str, typer.Argument(metavar="AFTER", help="Another one, e.g. 0.27.")],
    cells: Annotated[
        list[str] | None,
        typer.Argument(help="Cells; default: those under cells:.", autocompletion=complete_cell),
    ] = None,
    wait_quiet: WaitQuiet = 0.0,
    as_json: Json = False,
) -> None:
    """Build cells with two versions of TVM and measure both libraries in turns on one device."""
    found = api.compare_toolchains(
        before, after, *cells or (), workspace=open_workspace(), wait_quiet_s=wait_quiet, show_progress=True
    )
    if as_json:
        show_json([to_json(one) for one in found])
    else:
        for one in found:
            _show_kernels(one)
        _show_networks(found)
    raise_failures([api.RunResult(one.cell, {}, one.error, "compare-toolchains") for one in found])
    suggest("tvmflow retune --plan    (what an upgrade would do with the champions)")


def _show_networks(found: tuple[ToolchainComparison, ...]) -> None:
    rows = []
    for one in found:
        known = one.comparison
        ratio = "-" if known is None else _ratio(known.ratio, known.low, known.high)
        verdict = "failed" if known is None else _verdict(known.low, known.high)
        origins = ", ".join(f"{count} {name}" for name, count in (one.origins or {}).items() if count)
        badges = "; ".join(known.badges) if known else (one.error.found if one.error else "")
        rows.append((one.cell, ratio, verdict, origins or "-", badges))
    title = f"networks, TVM {found[0].after} / TVM {found[0].before}"
    columns = ("cell", "latency, after / before", "verdict", "schedules", "disturbed by")
    show_table(title, columns, rows, ("cell", "schedules", "disturbed by"))


def _show_kernels(one: ToolchainComparison) -> None:
    rows = [
        (
            kernel.kernel,
            _ms(kernel.before_ms),
            _ms(kernel.after_ms),
            "-" if kernel.ratio is None else _ratio(kernel.ratio, kernel.low, kernel.high),
            "in one only" if kernel.ratio is None else _verdict(kernel.low, kernel.high),
        )
        for kernel in one.kernels[:_MOST_KERNELS]
    ]
    if rows:
        left = len(one.kernels) - len(rows)
        title = f"kernels of {one.cell}" + (f", the slowest {len(rows)}; {left} more with --json" if left else "")
        columns = ("kernel", f"TVM {one.before}", f"TVM {one.after}", "after / before", "verdict")
        show_table(title, columns, rows, ("kernel",))


def _ratio(value: float, low: float | None, high: float | None) -> str:
    return f"{value:.3f}" + ("" if low is None or high is None else f" [{low:.3f}, {high:.3f}]")


def _verdict(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return "no interval"
    return "slower" if low > 1 else "faster" if high < 1 else "no difference shown"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g} ms"
