"""Generate the C tables of a library: the plan of each bucket, and the API table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np

from tvmflow.codegen.network.bucket_tables import BucketPlan, size_tables
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.gpu_tables import gpu_tables
from tvmflow.codegen.network.image_tables import image_tables
from tvmflow.codegen.network.plan import Plan, Step, Value
from tvmflow.gpu_codegen.executable import GpuCode, GpuExecutable
from tvmflow.passes.kernel.allocate_tensors import ALIGNMENT
from tvmflow.support.errors import StageError

# dtype -> (number in tvmflow.h, type code and bits of DLPack).
_DTYPES = {
    "float32": ("TVMFLOW_FLOAT32", 2, 32),
    "float16": ("TVMFLOW_FLOAT16", 2, 16),
    "bfloat16": ("TVMFLOW_BFLOAT16", 4, 16),
    "int8": ("TVMFLOW_INT8", 0, 8),
    "uint8": ("TVMFLOW_UINT8", 1, 8),
    "int16": ("", 0, 16),  # constants only
    "int32": ("TVMFLOW_INT32", 0, 32),
    "int64": ("TVMFLOW_INT64", 0, 64),
    "bool": ("TVMFLOW_BOOL", 6, 8),
}


def write_tables(
    plan: Plan,
    network: Network,
    gpu: GpuExecutable | None = None,
    code: GpuCode | None = None,
    others: Sequence[BucketPlan] = (),
) -> str:
    """Return the C source of the plan and the API table."""
    kernels, arena, constants = len(plan.steps), arena_bytes(plan, others), constant_bytes(plan, others)
    lines = [
        *write_plan_tables(plan, network, "plan", gpu, code, others),
        f"const tvmflow_api plan_api = {{TVMFLOW_ABI_VERSION, sizeof(tvmflow_api), "
        f"{c_string(network.cell)}, {len(plan.inputs)}, {len(plan.outputs)}, "
        f"{kernels}, {network.threads}, {arena}, {constants},",
        "  tvmflow_input, tvmflow_output, tvmflow_create, tvmflow_run, tvmflow_destroy, "
        "tvmflow_last_error, tvmflow_set_profiling,",
        f"  tvmflow_profile_of, {'labels' if network.labels else '(void *)0'}, {len(network.labels)}, tvmflow_top_k,",
        f"  {network.inputs[0].shape[0] if network.image else 0}, tvmflow_run_image, tvmflow_classify, "
        f"{c_string(plan.design) if plan.design else '(void *)0'}, tvmflow_create_on, "
        f"{c_string(gpu.api) if gpu else '(void *)0'}, tvmflow_create_on_gpu, tvmflow_processor_of, "
        f"{network.tolerance!r}, tvmflow_create_with_gpu,",
        f"  {len(network.sized.sizes.names) if network.sized else 0}, tvmflow_size_of, tvmflow_sizes_of, "
        f"tvmflow_shape_of, tvmflow_run_sized, tvmflow_threads_of, {len(network.states)}, tvmflow_state_of, "
        "tvmflow_state_reset};",
    ]
    for name in ("tvmflow_network", network.symbol):
        lines += [
            f"const tvmflow_api *{name}(void);",
            f'__attribute__((visibility("default"))) const tvmflow_api *{name}(void) {{ return &plan_api; }}',
        ]
    return "\n".join(lines) + "\n"


def write_plan_tables(
    plan: Plan,
    network: Network,
    name: str,
    gpu: GpuExecutable | None = None,
    code: GpuCode | None = None,
    others: Sequence[BucketPlan] = (),
) -> list[str]:
    """Return the tables of one plan as C, with a name; that of the largest bucket is `plan`."""
    kernels = sorted({step.kernel for step in plan.steps if _is_function(step)})
    arguments = [at for step in plan.steps for at in step.given]
    starts = accumulate((len(step.arguments) for step in plan.steps), initial=0)
    loops = accumulate((len(step.loops) for step in plan.steps), initial=0)
    is_largest = name == "plan"
    has_states, has_flags = is_largest and bool(network.states), is_largest and bool(network.flags)
    image, sized = (network.image, network.sized) if is_largest else (None, None)
    lines = ['#include "plan.h"', "", "extern const unsigned char plan_constants[];"]
    lines += [f"int __tvm_ffi_{name}(void *, const plan_any *, int32_t, plan_any *);" for name in kernels]
    for at, value in enumerate(plan.values):
        lines += [_sizes(f"shape{at}", value.shape), _sizes(f"strides{at}", strides(value.shape))]
    return [
        *lines,
        _table("plan_value", "values", (_value(at, value, plan) for at, value in enumerate(plan.values))),
        _table("uint32_t", "arguments", map(str, arguments)),
        _table("uint32_t", "loops", (str(extent) for step in plan.steps for extent in step.loops)),
        _table(
            "plan_step",
            "steps",
            (
                f"{{{_function_pointer(step)}, {c_string(step.kernel)}, {start}, {len(step.arguments)}, "
                f"{0 if step.program is None else step.program + 1}, {len(step.loops)}, loops + {first}}}"
                for step, start, first in zip(plan.steps, starts, loops, strict=False)
            ),
        ),
        _table("plan_copy", "copies", (f"{{{a}, {b}, {plan.values[a].size}}}" for a, b in plan.copies)),
        _table(
            "tvmflow_tensor",
            "inputs",
            (_tensor(at, plan.values[at], spec.name) for at, spec in zip(plan.inputs, network.inputs, strict=True)),
        ),
        _table(
            "tvmflow_tensor",
            "outputs",
            (_tensor(at, plan.values[at], output) for at, output in zip(plan.outputs, network.outputs, strict=True)),
        ),
        *([_table("char *const", "labels", map(c_string, network.labels))] if is_largest else ()),
        *([_table("char *const", "flags", (*map(c_string, network.flags), "(void *)0"))] if has_flags else ()),
        *(image_tables(image, plan.values[plan.inputs[0]].shape) if image else ()),
        *_program_tables(plan),
        *(gpu_tables(plan, gpu, code, c_string) if gpu and code else ()),
        *(size_tables(plan, sized, others) if sized else ()),
        *(_state_tables(network) if has_states else ()),
        f"const plan_tables {name} = {{values, arguments, steps, copies, inputs, outputs, plan_constants, "
        f"{len(plan.values)}, "
        f"{len(arguments)}, {len(plan.steps)}, {len(plan.copies)}, {'&image' if image else '(void *)0'}, "
        f"{'programs' if plan.programs else '(void *)0'}, {len(plan.programs)}, "
        f"{'&gpu' if gpu else '(void *)0'}, {'&sizes' if sized else '(void *)0'}, "
        f"{'states' if has_states else '(void *)0'}, {'flags' if has_flags else '(void *)0'}}};",
    ]


def _state_tables(network: Network) -> Iterable[str]:
    """Yield the table of states, and the bytes with which they begin."""
    dtypes, rows = {spec.name: spec.dtype for spec in network.inputs}, []
    for at, (state, (given, made)) in enumerate(zip(network.states, network.state_places(), strict=True)):
        first = np.asarray(state.initial).astype(dtypes[state.input]).tobytes() if state.initial else b""
        if first:
            yield _table("unsigned char", f"initial{at}", map(str, first))
        rows.append(f"{{{given}, {made}, {f'initial{at}' if first else '(void *)0'}, {len(first)}}}")
    yield _table("plan_state", "states", rows)


def _function_pointer(step: Step) -> str:
    return f"__tvm_ffi_{step.kernel}" if _is_function(step) else "(plan_kernel)0"


def _is_function(step: Step) -> bool:
    """Whether the CPU computes a step."""
    return step.program is None and step.launch is None and step.layer is None


def _program_tables(plan: Plan) -> Iterable[str]:
    """Yield the tables of the accelerator's programs."""
    rows = []
    for at, placed in enumerate(plan.programs):
        program, (image, code) = placed.program, (plan.memories[place] for place in (placed.image, placed.code))
        launches, spans = program.launches, (*program.inputs, *program.outputs)
        yield _table("plan_launch", f"launches{at}", (f"{{{offset}, {count}}}" for offset, count in launches))
        yield _table("plan_span", f"spans{at}", (f"{{{span.offset}, {span.size}}}" for span in spans))
        rows.append(
            f"{{{{{image.offset}, {image.size}}}, {{{code.offset}, {code.size}}}, {program.image_at}, "
            f"{program.memory_bytes}, launches{at}, spans{at}, "
            f"{len(launches)}, {len(program.inputs)}, {len(program.outputs)}}}"
        )
    if rows:
        yield _table("plan_program", "programs", rows)


def constant_bytes(plan: Plan, others: Sequence[BucketPlan] = ()) -> int:
    """Return the bytes of all constants with alignment; others: plans of smaller buckets."""
    plans = (plan, *(other.plan for other in others))
    return max((m.offset + m.size for one in plans for m in one.memories if m.place == "constant"), default=0)


def arena_bytes(plan: Plan, others: Sequence[BucketPlan]) -> int:
    return max(one.arena_bytes for one in (plan, *(other.plan for other in others)))


def strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a compact tensor, in elements."""
    found, step = [], 1
    for size in reversed(shape):
        found.append(step)
        step *= size
    return tuple(reversed(found))


def _value(at: int, value: Value, plan: Plan) -> str:
    memory = plan.memories[value.memory]
    _, code, bits = _DTYPES[value.dtype]
    offset = value.offset + (memory.offset if memory.place in ("constant", "arena") else 0)
    if offset % ALIGNMENT:
        raise StageError(
            f"a value at offset {offset} of its memory", f"a multiple of {ALIGNMENT}, which kernels require"
        )
    return (
        f"{{PLAN_{memory.place.upper()}, {code}, {bits}, {len(value.shape)}, {memory.index}, {offset}, "
        f"shape{at}, strides{at}}}"
    )


def _tensor(at: int, value: Value, name: str) -> str:
    return f"{{{c_string(name)}, shape{at}, {len(value.shape)}, {_DTYPES[value.dtype][0]}, {value.size}}}"


def _table(kind: str, name: str, rows: Iterable[str]) -> str:
    found = list(rows)
    # C has no empty arrays: add one unused row.
    body = ",\n  ".join(found) if found else "0" if kind in ("uint32_t", "char *const") else "{0}"
    return f"static const {kind} {name}[] __attribute__((unused)) = {{\n  {body}\n}};"


def _sizes(name: str, sizes: Sequence[int]) -> str:
    return f"static const int64_t {name}[] = {{{', '.join(map(str, sizes)) or '0'}}};"


def c_string(text: str) -> str:
    """Return text as a C string literal in ASCII."""
    plain = set(range(32, 127)) - set(b'"\\?')
    return '"' + "".join(chr(byte) if byte in plain else f"\\{byte:03o}" for byte in text.encode()) + '"'
