"""Link a network into one shared object without TVM: its kernels, its plan, its weights, and the runtime in C.

The kernels are the objects of the executable that tuning and build made, byte for byte. The weights lie in a read-only
section at a page's beginning, so that instances and processes share them. The file exports two names:
`tvmflow_network`, and the same with the network's own name behind it; runtime/include/tvmflow.h says what they return.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from tvmflow.backends.registry import simulated_driver
from tvmflow.codegen.compile import Scheduled
from tvmflow.codegen.network.bucket_tables import Bucket, BucketPlan, SizedOutputs, size_tables, with_shared_constants
from tvmflow.codegen.network.gpu_tables import gpu_tables, sources_of, write_codes
from tvmflow.codegen.network.image_tables import ImageInput, image_tables
from tvmflow.codegen.network.plan import Plan, Step, Value
from tvmflow.codegen.network.plan_reader import plan_of
from tvmflow.codegen.network.runtime_sources import ABI_VERSION, RUNTIME
from tvmflow.codegen.parallel_codegen import LLVM_KINDS, side_by_side
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.gpu_codegen.executable import ALIGNMENT as GPU_ALIGNMENT
from tvmflow.gpu_codegen.executable import Api, GpuCode, GpuExecutable
from tvmflow.passes.kernel.allocate_tensors import ALIGNMENT
from tvmflow.support.errors import StageError
from tvmflow.support.files import describe_file
from tvmflow.support.runtime_binding import network_binding
from tvmflow.toolchain.compilers import Command

_OBJECT_KINDS = (*LLVM_KINDS, "static_library")  # of TVM's modules: those that are written as an object file
_SOURCES = (
    "network.c",
    "device.c",
    "pool.c",
    "image.c",
    "scores.c",
    "arithmetic.c",
    "fallback.c",
    "sizes.c",
    "teams.c",
)
_PAGE = 16384  # bytes: Android's largest, and a multiple of all others'
_COMPILE = (
    "-x",
    "c",
    "-std=c11",
    "-O2",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffunction-sections",
    "-Wall",
    "-Wextra",
    "-Werror",
)
_LINK = (
    "-shared",
    "-fPIC",
    "-Wl,--as-needed",
    "-Wl,-Bsymbolic",
    "-Wl,--gc-sections",
    "-Wl,-z,noexecstack",
    "-Wl,-z,relro",
    "-Wl,-z,now",
    "-Wl,-z,text",
    f"-Wl,-z,max-page-size={_PAGE}",
    f"-Wl,-z,common-page-size={_PAGE}",
    "-Wl,--build-id=none",
    "-Wl,--no-undefined",
    "-Wl,-s",
)
# dtype -> (number in tvmflow.h, type code and bits of DLPack).
_DTYPES = {
    "float32": ("TVMFLOW_FLOAT32", 2, 32),
    "float16": ("TVMFLOW_FLOAT16", 2, 16),
    "bfloat16": ("TVMFLOW_BFLOAT16", 4, 16),
    "int8": ("TVMFLOW_INT8", 0, 8),
    "uint8": ("TVMFLOW_UINT8", 1, 8),
    "int32": ("TVMFLOW_INT32", 0, 32),
    "int64": ("TVMFLOW_INT64", 0, 64),
    "bool": ("TVMFLOW_BOOL", 6, 8),
}


@dataclass(frozen=True)
class Network:
    """What a library says of itself. cell: model@target:precision; threads: that it was tuned for; labels: of classes,
    or none.

    image: how images become its input; None where it takes none. tolerance: error of an output that the precision
    allows, relative to its spread. sized: what runs choose; None where all inputs have one shape.
    """

    cell: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]
    threads: int
    labels: tuple[str, ...] = ()
    image: ImageInput | None = None
    tolerance: float = 2.0e-3
    sized: SizedOutputs | None = None

    @property
    def symbol(self) -> str:
        """Return the exported function's name, which no other network of a process has."""
        return "tvmflow_network_" + self._plain

    @property
    def soname(self) -> str:
        """Return the name by which the linker of an app and the system's loader know the library."""
        return f"lib{self._plain}.so"

    @property
    def _plain(self) -> str:
        return re.sub(r"[^A-Za-z0-9]+", "_", self.cell)


def write_network(
    path: Path, scheduled: Scheduled, network: Network, compiler: Command, buckets: Sequence[Bucket] = ()
) -> dict[str, Any]:
    """Write the shared object of a network; returns what its manifest says. Raises StageError where there can be none.

    buckets: the smaller ones of a network whose runs choose sizes, in the order of `Sizes.all`.
    """
    executable = scheduled.executable
    others: list[BucketPlan] = []
    if isinstance(executable, GpuExecutable):
        plan = plan_of(scheduled.module, scheduled.backend.device_program, executable, GPU_ALIGNMENT)
        link(path, (), plan, network, compiler, gpu=executable)
    else:
        plan = plan_of(scheduled.module, scheduled.backend.device_program)
        others = [BucketPlan(b.sizes, plan_of(b.scheduled.module, scheduled.backend.device_program)) for b in buckets]
        others = with_shared_constants(plan, others)
        kernels = [
            module for one in (scheduled, *(b.scheduled for b in buckets)) for module in one.executable.mod.imports
        ]
        link(path, kernels, plan, network, compiler, others=others)
    file = describe_file(path)
    return {
        "file": path.name,
        "sha256": file.sha256,
        "size": file.size,
        "abi_version": ABI_VERSION,
        "symbol": network.symbol,
        "soname": network.soname,
        "arena_bytes": _arena_bytes(plan, others),
        "constant_bytes": constant_bytes(plan, others),
        "kernel_calls": len(plan.steps),
        "device": plan.design or None,
        "gpu": executable.api if isinstance(executable, GpuExecutable) else None,
        "textures": len(plan.textures),
    }


def link(
    path: Path,
    kernels: Sequence[Any],
    plan: Plan,
    network: Network,
    compiler: Command,
    runtime: Sequence[Path] = (),
    gpu: GpuExecutable | None = None,
    others: Sequence[BucketPlan] = (),
) -> None:
    """Link kernels, plan, weights and runtime. kernels: TVM's modules of them; runtime: its objects, where there are
    any; gpu: that runs the plan; others: of smaller buckets, with whose constants the plan's are shared.

    Raises StageError where the compiler refuses.
    """
    with tempfile.TemporaryDirectory(prefix="tvmflow-link-") as name:
        folder = Path(name)
        objects = kernel_objects(kernels, folder)
        write_constants(folder / "constants.bin", [plan, *(other.plan for other in others)])
        code = gpu.code(plan.widths) if gpu else None
        (folder / "plan.c").write_text(tables(plan, network, gpu, code, others), encoding="ascii")
        for at, other in enumerate(others):
            (folder / f"plan{at}.c").write_text(
                "\n".join(plan_tables(other.plan, network, f"plan{at}")) + "\n", encoding="ascii"
            )
        assembly = (write_codes(folder, code) if code else "") + _ASSEMBLY.format(page=_PAGE, file="constants.bin")
        (folder / "constants.S").write_text(assembly, encoding="ascii")
        (folder / "exports.map").write_text(
            f"{{ global: tvmflow_network; {network.symbol}; local: *; }};\n", encoding="ascii"
        )
        objects += [
            *(runtime or runtime_objects(folder, compiler, gpu.api if gpu else None)),
            *(
                _compile(folder / f"{name}.c", folder, compiler)
                for name in ("plan", *(f"plan{at}" for at in range(len(others))))
            ),
        ]
        objects.append(folder / "constants.o")
        _run(compiler.line("-c", "constants.S", "-o", str(objects[-1])), folder)
        names = [str(file.relative_to(folder) if file.is_relative_to(folder) else file) for file in objects]
        own = [f"-Wl,--version-script={folder / 'exports.map'}", f"-Wl,-soname,{network.soname}"]
        libraries = ["-lm", "-pthread", *(["-ldl"] if gpu else [])]
        _run(compiler.line(*_LINK, *own, "-o", str(path), *names, *libraries), folder)


def runtime_objects(folder: Path, compiler: Command, gpu: Api | None = None) -> list[Path]:
    """Compile the runtime to object files in a folder. gpu: the API by which a GPU is reached. Raises StageError where
    the compiler refuses.
    """
    sources = [RUNTIME / "src" / source for source in _SOURCES]
    sources += [RUNTIME / "gpu" / source for source in (sources_of(gpu) if gpu else ())]
    return side_by_side(lambda source: _compile(source, folder, compiler), sources)


def _compile(source: Path, folder: Path, compiler: Command) -> Path:
    compiled = folder / f"{source.stem}.o"
    include = [f"-I{RUNTIME / name}" for name in ("include", "src", "gpu")]
    places = [f"-ffile-prefix-map={folder}=.", f"-ffile-prefix-map={RUNTIME}=runtime"]
    _run(compiler.line(*_COMPILE, *include, *places, "-c", str(source), "-o", str(compiled)), folder)
    return compiled


def link_rpc(path: Path, compiler: Command) -> None:
    """Link what lets TVM's RPC server run a library of this architecture. Raises StageError where the compiler
    refuses.
    """
    _link_one([RUNTIME / "rpc" / "rpc.c", *sorted((RUNTIME / "measure").glob("*.c"))], path, compiler)


def link_jni(path: Path, compiler: Command) -> None:
    """Link the native part of the class tvmflow.Network; the compiler has to know jni.h. Raises StageError where it
    refuses.
    """
    _link_one([RUNTIME / "jni" / "tvmflow_jni.c"], path, compiler)


def _link_one(sources: Sequence[Path], path: Path, compiler: Command) -> None:
    include = [
        *(f"-I{RUNTIME / name}" for name in ("include", "src", "measure")),
        f"-ffile-prefix-map={RUNTIME}=runtime",
    ]
    as_c = (word for source in sources for word in ("-x", "c", str(source)))  # g++ forgets it after one file
    compiled = ["-fvisibility=default", *as_c, "-x", "none"]
    linked = [*_LINK, f"-Wl,-soname,{path.name}", "-o", str(path), "-pthread", "-ldl"]
    _run(compiler.line(*_COMPILE, *include, *compiled, *linked), path.parent)


class OpenedNetwork:
    """A network in this process, opened by the binding that apps use; a Runner. Its accelerator, if it has one, is
    simulated.
    """

    def __init__(self, path: Path, threads: int) -> None:
        self.network = network_binding().Network(path, threads, driver=simulated_driver)

    def run(self, *inputs: Any) -> tuple[Any, ...]:
        found = self.network(*inputs)
        return found if isinstance(found, tuple) else (found,)


def kernel_objects(modules: Sequence[Any], folder: Path) -> list[Path]:
    """Write the object files of TVM's modules of kernels. Raises StageError for code that is none of the CPU's."""
    objects = []
    for at, module in enumerate(modules):
        if module.kind == "c" and not module.inspect_source().strip(" ;\n"):
            continue  # TVM's module of a network that has no kernels
        if module.kind not in _OBJECT_KINDS:
            raise StageError(f"a module of kind {module.kind!r} among the kernels", "code for the CPU")
        objects.append((module, folder / f"kernels{at}.o"))
    return side_by_side(_written, objects)


def _written(item: tuple[Any, Path]) -> Path:
    module, path = item
    module.write_to_file(str(path), "o")
    return path


def write_constants(path: Path, plans: Sequence[Plan]) -> None:
    """Write all constants, each at its offset."""
    placed = {
        m.offset: plan.constants[m.index] for plan in plans for m in plan.memories if m.place == "constant" and m.size
    }
    with path.open("wb") as file:
        for offset, constant in sorted(placed.items(), key=lambda item: item[0]):
            file.write(bytes(offset - file.tell()))
            file.write(constant.tobytes())


_ASSEMBLY = """\
    .section .rodata.tvmflow,"a"
    .balign {page}
    .globl plan_constants
    .hidden plan_constants
plan_constants:
    .incbin "{file}"
    .byte 0
    .section .note.GNU-stack,""
"""


def tables(
    plan: Plan,
    network: Network,
    gpu: GpuExecutable | None = None,
    code: GpuCode | None = None,
    others: Sequence[BucketPlan] = (),
) -> str:
    """Return the plan as C."""
    kernels, arena, constants = len(plan.steps), _arena_bytes(plan, others), constant_bytes(plan, others)
    lines = [
        *plan_tables(plan, network, "plan", gpu, code, others),
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
        f"tvmflow_shape_of, tvmflow_run_sized, tvmflow_threads_of}};",
    ]
    for name in ("tvmflow_network", network.symbol):
        lines += [
            f"const tvmflow_api *{name}(void);",
            f'__attribute__((visibility("default"))) const tvmflow_api *{name}(void) {{ return &plan_api; }}',
        ]
    return "\n".join(lines) + "\n"


def plan_tables(
    plan: Plan,
    network: Network,
    name: str,
    gpu: GpuExecutable | None = None,
    code: GpuCode | None = None,
    others: Sequence[BucketPlan] = (),
) -> list[str]:
    """Return the tables of one plan as C, under a name; that of the largest bucket is `plan`."""
    kernels = sorted({step.kernel for step in plan.steps if step.program is None and step.launch is None})
    arguments = [at for step in plan.steps for at in step.given]
    starts = accumulate((len(step.arguments) for step in plan.steps), initial=0)
    loops = accumulate((len(step.loops) for step in plan.steps), initial=0)
    is_largest = name == "plan"
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
                f"{{{_function(step)}, {c_string(step.kernel)}, {start}, {len(step.arguments)}, "
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
        *(image_tables(image, plan.values[plan.inputs[0]].shape) if image else ()),
        *_programs(plan),
        *(gpu_tables(plan, gpu, code, c_string) if gpu and code else ()),
        *(size_tables(plan, sized, others) if sized else ()),
        f"const plan_tables {name} = {{values, arguments, steps, copies, inputs, outputs, plan_constants, "
        f"{len(plan.values)}, "
        f"{len(arguments)}, {len(plan.steps)}, {len(plan.copies)}, {'&image' if image else '(void *)0'}, "
        f"{'programs' if plan.programs else '(void *)0'}, {len(plan.programs)}, "
        f"{'&gpu' if gpu else '(void *)0'}, {'&sizes' if sized else '(void *)0'}}};",
    ]


def _function(step: Step) -> str:
    on_cpu = step.program is None and step.launch is None
    return f"__tvm_ffi_{step.kernel}" if on_cpu else "(plan_kernel)0"


def _programs(plan: Plan) -> Iterable[str]:
    """Return the tables of the accelerator's programs."""
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
    """Return the bytes of all constants, each at its alignment; others: of smaller buckets."""
    plans = (plan, *(other.plan for other in others))
    return max((m.offset + m.size for one in plans for m in one.memories if m.place == "constant"), default=0)


def _arena_bytes(plan: Plan, others: Sequence[BucketPlan]) -> int:
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
        raise StageError(f"a value {offset} bytes into its memory", f"multiples of {ALIGNMENT}, which kernels rely on")
    return (
        f"{{PLAN_{memory.place.upper()}, {code}, {bits}, {len(value.shape)}, {memory.index}, {offset}, "
        f"shape{at}, strides{at}}}"
    )


def _tensor(at: int, value: Value, name: str) -> str:
    return f"{{{c_string(name)}, shape{at}, {len(value.shape)}, {_DTYPES[value.dtype][0]}, {value.size}}}"


def _table(kind: str, name: str, rows: Iterable[str]) -> str:
    found = list(rows)
    # C has no empty arrays: one row that nobody reads.
    body = ",\n  ".join(found) if found else "0" if kind in ("uint32_t", "char *const") else "{0}"
    return f"static const {kind} {name}[] __attribute__((unused)) = {{\n  {body}\n}};"


def _sizes(name: str, sizes: Sequence[int]) -> str:
    return f"static const int64_t {name}[] = {{{', '.join(map(str, sizes)) or '0'}}};"


def c_string(text: str) -> str:
    """Return text as a C string literal in ASCII."""
    plain = set(range(32, 127)) - set(b'"\\?')
    return '"' + "".join(chr(byte) if byte in plain else f"\\{byte:03o}" for byte in text.encode()) + '"'


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    except OSError as error:
        raise StageError(
            f"no compiler {command[0]!r}: {error.strerror}", "the compiler of the target on PATH"
        ) from None
    if done.returncode:
        raise StageError(
            f"{command[0]} refuses the library: {done.stderr.strip()[-400:]}",
            "a compiler of C11 for the target's processor",
        )
