"""Calibrations of vLLM over HTTP beside those from inside, and `fsd-check`: `python benchmarks/servers.py`; 40 minutes.

It runs in the environment that has vLLM (`sh install.sh vllm`). The same task and goal are calibrated by `--engine
vllm`, which loads the models, and by `--engine server`, which asks a running server whose plugin takes T with each
request. Both verdicts must be one, both bounds within a standard error, and asking must take 1.3 times as long at most.
Then `fsd-check` looks at that server at the certified T, at the T that is certified for FLy's rule, and as a lossless
one, on new prompts each time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import yaml

from fsd_calib import ThresholdProfile
from fsd_calib.options.server import ServerDescription
from fsd_calib.servers.check import Check
from fsd_calib.servers.prompting import engine_for, task_for
from fsd_calib.servers.served import Served
from fsd_calib.vllm_plugin.command import serve_command
from fsd_common.progress.base import Silent
from fsd_decoding.profile.certificate import Certificate
from fsd_decoding.profile.server_profile import ServerProfile
from fsd_decoding.sampling import Sampling
from lib.common.claims import Claim
from lib.common.command import calibrate
from lib.common.results import conclude, machine_facts, options_of, write_json
from lib.vllm_server import Server, serving
from with_vllm import standard_error

_GOAL, _PROBLEMS = "--min-acc=0.95", 1000
_LENGTH, _SCORE, _FLY = 12, "doubt", "fly@2"
_VALUES = [0.2, 0.4, 0.55, 0.65, 0.75, 0.9, 1.1]  # of T, from strict to loose
_AT_ONCE = 32  # as many as the engine decodes at once
_SERVED = ["--served-model-name=pair", "--max-model-len=400", f"--kv-cache-memory-bytes={256 << 20}",
           "--per-request-spec-decode-metrics=summary"]  # fmt: skip
_TIMES, _ERRORS = 1.3, 1.0
_PROMPTS, _SEED, _LEVEL = 20, 91_000, 0.01  # of a check


def inside(folder: Path, limit: int, score: str) -> dict[str, Any]:
    """Calibrates with vLLM in the command's own process, unless that is done."""
    options = ("--engine=vllm", f"--score={score}", f"--draft-length={_LENGTH}")
    return _found(folder, limit, *options, load=ThresholdProfile.load)


def over_http(folder: Path, limit: int, url: str) -> dict[str, Any]:
    """Calibrates a server's knob, unless that is done."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "server.yaml"
    file.write_text(yaml.safe_dump({"server": described(url).model_dump(mode="json", exclude_unset=True)}))
    return _found(folder, limit, f"--config={file}", load=ServerProfile.load)


def described(url: str) -> ServerDescription:
    """The server whose plugin takes T with each request."""
    knob = {"name": "fsd_threshold", "values": _VALUES, "request": {"vllm_xargs": {"fsd_threshold": "{T}"}}}
    reference = {"request": {"vllm_xargs": {"fsd": "off"}}}
    return ServerDescription.model_validate(
        {"url": f"{url}/v1", "model": "pair", "at_once": _AT_ONCE, "reference": reference, "knob": knob}
    )


def _found(folder: Path, limit: int, *options: str, load: Any) -> dict[str, Any]:
    kept = folder / "found.json"
    if not kept.exists():
        ran = calibrate(folder, _GOAL, f"--limit={limit}", *options)
        profile = load(ran.folder)
        write_json({
            "seconds": ran.seconds, "outcome": profile.outcome,
            "T": profile.threshold if isinstance(profile, ThresholdProfile) else profile.value,
            "certificate": profile.certificate.model_dump(mode="json"),
        }, kept)  # fmt: skip
    return dict(json.loads(kept.read_text()))


def checks(url: str, value: float | None, count: int, first: int) -> list[float]:
    """Returns the p-values of checks of the server at a value of its knob, each on prompts of its own.

    Args:
        value: None: nothing was certified, and so nothing is found.
    """
    if value is None:
        return [1.0] * count
    server, found = described(url), list[float]()
    with Served(server, Path("server.log"), Silent()) as served:
        for number in range(count):
            seed = first + number
            task = task_for(server, "arithmetic", seed=seed, limit=_PROMPTS)
            engine = engine_for(served, task, Sampling(), seed)
            check = Check(engine, task, served.at(None), served.at(value), 3, _LEVEL, Silent())
            found.append(check.run().p_value)
    return found


def following(folder: Path) -> AbstractContextManager[Server]:
    """A server that follows the profile of a calibration."""
    profile = ThresholdProfile.load(folder / "out")
    return serving(serve_command(profile, folder / "out"), folder / "server.log", _SERVED)


def claims(results: Mapping[str, Any]) -> Iterator[Claim]:
    """Yields the claims of the issue that this measures."""
    own, asked = results["inside"], results["over_http"]
    yield Claim.at_most("over HTTP: seconds, in those from inside", _TIMES, asked["seconds"] / own["seconds"])
    certified = [each["outcome"].startswith("certified") for each in (own, asked)]
    yield Claim.at_most("verdicts that differ", 0, int(certified[0] != certified[1]))
    bounds, errors = zip(*map(_bound, (own, asked)), strict=True)
    apart = abs(bounds[0] - bounds[1]) / max(errors)
    yield Claim.at_most("bounds apart, in standard errors", _ERRORS, apart)
    *planted, honest = results["checks"].values()
    for name, found in zip(results["checks"], planted, strict=False):
        missed = sum(p > _LEVEL for p in found)
        yield Claim.at_most(f"of {len(found)} checks {name}: not found", len(found) // 20, missed)
    alarms = sum(p <= _LEVEL for p in honest)
    yield Claim.at_most(f"of {len(honest)} checks without loss: called lossy", 3 * len(honest) // 100, alarms)


def _bound(found: Mapping[str, Any]) -> tuple[float, float]:
    """The lower bound of retention, and the standard error of what was measured."""
    certificate = Certificate.model_validate(found["certificate"])
    return certificate.lower_bound or 0.0, standard_error(certificate.counts)


def main() -> int:
    parser = options_of(__doc__, "servers.json")
    parser.add_argument("--runs", type=Path, default=Path("runs", "servers"), help="the calibrations, which are kept")
    options, machine = parser.parse_args(), machine_facts()
    limit, count = (200, 2) if options.quick else (_PROBLEMS, 20)
    results: dict[str, Any] = {
        name: inside(options.runs / name, limit, score) for name, score in (("inside", _SCORE), ("fly", _FLY))
    }
    with following(options.runs / "inside") as server:
        results["over_http"] = over_http(options.runs / "server", limit, server.url)
        lossy = checks(server.url, results["over_http"]["T"], count, _SEED)
        honest = checks(server.url, 0.0, 5 * count, _SEED + count)
    with following(options.runs / "fly") as server:
        fly = checks(server.url, results["fly"]["T"], count, _SEED + 6 * count)
    results["checks"] = {"at the certified T": lossy, "at FLy's certified T": fly, "without loss": honest}
    return conclude(options, machine, results, claims(results))


if __name__ == "__main__":
    sys.exit(main())
