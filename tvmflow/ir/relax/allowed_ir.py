"""Refuse IR that could do more than compute: what a sandbox wrote is checked before TVM reads it.

TVM's JSON can call any registered function of the process (packed calls, external functions), and import LLVM or C text
by annotations of loops and blocks. So each kind of node, operator and annotation must be listed here. No operator
that takes indices and that no importer writes is. Knows nothing of values: an index outside of its buffer is not found.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from tvmflow.support.errors import ModelFileError

_RELAX = frozenset(
    """
    abs acos acosh add arange argmax argmin argsort asin asinh astype atan atan2 atanh bitwise_and bitwise_not
    bitwise_or bitwise_xor broadcast_to bucketize ceil clip collapse_sum_like collapse_sum_to concat cos cosh cumprod
    cumsum dequantize divide einsum equal erf ewise_fma exp expand_dims eye eye_like flatten flip floor floor_divide
    floor_mod full full_like gather_elements gather_nd greater greater_equal hamming_window image.affine_grid
    image.resize2d image.resize3d isfinite isinf isnan layout_transform left_shift less less_equal log log_add_exp
    logical_and logical_not logical_or logical_xor matmul max maximum mean meshgrid min minimum mod multiply
    negative nn.adaptive_avg_pool1d nn.adaptive_avg_pool2d nn.adaptive_avg_pool3d nn.attention nn.attention_bias
    nn.avg_pool1d nn.avg_pool2d nn.avg_pool3d nn.batch_flatten nn.batch_norm nn.conv1d nn.conv1d_transpose nn.conv2d
    nn.conv2d_transpose nn.conv3d nn.conv3d_transpose nn.cross_entropy_with_logits nn.dropout nn.gelu nn.gelu_tanh
    nn.group_norm nn.instance_norm nn.layer_norm nn.leakyrelu nn.log_softmax nn.max_pool1d nn.max_pool2d nn.max_pool3d
    nn.pad nn.pixel_shuffle nn.prelu nn.relu nn.rms_norm nn.selu nn.silu nn.softmax nn.softplus not_equal one_hot ones
    ones_like outer permute_dims power prod quantize repeat reshape right_shift round rsqrt scatter_elements
    scatter_nd sigmoid sign sin sinh size sort split sqrt square squeeze stack std strided_slice subtract sum take tan
    tanh tile topk tril triu trunc variance vision.roi_align where zeros zeros_like
    call_tir
    """.split()
)
_SCALAR = frozenset(
    """
    abs acos acosh asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or bitwise_xor ceil clz copysign cos cosh
    erf exp exp10 exp2 fabs floor fma fmod hypot if_then_else isfinite isinf isnan ldexp likely log log10 log1p log2
    nearbyint nextafter popcount pow q_multiply_shift reinterpret round rsqrt shift_left shift_right sigmoid sin sinh
    sqrt tan tanh trunc
    """.split()
)
_OWN = ("tvmflow.recurrent",)
_TYPES = frozenset(
    """
    None bool int float DataType ffi.Array ffi.Map ffi.String ffi.Tensor ir.Call ir.DictAttrs ir.FloatImm
    ir.GenericConst ir.GlobalVar ir.IRModule ir.IntImm ir.Op ir.PointerType ir.PrimType ir.Range ir.SourceMap
    ir.SequentialSpan ir.SourceName ir.Span ir.TensorLoad ir.TensorRegion ir.Tuple ir.TupleGetItem ir.TupleType ir.Var
    prim.Add prim.And prim.BitwiseAnd prim.BitwiseNot
    prim.BitwiseOr prim.BitwiseXor prim.Broadcast prim.Cast prim.Div prim.EQ prim.FloorDiv prim.FloorMod prim.GE prim.GT
    prim.LE prim.LShift prim.LT prim.Let prim.Max prim.Min prim.Mod prim.Mul prim.NE prim.Not prim.Or prim.RShift
    prim.Ramp prim.Select prim.Sub relax.FuncType relax.ShapeType relax.TensorType relax.expr.BindingBlock
    relax.expr.Constant relax.expr.DataflowBlock relax.expr.DataflowVar relax.expr.Function relax.expr.SeqExpr
    relax.expr.ShapeExpr relax.expr.VarBinding s_tir.MatchBufferRegion s_tir.SBlock s_tir.SBlockRealize
    tirx.AllocBuffer tirx.Axis tirx.Bind tirx.BufferRegionType tirx.BufferStore tirx.BufferType tirx.DeclBuffer
    tirx.Evaluate tirx.For tirx.IfThenElse
    tirx.Iter tirx.IterVar tirx.PrimFunc tirx.SeqStmt tirx.TileLayout
    """.split()
)
_ATTRIBUTES = re.compile(r"relax\.attrs\.\w+Attrs", re.ASCII)
_KEYS = frozenset("global_symbol num_input op_pattern recurrence s_tir tirx.noalias layout_free_placeholders".split())
_ANNOTATED = {"ir.DictAttrs": "__dict__", "tirx.For": "annotations", "s_tir.SBlock": "annotations"}
_DTYPE = re.compile(r"(float(16|32|64)|bfloat16|u?int(1|8|16|32|64)|bool|handle|void|)(x\d{1,3})?", re.ASCII)
_SYMBOL = re.compile(r"[A-Za-z_]\w{0,255}", re.ASCII)
_MAX_NODES, _MAX_TEXT, _MAX_EXTENT = 20_000_000, 1 << 16, 1 << 40


def check_ir(graph: Mapping[str, Any]) -> None:
    """Raise ModelFileError, with its name, for the first node that is not allowed; other errors if it is no IR."""
    nodes = graph["nodes"]
    if len(nodes) > _MAX_NODES:
        raise _not_allowed(f"{len(nodes)} nodes")
    for place, node in enumerate(nodes):
        kind, data = node["type"], node.get("data")
        if kind not in _TYPES and not _ATTRIBUTES.fullmatch(kind):
            name = data.get("global_symbol") if isinstance(data, dict) else None
            raise _not_allowed(kind if name is None else f"{kind} {_text(nodes, name)!r}")
        _check_order(kind, data, place)
        _check_nothing_missing(kind, data, nodes)
        if kind == "ir.Op" and not _is_operator(str(data)):
            raise _not_allowed(f"a call of {str(data)[:200]!r}")
        if kind == "ffi.String" and (len(data) > _MAX_TEXT or not data.isprintable()):
            raise _not_allowed(f"the text {data[:50]!r}")
        if kind == "DataType" or kind == "ir.PrimType":
            dtype = data if kind == "DataType" else data["dtype"]
            if not _DTYPE.fullmatch(dtype):
                raise _not_allowed(f"the dtype {dtype[:50]!r}")
        elif kind == "ir.GlobalVar":
            _check_symbol(_text(nodes, data["name_hint"]))
        elif kind in ("relax.ShapeType", "relax.expr.ShapeExpr"):
            _check_extents(nodes, data["values"])
        elif kind in _ANNOTATED:
            _check_keys(nodes, data[_ANNOTATED[kind]])


def _check_order(kind: str, data: Any, place: int) -> None:
    """Raise ValueError for a node that refers to itself or a later one: TVM would read a cycle without end."""
    if isinstance(data, list):
        parts = data
    elif isinstance(data, dict) and kind not in ("int", "float", "bool"):
        parts = [part for name, part in data.items() if name not in _numbers_of(kind)]
    else:
        return
    for part in parts:
        if isinstance(part, dict | list) or (isinstance(part, int) and not 0 <= part < place):
            raise ValueError(f"{kind} refers to {str(part)[:50]!r}")


def _check_nothing_missing(kind: str, data: Any, nodes: Sequence[Any]) -> None:
    """Raise ValueError for a null where TVM expects a node: it would read there."""
    if isinstance(data, list):
        parts = {str(at): part for at, part in enumerate(data)}
    elif isinstance(data, dict) and kind not in ("int", "float", "bool"):
        parts = {name: part for name, part in data.items() if name not in _numbers_of(kind) | _optional_of(kind)}
    elif data is None and kind != "None":
        raise ValueError(f"{kind} without contents")
    else:
        return
    for name, part in parts.items():
        if part is None or (type(part) is int and nodes[part]["type"] == "None"):
            raise ValueError(f"{kind} without {name[:50]!r}")


@cache
def _fields_of(kind: str) -> dict[str, str]:
    """Return the type of each field of a kind of node, "" where TVM does not say."""
    from tvm_ffi import core

    info: Any = core._lookup_or_register_type_info_from_type_key(kind)
    found = dict[str, str]()
    while info is not None:
        for field in info.fields or ():
            found[field.name] = json.loads((field.metadata or {}).get("type_schema", "{}")).get("type", "")
        info = info.parent_type_info
    return found


@cache
def _numbers_of(kind: str) -> frozenset[str]:
    """Return the fields of a kind of node that hold numbers themselves, not those of nodes."""
    return frozenset(name for name, own in _fields_of(kind).items() if own in ("int", "float", "bool"))


@cache
def _optional_of(kind: str) -> frozenset[str]:
    """Return the fields of a kind of node that may hold nothing."""
    return frozenset(name for name, own in _fields_of(kind).items() if own in ("", "Optional", "ir.Span", "ir.Attrs"))


def _is_operator(name: str) -> bool:
    dialect, _, rest = name.partition(".")
    return rest in {"relax": _RELAX, "tirx": _SCALAR, "prim": _SCALAR}.get(dialect, ()) or name in _OWN


def _text(nodes: Sequence[Any], place: Any) -> str:
    """Return the text of a node that is one, or that stands in place of its number."""
    return str(place if isinstance(place, str) else nodes[place].get("data"))[:300]


def _check_symbol(name: str) -> None:
    if not _SYMBOL.fullmatch(name):
        raise _not_allowed(f"a function with the name {name[:100]!r}")


def _check_extents(nodes: Sequence[Any], place: int) -> None:
    for item in nodes[place].get("data") or ():
        value = nodes[item]
        if value["type"] != "ir.IntImm":
            continue  # a size that is an expression: its parts are nodes
        number = value["data"]["value"]  # of a node; TVM 0.26 writes the number itself there
        if 0 <= number < len(nodes) and nodes[number]["type"] == "int":
            number = nodes[number]["data"]
        if not 0 <= number <= _MAX_EXTENT:
            raise _not_allowed(f"the size {number}")


def _check_keys(nodes: Sequence[Any], place: int) -> None:
    """Check names of attributes or annotations."""
    entries = nodes[place].get("data") or ()
    for key, value in zip(entries[::2], entries[1::2], strict=True):
        name = _text(nodes, key)
        if name not in _KEYS:
            raise _not_allowed(f"the attribute {name!r}")
        if name == "global_symbol":
            _check_symbol(_text(nodes, value))


def _not_allowed(what: str) -> ModelFileError:
    return ModelFileError(
        f"the IR that was made of the model holds {what}",
        "operators that only compute (what reads a model file is not trusted)",
        "import the model again; if it is the same, report it with the model",
    )
