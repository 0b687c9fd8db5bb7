"""Set up the command line: global options, error messages and exit codes, the workspace."""

from __future__ import annotations

import importlib.util
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tvmflow.cli.completion import complete_cell
from tvmflow.cli.groups import GroupedCommands
from tvmflow.support.errors import TvmflowError
from tvmflow.support.extras import missing_extra
from tvmflow.support.own_packages import prefer_own_packages
from tvmflow.support.secrets import mask_process, show_traceback
from tvmflow.support.tvm_import import prepare_import_of_tvm
from tvmflow.support.version import __version__

if TYPE_CHECKING:
    from tvmflow import api as api
    from tvmflow.api import Workspace
else:  # imported when a command uses it, so that help and completion are fast
    _spec = importlib.util.find_spec("tvmflow.api")
    _spec.loader = importlib.util.LazyLoader(_spec.loader)
    api = sys.modules["tvmflow.api"] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(api)

app = typer.Typer(
    cls=GroupedCommands,
    help="Compile a pretrained model into a tuned, measured and versioned library for a device.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
WaitQuiet = Annotated[
    float,
    typer.Option("--wait-quiet", metavar="SECONDS", help="Wait up to this long for the machine to become idle."),
]
_CELL = typer.Argument(
    help="MODEL@TARGET:PRECISION, or a name under cells: in params.yaml.", autocompletion=complete_cell
)
CellName = Annotated[str, _CELL]
CellNames = Annotated[list[str], _CELL]


class _State:
    root: Path | None = None
    debug = False


def _version(value: bool) -> None:
    if value:
        typer.echo(f"tvmflow {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    root: Annotated[
        Path | None, typer.Option("--root", "-C", help="The workspace; default: the folder of the nearest params.yaml.")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    _State.root, _State.debug = root, debug


def main() -> None:
    """Run the command line; every expected error is one message and an exit code."""
    prefer_own_packages()
    prepare_import_of_tvm()
    from flows.stopping import leave

    try:
        _run()
    except SystemExit as end:
        leave(end.code if isinstance(end.code, int) else bool(end.code))
        raise


def _run() -> None:
    from flows.stopping import exit_code, stops_on_signals

    mask_process()
    logging.raiseExceptions = False  # a log line that Prefect's server does not take is not worth one of ours
    try:
        with stops_on_signals():
            app()
    except (SystemExit, KeyboardInterrupt) as end:
        if isinstance(end, SystemExit) and end.code != 130:  # Typer's conversion of KeyboardInterrupt
            raise
        print("interrupted; run the same command again to resume", file=sys.stderr)
        sys.exit(exit_code())
    except TvmflowError as error:
        _fail(error, error.exit_code)
    except ModuleNotFoundError as error:
        if missing := missing_extra(error):
            _fail(missing, missing.exit_code)
        raise
    except OSError as error:
        from tvmflow.support.errors import from_os_error

        _fail(from_os_error(error, "working in"), 1)
    except Exception:
        show_traceback(*sys.exc_info())  # Typer puts another hook in the place of ours
        sys.exit(1)


def _fail(error: TvmflowError, code: int) -> None:
    if _State.debug or "--debug" in sys.argv:
        show_traceback(type(error), error, error.__traceback__)
        sys.exit(code)
    print(f"error: {error}", file=sys.stderr)
    sys.exit(code)


def chosen_root() -> Path | None:
    """Return the value of --root, None without it."""
    return _State.root


def open_workspace() -> Workspace:
    """Return the workspace after validating its params.yaml against the registries. Raises UsageError."""
    return api.open_workspace(_State.root)
