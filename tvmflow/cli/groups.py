"""Group the commands in the help text, and give each its examples."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

# Group -> commands, in the order of the help text. Typer's panels need its rich help, which breaks words in brackets.
GROUPS = {
    "Begin": ("new", "add", "targets", "init", "doctor", "schema"),
    "Run": ("run", "sweep", "search", "retune", "serve", "compare-toolchains"),
    "See": ("status", "why", "report", "trace", "history", "compare", "regressions", "records", "predict", "costs"),
    "Release": ("promote", "rollback", "bundle", "verify", "release", "releases", "publish", "keys"),
    "Devices and team": ("devices", "device", "results"),
}
EXAMPLES = {
    "new": ("tvmflow new my-models", "tvmflow new my-models --target raspberry-pi-5"),
    "add": ("tvmflow add model.onnx", "tvmflow add detector.tflite --precision int8 --target android-arm64"),
    "targets": ("tvmflow targets", "tvmflow targets --json"),
    "init": ("tvmflow init", "tvmflow init --rebuild"),
    "doctor": ("tvmflow doctor",),
    "schema": ("tvmflow schema > params.schema.json",),
    "run": (
        "tvmflow run model",
        "tvmflow run model other --dry-run",
        "tvmflow run model@local-cpu:int8 --wait-quiet 600",
    ),
    "sweep": ("tvmflow sweep --dry-run", "tvmflow sweep"),
    "search": ("tvmflow search model --max-drop 1% --max-latency 8ms",),
    "retune": ("tvmflow retune --plan", "tvmflow retune model"),
    "serve": ("tvmflow serve",),
    "compare-toolchains": ("tvmflow compare-toolchains 0.26 0.27 model",),
    "status": ("tvmflow status", "tvmflow status --json"),
    "why": ("tvmflow why model",),
    "report": ("tvmflow report", "tvmflow report --output shared/report.html"),
    "trace": ("tvmflow trace model", "tvmflow trace model -o run.json --overlay layers.json"),
    "history": ("tvmflow history model", "tvmflow history --model mobilenet --by device"),
    "compare": ("tvmflow compare mobilenet",),
    "regressions": ("tvmflow regressions",),
    "records": ("tvmflow records model", "tvmflow records model --failed"),
    "predict": ("tvmflow predict model photo.jpg", "tvmflow predict model inputs.npz --output outputs.npz"),
    "costs": ("tvmflow costs",),
    "promote": ("tvmflow promote model --dry-run", "tvmflow promote model"),
    "rollback": ("tvmflow rollback model",),
    "bundle": ("tvmflow bundle model --key ~/.keys/release",),
    "verify": ("tvmflow verify bundle.zip",),
    "release": ("tvmflow release app --dry-run", "tvmflow release app", "tvmflow release app --channel stable"),
    "releases": ("tvmflow releases app",),
    "publish": ("tvmflow publish app shared/packages", "tvmflow publish app oci://registry.example.com/team/app"),
    "keys": ("tvmflow keys new ~/.keys/release",),
    "devices": ("tvmflow devices", "tvmflow devices --check"),
    "device": ("tvmflow device check android-arm64",),
    "results": ("tvmflow results update",),
}


class GroupedCommands(TyperGroup):
    """The commands in groups; `tvmflow COMMAND --help` ends with examples."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = formatter.width - 6 - max(map(len, self.commands))
        for group, names in GROUPS.items():
            rows = [(name, self.commands[name].get_short_help_str(width)) for name in names if name in self.commands]
            if rows:
                with formatter.section(group):
                    formatter.write_dl(rows)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is not None and command.epilog is None and cmd_name in EXAMPLES:
            command.epilog = "\b\n" + "\n".join(["Examples:", *(f"  {line}" for line in EXAMPLES[cmd_name])])
        return command
