"""Link a network into one shared object without TVM: kernels, plan, weights and the C runtime.

The kernels are the objects of the executable that tuning and build compiled, byte for byte. The weights are in a
read-only section at a page boundary, so that instances and processes share them. The file exports two symbols:
`tvmflow_network`, and the same with the network's own name as suffix; runtime/include/tvmflow.h documents them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tvmflow.backends.manifest import NetworkFile
from tvmflow.backends.plan_summary import PLAN_NAME
from tvmflow.codegen.compile import Scheduled
from tvmflow.codegen.network.api_table import arena_bytes, constant_bytes, write_plan_tables, write_tables
from tvmflow.codegen.network.bucket_tables import Bucket, BucketPlan, share_constants
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.gpu_tables import CLML, sources_of, write_codes
from tvmflow.codegen.network.library_formats import ELF_FORMAT, format_of
from tvmflow.codegen.network.plan import Plan
from tvmflow.codegen.network.plan_reader import plan_of
from tvmflow.codegen.network.plan_summary import summarize_plan
from tvmflow.codegen.network.runtime_sources import ABI_VERSION, RUNTIME, digest_of_runtime
from tvmflow.codegen.parallel_codegen import LLVM_KINDS, run_in_threads
from tvmflow.gpu_codegen.executable import ALIGNMENT as GPU_ALIGNMENT
from tvmflow.gpu_codegen.executable import GpuExecutable
from tvmflow.passes.fuse.fuse_operators import read_calls
from tvmflow.support.errors import StageError
from tvmflow.support.files import describe_file
from tvmflow.support.json_values import write_json
from tvmflow.support.temporary import temporary_folder
from tvmflow.toolchain.compiled_objects import compile_once
from tvmflow.toolchain.compilers import Command

_OBJECT_KINDS = (*LLVM_KINDS, "static_library")  # kinds of TVM's modules that are written as object files
_INCLUDES = tuple(f"-I{RUNTIME / name}" for name in ("include", "src", "gpu"))


def write_network(
    path: Path, scheduled: Scheduled, network: Network, compiler: Command, buckets: Sequence[Bucket] = ()
) -> NetworkFile:
    """Write the shared object of a network; return its entry in the manifest. Raises StageError if that is impossible.

    buckets: the smaller ones of a network with dynamic sizes, in the order of `Sizes.all`.
    """
    executable = scheduled.executable
    others: list[BucketPlan] = []
    if isinstance(executable, GpuExecutable):
        if network.states:
            raise StageError(
                "a network with states for a GPU", "a target of kind llvm", "give its states with each run"
            )
        plan = plan_of(scheduled.module, scheduled.backend.device_program, executable, GPU_ALIGNMENT)
        # It has no code of the CPU's but the runtime's, which is for all processors.
        link(path, (), plan, replace(network, flags=()), compiler, gpu=executable)
    else:
        plan = plan_of(scheduled.module, scheduled.backend.device_program)
        others = [BucketPlan(b.sizes, plan_of(b.scheduled.module, scheduled.backend.device_program)) for b in buckets]
        others = share_constants(plan, others)
        kernels = [
            module for one in (scheduled, *(b.scheduled for b in buckets)) for module in one.executable.mod.imports
        ]
        link(path, kernels, plan, network, compiler, others=others)
    write_json(path.with_name(PLAN_NAME), summarize_plan(plan, read_calls(scheduled.module)))
    file = describe_file(path)
    return NetworkFile(
        file=path.name,
        sha256=file.sha256,
        size=file.size,
        abi_version=ABI_VERSION,
        symbol=network.symbol,
        soname=format_of(compiler).file_name(network),
        arena_bytes=arena_bytes(plan, others),
        constant_bytes=constant_bytes(plan, others),
        kernel_calls=len(plan.steps),
        device=plan.design or None,
        gpu=executable.api if isinstance(executable, GpuExecutable) else None,
        textures=len(plan.textures),
    )


def link(
    path: Path,
    kernels: Sequence[Any],
    plan: Plan,
    network: Network,
    compiler: Command,
    gpu: GpuExecutable | None = None,
    others: Sequence[BucketPlan] = (),
) -> None:
    """Link kernels, plan, weights and runtime. Raises StageError if the compiler fails.

    kernels: TVM's modules; gpu: the executable that runs the plan; others: plans of
    smaller buckets, with which the plan shares constants.
    """
    with temporary_folder("link") as name:
        folder = Path(name)
        objects = kernel_objects(kernels, folder)
        write_constants(folder / "constants.bin", [plan, *(other.plan for other in others)])
        code = gpu.code(plan.widths) if gpu else None
        has_layers = any(step.layer for step in plan.steps)
        (folder / "plan.c").write_text(write_tables(plan, network, gpu, code, others), encoding="ascii")
        for at, other in enumerate(others):
            (folder / f"plan{at}.c").write_text(
                "\n".join(write_plan_tables(other.plan, network, f"plan{at}")) + "\n", encoding="ascii"
            )
        form = format_of(compiler)
        embedding = form.write_constants_source(folder, "constants.bin", write_codes(folder, code) if code else "")
        objects += [
            *_runtime_objects(folder, compiler, gpu, has_layers),
            *([_compile_clml(folder, compiler, gpu.clml_includes)] if has_layers and gpu else ()),
            *(
                _compile(folder / f"{name}.c", folder, compiler)
                for name in ("plan", *(f"plan{at}" for at in range(len(others))))
            ),
        ]
        objects.append(folder / "constants.o")
        _run(compiler.line(*form.constants_options, "-c", embedding.name, "-o", str(objects[-1])), folder)
        if command := form.link_command(compiler, folder, network, objects, path, gpu is not None):
            _run(command, folder)


def _runtime_objects(
    folder: Path, compiler: Command, gpu: GpuExecutable | None = None, has_layers: bool = False
) -> list[Path]:
    """Compile the runtime to object files in a folder, with the host code of a GPU, which calls CLML for its layers.
    Raises StageError if the compiler fails.
    """
    sources = [RUNTIME / source for source in format_of(compiler).sources]
    sources += [RUNTIME / "gpu" / source for source in (sources_of(gpu.api, has_layers) if gpu else ())]
    defines = gpu.defines if gpu else ()
    return run_in_threads(lambda source: _compile_runtime(source, folder, compiler, defines), sources)


def _compile_clml(folder: Path, compiler: Command, includes: Sequence[Path]) -> Path:
    """Compile the host code of CLML with the headers of the user's SDK, whose warnings are not ours."""
    compiled, given = folder / "clml.o", (word for one in includes for word in ("-isystem", str(one)))
    options = [option for option in ELF_FORMAT.compile if option not in ("-Werror", "-Wextra")]
    place = f"-ffile-prefix-map={RUNTIME}=runtime"
    source = RUNTIME / "gpu" / CLML
    _run(compiler.line(*options, *_INCLUDES, *given, place, "-c", str(source), "-o", str(compiled)), folder)
    return compiled


def _compile_runtime(source: Path, folder: Path, compiler: Command, defines: Sequence[str]) -> Path:
    """Copy the object of a source of the runtime into a folder, compiled where no earlier link has done it."""
    arguments = [
        *format_of(compiler).compile,
        *_INCLUDES,
        *defines,
        f"-ffile-prefix-map={RUNTIME}=runtime",
        "-c",
        str(source),
    ]

    def build(path: Path) -> None:
        _run(compiler.line(*arguments, "-o", str(path)), path.parent)

    kept = compile_once(compiler, arguments, digest_of_runtime(), ".o", build)
    return Path(shutil.copyfile(kept, folder / f"{source.stem}.o"))


def _compile(source: Path, folder: Path, compiler: Command) -> Path:
    compiled = folder / f"{source.stem}.o"
    place = f"-ffile-prefix-map={folder}=."
    _run(compiler.line(*format_of(compiler).compile, *_INCLUDES, place, "-c", str(source), "-o", str(compiled)), folder)
    return compiled


def link_rpc(path: Path, compiler: Command) -> None:
    """Link the library with which TVM's RPC server runs libraries of this architecture. Raises StageError if the
    compiler fails.
    """
    arguments = _arguments([RUNTIME / "rpc" / "rpc.c", *sorted((RUNTIME / "measure").glob("*.c"))], path)

    def build(made: Path) -> None:
        _run(compiler.line(*arguments, "-o", str(made)), made.parent)

    shutil.copy(compile_once(compiler, arguments, digest_of_runtime(), ".so", build), path)


def link_jni(path: Path, compiler: Command) -> None:
    """Link the native part of the class tvmflow.Network; needs jni.h. Raises StageError if the compiler fails."""
    _run(compiler.line(*_arguments([RUNTIME / "jni" / "tvmflow_jni.c"], path), "-o", str(path)), path.parent)


def _arguments(sources: Sequence[Path], path: Path) -> list[str]:
    """Return what compiles and links sources to a library of that name, but for the option that names it."""
    include = [
        *(f"-I{RUNTIME / name}" for name in ("include", "src", "measure")),
        f"-ffile-prefix-map={RUNTIME}=runtime",
    ]
    as_c = (word for source in sources for word in ("-x", "c", str(source)))  # g++ applies it to one file only
    compiled = ["-fvisibility=default", *as_c, "-x", "none"]
    return [*ELF_FORMAT.compile, *include, *compiled, *ELF_FORMAT.link, f"-Wl,-soname,{path.name}", "-pthread", "-ldl"]


def kernel_objects(modules: Sequence[Any], folder: Path) -> list[Path]:
    """Write the object files of TVM's modules of kernels. Raises StageError for code of other processors."""
    objects = []
    for at, module in enumerate(modules):
        if module.kind == "c" and not module.inspect_source().strip(" ;\n"):
            continue  # TVM's module of a network without kernels
        if module.kind not in _OBJECT_KINDS:
            raise StageError(f"a module of kind {module.kind!r} among the kernels", "code for the CPU")
        objects.append((module, folder / f"kernels{at}.o"))
    return run_in_threads(_write_object, objects)


def _write_object(item: tuple[Any, Path]) -> Path:
    module, path = item
    module.write_to_file(str(path), "o")
    return path


def write_constants(path: Path, plans: Sequence[Plan]) -> None:
    """Write all constants at their offsets."""
    placed = {
        m.offset: plan.constants[m.index] for plan in plans for m in plan.memories if m.place == "constant" and m.size
    }
    with path.open("wb") as file:
        for offset, constant in sorted(placed.items(), key=lambda item: item[0]):
            file.write(bytes(offset - file.tell()))
            file.write(constant.tobytes())


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "TMPDIR": str(folder)},  # where a killed compiler leaves its files
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    except OSError as error:
        raise StageError(
            f"no compiler {command[0]!r}: {error.strerror}", "the compiler of the target on PATH"
        ) from None
    if done.returncode:
        raise StageError(
            f"{command[0]} refuses the library: {done.stderr.strip()[-400:]}",
            "a compiler of C11 for the target's processor",
        )
