"""Wait for one stage with TVM imported: `python -m tasks.waiting N` reads a line of JSON from standard input and runs it.

The line has `arguments`, those of `python -m tasks`, unless they follow N, where they are known from the start; `known`, digests of files that the caller has looked at; and `log`, the
file for what is printed. Progress and the end of the stage are written to file descriptor N as lines of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys

from tasks.__main__ import main as run_stage
from tvmflow.without_torch import keep_torch_out_of_tvm


def main() -> None:
    """Import, wait, run one stage; end without a word when standard input ends."""
    keep_torch_out_of_tvm()
    with contextlib.suppress(Exception):  # the stage that needs it says what is wrong
        import tvm.relax  # noqa: F401
    line = sys.stdin.readline()
    if not line.endswith("\n"):
        return
    request = json.loads(line)
    _redirect(0, os.open(os.devnull, os.O_RDONLY))
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND)
    _redirect(1, os.dup(log))
    _redirect(2, log)
    run_stage([*(sys.argv[2:] or request["arguments"]), "--events", sys.argv[1]], request["known"])


def _redirect(standard: int, descriptor: int) -> None:
    os.dup2(descriptor, standard)
    os.close(descriptor)


if __name__ == "__main__":
    main()
