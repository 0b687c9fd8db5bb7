"""List the operators that a PyTorch program may call: converted ones, and those that PyTorch decomposes.

PyTorch registers operators that access the machine (`aten::from_file` maps any file for reading and writing,
`aten::save` writes one), and every release adds others: so this is an allowlist.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable

import torch
from torch._decomp import core_aten_decompositions

from tvmflow.frontends.pytorch.complex_numbers import names_of_complex
from tvmflow.frontends.pytorch.converters import REFUSED, converters, operators_of_tvm
from tvmflow.frontends.pytorch.decompositions import decomposed_names

# Operators on sizes, lists and texts in TorchScript; tracing removes all of them.
_SCRIPT_ONLY = frozenset(
    """
    Bool ComplexImplicit Delete Float FloatImplicit Int IntImplicit Size __and__ __contains__ __derive_index __getitem__
    __interpolate __is__ __isnot__ __lshift__ __not__ __or__ __range_length __round_to_zero_floordiv __rshift__ __xor__
    _set_item _unwrap_optional _list_to_tensor _tensor_to_list add and append bool ceil clear complex copy count device
    dict dim dtype endswith eq extend find float floor floordiv format ge get gt index insert int is_autocast_enabled
    is_complex is_contiguous is_floating_point is_grad_enabled is_nested items join keys layout le len list log lower lt
    max min mod mul ne neg not numel ord percentFormat pop pow prod remainder remove replace reverse rstrip scalar
    setdefault size slice sorted split sqrt startswith stride strip sub sum tensor type unchecked_unwrap_optional update
    upper values warn stack cpu to is_cuda is_quantized is_sparse is_meta is_mkldnn requires_grad data shape ndim T mT H
    grad name backward_is_none set_grad_enabled
    """.split()
)
_PRIMS = frozenset(
    """
    NumToTensor RaiseException Uninitialized abs data device dtype grad id is_cpu is_cuda is_meta is_mkldnn is_nested
    is_quantized is_sparse itemsize layout max min name ndim nbytes ones_like rangelist requires_grad shape tolist type
    unchecked_cast unchecked_unwrap_optional unwrap_optional TupleUnpack ListUnpack TupleIndex isinstance
    """.split()
)
# Values of numbers alone, which are constants of the network.
_MADE_OF_NUMBERS = frozenset(
    "bartlett_window blackman_window kaiser_window fft_fftfreq fft_rfftfreq range tril_indices triu_indices".split()
)
# Fused layers for inference, in branches of PyTorch's own modules that a recorded run does not take.
_FUSED = frozenset(
    """
    _native_multi_head_attention _transformer_encoder_layer_fwd _nested_tensor_from_mask
    _nested_tensor_from_mask_left_aligned to_padded_tensor
    """.split()
)
_NEVER = frozenset({"set_", "set_data", "from_file", "save", "load"})


@functools.cache
def known_operators() -> frozenset[str]:
    """Return the names, without overloads, of the tensor operators that a program may call."""
    known = {name.split(".")[0] for name in (*operators_of_tvm(), *converters())}
    known |= names_of_complex() | decomposed_names() | _MADE_OF_NUMBERS | _FUSED
    known |= {op._schema.name.split("::")[1] for op in core_aten_decompositions() if hasattr(op, "_schema")}
    composite = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
    known |= {re.split("::|[.]", name)[1] for name in composite if name.startswith("aten::")}
    return frozenset(known - _NEVER)


@functools.cache
def registered_operators() -> frozenset[str]:
    """Return the names of all operators of this PyTorch, without namespaces and overloads."""
    return frozenset(schema.name.split("::")[-1] for schema in torch._C._jit_get_all_schemas())


def unknown_operators(names: Iterable[str]) -> list[str]:
    """Return the unknown operators of a program; in-place variants count as the others."""
    known = known_operators()
    return sorted({name for name in names if name in _NEVER or not {name, name.removesuffix("_")} & known})


def sized_by_values(names: Iterable[str]) -> list[str]:
    """Return those of operators, with overloads, that make sizes of values."""
    return sorted(name for name in names if "values" in REFUSED.get(name.split(".")[0], ""))


def unknown_in_script(code: str) -> list[str]:
    """Return the unknown calls in TorchScript code. Raises ValueError for other code.

    An operator can be called as `torch.NAME`, `ops.SPACE.NAME` and as a method of a tensor, so every attribute counts.
    """
    if not re.fullmatch(r"[\x20-\x7e\n\t]*", code) or "\\\n" in code:
        raise ValueError("code with characters that TorchScript never writes")
    tree = ast.parse(code)
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    attributes |= set(re.findall(r"\.\s*([A-Za-z_]\w*)", code))
    attributes |= {
        part.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr")
        for part in node.args
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }
    doubtful = (attributes & registered_operators()) - _SCRIPT_ONLY - _PRIMS
    return sorted({*(set(unknown_operators(doubtful)) - _declared_attributes(tree)), *_find_misuse(tree)})


def _declared_attributes(tree: ast.AST) -> set[str]:
    """Return the attributes that classes declare, but those with the name of an operator that takes a text: a file's
    name.
    """
    names = {
        node.target.id
        for owner in ast.walk(tree)
        if isinstance(owner, ast.ClassDef)
        for node in owner.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    schemas = torch._C._jit_get_all_schemas() if names else []
    takes_text = {
        s.name.split("::")[-1] for s in schemas if any("str" in str(argument.type) for argument in s.arguments)
    }
    return names - takes_text - _NEVER


def _find_misuse(tree: ast.AST) -> set[str]:
    """Return uses of `torch` and `ops` that are no call of a known operator, and methods that run while a model
    loads.
    """
    seen: set[int] = set()
    misused = {
        n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name in ("__setstate__", "__getstate__")
    }
    for node in ast.walk(tree):  # from the outside in: ops.prim.NAME before ops.prim
        if not isinstance(node, ast.Attribute):
            continue
        owner = node.value.value if isinstance(node.value, ast.Attribute) else node.value
        if not isinstance(owner, ast.Name) or owner.id != ("ops" if isinstance(node.value, ast.Attribute) else "torch"):
            continue
        seen.add(id(owner))
        space = node.value.attr if isinstance(node.value, ast.Attribute) else "torch"
        listed = {"torch": _SCRIPT_ONLY, "aten": _SCRIPT_ONLY, "prim": _PRIMS}.get(space, frozenset())
        if node.attr not in listed and (space not in ("torch", "aten") or unknown_operators([node.attr])):
            misused.add(ast.unparse(node))
    return misused | {
        n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id in ("torch", "ops") and id(n) not in seen
    }
