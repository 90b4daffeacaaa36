"""The JavaScript that draws charts in a page: Vega-Lite, Vega and their embedding, which vl-convert brings with it.

Bundling takes seconds and gives the same text each time, so the text is kept in the user's cache folder.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import version
from pathlib import Path

from fsd_decoding.atomic_files import atomic_write
from fsd_decoding.errors import UsageError
from fsd_decoding.user_cache import default_cache

FOLDER = "pages"  # of the cache
_SNIPPET = "window.vegaEmbed = vegaEmbed;"  # all that a page calls


@cache
def chart_script() -> str:
    """Returns the script, safe to stand in an element of HTML; it defines `vegaEmbed`."""
    path = _cached()
    kept = None if path is None else _read(path)
    if kept is not None:
        return kept
    script = _bundle()
    if path is not None:
        _keep(path, script)
    return script


def _bundle() -> str:
    import vl_convert

    return vl_convert.javascript_bundle(_SNIPPET).replace("</script", r"<\/script")


def _cached() -> Path | None:
    """The file of this version's script; None: there is no folder for it."""
    try:
        return default_cache() / FOLDER / f"vega-{version('vl-convert-python')}.js"
    except UsageError:
        return None


def _read(path: Path) -> str | None:
    """The script of a file; None: there is none, or it is damaged."""
    try:
        digest, _, script = path.read_text(encoding="utf-8").partition("\n")
    except (OSError, ValueError):
        return None
    return script if digest == _digest(script) else None


def _keep(path: Path, script: str) -> None:
    """Writes the file, where that is possible: without it the next page takes longer."""
    try:
        for folder in (path.parent.parent, path.parent):  # private, like all of the cache
            folder.mkdir(0o700, parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(f"{_digest(script)}\n{script}".encode())
    except OSError:
        return


def _digest(script: str) -> str:
    return f"// {hashlib.sha256(script.encode()).hexdigest()}"
