"""What two calibrations of the same must agree in: all but what the clock says."""

from __future__ import annotations

from typing import Any

from fsd_decoding.profile.certificate import Certificate
from fsd_decoding.profile.threshold_profile import ThresholdProfile

_SINCE = {"history": {"since"}}  # when the ledger began


def untimed(profile: ThresholdProfile) -> dict[str, Any]:
    timed: Any = {"created": True, "speed": True, "effort": True, "digest": True, "certificate": _SINCE}
    return profile.model_dump(exclude=timed)


def undated(certificate: Certificate) -> dict[str, Any]:
    return certificate.model_dump(exclude=_SINCE)
