"""Records of what is served: finished texts, written as traces beside serving."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, Full, Queue
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fsd_calib.vllm_plugin.telemetry.texts import Round, ServedText
from fsd_collectors.collection.on_policy import DraftedTokens, Drafts
from fsd_collectors.collection.portions import Completions
from fsd_collectors.collection.run import versions
from fsd_collectors.manifest import Manifest, Policy, TaskInfo
from fsd_collectors.store.writing import TraceWriter
from fsd_decoding.divergence import DIVERGENCES
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.scores import score_named

PORTION = 50  # texts of a shard, at most


def manifest_of(
    profile: ThresholdProfile, texts: int, *, draft_length: int, batch_size: int, context: int, eos: Iterable[int],
    device: str, version: str,
) -> Manifest:  # fmt: skip
    """Returns the manifest of texts that are decoded as a profile says.

    Args:
        profile: which is followed.
        texts: number of texts after which recording ends.
        draft_length: L, which the engine serves with.
        batch_size: largest number of running requests.
        context: the most tokens of a prompt and its text together.
        eos: tokens that end a text.
        version: of vLLM.
    """
    return Manifest(
        way="serving",
        policy=Policy(
            rule=profile.followed.rule, score=profile.score,
            threshold="none" if profile.threshold is None else repr(profile.threshold),
            draft_length=draft_length, within_support=profile.within_support,
        ),
        target=profile.target,
        draft=profile.draft,
        tokenizer=profile.tokenizer,
        eos=tuple(sorted(eos)),
        task=TaskInfo(
            name=profile.task, source="requests to vLLM", prompts="", problems=texts, max_new_tokens=context,
            fingerprint=hashlib.sha256(profile.model_dump_json().encode()).hexdigest(), stop=(),
        ),
        sampling=profile.sampling,
        seed=profile.seed,
        scores=tuple(dict.fromkeys((*DIVERGENCES, profile.score))),
        on=profile.logits,
        hidden=0,
        projected=False,
        batch_size=batch_size,
        portion=min(PORTION, texts),
        device=device,
        versions=versions(f"vllm {version}"),
    )  # fmt: skip


Array = NDArray[Any]

_OF_STEP = ("judged", "fuzzy", "most_likely")  # the facts that every `Step` has
_OF_NOISE = ("target_choice", "same_token", "sd_accepts", "sd_probability")  # unknown of sampled tokens


@dataclass(frozen=True)
class Served:
    """A finished text, with what the table of completions needs of it."""

    text: str  # cut before a stop string
    tokens: list[int]  # without the token that ended it
    finish_reason: str
    emitted: int  # tokens, one that ended it included
    drafted: int
    accepted: int
    parts: Sequence[Round]
    prompt: Sequence[int]
    greedy: bool

    @classmethod
    def of(cls, text: ServedText, tokenizer: Any) -> Self:
        """Describes a finished text, which `tokenizer` decodes."""
        tokens = text.tokens[:-1] if text.reason == "eos" else text.tokens
        decoded = tokenizer.decode(tokens, skip_special_tokens=True)
        if text.reason == "stop":
            places = [place for stop in text.request.stops if (place := decoded.find(stop)) >= 0]
            decoded = decoded[: min(places, default=None)]
        return cls(decoded, tokens, text.reason, len(text.tokens), text.drafted, text.accepted, text.rounds,
                   text.request.prompt, text.request.greedy)  # fmt: skip

    @property
    def rounds(self) -> int:
        return len(self.parts)


def tables_of(manifest: Manifest, measured: Sequence[str], texts: Sequence[Served], first: int) -> dict[str, pa.Table]:
    """Returns the tables of a portion.

    Args:
        manifest: of the run.
        measured: names of the columns that follow the first three facts of a drafted token.
        texts: of the portion.
        first: number of the first of them in the run.
    """
    count = len(texts)
    problems, unknown = range(first, first + count), [None] * count
    done = Completions(manifest, problems, ["serving"] * count, [text.prompt for text in texts], texts, unknown)
    drafts = _drafts(texts)
    columns = (*_OF_STEP, *measured)
    facts = [np.empty((len(columns), 0), np.float32), *(part.facts for text in texts for part in text.parts)]
    first_tokens = np.cumsum(drafts.proposed) - drafts.proposed
    drafted = DraftedTokens.of(drafts.proposed, first_tokens, np.concatenate(facts, 1), None)
    named = dict(zip(columns, drafted.measured, strict=True))
    assert manifest.policy is not None
    if not score_named(manifest.policy.score).window:  # traces have those without a look at later tokens
        named[manifest.policy.score] = named["judged"]  # what decided, which may differ in the last digit
    sampled = ~np.array([text.greedy for text in texts], bool)[drafts.owner[drafted.round_]]
    named |= {name: np.ma.masked_array(named[name], sampled) for name in _OF_NOISE}
    return {"tokens": done.on_policy(drafts, drafted, named), "completions": done.table()}


def _drafts(texts: Sequence[Served]) -> Drafts:
    parts = [(owner, number, part) for owner, text in enumerate(texts) for number, part in enumerate(text.parts)]
    values = [
        (owner, number, len(texts[owner].prompt) + part.begin, part.facts.shape[1], part.accepted)
        for owner, number, part in parts
    ]
    return Drafts(*np.array(values, np.int64).reshape(-1, 5).T)


_PATIENCE = 30.0  # seconds that the end of serving waits for the disk


class Records:
    """Writes texts to a folder of traces until it has as many as its manifest says.

    A thread of its own owns the folder, so that no disk holds up serving. Whatever goes wrong there is logged once, and
    ends recording only. The folder of an earlier run with the same settings is continued.

    Args:
        folder: the folder.
        manifest: of the run.
        measured: names of the columns that follow the first three facts of a drafted token.
        tokenizer: decodes texts.
        log: receives what users should know.
        waiting: number of texts that may wait for the disk.
        longest: seconds after which a text is written, in a smaller portion if need be: vLLM may kill its workers.
    """

    def __init__(
        self, folder: str, manifest: Manifest, measured: Sequence[str], tokenizer: Any, log: logging.Logger,
        waiting: int = 800, longest: float = 30.0,
    ) -> None:  # fmt: skip
        self._folder, self._manifest, self._measured = folder, manifest, tuple(measured)
        self._tokenizer, self._log, self._longest = tokenizer, log, longest
        self._unusable = 0
        self._queue: Queue[Served | None] = Queue(waiting)  # None: there are no more
        self._ended, self._ending = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._run, name="fsd-records", daemon=True)
        self._thread.start()

    @property
    def active(self) -> bool:
        """Whether texts are still recorded."""
        return not self._ended.is_set()

    def finished(self, text: ServedText) -> None:
        if not self.active:
            return
        if not text.whole:
            self._unusable += 1
            return
        try:
            self._queue.put_nowait(Served.of(text, self._tokenizer))
        except Full:
            self._end(
                f"folder {self._folder!r} is written slower than texts finish; it keeps what it has, choose one on a "
                "faster disk"
            )

    def close(self) -> None:
        """Writes what is left, and waits for it."""
        with suppress(Full):
            if self._thread.is_alive():
                self._queue.put(None, timeout=_PATIENCE)
        self._thread.join(_PATIENCE)
        if self._thread.is_alive():
            self._end(f"folder {self._folder!r} was not written within {_PATIENCE:.0f} s: its last texts are missing")
        if self._unusable:
            self._log.warning("fsd: %d texts were not recorded: vLLM did not show all of their tokens", self._unusable)
            self._unusable = 0

    def _run(self) -> None:
        try:
            with TraceWriter(self._folder, self._manifest, '"records" folder') as writer:
                self._write(writer)
        except Exception as error:  # whatever it is, serving goes on
            self._end(str(error) or repr(error))
        self._ended.set()
        with suppress(Empty):
            while True:
                self._queue.get_nowait()

    def _write(self, writer: TraceWriter) -> None:
        wanted, folder = writer.manifest.task.problems, self._folder
        if writer.problems < wanted:
            self._log.info("fsd: recording texts to folder %r, which has %d of %d", folder, writer.problems, wanted)
        portions = self._portions(writer.manifest.portion)
        while writer.problems < wanted:
            first, texts = writer.problems, next(portions, None)
            if texts is None:
                return
            writer.write(writer.finished, tables_of(writer.manifest, self._measured, texts[: wanted - first], first))
        self._log.info("fsd: folder %r has all %d texts; nothing more is recorded", folder, wanted)

    def _portions(self, most: int) -> Iterator[list[Served]]:
        """Yields `most` texts at a time, or as many as there are when one has waited for long, or at the end."""
        while True:
            text, deadline = self._queue.get(), time.monotonic() + self._longest
            texts: list[Served] = []
            while text is not None:
                texts.append(text)
                left = deadline - time.monotonic()
                if len(texts) == most or left <= 0:
                    break
                try:
                    text = self._queue.get(timeout=left)
                except Empty:
                    break
            if texts:
                yield texts
            if text is None:
                return

    def _end(self, reason: str) -> None:
        """Ends recording because of a failure, of which the first is logged."""
        with self._ending:
            if self.active:
                self._ended.set()
                self._log.warning("fsd: nothing more is recorded, serving goes on: %s", reason)
