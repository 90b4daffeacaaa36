"""The JSON schema of `server` in a run file, for editors: docs/server.schema.json, regenerated with

python -m fsd_calib.servers.json_schema > docs/server.schema.json
"""

from __future__ import annotations

import json
from typing import Any

from fsd_calib.options.server import ServerDescription

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_text() -> str:
    """Returns the schema as JSON. Of the other keys of a run file it says nothing."""
    server = ServerDescription.model_json_schema()
    schema: dict[str, Any] = {
        "$schema": _DIALECT, "title": "A run file with a server", "type": "object",
        "properties": {"server": {name: value for name, value in server.items() if name != "$defs"}},
        "$defs": server["$defs"],
    }  # fmt: skip
    return json.dumps(json.loads(json.dumps(schema), object_hook=_on_one_line), indent=2, ensure_ascii=False) + "\n"


def _on_one_line(part: dict[str, Any]) -> dict[str, Any]:
    if isinstance(part.get("description"), str):
        part["description"] = " ".join(part["description"].split())
    return part


if __name__ == "__main__":
    print(schema_text(), end="")
