"""Run docs/notebook.ipynb without Jupyter, in a workspace: `python -m tests.api.notebook` prints it with new
outputs.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
from typing import Any

from tests.conftest import REPOSITORY

NOTEBOOK = REPOSITORY / "docs" / "notebook.ipynb"


def run_cell(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Run one code cell and return its outputs as a notebook has them: what was printed, and the value of its last
    line.
    """
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed, told = io.StringIO(), io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(told):
        exec(compile(tree, f"cell {count}", "exec"), names)  # noqa: S102
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {count}", "eval"), names)  # noqa: S307
    outputs: list[dict[str, Any]] = []
    for name, stream in (("stdout", printed), ("stderr", told)):
        if stream.getvalue():
            outputs.append({"output_type": "stream", "name": name, "text": stream.getvalue().splitlines(keepends=True)})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        outputs.append({"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": data})
    return outputs


def run_all(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run the code cells one after the other, as a kernel would, and return all cells with new outputs."""
    names: dict[str, Any] = {"__name__": "__main__"}
    done, count = [], 0
    for cell in cells:
        if cell["cell_type"] == "code":
            count += 1
            cell = {**cell, "execution_count": count, "outputs": run_cell("".join(cell["source"]), names, count)}
        done.append(cell)
    return done


def main() -> None:
    """Print the notebook with the outputs of this workspace."""
    notebook = json.loads(NOTEBOOK.read_text())
    notebook["cells"] = run_all(notebook["cells"])
    print(json.dumps(notebook, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
