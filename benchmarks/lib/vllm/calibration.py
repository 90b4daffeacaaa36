"""Calibrations with either engine: how long they take, what both engines measure at the same settings, and whether the
claim of vLLM's certificate holds where a server of vLLM answers."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fsd_calib import DecodingConfig, SpeculativeDecoder, ThresholdProfile
from fsd_calib.engines.base import DecodingRequest, Engine, KeyedPrompt, Limits
from fsd_calib.engines.own import OwnEngine
from fsd_calib.engines.vllm.engine import VllmEngineSource
from fsd_calib.engines.vllm.loading import EngineArguments, Room
from fsd_calib.tasks.base import Problem, Task
from fsd_calib.vllm_plugin.command import serve_command
from fsd_data import pair_paths
from fsd_decoding.profile.parts import OutcomeCounts
from fsd_decoding.profile.setting import Setting
from lib.vllm.retention import Retention, standard_error

ENGINES = ("fsd-calib", "vllm")
_THRESHOLDS = (0.05, 0.1, 0.2, 0.4, 0.6)
_BATCH, _CONTEXT = 32, 400
_STARTING, _ANSWER = 300.0, 300.0  # seconds that a server, and a batch of answers, may take


def calibrate_each(folder: Path, options: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Runs the command with either engine, on all cores; returns how long each took and what it found.

    Args:
        folder: An empty one; each engine's profile is in ENGINE/out.
        options: Further ones of the command.
    """
    done = []
    for engine in ENGINES:
        done.append(_calibrate(engine, folder, options))
        one = done[-1]
        print(f"  {engine}: {one['seconds']:.0f} s, {one['outcome']}, T = {one['threshold']}", flush=True)
    return done


def _calibrate(engine: str, folder: Path, options: Sequence[str]) -> dict[str, Any]:
    own = [f"--{name}={folder / engine / name}" for name in ("out", "cache", "state")]
    command = ["fsd-calibrate", "--task=arithmetic", "--min-acc=0.98", f"--engine={engine}", *options, *own]
    print(" ".join(command), flush=True)
    began = time.perf_counter()
    code = subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
    seconds = time.perf_counter() - began
    profile = ThresholdProfile.load(folder / engine / "out")
    done = profile.effort
    assert done is not None
    return {
        "engine": engine, "seconds": seconds, "exit_code": code, "outcome": profile.outcome,
        "divergence": profile.divergence, "threshold": profile.threshold, "draft_length": profile.draft_length,
        "certificate": profile.certificate.model_dump(), "speed": profile.speed.model_dump(),
        "tokens_per_round": profile.tokens_per_round.model_dump(), "trials": done.trials,
        "decoded": sum(step.decoded for step in (done.baseline, done.search, done.certification)),
    }  # fmt: skip


def engines_of(task: Task, length: int) -> dict[str, Engine]:
    """Both engines, in this process."""
    target, draft = map(str, pair_paths())
    decoding = DecodingConfig(rule="fsd-coupled", divergence="js")
    decoder = SpeculativeDecoder.from_pretrained(target, draft, decoding=decoding, device="cpu")
    source = VllmEngineSource(
        target, draft, "float32", decoding, Limits.of(task), EngineArguments(), Room(_BATCH, length, _CONTEXT),
        task.name,
    )  # fmt: skip
    return {"fsd-calib": OwnEngine(decoder, task), "vllm": source.engine(None)}


def curves(task: Task, problems: Sequence[Problem], profile: ThresholdProfile) -> list[dict[str, Any]]:
    """Decodes the same problems at the same settings by both engines; retention is of each engine's own target."""
    engines, length = engines_of(task, profile.draft_length), profile.draft_length
    settings = [Setting("target", "js", 1), Setting("sd", "js", length)]
    settings += [Setting("fsd-coupled", profile.divergence, length, t) for t in _thresholds(profile)]
    prompts, alone = [KeyedPrompt(p.id, p.prompt) for p in problems], dict[str, list[bool]]()
    rows = []
    for setting in settings:
        row: dict[str, Any] = {"rule": setting.rule, "divergence": setting.divergence, "threshold": setting.threshold,
                               "draft_length": setting.draft_length}  # fmt: skip
        right: dict[str, list[bool]] = {}
        for name, engine in engines.items():
            results = engine.decode(DecodingRequest(setting, 0, prompts, _BATCH))
            right[name] = [task.grade(p, r.text) for p, r in zip(problems, results, strict=True)]
            outcomes = OutcomeCounts.of(alone.setdefault(name, right[name]), right[name])
            row[name] = {
                "accuracy": sum(right[name]) / len(problems), "retention": outcomes.retention,
                "standard_error": standard_error(outcomes),
                "tokens_per_round": sum(r.emitted for r in results) / sum(r.rounds for r in results),
            }  # fmt: skip
        paired = OutcomeCounts.of(*(right[name] for name in ENGINES))
        row["vllm_less_own"] = {"lost": paired.lost, "gained": paired.gained}
        rows.append(row)
        print(row_text(row), flush=True)
    return rows


def row_text(row: dict[str, Any]) -> str:
    """A line of the table of both curves."""
    setting = row["rule"] if row["threshold"] is None else f"{row['divergence']} <= {row['threshold']:.3f}"
    each = (f"{row[name]['retention']:.4f} ± {row[name]['standard_error']:.4f}, "
            f"{row[name]['tokens_per_round']:.2f} tokens a round" for name in ENGINES)  # fmt: skip
    return f"  {setting:16s} " + "; ".join(f"{name} {text}" for name, text in zip(ENGINES, each, strict=True))


def _thresholds(profile: ThresholdProfile) -> list[float]:
    own = [] if profile.threshold is None else [profile.threshold]
    return sorted({*_THRESHOLDS, *own})


def served(profile: ThresholdProfile, file: Path, task: Task, problems: Sequence[Problem]) -> Retention:
    """Asks a server that was started by the command of `fsd-profile vllm`, with requests decoded exactly and as usual.

    Greedy exact texts are those of the target alone.
    """
    grades: dict[str, list[bool]] = {"exact": [], "fsd": []}
    with _serving(profile, file) as url:
        for begin in range(0, len(problems), _BATCH):
            piece = problems[begin : begin + _BATCH]
            for name, options in (("exact", {"vllm_xargs": {"fsd": "off"}}), ("fsd", {})):
                texts = _complete(url, profile.target.id, task, [p.prompt for p in piece], options)
                grades[name] += [task.grade(problem, text) for problem, text in zip(piece, texts, strict=True)]
    return Retention.of(OutcomeCounts.of(grades["exact"], grades["fsd"]), profile)


@contextmanager
def _serving(profile: ThresholdProfile, file: Path) -> Iterator[str]:
    """Runs the profile's own command, with the CPU build's way to start a server; yields its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    setting, _, options = serve_command(profile, file).replace("\\\n", "").partition(" vllm serve ")
    name, _, value = setting.partition("=")
    server = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", *shlex.split(options)]
    server += ["--port", str(port), "--max-model-len", str(_CONTEXT), "--enforce-eager", "--max-num-seqs", str(_BATCH),
               "--kv-cache-memory-bytes", str(256 << 20)]  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    with (file.parent / "server.log").open("wb") as log:
        process = subprocess.Popen(server, stdout=log, stderr=log, env=os.environ | {name: value})
        try:
            _wait(url, process)
            yield url
        finally:
            process.terminate()
            process.wait(60)


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _STARTING
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5)
            return
        except OSError:
            time.sleep(0.5)
    raise RuntimeError("the server did not start; see server.log beside the profile")


def _complete(url: str, model: str, task: Task, prompts: Sequence[str], options: dict[str, Any]) -> list[str]:
    body = {
        "model": model,
        "prompt": list(prompts),
        "max_tokens": task.max_new_tokens,
        "stop": list(task.stop),
        **options,
    }
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=_ANSWER) as answer:
        choices = json.load(answer)["choices"]
    return [choice["text"] for choice in sorted(choices, key=lambda choice: choice["index"])]
