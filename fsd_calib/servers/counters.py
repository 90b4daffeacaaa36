"""What a server counts of its drafts over all requests, in Prometheus's text format, where its answers do not tell."""

from __future__ import annotations

import re
from collections import Counter

from fsd_calib.servers.answers import Acceptance
from fsd_calib.servers.client import Client
from fsd_common.errors import UsageError

_NAMES = "drafts", "draft_tokens", "accepted_tokens"
# vLLM's and llama.cpp's names differ in what is before the colon.
_COUNTER = re.compile(rf"^\w+:spec_decode_num_({'|'.join(_NAMES)})_total(?:\{{.*\}})? (\S+)$", re.MULTILINE)


async def counted(client: Client) -> Acceptance | None:
    """Returns what a server counted since it started, all its engines together; None: it tells nothing."""
    try:
        text = await client.get(f"{client.url.removesuffix('/v1')}/metrics", retries=0)
    except UsageError:  # its metrics are for others, or need a flag
        return None
    sums = Counter[str]()
    for name, value in _COUNTER.findall(str(text)):
        sums[name] += int(float(value))
    return Acceptance(*(sums[name] for name in _NAMES)) if sums else None


def between(before: Acceptance | None, after: Acceptance | None) -> Acceptance | None:
    """Returns what was counted in between; None: nothing, or the server was started anew."""
    if before is None or after is None:
        return None
    found = Acceptance(*(now - then for then, now in zip(before, after, strict=True)))
    return found if found.rounds > 0 else None
