"""Run programs: the function that libraries call, and the devices behind it.

`register` puts `tvmflow.vta.run` into TVM's table of functions. It is called with a blob, the inputs and the outputs, all in
VTA's layout. The blob is a region (computed by its definition, for checks before there is a program) or a program, which goes
to a driver: the simulator, or a board.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

import numpy as np

from tvmflow.errors import ProgramError, TvmflowError
from tvmflow.vta.config import COUNTERS_FUNCTION, RUN_FUNCTION, VtaConfig
from tvmflow.vta.counters import Counters, count
from tvmflow.vta.execution import run_launch
from tvmflow.vta.isa import decode_all, encode_all
from tvmflow.vta.program import Launch, Program, Tensor
from tvmflow.vta.region import Region, Shape, from_blob, pack, region_from, run_region, to_blob, unpack
from tvmflow.vta.simulator import Simulator

Array = np.ndarray[Any, Any]
MAX_PROGRAMS = 4
MAX_DRAM_BYTES = 1 << 31


def program_to_blob(program: Program) -> bytes:
    """Return a program as bytes: description, instruction words, constants."""
    text = {
        "config": program.config.to_json(),
        "launches": [[launch.name, len(launch.instructions)] for launch in program.launches],
        "constants_at": program.constants_at, "dram_bytes": program.dram_bytes,
        "values": [asdict(tensor) for tensor in program.values],
        "inputs": [tensor.name for tensor in program.inputs], "outputs": [tensor.name for tensor in program.outputs],
    }  # fmt: skip
    words = [encode_all(program.config, launch.instructions) for launch in program.launches]
    return to_blob("program", text, {"instructions": np.concatenate(words), "constants": program.constants})


def program_from(text: Mapping[str, Any], arrays: Mapping[str, Array]) -> Program:
    """Return the program of a description and its arrays. Raises ProgramError when they do not fit together."""
    try:
        config = VtaConfig.from_json(text["config"])
        words, launches, at = arrays["instructions"], [], 0
        for name, size in text["launches"]:
            launches.append(Launch(str(name), tuple(decode_all(config, words[at : at + size]))))
            at += size
        values = {
            entry["name"]: Tensor(entry["name"], int(entry["address"]), tuple(entry["shape"]))
            for entry in text["values"]
        }
        constants, constants_at, dram_bytes = arrays["constants"], int(text["constants_at"]), int(text["dram_bytes"])
        inputs, outputs = (tuple(values[name] for name in text[word]) for word in ("inputs", "outputs"))
    except (KeyError, TypeError, ValueError) as error:
        raise ProgramError(f"a damaged VTA program: {error!r}", "a program that build wrote") from None
    ends = [tensor.address + tensor.nbytes for tensor in values.values()] + [constants_at + constants.size]
    if at != len(words) or max(ends) > dram_bytes or dram_bytes > MAX_DRAM_BYTES:
        raise ProgramError("a VTA program whose parts lie outside of its memory", f"at most {MAX_DRAM_BYTES} bytes")
    return Program(
        config, tuple(launches), constants, constants_at, dram_bytes, tuple(values.values()), inputs, outputs
    )


class Driver(Protocol):
    """A device that runs programs. `load` may be slow; `run` takes and gives packed int8 arrays."""

    def load(self, program: Program) -> Callable[[list[Array]], list[Array]]: ...


class SimulatorDriver:
    """The simulator as a device: DRAM is kept from run to run, on-chip memory is not."""

    def __init__(self, order: str = "load-eager") -> None:
        self.order = order

    def load(self, program: Program) -> Callable[[list[Array]], list[Array]]:
        memory = dram_of(program)
        machine = Simulator(program.config, memory)

        def run(inputs: list[Array]) -> list[Array]:
            for tensor, values in zip(program.inputs, inputs, strict=True):
                write_tensor(memory, tensor, values)
            for launch in program.launches:
                machine.forget()
                run_launch(launch, machine, self.order)
            return [read_tensor(memory, tensor) for tensor in program.outputs]

        return run


def dram_of(program: Program) -> Array:
    """Return the DRAM that a program starts with."""
    memory = np.zeros(program.dram_bytes, np.uint8)
    memory[program.constants_at : program.constants_at + program.constants.size] = program.constants
    return memory


def write_tensor(memory: Array, tensor: Tensor, values: Array) -> None:
    """Put packed int8 values into DRAM. Raises ProgramError for another shape."""
    if tuple(values.shape) != tensor.shape or values.dtype != np.int8:
        raise ProgramError(f"{tensor.name} as {values.dtype} {tuple(values.shape)}", f"int8 {tensor.shape}")
    memory[tensor.address : tensor.address + tensor.nbytes] = values.reshape(-1).view(np.uint8)


def read_tensor(memory: Array, tensor: Tensor) -> Array:
    """Return packed int8 values out of DRAM."""
    return memory[tensor.address : tensor.address + tensor.nbytes].view(np.int8).reshape(tensor.shape).copy()


class Runtime:
    """What stands behind `tvmflow.vta.run` in a process: loaded programs, by digest, and what ran."""

    def __init__(self, config: VtaConfig | None, driver: Driver) -> None:
        self.config, self.driver = config, driver
        self._loaded: OrderedDict[bytes, Callable[[list[Array]], list[Array]]] = OrderedDict()
        self._outputs: dict[bytes, int] = {}
        self._counters: dict[bytes, Counters] = {}
        self.runs, self.last = 0, Counters()

    def run(self, blob: Any, *tensors: Any) -> None:
        """Compute: tensors are the inputs and then the outputs, which are written. Raises RuntimeError, of one line.

        The error goes through TVM and the network, where its type is lost and one line survives.
        """
        try:
            self._run(blob, *tensors)
        except TvmflowError as error:
            raise RuntimeError(f"{error.found}; expected: {error.expected}".replace("\n", " ")) from error

    def _run(self, blob: Any, *tensors: Any) -> None:
        data, arrays = np.from_dlpack(blob), [np.from_dlpack(tensor) for tensor in tensors]
        digest = data[:32].tobytes()
        if digest not in self._loaded:
            self._load(digest, data.tobytes())
        self._loaded.move_to_end(digest)
        count_outputs = self._outputs[digest]
        inputs, outputs = arrays[: len(arrays) - count_outputs], arrays[len(arrays) - count_outputs :]
        for target, answer in zip(outputs, self._loaded[digest](inputs), strict=True):
            target[...] = answer
        self.runs, self.last = self.runs + 1, self._counters.get(digest, Counters())

    def counters(self) -> str:
        """Return, as JSON, how often this process ran a program and what the last one cost."""
        return json.dumps({"runs": self.runs, **self.last.to_json()})

    def _load(self, digest: bytes, blob: bytes) -> None:
        text, arrays = from_blob(blob)
        if text.get("kind") == "region":
            region = region_from(text, arrays)
            self._loaded[digest], self._outputs[digest] = _definition(region), len(region.outputs)
        else:
            program = program_from(text, arrays)
            if self.config is not None and program.config != self.config:
                raise ProgramError(f"a program for {program.config.name}", f"one for {self.config.name}, this device")
            self._loaded[digest], self._outputs[digest] = self.driver.load(program), len(program.outputs)
            every = (i for launch in program.launches for i in launch.instructions)
            self._counters[digest] = count(program.config, every)
        while len(self._loaded) > MAX_PROGRAMS:
            self._loaded.popitem(last=False)


def _definition(region: Region) -> Callable[[list[Array]], list[Array]]:
    shapes = region.shapes()

    def run(inputs: list[Array]) -> list[Array]:
        values = {n: unpack(x, shapes[n]) for n, x in zip(region.inputs, inputs, strict=True)}
        answers = run_region(region, values)
        return [_packed_like(inputs[0], answers[name]) for name in region.outputs]

    return run


def _packed_like(packed: Array, x: Array) -> Array:
    """Pack with the batch and block that another packed value has."""
    batch, block = packed.shape[4:]
    return pack(VtaConfig(log_batch=batch.bit_length() - 1, log_block=block.bit_length() - 1), x)


def register(config: VtaConfig | None = None, driver: Driver | None = None) -> Runtime:
    """Provide `tvmflow.vta.run` and `tvmflow.vta.counters` in this process. config: refuse programs for any other."""
    import tvm_ffi

    runtime = Runtime(config, driver or SimulatorDriver())
    tvm_ffi.register_global_func(RUN_FUNCTION, runtime.run, override=True)
    tvm_ffi.register_global_func(COUNTERS_FUNCTION, runtime.counters, override=True)
    return runtime


def layer_values(program: Program, inputs: Mapping[str, Array], shapes: Mapping[str, Shape]) -> dict[str, Array]:
    """Return every value that the launches leave in DRAM, unpacked: what tests compare layer by layer."""
    memory = dram_of(program)
    machine = Simulator(program.config, memory)
    tensors = {tensor.name: tensor for tensor in program.values}
    for tensor in program.inputs:
        write_tensor(memory, tensor, pack(program.config, inputs[tensor.name]))
    found: dict[str, Array] = {}
    for launch in program.launches:
        machine.forget()
        run_launch(launch, machine)
        found[launch.name] = unpack(read_tensor(memory, tensors[launch.name]), shapes[launch.name])
    return found
