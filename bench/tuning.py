"""Compare tuners, transfer, the static model and several devices: `python -m bench.tuning
{speed,tuners,transfer,static,fleet}`.

speed     trials per minute, beside stock MetaSchedule on the same kernel, same machine, same run
tuners    candidates of some kernels are measured once; then each tuner, with each of its settings, searches that
          table, several seeds, equal trials (bench/tuner_choices.py)
transfer  ResNet-50 from nothing, and from the records of ResNet-18: when each reaches the sum of kernel times, within
          2 %, that the search from nothing ends with
static    the static model's choice, and the best of the five that it ranks first, beside the best of 28 candidates of
          each convolution and pool; one thread, timed by the CPU time of the thread, so that a busy machine disturbs
          little
fleet     four RPC servers under one key against one, device time simulated by a fixed sleep for each kernel; then the
          same while two of the four and the tracker are killed; and with the tuner killed in the middle
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from bench.slow_devices import KEY, servers, slow_session, wait_until
from tvmflow.backends.cpu import CpuBackend, host_backend
from tvmflow.codegen.compile import compile_module
from tvmflow.codegen.lower import lower
from tvmflow.config.params import DeviceEntry
from tvmflow.config.stage_params import SearchLimits, SearchSettings
from tvmflow.devices.registry import open_session
from tvmflow.devices.session import DeviceSession, SessionLimits
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import one_input
from tvmflow.ir.tir.workloads import Workload, anchor_extents, extract_workloads
from tvmflow.passes import run_pass
from tvmflow.passes.layout.pack_channels import PackChannels
from tvmflow.passes.pipeline import canonicalize
from tvmflow.schedules.registry import apply_template
from tvmflow.sources.networks.torch_zoo import build
from tvmflow.support.progress import silent
from tvmflow.targets.core_timing import core_of
from tvmflow.tuning.cost_model.static_model import estimate_s
from tvmflow.tuning.measure.kernel_bench import inputs_of
from tvmflow.tuning.records.log import TuningLog
from tvmflow.tuning.records.record import OK, read_records
from tvmflow.tuning.rules import SearchRules
from tvmflow.tuning.search.search import tune
from tvmflow.tuning.search.state import TuneReport, Watch, WorkloadSearch

TRIALS = 24
BACKEND = host_backend()


def kernels(network: str, shape: tuple[int, ...] = (3, 224, 224)) -> list[Workload]:
    """Return the distinct kernels of a network with random weights."""
    return extract_workloads(lower(packed_network(network, shape), BACKEND))


def packed_network(network: str, shape: tuple[int, ...] = (3, 224, 224)) -> Any:
    """Return a network with random weights, packed."""
    model = ExportedModel(build(network, 0).eval(), one_input("input", (1, *shape)))
    return run_pass(PackChannels(16), canonicalize(model.to_relax()))


def workloads(network: str = "torchvision/resnet18", count: int = 6) -> list[Workload]:
    """Return the costliest distinct convolutions of a network with random weights."""
    matching = [w for w in kernels(network) if w.name.startswith("conv2d_nchwc_add_relu")]
    return sorted(matching, key=lambda w: -math.prod(anchor_extents(w.function)))[:count]


def rules(devices: int = 1, trials: int = 16, tuner: str = "xgb", early_stopping: int = 10**6) -> SearchRules:
    settings = SearchSettings(
        tuner=tuner, trials_per_workload=trials, early_stopping=early_stopping, min_gain_per_minute=0.0
    )
    limits = SearchLimits(devices=devices, max_drift=3.0, cool_s=0.0, give_up_s=60.0)
    return SearchRules(settings, limits, on_this_host=devices == 1)


def search(
    kernels: list[Workload], chosen: SearchRules, log: Path, opener: Callable[[], Any], watch: Watch | None = None
) -> float:
    """Tune and return the seconds it took."""
    tuning_log = TuningLog(log, BACKEND.kernel_kind, {"bench": "1"})
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tune(kernels, opener, BACKEND, chosen, tuning_log, Path(folder), silent, watch)
    return time.monotonic() - started


def local() -> contextlib.AbstractContextManager[DeviceSession]:
    device = DeviceEntry(transport="local", key=KEY)
    return open_session(device, BACKEND, SessionLimits(3600.0, 60.0))


def choices() -> None:
    from bench import tuner_choices

    tuner_choices.main(workloads(count=4))


def speed() -> None:
    kernels = workloads(count=4)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        seconds = search(kernels, rules(trials=32), log, local)
        ours = len(read_records(log)) / seconds * 60
    stock, trials = _stock_metaschedule(kernels[0]), 32
    print(
        f"tvmflow {ours:.0f} trials per minute, MetaSchedule {trials / stock * 60:.0f}: "
        f"{ours / (trials / stock * 60):.1f}x"
    )


def _stock_metaschedule(workload: Workload) -> float:
    """Return the seconds of 32 trials of MetaSchedule as it comes, on the same kernel."""
    import tvm
    from tvm.s_tir import meta_schedule as ms

    module = tvm.IRModule({"main": workload.function.with_attr("global_symbol", "main")})
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        ms.tir_integration.tune_tir(module, BACKEND.tvm_target(), folder, max_trials_global=32, num_trials_per_iter=16)
        return time.monotonic() - started


def static(networks: tuple[str, ...] = ("resnet18", "squeezenet1_1", "mobilenet_v2")) -> None:
    """Print time / best: of the default, of the model's choice, of the best of five by the model, and by the template's
    order.
    """
    os.environ["TVM_NUM_THREADS"] = "1"  # TVM's pool is made with the first kernel
    single = CpuBackend(replace(BACKEND.target, threads=1))
    names, everything = ("default", "model", "five", "first five"), list[tuple[float, ...]]()
    for network in networks:
        rows = [row for w in kernels(f"torchvision/{network}") if (row := _ranking(w, single)) is not None]
        everything += rows
        for name, found in ((network, rows), ("so far", everything)):
            means = (math.exp(mean(math.log(row[at]) for row in found)) for at in range(len(names)))
            print(
                f"{name:14}{len(found):4} kernels  "
                + "  ".join(f"{n} {m:.3f}" for n, m in zip(names, means, strict=True))
            )


def _ranking(workload: Workload, backend: CpuBackend) -> tuple[float, ...] | None:
    import tvm

    match = backend.template_for(workload.function)
    if match is None or match[0].name != "packed_conv" or len(match[1]) < 4:
        return None
    template, candidates = match
    rest = list(range(12, len(candidates)))
    random.Random(0).shuffle(rest)  # noqa: S311
    chosen = [*range(min(12, len(candidates))), *rest[:16]]
    arguments = [tvm.runtime.tensor(array) for array in inputs_of(workload)]
    runs, estimates = [], dict[int, float]()
    for at in chosen:
        function = apply_template(workload.function, template, candidates[at]).mod["main"]
        built = compile_module(tvm.IRModule({"main": function.with_attr("global_symbol", "main")}), backend)
        runs.append((at, built.jit()["main"]))
        found = estimate_s(
            workload.function,
            template.name,
            candidates[at],
            str(built.mod.inspect_source("asm")),
            core_of(backend.target),
            1,
        )
        estimates[at] = math.inf if found is None else found
    seconds = dict.fromkeys(chosen, math.inf)
    for _ in range(7):
        for at, run in runs:
            run(*arguments)
            started, count = time.thread_time(), 0
            while (spent := time.thread_time() - started) < 0.004:
                run(*arguments)
                count += 1
            seconds[at] = min(seconds[at], spent / count)
    order, best = sorted(chosen, key=lambda at: estimates[at]), min(seconds.values())
    picks = ([0], order[:1], order[:5], chosen[:5])
    return tuple(min(seconds[at] for at in pick) / best for pick in picks)


def transfer() -> None:
    first, second = kernels("torchvision/resnet18"), kernels("torchvision/resnet50")
    chosen = rules(trials=24, early_stopping=10)
    with tempfile.TemporaryDirectory() as folder:
        own, own_s = _curve(second, chosen, Path(folder) / "own" / "resnet50.jsonl")
        after = Path(folder) / "after"
        _, first_s = _curve(first, chosen, after / "resnet18.jsonl")
        helped, helped_s = _curve(second, chosen, after / "resnet50.jsonl")
    wanted = own[-1][1] * 1.02
    for name, curve, seconds in (
        ("from nothing", own, own_s),
        (f"after ResNet-18 ({first_s:.0f} s)", helped, helped_s),
    ):
        reached = next((at for at, total in curve if total <= wanted), math.nan)
        print(
            f"{name}: {wanted * 1e3:.2f} ms after {reached:.0f} s; ended after {seconds:.0f} s at "
            f"{curve[-1][1] * 1e3:.2f} ms"
        )


def _curve(kernels: list[Workload], chosen: SearchRules, log: Path) -> tuple[list[tuple[float, float]], float]:
    """Tune and return (seconds so far, sum of all calls' kernel times) after each batch, and the seconds it took."""
    log.parent.mkdir(parents=True, exist_ok=True)
    curve, started = [], time.monotonic()

    def watch(searches: list[WorkloadSearch], _report: TuneReport) -> None:
        curve.append((time.monotonic() - started, sum(search.workload.calls * search.best_s for search in searches)))

    return curve, search(kernels, chosen, log, local, watch)


def fleet() -> None:
    kernels, times = small_workloads(), dict[int, float]()
    for count in (1, 4):
        with servers(count) as (port, _), tempfile.TemporaryDirectory() as folder:
            times[count] = search(kernels, rules(count, TRIALS), Path(folder) / "log", lambda p=port: slow_session(p))  # type: ignore[misc]
        print(f"{count} devices: {times[count]:.1f} s", flush=True)
    print(f"four devices take {times[4] / times[1]:.2f} of the time of one", flush=True)
    with servers(4) as (port, processes), tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        for after, at in ((4.0, 1), (8.0, 2), (12.0, 0)):  # two servers, then the tracker
            threading.Timer(after, lambda p=processes[at]: os.killpg(p.pid, 9)).start()  # type: ignore[misc]
        seconds = search(kernels, rules(4, TRIALS), log, lambda: slow_session(port))
        _report("two of four servers and the tracker killed", seconds, log)
    with servers(4) as (port, _), tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        tuner = subprocess.Popen(
            [sys.executable, "-m", "bench.tuning", "search", "--log", str(log), "--port", str(port)],
            start_new_session=True,
        )
        wait_until(lambda: log.exists() and len(log.read_bytes().splitlines()) > TRIALS)
        os.killpg(tuner.pid, 9)
        tuner.wait()
        kept = len(read_records(log))
        seconds = search(kernels, rules(4, TRIALS), log, lambda: slow_session(port))
        _report(f"tuner killed after {kept} records, then started again", seconds, log)


def _report(what: str, seconds: float, log: Path) -> None:
    """Print how much was measured; a schedule that stands there twice was measured twice."""
    records = [r for r in read_records(log) if r.template]
    distinct = {(r.workload, str(sorted(r.knobs.items()))) for r in records}
    wrong = [r.status for r in records if r.status != OK]
    print(
        f"{what}: {seconds:.1f} s, {len(records)} records, {len(records) - len(distinct)} of them twice, "
        f"{len(wrong)} failures",
        flush=True,
    )


def small_workloads() -> list[Workload]:
    """Return small kernels: what takes time is to be the sleep."""
    return [w for w in kernels("digits_cnn", (1, 8, 8)) if w.name.startswith("conv2d")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "tuners", "transfer", "static", "fleet", "search"))
    parser.add_argument("--log", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.what == "search":  # what `fleet` kills
        search(small_workloads(), rules(4, TRIALS), options.log, lambda: slow_session(options.port))
        return
    {"speed": speed, "tuners": choices, "transfer": transfer, "static": static, "fleet": fleet}[options.what]()


if __name__ == "__main__":
    main()
