"""List the passes in order: from an imported network to kernels for LLVM or a GPU's code generator."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir.transform import Sequential
from tvm.tirx import compilation_pipeline

from tvmflow.ir.relax.recurrent import RECURRENT, register_recurrent
from tvmflow.ir.tir.flatten_buffer_fix import lower_with_fixed_indices
from tvmflow.ir.tvm_compat import IRModule
from tvmflow.passes.canonicalize.average_first import AverageFirst
from tvmflow.passes.canonicalize.bound_indices import BoundIndices
from tvmflow.passes.canonicalize.canonical_norms import CanonicalNorms
from tvmflow.passes.canonicalize.channels_first import ChannelsFirst
from tvmflow.passes.canonicalize.compute_in_float32 import ComputeInFloat32
from tvmflow.passes.canonicalize.flatten_dense import FlattenDense
from tvmflow.passes.canonicalize.fold_batch_norm import FoldBatchNorm
from tvmflow.passes.canonicalize.fold_constants import FoldConstants
from tvmflow.passes.canonicalize.merge_branches import MergeBranches
from tvmflow.passes.canonicalize.signals_to_rows import SignalsToRows
from tvmflow.passes.canonicalize.simplify_arithmetic import SimplifyArithmetic
from tvmflow.passes.canonicalize.sink_concat import SinkConcat
from tvmflow.passes.canonicalize.trim_dilated_kernels import TrimDilatedKernels
from tvmflow.passes.fuse.attention import FuseAttention
from tvmflow.passes.fuse.concatenate_in_place import ConcatInPlace
from tvmflow.passes.fuse.fuse_operators import FuseOperators, NoteCalls
from tvmflow.passes.fuse.inverted_residual import FuseInvertedResiduals
from tvmflow.passes.fuse.limit_inlining import LimitInlining
from tvmflow.passes.fuse.nest_concats import NestConcats
from tvmflow.passes.fuse.remove_dead_blocks import RemoveDeadBlocks
from tvmflow.passes.kernel.align_stack import align_stack
from tvmflow.passes.kernel.divide_paddings import divide_paddings
from tvmflow.passes.kernel.hoist_amx_config import HoistAmxConfig
from tvmflow.passes.kernel.join_gates import join_gates
from tvmflow.passes.kernel.keep_nan import KeepNan
from tvmflow.passes.kernel.keep_nan_of_reductions import keep_nan_of_reductions
from tvmflow.passes.kernel.link_arm_functions import link_arm_functions
from tvmflow.passes.kernel.load_biases import load_biases
from tvmflow.passes.kernel.normalize_booleans import normalize_booleans
from tvmflow.passes.kernel.prefetch_weights import prefetch_weights
from tvmflow.passes.kernel.stack_buffers import StackBuffers
from tvmflow.passes.kernel.transpose_tiles import transpose_tiles
from tvmflow.passes.kernel.unaligned_inputs import UnalignedInputs, mark_network_inputs
from tvmflow.passes.kernel.zero_border_only import zero_border_only
from tvmflow.passes.layout.channels_last_for_amx import ChannelsLastForAmx
from tvmflow.passes.layout.norm import NORMS, legalize_norm
from tvmflow.passes.legalize.along_axis import axis_legalizers
from tvmflow.passes.legalize.bfloat16 import legalize_astype, link_bfloat16_rounding
from tvmflow.passes.legalize.booleans import with_booleans
from tvmflow.passes.legalize.clip import clip_legalizers
from tvmflow.passes.legalize.convolutions import legalize_convolutions
from tvmflow.passes.legalize.gelu import legalize_gelu
from tvmflow.passes.legalize.int8_lookup_tables import Int8LookupTables
from tvmflow.passes.legalize.narrow import NarrowByInstruction
from tvmflow.passes.legalize.pools import legalize_max_pool2d
from tvmflow.passes.legalize.recurrent import legalize_recurrent
from tvmflow.passes.legalize.reductions import reduction_legalizers
from tvmflow.passes.legalize.resize import legalize_resize2d
from tvmflow.schedules.intrinsics import math_functions
from tvmflow.schedules.intrinsics.arm_tile import summed_in_tiles
from tvmflow.schedules.intrinsics.dot_product import find_dot
from tvmflow.targets.cpu_features import TILES_FOR, CpuFeatures

Pass = Any  # IRModule -> IRModule; module_pass makes ours callable in a way that type checkers cannot see
KERNEL_PIPELINE = "tvmflow"  # the name under which TVM knows our pipeline for kernels


def import_passes() -> list[Pass]:
    """Return the passes that canonicalize every imported network, whatever its framework."""
    return [
        FoldConstants(),
        ComputeInFloat32(),
        SimplifyArithmetic(),
        CanonicalNorms(),
        ChannelsFirst(),
        SignalsToRows(),
        SinkConcat(),
        FoldBatchNorm(),
        MergeBranches(),
        AverageFirst(),
        TrimDilatedKernels(),
        FlattenDense(),
        BoundIndices(),  # last: the check of what was imported expects its form
    ]


def lowering_passes(cpu: CpuFeatures, winograd: Mapping[str, int], has_gpu: bool) -> list[tuple[str, Pass]]:
    """Return name and pass of each step from packed Relax to fused kernels.

    winograd: convolution key -> tile size. has_gpu: leave out what relies on per-thread caches, and on tensors
    that lie inside others.
    """
    has_bfloat16_dot = find_dot(cpu, "bfloat16", cpu.channel_block, both_computed=True) is not None
    has_amx = bool(set(TILES_FOR.values()) & set(cpu.dots))
    has_vector_madd = "madd512" in cpu.dots
    passes: list[tuple[str, Pass, bool]] = [
        ("nest_concats", NestConcats(), not has_gpu),
        ("int8_lookup_tables", Int8LookupTables(), True),
        ("narrow_by_instruction", NarrowByInstruction(), True),
        ("fuse_attention", FuseAttention(cpu.channel_block, has_bfloat16_dot, summed_in_tiles(cpu)), not has_gpu),
        ("legalize_operators", _legalize_operators(winograd, cpu), True),
        ("annotate_patterns", relax.transform.AnnotateTIROpPattern(), True),
        ("fold_constants", relax.transform.FoldConstant(), True),
        ("limit_inlining", LimitInlining(), True),
        ("fuse_operators", FuseOperators(), True),
        ("fuse_kernels", relax.transform.FuseTIR(), True),
        ("remove_dead_blocks", RemoveDeadBlocks(), True),
        ("drop_dead_code", relax.transform.DeadCodeElimination(["main"]), True),
        ("fuse_inverted_residuals", FuseInvertedResiduals(cpu), has_vector_madd),
        ("channels_last_for_amx", ChannelsLastForAmx(), has_amx),
        ("note_calls", NoteCalls(), True),
        ("concat_in_place", ConcatInPlace(), not has_gpu),
    ]
    return [(name, step) for name, step, applies in passes if applies]


def kernel_passes(target: Any) -> list[Pass]:
    """Return the passes over scheduled kernels. target: tvm.target.Target of the kernels."""
    return [
        mark_network_inputs,
        normalize_booleans,
        zero_border_only,
        divide_paddings,
        load_biases,
        prefetch_weights,
        transpose_tiles,
        functools.partial(join_gates, target=target),
        functools.partial(align_stack, target=target),
        functools.partial(keep_nan_of_reductions, target=target),
        functools.partial(link_bfloat16_rounding, target=target),
        functools.partial(link_arm_functions, target=target),
    ]


def host_passes() -> list[Pass]:
    """Return our passes over CPU kernels lowered to runtime calls."""
    return [skip_argument_checks(), StackBuffers(), HoistAmxConfig(), UnalignedInputs(), KeepNan()]


def skip_argument_checks() -> Pass:
    """Return the pass that removes what TVM checks whenever a kernel is called: types, shapes and devices of all its
    arguments, half of the code of a network. Only a network calls its kernels, with the tensors of its own plan.
    """
    return tirx.transform.SkipAssert()


def canonicalize(mod: IRModule) -> Any:
    """Apply import_passes to an imported module."""
    return _apply(import_passes(), mod)


def prepare_kernels(mod: IRModule, target: Any) -> Any:
    """Apply kernel_passes to a module of scheduled kernels, and register our intrinsics and pipeline with TVM."""
    math_functions.register()
    register_kernel_pipeline()
    return _apply(kernel_passes(target), mod)


@functools.cache
def register_kernel_pipeline() -> None:
    """Register KERNEL_PIPELINE with TVM in this process."""
    compilation_pipeline.PIPELINE_MAP[KERNEL_PIPELINE] = kernel_pipeline


def kernel_pipeline() -> tuple[Any, Any, Any]:
    """Return TVM's default passes for kernels, for the host (preceded by ours) and for devices."""
    lower, for_host, for_device = compilation_pipeline.get_tir_pipeline("default")
    return lower_with_fixed_indices(lower), lambda: Sequential([*host_passes(), for_host()]), for_device


def _legalize_operators(winograd: Mapping[str, int], cpu: CpuFeatures) -> Pass:
    """Return the pass that lowers each operator to TIR, by our table or else by TVM's."""
    register_recurrent()
    ours = {
        RECURRENT: functools.partial(legalize_recurrent, cpu=cpu),
        **clip_legalizers(),
        **with_booleans({**axis_legalizers(), **reduction_legalizers()}),
        **legalize_convolutions(winograd),
        **dict.fromkeys(NORMS, legalize_norm),
        "relax.nn.gelu": legalize_gelu,
        "relax.nn.max_pool2d": legalize_max_pool2d,
        "relax.astype": legalize_astype,
        "relax.image.resize2d": legalize_resize2d,
    }
    return Sequential([relax.transform.LegalizeOps(ours), relax.transform.DeadCodeElimination(["main"])])


def _apply(passes: list[Pass], mod: tvm.IRModule) -> tvm.IRModule:
    for step in passes:
        mod = step(mod)
    return mod
