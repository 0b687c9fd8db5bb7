"""Run every operator of TFLite in each number format through import, build and run, against LiteRT.

    python -m bench.conformance_tflite [--only CONV_2D] [--verbose] [--docs]

Prints how many uses passed, were refused by name, gave other values (wrong) or ended in another error (raw). Float
values may differ by 2e-5 of the largest; quantized ones by one step from LiteRT's reference kernels or from its
optimized ones. --docs writes docs/tflite_operators.md.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.tflite_models import FORMATS, Array, Description, values_of, write
from bench.tflite_operators import descriptions, formats_of
from tvmflow.support.errors import TvmflowError, UnsupportedOperatorError

BOUND = 2e-5  # of the largest value: float32 sums in another order
STEPS = {"int8": 1, "int16x8": 4}  # of 65,536: LiteRT's tables for tanh and softmax have 14 bits
HYBRID_BOUND = 1e-2  # of the largest value: rounding of one activation to the next of 8 bits
DOCS = Path(__file__).resolve().parent.parent / "docs" / "tflite_operators.md"
Runner = Callable[[Any, Sequence[Array]], Sequence[Array]]


@dataclass(frozen=True)
class Verdict:
    """state: passed, refused, wrong, raw or absent (LiteRT has no such kernel); exact: equal to a kernel of LiteRT."""

    state: str
    note: str = ""
    exact: bool = False


def reference(content: bytes, inputs: Sequence[Array], plain: bool) -> list[tuple[Array, tuple[float, int]]]:
    """Return LiteRT's outputs and their scales. plain: its reference kernels. Raises RuntimeError or ValueError."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    resolver = OpResolverType.BUILTIN_REF if plain else OpResolverType.AUTO
    interpreter = Interpreter(model_content=content, num_threads=1, experimental_op_resolver_type=resolver)
    interpreter.allocate_tensors()
    for detail, value in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(detail["index"], in_type(value, detail))
    interpreter.invoke()
    return [(interpreter.get_tensor(d["index"]), d["quantization"]) for d in interpreter.get_output_details()]


def in_type(value: Array, detail: dict[str, Any]) -> Array:
    """Return real numbers in the type of an input of LiteRT."""
    dtype, (scale, zero) = np.dtype(detail["dtype"]), detail["quantization"]
    if dtype.kind not in "iu" or not scale:
        return value.astype(dtype)
    limits = np.iinfo(dtype)
    return np.clip(np.rint(value / scale) + zero, limits.min, limits.max).astype(dtype)


def inputs_of(description: Description) -> list[Array]:
    """Return the values of the inputs that the file does not hold."""
    return [
        values_of(given, at)
        for at, given in enumerate(description.inputs)
        if given.role == "data" and not given.is_constant
    ]


def bounds_of(description: Description) -> list[tuple[float, float]]:
    """Return the range of each output, as LiteRT computes it in float."""
    content, inputs = write(description, "float", ()), inputs_of(description)
    try:
        found = reference(content, inputs, False)
    except (RuntimeError, ValueError):
        found = reference(content, inputs, True)
    return [(float(value.min(initial=0)), float(value.max(initial=0))) for value, _ in found]


def judge(description: Description, number_format: str, run: Runner) -> Verdict:
    """Import and run one use, and compare it with LiteRT."""
    inputs = inputs_of(description)
    content = write(description, number_format, bounds_of(description))
    expected, missing = [], ""
    for plain in (True, False):
        try:
            expected.append(reference(content, inputs, plain))
        except (RuntimeError, ValueError) as error:
            missing = str(error).splitlines()[0][:120]
    if not expected:
        return Verdict("absent", missing)
    try:
        computed = run_file(content, inputs, run)
    except UnsupportedOperatorError as error:
        return Verdict("refused", error.found)
    except TvmflowError as error:
        return Verdict("raw", f"{type(error).__name__}: {error.found}")
    except Exception as error:  # anything else is what the command looks for
        return Verdict("raw", f"{type(error).__name__}: {str(error).splitlines()[-1:]}")
    differences = [_difference(computed, one, number_format) for one in expected]
    best = min(differences, key=lambda pair: pair[0])
    return Verdict("passed" if best[0] <= 1 else "wrong", best[1], any(pair[0] == 0 for pair in differences))


def _difference(computed: Sequence[Array], expected: Any, number_format: str) -> tuple[float, str]:
    """Return the largest difference in units of what is allowed, and a description."""
    if len(computed) != len(expected):
        return float("inf"), f"{len(computed)} outputs instead of {len(expected)}"
    worst, note = 0.0, ""
    for value, (wanted, (scale, zero)) in zip(computed, expected, strict=True):
        if value.shape != wanted.shape:
            return float("inf"), f"shape {value.shape} instead of {wanted.shape}"
        if not value.size:
            continue
        if scale:
            steps = np.rint(value / scale) + zero - wanted.astype(np.int64)
            found, note = (
                float(np.abs(steps).max()) / STEPS[number_format],
                f"{np.mean(steps != 0):.0%} of values, {np.abs(steps).max():.0f} steps",
            )
        elif wanted.dtype.kind == "f":
            bound = (HYBRID_BOUND if number_format == "dynamic range" else BOUND) * max(
                float(np.abs(wanted).max()), 1e-6
            )
            found = float(np.abs(value - wanted).max()) / bound
            found, note = (0.0 if found < 1e-3 else found), f"{found * bound:.2g}"
        else:
            found = 0.0 if value.dtype == wanted.dtype and np.array_equal(value, wanted) else float("inf")
            note = f"{np.mean(value != wanted):.0%} of values, {value.dtype} for {wanted.dtype}"
        worst = max(worst, found)
    return worst, note


def run_file(content: bytes, inputs: Sequence[Array], run: Runner) -> list[Array]:
    """Import a file as the stage does, with float32 for quantized inputs, and run it."""
    from ai_edge_litert.interpreter import Interpreter

    from tvmflow.frontends.registry import load_source
    from tvmflow.frontends.source_model import SourceDescription, TensorSpec
    from tvmflow.passes.pipeline import canonicalize

    details = Interpreter(model_content=content).get_input_details()
    specs = tuple(
        TensorSpec(
            str(detail["name"]),
            tuple(value.shape),
            "float32" if detail["quantization"][0] else np.dtype(detail["dtype"]).name,
        )
        for detail, value in zip(details, inputs, strict=True)
    )
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "model.tflite").write_bytes(content)
        source = load_source(Path(folder), SourceDescription("tensorflow", None, "model.tflite", specs))
        module = canonicalize(source.to_relax())
        given = [value.astype(spec.dtype) for value, spec in zip(inputs, specs, strict=True)]
        return list(run(module, given))


def build_and_run(module: Any, inputs: Sequence[Array]) -> Sequence[Array]:
    """Pack, compile and run a module, as `import_model` does for its check."""
    from tvmflow.backends.cpu import host_backend
    from tvmflow.codegen.compile import LocalRunner

    return LocalRunner.of_plain(module, host_backend()).run(*inputs)


def interpret(module: Any, inputs: Sequence[Array]) -> Sequence[Array]:
    """Run a module in numpy."""
    from tvmflow.ir.relax.graph import read_graph
    from tvmflow.ir.relax.numpy_interpreter import run_all

    return run_all(read_graph(module), tuple(inputs))


def main(argv: Sequence[str] | None = None) -> int:
    """Judge all uses; return 1 if any is wrong or raw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--interpret", action="store_true", help="run the import in numpy instead of building it")
    arguments = parser.parse_args(argv)
    verdicts: dict[str, dict[str, list[Verdict]]] = defaultdict(lambda: defaultdict(list))
    run = interpret if arguments.interpret else build_and_run
    for description in descriptions():
        if arguments.only and not description.name.startswith(arguments.only):
            continue
        for number_format in formats_of(description):
            verdict = judge(description, number_format, run)
            verdicts[description.operator][number_format].append(verdict)
            if arguments.verbose or verdict.state in ("wrong", "raw", "refused"):
                print(
                    f"{description.name:32} {number_format:16} {verdict.state:8} {verdict.exact!s:6} {verdict.note}",
                    flush=True,
                )
    return _summarize(verdicts)


def _summarize(verdicts: dict[str, dict[str, list[Verdict]]]) -> int:
    print(f"{'number format':16} passed  exact  refused  wrong  raw  not in LiteRT")
    bad = 0
    for number_format in FORMATS:
        found = [v for by_format in verdicts.values() for v in by_format.get(number_format, [])]
        count = Counter(verdict.state for verdict in found)
        exact = sum(verdict.exact for verdict in found)
        bad += count["wrong"] + count["raw"]
        print(
            f"{number_format:16} {count['passed']:6} {exact:6} {count['refused']:8} {count['wrong']:6} {count['raw']:4} "
            f"{count['absent']:14}"
        )
    return int(bad > 0)


if __name__ == "__main__":
    raise SystemExit(main())
