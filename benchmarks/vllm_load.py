"""A server of vLLM that follows a profile, under load: `python benchmarks/vllm_load.py`; takes 25 minutes on two cores.

It runs in the environment that has vLLM (`sh install.sh vllm`). For ten minutes 32 streams ask for texts of mixed
lengths and settings, a tenth of them leave before the end, and what is served is recorded on a disk that soon is full.
No request may be lost, memory must not grow, and texts must be those of the same server while it was quiet, as far as
those of vLLM without the plugin are under the same load.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from openai import AsyncOpenAI

from fsd_calib import ThresholdProfile, load_task
from fsd_calib.vllm_plugin import KEY
from fsd_calib.vllm_plugin.command import command_of
from lib.attacks.disks import can_mount, disk
from lib.common.claims import Claim
from lib.common.command import GOAL, QUICK, calibrate
from lib.common.results import conclude, machine_facts, options_of
from lib.vllm_server import Server, memory_of, metrics_of, serving

_SEED, _PROBLEMS, _STREAMS = 75_001, 60, 32
_TOKENS = 8, 60, 160  # at most, of a text
_LEAVING = 0.1  # share of requests that are given up
_DISK = 1 << 20  # bytes for records
_SETTINGS: Mapping[str, dict[str, Any]] = {
    "profile": {}, "off": {"fsd": "off"}, "strict": {"fsd_threshold": 0.02}, "loose": {"fsd_threshold": 0.3},
}  # fmt: skip
_GROWTH = 0.02  # of memory, over the second half
_LOOKS = 120  # at memory


@dataclass(frozen=True)
class Asked:
    """A request: a problem's number, a name of `_SETTINGS`, and how many tokens it may have."""

    problem: int
    setting: str
    tokens: int


@dataclass
class Seen:
    """What came of the requests: how many were whole, were left or failed, texts that differ, and memory."""

    whole: int = 0
    left: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    changed: int = 0
    memory: list[int] = field(default_factory=list)

    @property
    def growth(self) -> float:
        """How much memory grows over the second half, by a line through it, as a share."""
        half = np.array(self.memory[len(self.memory) // 2 :], np.float64)
        slope, _ = np.polyfit(np.arange(len(half)), half, 1)
        return float(slope * len(half) / half.mean())


class Load:
    """Asks a server.

    Args:
        plugin: whether it follows a profile; else no request has a setting.
    """

    def __init__(self, server: Server, prompts: Sequence[str], stop: Sequence[str], plugin: bool) -> None:
        self._server, self._prompts, self._stop, self._plugin = server, prompts, list(stop), plugin
        self._client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)
        self._model = ""

    async def quiet(self) -> dict[Asked, str]:
        """Returns the text of every request, one at a time."""
        self._model = (await self._client.models.list()).data[0].id
        return {asked: await self._text(asked) for asked in self._all}

    async def under_load(self, expected: Mapping[Asked, str], seconds: float) -> Seen:
        """Asks in many streams at once, and compares."""
        seen, until = Seen(), time.monotonic() + seconds
        streams = [self._stream(expected, seen, until, random.Random(number)) for number in range(_STREAMS)]
        await asyncio.gather(self._watch(seen, until, seconds / _LOOKS), *streams)
        await self._client.close()
        return seen

    @property
    def _all(self) -> list[Asked]:
        settings = _SETTINGS if self._plugin else ["off"]
        return [Asked(i, name, most) for i in range(len(self._prompts)) for name in settings for most in _TOKENS]

    async def _stream(self, expected: Mapping[Asked, str], seen: Seen, until: float, drawn: random.Random) -> None:
        asked_of = list(expected)
        while time.monotonic() < until:
            asked = drawn.choice(asked_of)
            leaves = drawn.random() < _LEAVING
            try:
                text = await self._text(asked, drawn.randrange(1, 6) if leaves else None)
            except Exception as error:  # of whatever kind, it is counted
                seen.failed[f"{type(error).__name__}: {error}"[:120]] += 1
                continue
            if leaves:
                seen.left += 1
            else:
                seen.whole += 1
                seen.changed += text != expected[asked]

    async def _text(self, asked: Asked, parts: int | None = None) -> str:
        """Returns a text, streamed. parts: how many of its parts are awaited; None: all."""
        options = _SETTINGS[asked.setting] if self._plugin else {}
        stream = await self._client.completions.create(
            model=self._model, prompt=self._prompts[asked.problem], max_tokens=asked.tokens, temperature=0,
            stop=self._stop, stream=True, extra_body={"vllm_xargs": options} if options else {},
        )  # fmt: skip
        text = ""
        async with stream:
            async for number, part in _numbered(stream):
                text += part.choices[0].text
                if number == parts:
                    break
        return text

    async def _watch(self, seen: Seen, until: float, every: float) -> None:
        while time.monotonic() < until:
            seen.memory.append(await asyncio.to_thread(memory_of, self._server.process.pid))
            await asyncio.sleep(every)


async def _numbered(stream: Any) -> Any:
    number = 0
    async for part in stream:
        number += 1
        yield number, part


def _loaded(command: str, log: Path, problems: int, seconds: float, plugin: bool) -> tuple[Seen, Mapping[str, float]]:
    """Returns what came of a server's requests, and the server's own counts once it is quiet again."""
    task = load_task("arithmetic", seed=_SEED, limit=problems)
    prompts = [problem.prompt for problem in task.problems]
    more = ["--max-model-len", "400", "--enforce-eager", "--max-num-seqs", str(_STREAMS), "--kv-cache-memory-bytes",
            str(1 << 28), "--no-enable-log-requests"]  # fmt: skip
    with serving(command, log, more) as server:

        async def ask() -> Seen:
            load = Load(server, prompts, task.stop, plugin)
            return await load.under_load(await load.quiet(), seconds)

        seen = asyncio.run(ask())
        deadline = time.monotonic() + 60
        while (counts := metrics_of(server))["vllm:num_requests_running"] > 0 and time.monotonic() < deadline:
            time.sleep(1)
        return seen, counts


def main() -> int:
    parser = options_of(__doc__, "vllm_load.json")
    parser.add_argument("--runs", type=Path, default=Path("runs", "vllm-load"), help="the calibration, and logs")
    options, machine = parser.parse_args(), machine_facts()
    problems, seconds = (4, 20.0) if options.quick else (_PROBLEMS, 600.0)
    profile = ThresholdProfile.load(calibrate(options.runs.absolute(), *(QUICK if options.quick else GOAL)).folder)
    records = options.runs.absolute() / "records"
    records.mkdir(exist_ok=True)
    mounted = can_mount(options.runs)
    with disk(records, _DISK) if mounted else nullcontext():
        settings = {"profile": str(profile.file), "records": str(records / "traces"), "record_texts": 1_000_000}
        command = command_of(profile, {"draft_sample_method": "probabilistic"}, additional={KEY: settings})
        log = options.runs / "server.log"
        ours, counts = _loaded(command, log, problems, seconds, plugin=True)
    own, _ = _loaded(command_of(profile, {}), options.runs / "own.log", problems, seconds / 2, plugin=False)
    full = "No space left" in log.read_text(errors="replace")
    claims = [
        Claim.at_most("requests that failed", 0, sum(ours.failed.values())),
        Claim.at_most("requests that still run when all clients have gone", 0, counts["vllm:num_requests_running"]),
        Claim.at_most("growth of memory over the second half", _GROWTH, ours.growth),
        Claim.at_most(
            "share of texts that are others than a quiet server's, beyond vLLM's own", 0,
            max(0.0, ours.changed / max(ours.whole, 1) - own.changed / max(own.whole, 1)),
        ),
        *([Claim.at_least("the disk of records was full, and that was said (1: yes)", 1, float(full))] * mounted),
    ]  # fmt: skip
    measured = {"plugin": _facts(ours), "without": _facts(own), "full_disk": mounted, "seconds_of_load": seconds}
    return conclude(options, machine, measured, claims, json.dumps(measured, indent=1))


def _facts(seen: Seen) -> dict[str, Any]:
    return {
        "whole": seen.whole, "left": seen.left, "failed": dict(seen.failed), "changed": seen.changed,
        "memory": [min(seen.memory), max(seen.memory)], "growth": seen.growth,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
