"""Wait for one stage with TVM imported: `python -m tasks.waiting N` reads a line of JSON from standard input and runs it.

The line has `arguments`, those of `python -m tasks`, unless they follow N, where they are known from the start; `known`, digests of files that the caller has looked at; and `log`, the
file for what is printed. Progress and the end of the stage are written to file descriptor N as lines of JSON. `--after STAGE` in place of the arguments: there is
time until that stage ends ("": until the first begins), in which the code of all stages is parsed and imported that the next one needs.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys

from tasks.__main__ import main as run_stage
from tasks.table import STAGES
from tvmflow.recipe import parse_code
from tvmflow.without_torch import keep_torch_out_of_tvm

_IMPORTED = ("tvmflow.building.library", "tvmflow.building.self_contained", "tvmflow.quantization.precisions")


def main() -> None:
    """Import, wait, run one stage; end without a word when standard input ends."""
    keep_torch_out_of_tvm()
    given = sys.argv[2:]
    with contextlib.suppress(Exception):  # the stage that needs it says what is wrong
        import tvm.relax  # noqa: F401

        if given[:1] == ["--after"]:
            _prepare(given[1])
    line = sys.stdin.readline()
    if not line.endswith("\n"):
        return
    request = json.loads(line)
    _redirect(0, os.open(os.devnull, os.O_RDONLY))
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND)
    _redirect(1, os.dup(log))
    _redirect(2, log)
    arguments = request["arguments"] if given[:1] == ["--after"] else given
    run_stage([*arguments, "--events", sys.argv[1]], request["known"])


def _prepare(after: str) -> None:
    """Do in advance what is the same for every cell: of all stages, and of the one that is likely to be next."""
    for stage in STAGES.values():
        parse_code(stage.module, stage.runs)
    names = list(STAGES)
    at = names.index(after) + 1 if after else 0
    for name in _IMPORTED:
        importlib.import_module(name)
    if at < len(names) and STAGES[names[at]].has_metrics:
        from tvmflow.ledger.store_paths import import_mlflow

        import_mlflow()


def _redirect(standard: int, descriptor: int) -> None:
    os.dup2(descriptor, standard)
    os.close(descriptor)


if __name__ == "__main__":
    main()
