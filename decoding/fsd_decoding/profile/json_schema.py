"""The JSON schema of a profile, for readers without this package.

It is committed as `schemas/profile-1.json`, by the version of the schema, and regenerated with

    python -m fsd_decoding.profile.json_schema > decoding/fsd_decoding/schemas/profile-1.json

It describes the fields and their values. Contradictions between fields are found only by loading a profile.
"""

from __future__ import annotations

import json
from typing import Any

from fsd_decoding.profile.io import SCHEMA_VERSION
from fsd_decoding.profile.threshold_profile import ThresholdProfile

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_FOLDER = "https://github.com/fsd-calib/fsd-calib/blob/main/decoding/fsd_decoding/schemas"
_ALWAYS_WRITTEN = ["schema_version", "digest", "divergence"]  # in files; in Python they have defaults


def schema_text() -> str:
    """Returns the schema of the current version as JSON."""
    schema = ThresholdProfile.model_json_schema()
    schema["required"] = _ALWAYS_WRITTEN + schema["required"]
    schema["properties"]["digest"] = _in_files(schema["properties"]["digest"])
    schema = json.loads(json.dumps(schema), object_hook=_on_one_line)
    head = {"$schema": _DIALECT, "$id": f"{_FOLDER}/profile-{SCHEMA_VERSION}.json"}
    return json.dumps(head | schema, indent=2, ensure_ascii=False) + "\n"


def _in_files(digest: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema of the digest without null, which only objects in Python have."""
    text: dict[str, Any] = next(kind for kind in digest.pop("anyOf") if kind["type"] == "string")
    return text | {name: digest[name] for name in ("description", "title")}


def _on_one_line(part: dict[str, Any]) -> dict[str, Any]:
    """Returns a part of the schema whose description has no line breaks of the source."""
    description = part.get("description")
    return part | {"description": " ".join(description.split())} if isinstance(description, str) else part


if __name__ == "__main__":
    print(schema_text(), end="")
