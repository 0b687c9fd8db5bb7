"""The command line: parses, calls flows, prints. Results on stdout, progress and errors on stderr.

Exit codes: 0 ok, 1 failed, 2 usage, 3 a gate refused, 130 or 143 interrupted.
"""

from tvmflow.cli import project, run  # the order of these imports is that of the commands in the help text

from tvmflow.cli import look, device, predict, release, bundle, apps  # isort: skip
from tvmflow.cli.app import app, main

__all__ = ["app", "apps", "bundle", "device", "look", "main", "predict", "project", "release", "run"]
