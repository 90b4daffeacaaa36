"""The JSON schema of a profile, for readers without this package.

`schemas/profile-N.json` holds one for every schema version so far; that of the present one is made anew with

    python -m fsd_decoding.profile.schema > decoding/fsd_decoding/schemas/profile-3.json

It says which fields there are and what each may be. Which of them contradict each other only loading tells.
"""

from __future__ import annotations

import json

from fsd_decoding.profile.threshold_profile import ThresholdProfile


def schema_text() -> str:
    return json.dumps(ThresholdProfile.model_json_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(schema_text(), end="")
