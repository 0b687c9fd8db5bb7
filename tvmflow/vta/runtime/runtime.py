"""Run programs for libraries: the function `tvmflow.vta.run` and its devices.

`register` adds `tvmflow.vta.run` to TVM's table of functions. It is called with a blob, the inputs and the outputs, all
in VTA's layout. The blob is a region (run in numpy, for checks before there is a program) or a program, which is passed
to a driver: the simulator, or a board.
"""

from __future__ import annotations

import ctypes
import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from tvmflow.support.errors import ProgramError, TvmflowError, UsageError
from tvmflow.support.runtime_binding import DRIVER_ERROR_FUNCTION, DRIVER_FUNCTION
from tvmflow.vta.isa import fields
from tvmflow.vta.isa.config import CONFIGURE_FUNCTION, COUNTERS_FUNCTION, PAGE, RUN_FUNCTION, VtaConfig
from tvmflow.vta.isa.instructions import decode_all, encode_all
from tvmflow.vta.isa.program import Launch, Program, Tensor
from tvmflow.vta.isa.region import Region, Shape, from_blob, pack, region_from, run_region, to_blob, unpack
from tvmflow.vta.machine.counters import Counters, estimate
from tvmflow.vta.runtime.configure import Board, configure
from tvmflow.vta.runtime.device import Driver, Loaded, Ran, SimulatorDriver
from tvmflow.vta.runtime.driver_bridge import DriverSeam, find_design

Array = np.ndarray[Any, Any]
MAX_PROGRAMS = 64
MAX_DRAM_BYTES = 1 << 31


def program_to_blob(program: Program) -> bytes:
    """Return a program as bytes: description, instruction words, constants."""
    text = {
        "config": program.config.to_json(),
        "launches": [[launch.name, len(launch.instructions)] for launch in program.launches],
        "constants_at": program.constants_at,
        "dram_bytes": program.dram_bytes,
        "values": [asdict(tensor) for tensor in program.values],
        "inputs": [tensor.name for tensor in program.inputs],
        "outputs": [tensor.name for tensor in program.outputs],
    }
    words = [encode_all(program.config, launch.instructions) for launch in program.launches]
    return to_blob("program", text, {"instructions": np.concatenate(words), "constants": program.constants})


_PROGRAM = {"kind", "config", "launches", "constants_at", "dram_bytes", "values", "inputs", "outputs"}


def program_from(text: Mapping[str, Any], arrays: Mapping[str, Array]) -> Program:
    """Return the program of a description and its arrays. Raises ProgramError when they are not what `program_to_blob`
    writes.
    """
    members = fields.members("program", dict(text), _PROGRAM)
    fields.members("arrays", dict(arrays), {"instructions", "constants"})
    if members["kind"] != "program":
        raise fields.wrong("kind", members["kind"], "program")
    try:
        config = VtaConfig.from_json(members["config"])
    except TvmflowError as error:
        raise fields.wrong("config", error.found, error.expected) from None
    words = fields.array("instructions", arrays, "instructions", "uint64", 2)
    constants = fields.array("constants", arrays, "constants", "uint8", 1)
    dram_bytes = fields.whole("dram_bytes", members["dram_bytes"], PAGE, MAX_DRAM_BYTES)
    constants_at = fields.whole("constants_at", members["constants_at"], PAGE, dram_bytes - constants.size)
    held = (constants_at, constants_at + constants.size)
    values = [_tensor(config, entry, dram_bytes, held) for entry in fields.items("values", members["values"])]
    tensors = dict(zip(fields.names("values", [tensor.name for tensor in values]), values, strict=True))
    ends = [fields.names(word, members[word], 1) for word in ("inputs", "outputs")]
    if not {*ends[0], *ends[1]} <= set(tensors):
        raise fields.wrong("inputs and outputs", ends, f"among the values {sorted(tensors)}")
    inputs, outputs = (tuple(tensors[name] for name in names) for names in ends)
    launches = _launches(config, members["launches"], words)
    return Program(config, launches, constants, constants_at, dram_bytes, tuple(values), inputs, outputs)


def _launches(config: VtaConfig, value: object, words: Array) -> tuple[Launch, ...]:
    launches, at = [], 0
    if words.shape[1:] != (2,):
        raise fields.wrong("instructions", words.shape, "two words each")
    for entry in fields.items("launches", value, 1):
        name, count = fields.items("launches", entry, 2, 2)
        size = fields.whole("launches", count, 1, len(words) - at)
        launches.append(Launch(fields.name("launches", name), tuple(decode_all(config, words[at : at + size]))))
        at += size
    if at != len(words):
        raise fields.wrong("launches", f"{at} instructions", f"the {len(words)} that are there")
    return tuple(launches)


def _tensor(config: VtaConfig, entry: object, dram_bytes: int, held: tuple[int, int]) -> Tensor:
    """Return one tensor; held: first and last address of the constants, which no tensor may touch."""
    members = fields.members("values", entry, {"name", "address", "shape"})
    name = fields.name("values.name", members["name"])
    shape = fields.wholes(f"{name}.shape", members["shape"], 6, (1, MAX_DRAM_BYTES))
    tensor = Tensor(name, fields.whole(f"{name}.address", members["address"], PAGE, dram_bytes), shape)
    end = tensor.address + tensor.nbytes
    if shape[4:] != (config.batch, config.block) or end > dram_bytes or (tensor.address < held[1] and held[0] < end):
        raise fields.wrong(
            name, f"{shape} at {tensor.address}", f"blocks of {config.name}, in DRAM, beside the constants"
        )
    return tensor


class Runtime:
    """The state behind `tvmflow.vta.run` in a process: loaded programs by digest, and their runs.

    board: what a session may configure; None: nothing.
    """

    def __init__(self, config: VtaConfig | None, driver: Driver, board: Board | None = None) -> None:
        self.config, self.driver, self.board = config, driver, board or Board(only=config)
        self._loaded: OrderedDict[bytes, tuple[Loaded, int]] = OrderedDict()  # and how many outputs
        self.ran: dict[bytes, Ran] = {}
        self._seams: dict[str, DriverSeam] = {}

    @property
    def runs(self) -> int:
        """Return how often anything ran."""
        return sum(ran.runs for ran in self.ran.values())

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
        digest = data.reshape(-1)[:32].tobytes()
        if digest not in self._loaded:
            self._load(digest, data.tobytes())
        self._loaded.move_to_end(digest)
        loaded, count_outputs = self._loaded[digest]
        if len(arrays) <= count_outputs or any(array.dtype != np.int8 or array.ndim != 6 for array in arrays):
            shown = ", ".join(f"{array.dtype} {array.shape}" for array in arrays)
            raise ProgramError(f"a call with {shown}", f"packed int8 inputs, and {count_outputs} outputs behind them")
        inputs, outputs = arrays[: len(arrays) - count_outputs], arrays[len(arrays) - count_outputs :]
        for target, computed in zip(outputs, loaded.run(inputs), strict=True):
            if target.shape != computed.shape:
                raise ProgramError(f"room for an output of {target.shape}", f"{computed.shape}")
            target[...] = computed
        ran = self.ran[digest]
        ran.runs += 1
        if loaded.counted is not None:
            ran.counted = loaded.counted + (ran.counted or Counters())

    def counters(self) -> str:
        """Return, as JSON, what ran in this process: digest of the program -> `Ran`."""
        return json.dumps({digest.hex(): ran.to_json() for digest, ran in self.ran.items()})

    def configure(self, design: str, sha256: str, path: str) -> str:
        """Take a design (JSON of vta_config.json) for this session, and load a bitstream. Return, as JSON, what was
        done, or the `error`.

        sha256: of the bitstream's file, "" for none; path: where it lies here, "" if it comes only where it is not
        loaded yet.
        """
        try:
            wanted = VtaConfig.from_json(json.loads(design))
            done = configure(self.board, wanted, sha256, path)
            if not done["needs_bitstream"]:
                self.config = wanted
        except (TvmflowError, ValueError) as error:
            known = error if isinstance(error, TvmflowError) else UsageError(str(error), "JSON of a design")
            return json.dumps({"error": [known.found, known.expected, known.hint]})
        return json.dumps(done)

    def seam(self, design: str) -> int:
        """Return the address of a driver for libraries without TVM. Raises RuntimeError, of one line, for a design of
        others.
        """
        config = find_design(design)
        if config is None or self.config not in (None, config):
            expected = self.config.name if self.config is not None else "a design as sim_1x16_i8w8a32_15_15_18_17"
            raise RuntimeError(f"a network for {design!a}; expected: one for {expected}, this device")
        if design not in self._seams:
            self._seams[design] = DriverSeam(config, self.driver, self.ran)
        return ctypes.addressof(self._seams[design].driver)

    def seam_error(self) -> str:
        """Return why a launch through the seam failed last, "" for no reason."""
        return next((seam.error for seam in self._seams.values() if seam.error), "")

    def _load(self, digest: bytes, blob: bytes) -> None:
        text, arrays = from_blob(blob)
        loaded: Loaded
        cycles = 0
        if text.get("kind") == "region":
            region = region_from(text, arrays)
            loaded, outputs = _NumpyRegion(region), len(region.outputs)
        else:
            program = program_from(text, arrays)
            if self.config is not None and program.config != self.config:
                raise ProgramError(f"a program for {program.config.name}", f"one for {self.config.name}, this device")
            cycles = sum(estimate(program.config, launch).total for launch in program.launches)
            loaded, outputs = self.driver.load(program), len(program.outputs)
        self._loaded[digest] = (loaded, outputs)
        self.ran.setdefault(digest, Ran(cycles))
        while len(self._loaded) > MAX_PROGRAMS:
            self._loaded.popitem(last=False)[1][0].close()


class _NumpyRegion:
    """A region that runs in numpy."""

    counted: Counters | None = None

    def __init__(self, region: Region) -> None:
        self.region, self.shapes = region, region.shapes()

    def run(self, inputs: list[Array]) -> list[Array]:
        region = self.region
        if len(inputs) != len(region.inputs):
            raise ProgramError(f"{len(inputs)} inputs", f"{len(region.inputs)}")
        values = {n: _unpacked(n, x, self.shapes[n]) for n, x in zip(region.inputs, inputs, strict=True)}
        computed = run_region(region, values)
        return [_pack_like(inputs[0], computed[name]) for name in region.outputs]

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


def _unpacked(name: str, x: Array, shape: Shape) -> Array:
    """Unpack. Raises ProgramError for blocks that do not hold the shape."""
    wanted = (-(-shape[0] // x.shape[4]), -(-shape[1] // x.shape[5]), *shape[2:])
    if x.shape[:4] != wanted:
        raise ProgramError(f"{name} as {x.shape}", f"{wanted} blocks")
    return unpack(x, shape)


def _pack_like(packed: Array, x: Array) -> Array:
    """Pack with the batch and block that another packed value has."""
    batch, block = packed.shape[4:]
    return pack(VtaConfig(log_batch=batch.bit_length() - 1, log_block=block.bit_length() - 1), x)


def register(config: VtaConfig | None = None, driver: Driver | None = None, board: Board | None = None) -> Runtime:
    """Provide `tvmflow.vta.run`, `tvmflow.vta.machine.counters`, `tvmflow.vta.configure` and the driver seam in this
    process. config: refuse programs for any other; board: sessions may choose another.
    """
    import tvm_ffi

    runtime = Runtime(config, driver or SimulatorDriver(), board)
    tvm_ffi.register_global_func(RUN_FUNCTION, runtime.run, override=True)
    tvm_ffi.register_global_func(COUNTERS_FUNCTION, runtime.counters, override=True)
    tvm_ffi.register_global_func(CONFIGURE_FUNCTION, runtime.configure, override=True)
    tvm_ffi.register_global_func(DRIVER_FUNCTION, runtime.seam, override=True)
    tvm_ffi.register_global_func(DRIVER_ERROR_FUNCTION, runtime.seam_error, override=True)
    return runtime
