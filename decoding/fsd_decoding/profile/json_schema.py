"""The JSON schema of a profile, for readers without this package.

`schemas/profile-N.json` holds one for every schema version so far. The current one is regenerated with

    python -m fsd_decoding.profile.json_schema > decoding/fsd_decoding/schemas/profile-3.json

It describes the fields and their values. Contradictions between fields are found only by loading a profile.
"""

from __future__ import annotations

import json

from fsd_decoding.profile.threshold_profile import ThresholdProfile


def schema_text() -> str:
    """Returns the schema of the current version as JSON."""
    return json.dumps(ThresholdProfile.model_json_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(schema_text(), end="")
