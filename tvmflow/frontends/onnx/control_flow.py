"""Convert `If`, `Loop` and `Scan` whose condition or count is known at import, and sequences of tensors.

A branch or a body that reads data is converted like any other node; only the condition and the count must be known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

from tvmflow.frontends.onnx.files import subgraphs_of
from tvmflow.frontends.onnx.nodes import RefusedNodeError, Value, dims, expression

MAX_NODES = 20000  # of an unrolled loop
SPLIT = (
    "split the model there, run the parts one after the other, and decide between them in the program that calls them"
)


def reads(node: Any, scope: Any, unknown: Any) -> bool:
    """Whether a subgraph of a node reads a value that is unknown."""
    for attribute in node.attribute:
        for graph in subgraphs_of(attribute):
            own = {name for inner in graph.node for name in inner.output}
            for inner in graph.node:
                if any(name not in own and scope.get(name) is unknown for name in inner.input):
                    return True
                if reads(inner, scope, unknown):
                    return True
    return False


def _graph(node: Any, name: str) -> Any:
    return next(one.g for one in node.attribute if one.name == name)


def _run_graph(importer: Any, graph: Any, scope: Any, given: Sequence[Value] = ()) -> list[Value]:
    inner = scope.new_child({one.name: np.asarray(onnx.numpy_helper.to_array(one)) for one in graph.initializer})
    inner.update(zip((value.name for value in graph.input), given, strict=False))
    importer.run_nodes(graph.node, inner)
    return [inner[value.name] for value in graph.output]


def _if(importer: Any, node: Any, inputs: list[Value], scope: Any) -> list[Value]:
    condition = inputs[0]
    if not isinstance(condition, np.ndarray):
        raise RefusedNodeError(f"its condition depends on the data; {SPLIT}")
    return _run_graph(importer, _graph(node, "then_branch" if condition.all() else "else_branch"), scope)


def _loop(importer: Any, node: Any, inputs: list[Value], scope: Any) -> list[Value]:
    body = _graph(node, "body")
    count = None if inputs[0] is None else _known(inputs[0], "its number of turns")
    going = True if len(inputs) < 2 or inputs[1] is None else bool(_known(inputs[1], "its condition"))
    state, collected, turn = list(inputs[2:]), [], 0
    while going and (count is None or turn < count):
        if turn * max(len(body.node), 1) > MAX_NODES:
            raise RefusedNodeError(f"more than {turn} turns of {len(body.node)} nodes each; {SPLIT}")
        found = _run_graph(importer, body, scope, [np.asarray(turn, np.int64), np.asarray(True), *state])
        going = bool(_known(found[0], "its condition"))
        state, rest = found[1 : 1 + len(state)], found[1 + len(state) :]
        collected.append(rest)
        turn += 1
    scans = len(node.output) - len(state)
    if scans and not collected:
        raise RefusedNodeError("no turn, and outputs that are collected over the turns")
    return [*state, *(_stack(importer, [row[place] for row in collected]) for place in range(scans))]


def _scan(importer: Any, node: Any, inputs: list[Value], scope: Any) -> list[Value]:
    """Unroll a Scan: its number of turns is a size, which is known."""
    body, given = _graph(node, "body"), {one.name: one for one in node.attribute}
    count = given["num_scan_inputs"].i
    if importer.versions.get("", 1) < 9:
        raise RefusedNodeError("Scan of opset 8, with a batch; export the model with a later opset")
    scanned = inputs[len(inputs) - count :]
    state, outputs = list(inputs[: len(inputs) - count]), len(node.output) - (len(inputs) - count)

    def of(name: str, number: int) -> list[int]:
        return list(given[name].ints) if name in given else [0] * number

    axes = [axis % len(dims(value)) for axis, value in zip(of("scan_input_axes", count), scanned, strict=True)]
    turns = dims(scanned[0])[axes[0]]
    if turns * len(body.node) > MAX_NODES:
        raise RefusedNodeError(f"{turns} turns of {len(body.node)} nodes each (at most {MAX_NODES} nodes); {SPLIT}")
    collected: list[list[Value]] = []
    for turn in range(turns):
        parts = []
        for value, axis, backwards in zip(scanned, axes, of("scan_input_directions", count), strict=True):
            place = turns - 1 - turn if backwards else turn
            parts.append(_at(importer, value, axis, place))
        found = _run_graph(importer, body, scope, [*state, *parts])
        state = found[: len(state)]
        collected.append(found[len(state) :])
    stacked = []
    options = zip(of("scan_output_axes", outputs), of("scan_output_directions", outputs), strict=True)
    for place, (axis, backwards) in enumerate(options):
        row = [values[place] for values in (collected[::-1] if backwards else collected)]
        stacked.append(_stack(importer, row, axis % (len(dims(row[0])) + 1)))
    return [*state, *stacked]


def _at(importer: Any, value: Value, axis: int, place: int) -> Value:
    if isinstance(value, np.ndarray):
        return np.take(value, place, axis)
    shape = [size for at, size in enumerate(dims(value)) if at != axis]
    return importer.emitter.reshape_to(importer.emitter.slice_axis(value, axis, place, place + 1), shape)


def _has_element(_importer: Any, _node: Any, inputs: list[Value], _scope: Any) -> list[Value]:
    return [np.asarray(bool(inputs) and inputs[0] is not None)]


def _optional(_importer: Any, _node: Any, inputs: list[Value], _scope: Any) -> list[Value]:
    return [inputs[0] if inputs else None]


def _known(value: Value, what: str) -> Any:
    if not isinstance(value, np.ndarray):
        raise RefusedNodeError(f"{what} depends on the data; {SPLIT}")
    return value.reshape(-1)[0]


def _stack(importer: Any, values: list[Value], axis: int = 0) -> Value:
    if all(isinstance(value, np.ndarray) for value in values):
        return np.stack(values, axis)
    parts = [importer.emitter.expand_dims(value, axis) for value in values]
    return parts[0] if len(parts) == 1 else importer.emitter.concat(parts, axis)


def _constant(importer: Any, node: Any, _inputs: list[Value], _scope: Any) -> list[Value]:
    one = node.attribute[0]
    if one.name == "value":
        return [np.asarray(onnx.numpy_helper.to_array(one.t))]
    if one.name == "sparse_value":
        return [dense_of(one.sparse_tensor)]
    if one.name.startswith("value_int"):
        return [np.asarray(onnx.helper.get_attribute_value(one), np.int64)]
    if one.name.startswith("value_float"):
        return [np.asarray(onnx.helper.get_attribute_value(one), np.float32)]
    raise RefusedNodeError(f"a constant of strings ({one.name})")


def dense_of(sparse: Any) -> Any:
    """Return a sparse tensor as a dense one."""
    values = onnx.numpy_helper.to_array(sparse.values)
    indices = onnx.numpy_helper.to_array(sparse.indices)
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    if indices.ndim == 1:
        dense.reshape(-1)[indices] = values
    else:
        dense[tuple(indices.T)] = values
    return dense


def _shape(_importer: Any, node: Any, inputs: list[Value], _scope: Any) -> list[Value]:
    given = {one.name: one.i for one in node.attribute}
    return [np.asarray(dims(inputs[0])[given.get("start", 0) : given.get("end")], np.int64)]


def _place(inputs: list[Value], at: int, otherwise: int) -> int:
    if at >= len(inputs) or inputs[at] is None:
        return otherwise
    return int(_known(inputs[at], "its position"))


def _sequence_insert(_importer: Any, _node: Any, inputs: list[Value], _scope: Any) -> list[Value]:
    values = list(inputs[0])
    place = _place(inputs, 2, len(values))
    values.insert(place, inputs[1])
    return [values]


def _sequence_erase(_importer: Any, _node: Any, inputs: list[Value], _scope: Any) -> list[Value]:
    values = list(inputs[0])
    del values[_place(inputs, 1, -1)]
    return [values]


def _concat_sequence(importer: Any, node: Any, inputs: list[Value], _scope: Any) -> list[Value]:
    given = {one.name: one.i for one in node.attribute}
    values = inputs[0]
    if given.get("new_axis", 0):
        return [_stack(importer, values, given["axis"])]
    if all(isinstance(value, np.ndarray) for value in values):
        return [np.concatenate(values, given["axis"])]
    return [importer.emitter.concat([expression(value) for value in values], given["axis"])]


def _split_sequence(importer: Any, node: Any, inputs: list[Value], _scope: Any) -> list[Value]:
    given = {one.name: one.i for one in node.attribute}
    value, axis = inputs[0], given.get("axis", 0) % len(dims(inputs[0]))
    length = dims(value)[axis]
    if len(inputs) > 1 and inputs[1] is not None:
        _known(inputs[1], "its split")
        numbers = inputs[1]
        chunk = int(numbers) if numbers.ndim == 0 else 0
        sizes = [min(chunk, length - at) for at in range(0, length, chunk)] if chunk else [int(n) for n in numbers]
        kept = True
    else:
        sizes, kept = [1] * length, bool(given.get("keepdims", 1))
    ends = np.cumsum(sizes)
    parts = [importer.emitter.slice_axis(value, axis, end - size, end) for size, end in zip(sizes, ends, strict=True)]
    return [parts if kept else [importer.emitter.squeeze(part, [axis]) for part in parts]]


Special = Callable[[Any, Any, list[Value], Any], list[Value]]
SPECIAL: dict[tuple[str, str], Special] = {
    ("", name): function
    for name, function in {
        "If": _if,
        "Loop": _loop,
        "Scan": _scan,
        "Optional": _optional,
        "OptionalGetElement": _optional,
        "OptionalHasElement": _has_element,
        "Constant": _constant,
        "Identity": lambda _importer, _node, inputs, _scope: [inputs[0]],
        "Shape": _shape,
        "Size": lambda _importer, _node, inputs, _scope: [np.asarray(np.prod(dims(inputs[0]), dtype=np.int64))],
        "SequenceConstruct": lambda _importer, _node, inputs, _scope: [list(inputs)],
        "SequenceEmpty": lambda _importer, _node, _inputs, _scope: [[]],
        "SequenceAt": lambda _importer, _node, inputs, _scope: [inputs[0][_place(inputs, 1, 0)]],
        "SequenceInsert": _sequence_insert,
        "SequenceErase": _sequence_erase,
        "SequenceLength": lambda _importer, _node, inputs, _scope: [np.asarray(len(inputs[0]), np.int64)],
        "ConcatFromSequence": _concat_sequence,
        "SplitToSequence": _split_sequence,
    }.items()
}
LIMITS = {
    ("", "If"): "the condition must not depend on the data",
    ("", "Loop"): "the number of turns must not depend on the data",
    **{key: "positions must not depend on the data" for key in SPECIAL if "Sequence" in key[1]},
}
