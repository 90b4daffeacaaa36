"""Calibrations with vLLM as the engine, whole, on the bundled pair; numbers of problems are small."""

from __future__ import annotations

import sqlite3
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest

from fsd_calib import SpeculativeDecoder, ThresholdProfile
from fsd_calib.cli import calibrate, profile
from fsd_calib.cli.console import run
from fsd_calib.engines.base import DecodingRequest, KeyedPrompt
from fsd_decoding.profile.certificate import attempt_level
from fsd_decoding.profile.setting import Setting
from fsd_decoding.sampling import Sampling
from lib.common import forked_programs
from lib.common.forked_programs import ForkedProgram
from support.vllm_engine import DRAFT, TARGET, arithmetic, engine_source

pytestmark = pytest.mark.slow

forked_programs.preload(
    "vllm.entrypoints.llm", "vllm.model_executor.models.llama", "vllm.v1.engine.core", "vllm.v1.worker.cpu_worker",
)  # fmt: skip
OPTIONS = ["--task", "arithmetic", "--min-acc", "0.8", "--engine", "vllm", "--limit", "150", "--looks", "1",
           "--draft-length", "6", "--score", "js"]  # fmt: skip


def start(folder: Path, *more: str, options: Sequence[str] = OPTIONS) -> ForkedProgram:
    own = [f"--{name}={folder / name}" for name in ("out", "cache", "state")]
    return ForkedProgram(calibrate.main, *options, *own, *more, daemon=False)


def finished(program: ForkedProgram) -> str:
    """What a program has written when it has ended well."""
    output = "".join(program.communicate(timeout=600))
    assert program.poll() == 0, output
    return output


def certify_by_both(folder: Path) -> str:
    """Certifies what a calibration found by either engine, in `both`; returns what is printed."""
    own = [f"--{name}={folder / name}" for name in ("cache", "state")]
    return finished(ForkedProgram(
        calibrate.main, "--certify", str(folder / "out"), "--limit", "150", "--min-acc", "0.7", "--engine",
        "fsd-calib,vllm", "--timing", "none", f"--out={folder / 'both'}", *own, daemon=False,
    ))  # fmt: skip


@pytest.mark.parametrize(("score", "length"), [("fly@1", 6), ("auto", 3)])  # of which the first looks at later tokens
def test_other_scores_certify(score: str, length: int, tmp_path: Path) -> None:
    finished(start(tmp_path, "--timing", "none", "--draft-length", str(length), options=[*OPTIONS[:-1], score]))
    found = ThresholdProfile.load(tmp_path / "out")
    assert found.certificate.certified
    assert found.score == score or score == "auto"
    if length > 3:  # else the lossless rule has longer drafts
        assert found.tokens_per_round.chosen > found.tokens_per_round.lossless


def decodings(folder: Path) -> int:
    path = folder / "cache" / "decodings.sqlite"
    if not path.exists():
        return 0
    with sqlite3.connect(path) as file:
        (count,) = file.execute("SELECT count(*) FROM decodings").fetchone()
        return int(count)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a calibration that was killed in its search, and then resumed with replicas."""
    made = tmp_path_factory.mktemp("calibrated")
    killed = start(made)
    deadline = time.monotonic() + 300
    while decodings(made) < 120:
        assert killed.poll() is None, killed.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.2)
    killed.kill()
    killed.communicate()
    kept = decodings(made)
    (made / "output").write_text(finished(start(made, "--workers", "2")))
    assert decodings(made) > kept
    return made


def test_it_certifies_and_names_its_engine(folder: Path) -> None:
    found, output = ThresholdProfile.load(folder / "out"), (folder / "output").read_text()
    assert found.certificate.certified
    assert found.engine is not None
    assert (found.engine.name, found.compile, found.draft_length) == ("vllm", None, 6)
    assert found.numerical_churn is not None
    assert "rounding alone (the lossless rule compared with the target) flipped" in output
    assert f"Decoded and timed by vllm {found.engine.version}." in output
    assert "fsd-profile vllm" in output
    assert "fsd-generate" not in output


def test_its_numbers_are_those_of_our_engine_but_for_where_rounds_end(folder: Path) -> None:
    """Greedy lossless texts are the same; the prompt's own step brings vLLM one token more."""
    found = ThresholdProfile.load(folder / "out")
    decoder = SpeculativeDecoder.from_pretrained(TARGET, DRAFT, rule="sd", draft_length=6, device="cpu")
    task = arithmetic(150, seed=0)
    results = decoder.generate([p.prompt for p in task.problems], task.max_new_tokens, stop=task.stop)
    right = sum(task.grade(problem, result.text) for problem, result in zip(task.problems, results, strict=True))
    alone = {p.source: p for p in found.curve if p.setting.rule == "target"}
    assert sum(round(p.accuracy * p.problems) for p in alone.values()) == right
    ours = sum(r.emitted for r in results) / sum(r.rounds for r in results)
    assert found.tokens_per_round.lossless == pytest.approx(ours, rel=0.25)


def test_the_served_command_has_no_doubt_and_our_decoder_has_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "out" / "profile.json"
    assert run(profile.app, profile.NAME, ["vllm", str(path)]) == 0
    shown = capsys.readouterr()
    assert '"num_speculative_tokens": 6' in shown.out
    assert "warning" not in shown.err
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        SpeculativeDecoder.from_pretrained(TARGET, DRAFT, profile=path, device="cpu")
    assert any("the profile is of vllm" in str(warning.message) for warning in caught)


def test_both_engines_certify_its_setting_in_one_second_attempt(folder: Path) -> None:
    """The ledger counts attempts of a target, whatever decodes it, and a sequence of engines once."""
    output = certify_by_both(folder)
    searched = ThresholdProfile.load(folder / "out")
    both = [ThresholdProfile.load(folder / "both" / name) for name in ("fsd-calib", "vllm")]
    assert [made.engine_name for made in both] == ["fsd-calib", "vllm"]
    for made in both:
        assert made.threshold == searched.threshold
        assert (made.certificate.attempt, made.certificate.delta) == (2, attempt_level(0.95, 2))
    assert "Engine 2 of 2 in one frozen sequence, attempt 2: vllm" in output


def test_a_t_by_phase_is_found_and_certified_by_both_engines(tmp_path: Path) -> None:
    phase = ["--threshold-policy", "phase-outside", "--phase-begin", "=", "--phase-end", " "]
    assert "phase from '=' to ' '" in finished(start(tmp_path, *phase))
    certify_by_both(tmp_path)
    made = [ThresholdProfile.load(tmp_path / path) for path in ("out", "both/fsd-calib", "both/vllm")]
    assert {each.policy and str(each.policy) for each in made} == {"phase (begin '=', end ' ', inside 0, outside 1)"}


@pytest.mark.usefixtures("mended_expansion")
class TestSampled:
    """Sampled texts hold for their own T, and repeat by their seeds where nothing is drafted."""

    def test_texts_hold_at_their_own_threshold_only(self) -> None:
        task = arithmetic(4)
        engine = engine_source(task, Sampling(0.8)).engine(None)
        prompts = [KeyedPrompt(problem.id, problem.prompt) for problem in task.problems]
        fuzzy = engine.decode(DecodingRequest(Setting("fsd-coupled", "js", 4, 0.1), 0, prompts, 4))
        assert [result.interval for result in fuzzy] == [(0.1, 0.1)] * 4
        alone = DecodingRequest(Setting("target", "js", 1), 0, prompts, 4)
        first, again, other = engine.decode(alone), engine.decode(alone), engine.decode(alone._replace(seed=1))
        assert [r.tokens for r in first] == [r.tokens for r in again]
        assert [r.tokens for r in first] != [r.tokens for r in other]
