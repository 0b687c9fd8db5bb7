"""List the stages in execution order."""

from __future__ import annotations

from tasks import build, deploy, evaluate, fetch, graph_pack, import_model, quantize, tune
from tvmflow.pipeline.stage import AnyStage

STAGES: dict[str, AnyStage] = {
    module.STAGE.name: module.STAGE
    for module in (fetch, import_model, quantize, graph_pack, tune, build, deploy, evaluate)
}
