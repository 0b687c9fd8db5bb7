"""Import, build and run the samples of PyTorch's own operator database, and compare them with PyTorch.

    python -m bench.conformance torch [--only NAME ...] [--dtypes float16 ...] [--results FILE] [--workers N]
                                      [--seconds S]

Counted are samples whose program, decomposed by PyTorch, has core ATen operators only (`torch.Tag.core`) and real
numbers; `other` are those with further operators. Not countable: shapes that depend on values, random numbers, complex
and sparse tensors, training, control flow by values. A sample passes with the dtypes, shapes and values of PyTorch; it
is refused by an error that names an operator; it is raw by any other error, or when its process dies.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from bench.conformance.torch_outputs import apart_from, first_line, outputs_of, with_places

VERDICTS = ("passed", "refused", "wrong", "raw", "uncountable")
DTYPES = ("float32", "int64", "bool")
_SECONDS = 300.0  # for all samples of an operator


def judge_operator(name: str, dtypes: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield a record for each sample of an operator: operator, sample, verdict, reason, calls, core."""
    from bench.conformance.torch_samples import samples_of

    samples = list(samples_of(name, dtypes))
    together = _judge_together(samples)
    for place, sample in enumerate(samples):
        verdict, reason, calls = (together or {}).get(place) or judge(sample)
        yield {
            "operator": name,
            "sample": sample.label,
            "verdict": verdict,
            "reason": reason,
            "calls": sorted(calls),
            "core": all(_is_core(call) for call in calls),
        }


def _judge_together(samples: Sequence[Any]) -> dict[int, tuple[str, str, set[str]]] | None:
    """Judge samples in one program; None if that fails, so that each is judged by itself."""
    from bench.conformance.torch_samples import Together

    if len(samples) < 2 or any(_uncountable_inputs(one) for one in samples):
        return None
    try:
        inputs = [tensor for one in samples for tensor in one.inputs]
        wanted = [outputs_of(one.module, one.inputs) for one in samples]
        found, calls = _compute(Together(samples).eval(), inputs)
        if any(isinstance(one, str) for one in wanted) or len(found) != sum(len(one) for one in wanted):
            return None
    except Exception:
        return None
    verdicts, first = {}, 0
    for place, expected in enumerate(wanted):
        difference = apart_from(samples[place], found[first : first + len(expected)], expected)
        first += len(expected)
        if difference is None:
            verdicts[place] = ("passed", "", calls)
    if not all(_is_core(call) for call in calls):  # whose they are is not known
        return {place: (verdict, reason, _calls_of(samples[place])) for place, (verdict, reason, _) in verdicts.items()}
    return verdicts


def _calls_of(sample: Any) -> set[str]:
    model = _model(sample.module, sample.inputs)
    return _calls(model.exported().run_decompositions())


def judge(sample: Any) -> tuple[str, str, set[str]]:
    """Return verdict, reason, and the operators of the decomposed program of a sample."""
    from tvmflow.support.errors import TvmflowError

    if reason := _uncountable_inputs(sample):
        return "uncountable", reason, set()
    wanted = outputs_of(sample.module, sample.inputs)
    if isinstance(wanted, str):
        return "uncountable", wanted, set()
    try:
        program = _model(sample.module, sample.inputs).exported().run_decompositions()
    except Exception as error:  # whatever the exporter raises
        return "uncountable", f"torch.export: {first_line(error)}", set()
    calls = _calls(program)
    if reason := _uncountable_program(program):
        return "uncountable", reason, calls
    try:
        found, _ = _compute(sample.module, sample.inputs)
    except TvmflowError as error:
        named = any(call.split(".")[1] in str(error) for call in calls)
        return ("refused" if named else "raw"), f"{type(error).__name__}: {first_line(error)}", calls
    except Exception as error:
        return "raw", f"{type(error).__name__}: {first_line(error)}", calls
    difference = apart_from(sample, with_places(sample, found, wanted, calls), wanted)
    return ("passed", "", calls) if difference is None else ("wrong", difference, calls)


def _model(module: Any, inputs: Sequence[Any]) -> Any:
    from bench.conformance.torch_samples import specs_of
    from tvmflow.frontends.pytorch.exported_program import ExportedModel

    return ExportedModel(module, specs_of(inputs))


def _compute(module: Any, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], set[str]]:
    """Import, build and run a module; return its outputs and the operators of its decomposed program."""
    from tvmflow.backends.cpu import host_backend
    from tvmflow.codegen.compile import LocalRunner
    from tvmflow.frontends.torch_arrays import to_numpy
    from tvmflow.passes.pipeline import canonicalize

    model = _model(module, inputs)
    runner = LocalRunner.of_plain(canonicalize(model.to_relax()), host_backend())
    calls = _calls(model.exported().run_decompositions())
    return runner.run(*map(to_numpy, inputs)), calls


def _calls(program: Any) -> set[str]:
    """Return the operators of a program, those that another one calls by its arguments included."""
    called = (node for node in program.graph_module.graph.nodes if node.op == "call_function")
    return {str(one) for node in called for one in (node.target, *node.args) if hasattr(one, "_schema")}


def _is_core(call: str) -> bool:
    import torch

    space, name, overload = call.split(".")
    if space != "aten":
        return False
    return torch.Tag.core in getattr(getattr(torch.ops.aten, name), overload).tags or name in _NEAR_CORE


# What decompositions leave beside core operators: checks, copies, and a few that every exporter writes.
_NEAR_CORE = frozenset({"_assert_tensor_metadata", "lift_fresh_copy", "empty_like", "_assert_async", "_assert_scalar"})


_INPUTS = frozenset("float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 bool".split())


def _uncountable_inputs(sample: Any) -> str:
    import torch

    for one in sample.inputs:
        if one.layout is not torch.strided:
            return "sparse"
        if one.is_complex():
            return "complex"
        if str(one.dtype).removeprefix("torch.") not in _INPUTS:
            return f"input of {one.dtype}"
    return "" if sample.inputs else "no input"


def _uncountable_program(program: Any) -> str:
    import torch

    for node in program.graph_module.graph.nodes:
        if node.op != "call_function":
            continue
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags:
            return "random numbers"
        values = node.meta.get("val")
        for value in values if isinstance(values, (tuple, list)) else [values]:
            if isinstance(value, torch.Tensor) and not all(isinstance(extent, int) for extent in value.shape):
                return "a shape that depends on values"
            if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                return "a number that depends on values"
        name = str(node.target)
        if name.startswith(("aten.empty", "aten.new_empty")) and node.users:
            return "uninitialized memory"
        if name.startswith(("aten._native_batch_norm_legit.default", "aten._native_batch_norm_legit_functional")):
            return "training"
    return ""


def _work(dtypes: Sequence[str]) -> None:
    """Judge the operators named on standard input, one a line; write a record a line, and `done` behind each."""
    warnings.simplefilter("ignore")
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            for record in judge_operator(line.rstrip("\n"), dtypes):
                print(json.dumps(record), file=out, flush=True)
        except Exception as error:  # samples that cannot be made
            record = {"operator": line.strip(), "sample": "", "reason": f"samples: {error}"[:200]}
            print(json.dumps(record | {"verdict": "uncountable", "calls": [], "core": False}), file=out, flush=True)
        print("done", file=out, flush=True)


class _Worker:
    """A process that judges operators; one that dies or takes too long is replaced."""

    def __init__(self, seconds: float, dtypes: Sequence[str]) -> None:
        self.seconds, self.dtypes = seconds, dtypes
        self.process: subprocess.Popen[bytes] | None = None

    def judge(self, name: str) -> list[dict[str, Any]]:
        """Return the records of an operator."""
        process = self.process or self._start()
        assert process.stdin is not None and process.stdout is not None
        records: list[dict[str, Any]] = []
        timer = threading.Timer(self.seconds, process.kill)
        timer.start()
        try:
            process.stdin.write(f"{name}\n".encode())
            process.stdin.flush()
            for line in process.stdout:
                if line == b"done\n":
                    return records
                records.append(json.loads(line))
        except BrokenPipeError:
            pass
        finally:
            timer.cancel()
        self.stop()
        reason = f"its process died, or took more than {self.seconds:.0f} s"
        lost = {"operator": name, "sample": f"after {len(records)}", "verdict": "raw", "reason": reason}
        return [*records, lost | {"calls": [], "core": True}]

    def _start(self) -> subprocess.Popen[bytes]:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.conformance.torch", "--worker", "--dtypes", *self.dtypes],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        return self.process

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def judge_all(
    names: Iterable[str], workers: int, seconds: float, dtypes: Sequence[str] = DTYPES
) -> Iterator[dict[str, Any]]:
    """Yield the records of operators, judged in processes of their own."""
    local = threading.local()
    started: list[_Worker] = []

    def judge_one(name: str) -> list[dict[str, Any]]:
        if not hasattr(local, "worker"):
            local.worker = _Worker(seconds, dtypes)
            started.append(local.worker)
        return local.worker.judge(name)  # type: ignore[no-any-return]

    try:
        with ThreadPoolExecutor(max_workers=workers) as pool:
            for records in pool.map(judge_one, names):
                yield from records
    finally:
        for worker in started:
            worker.stop()


def show(records: Sequence[dict[str, Any]]) -> str:
    """Return the counts by operator, what does not pass, and the totals."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for record in records:
        counts[record["operator"]][record["verdict"]] += 1
    lines = [f"{'operator':44s}" + "".join(f"{one:>12s}" for one in VERDICTS)]
    lines += [f"{name:44s}" + "".join(f"{row[one] or '':>12}" for one in VERDICTS) for name, row in counts.items()]
    lines += [
        f"{one['verdict']}: {one['operator']} {one['sample']}: {one['reason']}"
        for one in records
        if one["verdict"] in ("refused", "wrong", "raw")
    ]
    for title, chosen in (("core", True), ("other", False)):
        total = Counter(one["verdict"] for one in records if one["core"] is chosen)
        countable = sum(total[one] for one in VERDICTS[:4])
        share = f" ({100 * total['passed'] / countable:.1f} % of {countable} pass)" if countable else ""
        lines.append(f"{title}: " + ", ".join(f"{total[one]} {one}" for one in VERDICTS) + share)
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Judge the operators; return 1 if one is wrong or raw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="operators, with wildcards")
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, help=f"of the samples; by default {', '.join(DTYPES)}")
    parser.add_argument("--results", type=Path, help="write the records here, as JSON")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="for all samples of an operator")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.worker:
        _work(options.dtypes)
        return 0
    from bench.conformance.torch_samples import operator_names

    names = [name for name in operator_names() if not options.only or any(fnmatch(name, one) for one in options.only)]
    records = []
    for record in judge_all(names, options.workers, options.seconds, options.dtypes):
        records.append(record)
        if options.results:
            options.results.write_text(json.dumps(records), encoding="utf-8")
    print(show(records))
    return int(any(one["verdict"] in ("wrong", "raw") for one in records))


if __name__ == "__main__":
    sys.exit(main())
