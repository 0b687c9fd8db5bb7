"""Notify people of the result of a scheduled re-tune, by the Prefect block named in params.yaml."""

from __future__ import annotations

from typing import Any

from prefect.blocks.abstract import NotificationBlock
from prefect.blocks.core import Block

from tvmflow.report.console import Grid
from tvmflow.support.errors import StageError, UsageError, first_line


def notification_block(name: str) -> NotificationBlock:
    """Return the saved block `type/name`. Raises UsageError if it is missing or no notification block."""
    expected = "type and name of a notification block that was saved, as slack-webhook/team"
    hint = "save it in Prefect's UI under Blocks, or in Python: SlackWebhook(url=...).save('team')"
    import prefect.blocks.notifications  # noqa: F401  (Block.load knows the classes that were imported)

    try:
        block: Any = Block.load(name)
    except ValueError as error:
        raise UsageError(f"flows.notify is {name!r}: {first_line(error)}", expected, hint) from None
    if not isinstance(block, NotificationBlock):
        raise UsageError(
            f"flows.notify is {name!r}, which is not a notification block: {type(block).__name__}", expected, hint
        )
    return block


def notify(name: str, subject: str, body: str) -> None:
    """Send a notification. Raises UsageError, and StageError if it cannot be delivered."""
    block: Any = notification_block(name)
    try:
        with block.raise_on_failure():
            block.notify(body=body, subject=subject)
    except Exception as error:  # each service has its own types
        raise StageError(
            f"the notification {name} was not sent: {first_line(error)}", "a reachable notification service"
        ) from error


def as_rows(table: Grid) -> list[dict[str, str]]:
    """Return a table in the form of Prefect's table artifacts."""
    return [dict(zip(table.columns, map(str, row), strict=True)) for row in table.rows]


def as_text(table: Grid) -> str:
    """Return a table as Markdown, which is readable also where it is not rendered."""
    lines = [table.columns, ["---"] * len(table.columns), *table.rows]
    cells = ([str(cell).replace("|", "/").replace("\n", " ") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)
