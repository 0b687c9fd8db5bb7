"""Run a format's own operator tests through import, packing, build and run.

    python -m bench.conformance onnx [--only NAME] [--constants] [--workers 1] [--save FILE]
    python -m bench.conformance tflite|torch [options of bench/conformance/tflite.py or torch.py]

Prints, per operator, how many tests passed, were refused by name, were refused otherwise, gave a wrong result, or
ended in a raw error of Python or TVM. --only: tests with this in their name. --constants: all inputs after the first
are constants, not only those that set a shape. Tests run in processes that are replaced when one dies or takes longer
than the limit.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from bench.conformance.onnx_nodes import RESULTS, NodeTests, Verdict

LIMIT_S = 60.0


def main() -> int:
    if sys.argv[1:2] in (["tflite"], ["torch"]):
        runner: Any = importlib.import_module(f"bench.conformance.{sys.argv[1]}")
        return int(runner.main(sys.argv[2:]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("format", choices=("onnx", "tflite", "torch"))
    parser.add_argument("--only", default="")
    parser.add_argument("--constants", action="store_true")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--save", type=Path, help="a JSON file for the verdict of every test")
    options = parser.parse_args()
    tests = NodeTests.all()
    chosen = [name for name in tests.names() if options.only in name]
    skipped = {name: why for name in chosen if (why := tests.uncounted(name))}
    verdicts = run_all(tests, [name for name in chosen if name not in skipped], options.constants, options.workers)
    print(table(tests, verdicts))
    print("not counted: " + ", ".join(f"{count} {why}" for why, count in Counter(skipped.values()).most_common()))
    if options.save:
        rows = {name: [verdict.result, tests.operator_of(name)] for name, verdict in sorted(verdicts.items())}
        lines = (f" {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
        options.save.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    return int(any(verdict.result in ("wrong", "raw") for verdict in verdicts.values()))


def table(tests: Any, verdicts: dict[str, Verdict]) -> str:
    """Return one line per operator with a test that did not pass, and the totals."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for name, verdict in verdicts.items():
        rows[tests.operator_of(name)][verdict.result] += 1
    lines = [f"{'operator':32}" + "".join(f"{result:>18}" for result in RESULTS)]
    for operator, counts in sorted(rows.items()):
        if set(counts) != {"passed"}:
            lines.append(f"{operator:32}" + "".join(f"{counts[result] or '':>18}" for result in RESULTS))
    total = Counter(verdict.result for verdict in verdicts.values())
    complete = sum(set(counts) == {"passed"} for counts in rows.values())
    lines.append(f"{'total':32}" + "".join(f"{total[result]:18}" for result in RESULTS))
    lines.append(f"{complete} of {len(rows)} operators pass all their tests; {len(verdicts)} tests")
    return "\n".join(lines)


def run_all(tests: Any, names: list[str], constants: bool, workers: int) -> dict[str, Verdict]:
    """Return the verdict of each test; each worker is a fork that has the frameworks loaded."""
    import tvm  # noqa: F401  before the fork, once for all

    from tvmflow.backends import cpu  # noqa: F401

    shares = [names[start::workers] for start in range(workers)]
    verdicts: dict[str, Verdict] = {}
    running = [_Worker(tests, share, constants) for share in shares if share]
    while running:
        for worker in list(running):
            if (found := worker.next()) is None:
                running.remove(worker)
                continue
            name, verdict = found
            verdicts[name] = verdict
            if verdict.result != "passed":
                print(f"{len(verdicts)}/{len(names)} {verdict.result:18} {name}: {verdict.detail[:150]}", flush=True)
    return verdicts


class _Worker:
    """Judges tests one after the other in a process of its own."""

    def __init__(self, tests: Any, names: list[str], constants: bool) -> None:
        self._tests, self._names, self._constants = tests, list(names), constants
        self._process: Any = None

    def next(self) -> tuple[str, Verdict] | None:
        if not self._names:
            if self._process:
                self._process.join()
            return None
        if self._process is None:
            context = multiprocessing.get_context("fork")
            self._results, sender = context.Pipe(duplex=False)
            self._process = context.Process(target=_serve, args=(self._tests, self._names, self._constants, sender))
            self._process.start()
            sender.close()
        name = self._names.pop(0)
        try:
            if self._results.poll(LIMIT_S):
                return name, self._results.recv()
            died = f"took longer than {LIMIT_S:.0f} s"
            self._process.kill()
        except EOFError:
            died = "its process died"
        self._process.join()
        self._process = None
        return name, Verdict("raw", died)


def _serve(tests: Any, names: list[str], constants: bool, results: Any) -> None:
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)  # TVM's importer prints
    os.dup2(nothing, 2)
    for name in names:
        results.send(tests.judge(name, constants))
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(main())
