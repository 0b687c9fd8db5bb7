"""Let the Prefect server set deployed runs to Crashed whose process or machine died: an automation on their heartbeats.

A worker that lives notices a dead run itself. The automation is for a worker that died with its run.
"""

from __future__ import annotations

from datetime import timedelta

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.events import ResourceSpecification
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

NAME = "tvmflow: runs without heartbeats"
FLOWS = ("sweep", "release_model", "retune")
SILENT_S = 100.0  # three heartbeats of deployed runs, which prefect.yaml sets to 30 s, as short as Prefect allows
_BEAT = "prefect.flow-run.heartbeat"
_ENDS = tuple(f"prefect.flow-run.{state}" for state in ("Completed", "Failed", "Cancelled", "Crashed"))
_MESSAGE = "no heartbeat: its process or machine died; start it again to resume"


def crash_automation(silent_s: float = SILENT_S) -> AutomationCore:
    """Return the automation: a run of our flows that had a heartbeat, and then neither one nor an end, is Crashed."""
    trigger = EventTrigger(
        after={_BEAT},
        expect={_BEAT, *_ENDS},
        match=ResourceSpecification({"prefect.resource.id": ["prefect.flow-run.*"]}),
        match_related=ResourceSpecification({"prefect.resource.role": "flow", "prefect.resource.name": list(FLOWS)}),
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        threshold=1,
        within=timedelta(seconds=silent_s),
    )
    action = ChangeFlowRunState(state=StateType.CRASHED, name="Crashed", message=_MESSAGE)
    return AutomationCore(name=NAME, description="Shipped with tvmflow.", trigger=trigger, actions=[action])


def watch_runs(silent_s: float = SILENT_S) -> dict[str, str]:
    """Create the automation on the server, or bring it up to date: a step of `prefect deploy`."""
    automation = crash_automation(silent_s)
    with get_client(sync_client=True) as client:
        known = client.read_automations_by_name(NAME)
        if known:
            client.update_automation(known[0].id, automation)
        else:
            client.create_automation(automation)
    return {"automation": NAME}
