"""Records of what is served: rows against what was served, and what becomes of them when the folder fails."""

from __future__ import annotations

import logging
import math
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer

from fsd_calib.cli import traces as traces_app
from fsd_calib.cli.console import run
from fsd_calib.vllm_plugin.draft_logits import HostDraftLogits
from fsd_calib.vllm_plugin.judge import Judge, JudgedTokens, Verification
from fsd_calib.vllm_plugin.running_requests import RunningRequest
from fsd_calib.vllm_plugin.telemetry.records import Records, Served, manifest_of, tables_of
from fsd_calib.vllm_plugin.telemetry.steps import Emitted, StepLog
from fsd_calib.vllm_plugin.telemetry.texts import Ends, ServedText, Texts
from fsd_collectors.collection.measures import Measures
from fsd_collectors.manifest import Manifest
from fsd_collectors.store.reading import Traces, load_traces
from fsd_collectors.store.verifying import notes, verify
from fsd_collectors.store.writing import TraceWriter
from fsd_data import pair_paths
from fsd_decoding.divergence import divergence
from fsd_decoding.sampling import Sampling
from support.calibration.profiles import profile
from support.small_disks import small_disk

# Serving as vLLM's model runner does it, with random logits: steps that verify drafts, without vLLM.
#
# What is accepted is worked out here one token at a time, independently of the plugin, which sees the steps alone.

VOCABULARY, DRAFTS, THRESHOLD, EOS = 40, 4, 0.2, 0


@dataclass
class Drafted:
    """A drafted token, as the test expects it to be recorded."""

    position: int
    token: int
    score: float
    choice: int
    accepted: bool


@dataclass
class Running:
    """A request that is served."""

    name: str
    request: RunningRequest
    tokens: list[int] = field(default_factory=list)  # that vLLM would return: up to the text's end
    drafted: list[Drafted] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return EOS in self.tokens or len(self.tokens) == self.request.limit


def request(prompt: int, limit: int, greedy: bool = True, stops: Sequence[str] = ()) -> RunningRequest:
    return RunningRequest(THRESHOLD, greedy, (), frozenset({EOS}), tuple(stops), range(prompt), limit)


def serve(
    log: StepLog, requests: Sequence[RunningRequest], measures: Measures | None, seed: int = 0, reported: bool = True
) -> list[Running]:
    """Serves a batch of greedy requests to their ends.

    Those that have finished are reported a step later, as vLLM does; it ends without the last report (`reported`).
    """
    random = torch.Generator().manual_seed(seed)
    batch = [Running(f"{seed}-{number}", request) for number, request in enumerate(requests)]
    _prefill(log, batch, random)
    running = [each for each in batch if not each.ended]
    log.finish([each.name for each in batch if each.ended and reported])
    while running:
        _step(log, running, measures, random)
        log.finish([each.name for each in running if each.ended and reported])
        running = [each for each in running if not each.ended]
    return batch


def _prefill(log: StepLog, batch: Sequence[Running], random: torch.Generator) -> None:
    """Reads the prompts in two chunks; what vLLM samples behind the first is no token of a text."""
    names, requests = [each.name for each in batch], [each.request for each in batch]
    for done in (False, True):
        sampled = torch.randint(1, VOCABULARY, (len(batch), 1), generator=random, dtype=torch.int32)
        begins = torch.tensor([len(each.prompt) - (0 if done else 1) for each in requests], dtype=torch.int32)
        log.add(names, requests, None, Emitted(sampled, begins, [0] * len(batch), np.full(len(batch), done)))
    for each, token in zip(batch, sampled[:, 0].tolist(), strict=True):
        each.tokens.append(token)


def _step(log: StepLog, running: Sequence[Running], measures: Measures | None, random: torch.Generator) -> None:
    names, requests = [each.name for each in running], [each.request for each in running]
    target = torch.randn(len(running), DRAFTS + 1, VOCABULARY, generator=random) * 2
    draft = target[:, :DRAFTS] + torch.randn(len(running), DRAFTS, VOCABULARY, generator=random)
    tokens = draft.argmax(-1)
    drafts = HostDraftLogits(VOCABULARY)
    drafts.begin()
    for place in range(DRAFTS):
        drafts.add(draft[:, place], changes=False)
    drafts.end(names)
    judge = Judge(drafts, "js", None)
    rows = torch.tensor([b * (DRAFTS + 1) + place for b in range(len(running)) for place in range(DRAFTS)])
    greedy = [each.greedy for each in requests]
    step = Verification(names, [DRAFTS] * len(running), target.flatten(0, 1), rows, tokens.flatten(), greedy)
    judged = judge(step, [each.threshold for each in requests], measures)
    assert isinstance(judged, JudgedTokens)
    ends = torch.tensor([len(each.request.prompt) + len(each.tokens) + DRAFTS for each in running], dtype=torch.int32)
    sampled = torch.full((len(running), DRAFTS + 1), -1, dtype=torch.int32)
    for row, each in enumerate(running):
        emitted = _verify(each, target[row], draft[row], tokens[row].tolist())
        sampled[row, : len(emitted)] = torch.tensor(emitted, dtype=torch.int32)
    most_likely = (tokens == target[:, :DRAFTS].argmax(-1)).flatten()
    emitted_ = Emitted(sampled, ends, step.counts, np.full(len(running), True))
    judged.accepted(most_likely)
    log.add(names, requests, judged, emitted_)


def _verify(running: Running, target: Tensor, draft: Tensor, tokens: Sequence[int]) -> list[int]:
    """Returns what vLLM's sampler emits for a request, and adds it to the request as far as it belongs to its text."""
    distances = divergence("js", target[:DRAFTS].double(), draft.double()).tolist()
    begin, emitted, open_ = len(running.tokens), [], True
    for place, (token, distance) in enumerate(zip(tokens, distances, strict=True)):
        choice = int(target[place].argmax())
        open_ = open_ and (token == choice or distance <= THRESHOLD)
        running.drafted.append(Drafted(begin + place, token, distance, choice, open_))
        emitted += [token] if open_ else []
    emitted.append(int(target[len(emitted)].argmax()))
    for token in emitted:
        if not running.ended:
            running.tokens.append(token)
    return emitted


LOG = logging.getLogger("fsd-test-records")
TOKENIZER = AutoTokenizer.from_pretrained(pair_paths()[0])
ENGINE: dict[str, Any] = {
    "draft_length": DRAFTS, "batch_size": 8, "context": 400, "eos": [EOS], "device": "cpu", "version": "0.32.0",
}  # fmt: skip


def manifest(texts: int = 1000, portion: int = 50) -> Manifest:
    followed = profile({"threshold": THRESHOLD, "score": "js"})
    return manifest_of(followed, texts, **ENGINE).model_copy(update={"portion": portion})


MEASURES = Measures(manifest().scores, "raw", Sampling())


@contextmanager
def recording(folder: Path, of: Manifest, **settings: Any) -> Iterator[tuple[StepLog, Records]]:
    """Yields a log whose texts are recorded, closed as a worker closes its own."""
    records = Records(str(folder), of, MEASURES.columns, TOKENIZER, LOG, **settings)
    texts = Texts([records], TOKENIZER)
    log = StepLog([texts])
    yield log, records
    log.flush()
    texts.close()
    records.close()


def record(folder: Path, of: Manifest, requests: Sequence[RunningRequest], seed: int = 0) -> list[Running]:
    with recording(folder, of) as (log, _):
        return serve(log, requests, MEASURES, seed)


def some(count: int, seed: int = 1) -> list[RunningRequest]:
    random = np.random.default_rng(seed)
    sizes = zip(random.integers(2, 9, count), random.integers(1, 60, count), strict=True)
    return [request(int(prompt), int(limit)) for prompt, limit in sizes]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert not any("\n" in each for each in found)
    return found


def in_order(traces: Traces) -> list[int]:
    assert verify(traces.path) == []
    return traces.to_pandas(["problem"], table="completions").problem.tolist()


# --- rows ------------------------------------------------------------------------------------------------------------


def test_rows_are_what_was_served(tmp_path: Path) -> None:
    served = {tuple(each.tokens): each for each in record(tmp_path / "run", manifest(portion=8), some(20))}
    traces = load_traces(tmp_path / "run")
    completions, tokens = traces.to_pandas(table="completions"), traces.to_pandas()
    assert len(served) == len(completions) == 20
    assert in_order(traces) == list(range(20))
    rows: list[Any] = list(completions.itertuples())
    for row in rows:
        ended = row.finish_reason == "eos"
        text = served.pop((*row.tokens, *([EOS] if ended else [])))
        assert row.emitted == len(text.tokens)
        assert row.prompt_tokens == len(text.request.prompt)
        assert ended == (text.tokens[-1] == EOS)
        assert row.text == TOKENIZER.decode(row.tokens, skip_special_tokens=True)
        mine = tokens[tokens.problem == row.problem]
        assert mine.position.tolist() == [each.position for each in text.drafted]
        assert mine.drafted.tolist() == [each.token for each in text.drafted]
        assert mine.accepted.tolist() == [each.accepted for each in text.drafted]
        assert mine.fuzzy.tolist() == [each.score <= THRESHOLD for each in text.drafted]
        assert mine.target_choice.tolist() == [each.choice for each in text.drafted]
        assert np.allclose(mine.js, [each.score for each in text.drafted], atol=1e-6)
        assert row.proposed == len(mine)
        assert row.accepted == int((mine.accepted & mine.in_text).sum())
        kept = mine[mine.accepted & mine.in_text]
        assert [text.tokens[position] for position in kept.position] == kept.drafted.tolist()
    assert not served


def test_rows_of_a_step_that_is_measured_in_parts_are_in_order(tmp_path: Path) -> None:
    with recording(tmp_path / "run", manifest(texts=2000), waiting=2000) as (log, _):
        served = serve(log, [request(2, 3)] * 900, MEASURES)  # 3,600 tokens of 40 logits; 3,276 are measured at once
    expected = sorted(each.token for text in served for each in text.drafted)
    tokens = load_traces(tmp_path / "run").to_pandas()
    assert sorted(tokens.drafted) == expected
    assert (tokens.loc[tokens.fuzzy, "js"] <= THRESHOLD).all()
    by_argmax = tokens[tokens.draft_rank == 0]
    assert len(by_argmax) == len(tokens)  # every token is its own draft's argmax


def test_texts_that_ended_are_recorded_though_vllm_never_said_so(tmp_path: Path) -> None:
    with recording(tmp_path / "run", manifest()) as (log, _):
        ended = serve(log, some(5), MEASURES, reported=False)
        under_way = Emitted(torch.tensor([[7]], dtype=torch.int32), torch.tensor([3]), [0], np.array([True]))
        log.add(["under way"], [request(3, 9)], None, under_way)
    emitted = load_traces(tmp_path / "run").to_pandas(["emitted"], table="completions").emitted
    assert sorted(emitted) == sorted(len(each.tokens) for each in ended)


def test_the_score_of_the_rule_is_the_one_that_decided() -> None:
    facts = np.zeros((3 + len(MEASURES.columns), 2), np.float32)
    facts[0], facts[3 + MEASURES.columns.index("js")] = [0.25, 0.5], [0.2500001, 0.5]
    text = ServedText(request(2, 9))
    text.add(0, [5], 0, facts[:, :0], 0)
    text.add(1, [6, 7, 8], 2, facts, facts.shape[1])
    tables = tables_of(manifest(), MEASURES.columns, [Served.of(text, TOKENIZER)], 0)
    assert tables["tokens"]["js"].to_pylist() == [0.25, 0.5]


def test_a_score_that_looks_at_later_tokens_is_recorded_as_traces_have_it() -> None:
    """Without that look, which a replay takes itself: what decided is infinite where the next token is rejected."""
    of = manifest_of(profile({"threshold": THRESHOLD, "score": "fly@1"}), 1000, **ENGINE)
    columns = Measures(of.scores, "raw", Sampling()).columns
    facts = np.zeros((3 + len(columns), 2), np.float32)
    facts[0], facts[3 + columns.index("fly@1")] = [math.inf, 0.5], [0.25, 0.5]
    text = ServedText(request(2, 9))
    text.add(0, [5], 0, facts[:, :0], 0)
    text.add(1, [6, 7, 8], 2, facts, facts.shape[1])
    tables = tables_of(of, columns, [Served.of(text, TOKENIZER)], 0)
    assert tables["tokens"]["fly@1"].to_pylist() == [0.25, 0.5]


def test_what_nobody_knows_is_null_and_is_described_as_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path / "run", manifest(), [request(3, 30, greedy=False), request(3, 30)])
    traces = load_traces(tmp_path / "run")
    assert traces.to_pandas(["correct"], table="completions").correct.isna().all()
    tokens = traces.to_pandas()
    unknown = ["target_choice", "same_token", "sd_accepts", "sd_probability"]
    missing = [tokens.loc[tokens.problem == problem, unknown].isna().to_numpy() for problem in (0, 1)]
    assert sorted(bool(each.all()) for each in missing) == [False, True]
    assert sorted(bool(each.any()) for each in missing) == [False, True]
    assert set(tokens.split) == {"serving"}
    assert run(traces_app.app, traces_app.NAME, ["describe", str(traces.path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "served by vLLM: fsd-coupled with js ≤ 0.2, 4 tokens a draft" in said
    assert "Unfinished: 2 of 1,000 problems; serving with the same settings continues." in said
    assert re.search(r"serving 2 2 \d+ – ", said)  # no accuracy


def test_a_text_that_vllm_took_back_is_recorded_as_it_went_on() -> None:
    text = ServedText(request(2, 50))
    facts = np.zeros((3, 2), np.float32)
    text.add(0, [5], 0, facts[:, :0], 0)
    text.add(1, [6, 7, 8], 2, facts, facts.shape[1])
    text.add(4, [9], 0, facts, facts.shape[1])
    text.add(2, [1, 2], 1, facts, facts.shape[1])  # preempted: what the last two steps emitted was dropped
    assert text.tokens == [5, 6, 1, 2]
    assert [each.begin for each in text.rounds] == [1, 2]
    assert text.whole
    text.add(7, [3], 0, facts, facts.shape[1])
    assert not text.whole


@pytest.mark.parametrize(
    ("tokens", "limit", "stops", "length", "reason"),
    [
        ([5, EOS, 7], 9, (), 2, "eos"),
        ([5, 6, 7, EOS], 3, (), 3, "length"),
        ([5, 6, 7], 9, (), 3, "abort"),
        ([5, 6, EOS], 3, (), 3, "eos"),
    ],
)
def test_texts_end_where_vllm_ends_them(
    tokens: list[int], limit: int, stops: tuple[str, ...], length: int, reason: str
) -> None:
    text = ServedText(request(2, limit, stops=stops))
    text.add(0, tokens[:1], 0, np.zeros((3, 0), np.float32), 0)
    text.add(1, tokens[1:], len(tokens) - 2, np.zeros((3, 4), np.float32), 4)
    text.add(len(tokens), [8, 8], 1, np.zeros((3, 4), np.float32), 4)  # under way when the end became known
    if reason == "abort":
        length += 2
    found = Ends(TOKENIZER).of(text.tokens, text.request, text.whole)
    assert found == (length, reason)
    text.end(length, text.reason)
    assert text.tokens == [*tokens, 8, 8][:length]
    assert len(text.rounds) == (2 if reason == "abort" else 1)


def test_a_stop_string_ends_a_text_at_the_token_that_completes_it(tmp_path: Path) -> None:
    (whole,) = record(tmp_path / "whole", manifest(), [request(3, 40)], seed=3)
    stop = str(TOKENIZER.decode(whole.tokens[:12]))[-3:]
    with recording(tmp_path / "run", manifest()) as (log, _):
        serve(log, [request(3, 40, stops=[stop])], MEASURES, seed=3)
    row = load_traces(tmp_path / "run").to_pandas(table="completions").iloc[0]
    assert row.finish_reason == "stop"
    assert stop not in row.text
    assert stop in TOKENIZER.decode(row.tokens)
    assert stop not in TOKENIZER.decode(row.tokens[:-1])
    assert list(row.tokens) == whole.tokens[: len(row.tokens)]


# --- the folder ------------------------------------------------------------------------------------------------------


def test_the_last_portion_is_smaller_and_the_next_server_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    of, folder = manifest(texts=30, portion=8), tmp_path / "run"
    record(folder, of, some(11))
    assert [shard.problems for shard in load_traces(folder).shards] == [8, 3]
    assert not load_traces(folder).complete
    assert notes(folder) == ["11 of 30 texts are recorded"]
    record(folder, of, some(25, seed=2), seed=2)
    traces = load_traces(folder)
    assert [shard.problems for shard in traces.shards] == [8, 3, 8, 8, 3]
    assert in_order(traces) == list(range(30))
    assert traces.complete
    assert notes(folder) == []
    with recording(folder, of) as (_, records):
        records._thread.join(60)
        assert not records.active
    assert [shard.problems for shard in load_traces(folder).shards] == [8, 3, 8, 8, 3]
    assert warnings(caplog) == []


def test_a_full_disk_ends_recording_with_one_warning_and_whole_shards(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "disk"
    with small_disk(folder, 256):
        with recording(folder / "run", manifest(portion=4)) as (log, records):
            for seed in range(20):
                serve(log, some(8, seed=seed), MEASURES, seed=seed)
            records._thread.join(60)
            assert not records.active
            serve(log, some(8), None, seed=99)  # serving goes on, with nothing measured
        (warning,) = warnings(caplog)
        assert "serving goes on: folder" in warning
        assert "No space left on device" in warning
        assert "free space or choose a folder" in warning
        traces = load_traces(folder / "run")
        assert len(traces.shards) > 1
        assert in_order(traces) == list(range(4 * len(traces.shards)))
        assert notes(folder / "run") == [f"{4 * len(traces.shards)} of 1000 texts are recorded"]
        listed = {file.path for shard in traces.shards for file in shard.files}
        assert {str(path.relative_to(traces.path)) for path in traces.path.glob("*/*")} == listed


def test_a_folder_that_is_too_slow_ends_recording_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with recording(tmp_path / "run", manifest(portion=1), waiting=16) as (log, records):
        serve(log, [request(3, 1)] * 300, MEASURES)  # at once, each a portion
        assert not records.active
    (warning,) = warnings(caplog)
    assert "is written slower than texts finish; it keeps what it has" in warning
    assert 16 <= len(in_order(load_traces(tmp_path / "run"))) < 300


def test_a_second_failure_is_not_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with recording(tmp_path / "run", manifest(portion=1), waiting=16) as (log, records):
        while not (tmp_path / "run" / "shards.jsonl").exists():
            assert records.active
        (tmp_path / "run/completions/00012.parquet/in the way").mkdir(parents=True)
        serve(log, [request(3, 1)] * 300, MEASURES)  # more than may wait
    (warning,) = warnings(caplog)
    assert "slower" in warning
    assert len(in_order(load_traces(tmp_path / "run"))) == 12


def test_texts_are_written_before_long_though_few_finish(tmp_path: Path) -> None:
    with recording(tmp_path / "run", manifest(), longest=0.2) as (log, _):
        serve(log, some(3), MEASURES)
        until = time.monotonic() + 60
        while not (tmp_path / "run" / "shards.jsonl").exists() or not load_traces(tmp_path / "run").shards:
            assert time.monotonic() < until
        assert len(load_traces(tmp_path / "run").to_pandas(table="completions")) == 3


def test_a_folder_that_is_removed_ends_recording_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with recording(tmp_path / "run", manifest(portion=4)) as (log, records):
        serve(log, some(4), MEASURES)
        listing = tmp_path / "run" / "shards.jsonl"
        while not listing.exists() or b"\n" not in listing.read_bytes():
            assert records.active
        shutil.rmtree(tmp_path / "run")
        for seed in range(1, 4):
            serve(log, some(8, seed=seed), MEASURES, seed=seed)
        records._thread.join(60)
    (warning,) = warnings(caplog)
    assert "serving goes on: folder" in warning


def test_a_folder_of_another_run_is_left_alone_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    record(folder, manifest(portion=4), some(4))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    record(folder, manifest(texts=7, portion=4), some(4))
    (warning,) = warnings(caplog)
    assert 'holds traces of another run: task.problems 1000, not 7; choose another "records" folder' in warning
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_folder_that_another_server_writes_is_left_alone_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with TraceWriter(tmp_path / "run", manifest()):
        record(tmp_path / "run", manifest(), some(4))
    (warning,) = warnings(caplog)
    assert 'is being written by another collector; choose another "records" folder, or wait' in warning


def test_a_file_in_the_place_of_the_folder_is_left_alone_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "run").write_text("mine")
    record(tmp_path / "run", manifest(), some(4))
    (warning,) = warnings(caplog)
    assert "cannot be written" in warning
    assert (tmp_path / "run").read_text() == "mine"


def test_another_profile_is_another_run() -> None:
    other = manifest_of(profile({"threshold": 0.3, "score": "js"}), 1000, **ENGINE)
    assert (manifest().difference(other) or "").startswith("policy.threshold '0.3'")
    assert manifest().difference(manifest()) is None
