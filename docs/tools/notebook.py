"""Runs the notebook of the examples, and keeps it with what it showed: `python docs/tools/notebook.py`."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "examples" / "calibrate_and_use.ipynb"


def run(folder: Path) -> Any:
    """Returns the notebook with its outputs, run in a folder with a cache and a ledger of its own."""
    notebook: Any = nbformat.read(NOTEBOOK, as_version=4)
    own = {"FSD_CALIB_CACHE": str(folder / "cache"), "FSD_CALIB_STATE": str(folder / "state")}
    quiet = {"PYTHONWARNINGS": "ignore:IProgress not found"}  # of tqdm, which draws nothing here
    path = {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    client = NotebookClient(notebook, timeout=900, coalesce_streams=True, resources={"metadata": {"path": str(folder)}})
    client.execute(env=os.environ | own | quiet | path)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # the times of this run
        cell["outputs"] = [_shown(output) for output in cell.get("outputs", []) if not _is_empty(output)]
        if cell.cell_type != "code":
            del cell["outputs"]
    return notebook


def _is_empty(output: Any) -> bool:
    """Whether it is what a bar leaves."""
    return bool(output.get("data", {}).get("text/html") == "")


def _shown(output: Any) -> Any:
    """Without the plain form of what is shown as HTML: nobody sees it, and it may hold paths of this machine."""
    if "text/html" in output.get("data", {}):
        del output.data["text/plain"]
    return output


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        nbformat.write(run(Path(folder)), NOTEBOOK)
