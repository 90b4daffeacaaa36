"""Our engine against its peers on a real pair of models: speed of decoding and of prefill, and memory against the plan.

Real models are large, so that our engine and one other are alive at a time. No token ends a text, so that all engines
decode as many tokens of the same prompts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from threading import Event, Thread
from typing import Any

from fsd_calib.tasks.registry import load_task
from lib.common.claims import Claim
from lib.common.results import revision_of
from lib.common.timing import Ratio, Spread, rates, speed_up, take_turns
from lib.engines import (
    OURS,
    SD,
    TARGET,
    TRANSFORMERS,
    VLLM,
    Decode,
    Decoded,
    Lengths,
    OwnEngine,
    Served,
    TransformersEngine,
    VllmEngine,
    Work,
    about,
    pin,
    serve,
)

PRESENT = "present"  # the revision that prefill is compared with
_CORES = 2
_WANTED = {(VLLM, 1): 1.0, (VLLM, 16): 0.9, (TRANSFORMERS, 1): 1.3}  # `sd` over a peer's, by batch size
_PREFILL, _MEMORY = 3.0, 0.1
_SEED, _WARM_UP = 74_001, 8  # new tokens of a first, untimed decoding
_KV_BYTES = 1 << 29
_WATCHED = 0.01  # seconds between two looks at memory


@dataclass(frozen=True)
class Amount:
    """How much is decoded at one batch size. choosing: further prompts, at most as many, for L."""

    batch: int
    prompts: int
    choosing: int
    repeats: int


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    amounts: tuple[Amount, ...]
    new: int  # tokens of each text
    lengths: tuple[int, ...]  # L that `sd` may have
    prefills: int  # prompts
    prefill_repeats: int


FULL = Plan((Amount(1, 2, 1, 3), Amount(16, 16, 16, 3)), 32, (2, 4, 6), 32, 2)
QUICK = Plan((Amount(1, 1, 1, 2), Amount(16, 16, 16, 2)), 12, (2, 4), 4, 2)


# --- the pair ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RealPair:
    """Two models, and the problems that they are asked.

    Args:
        models: Paths of the target and the draft.
        problems: A file of GSM8K; None: the bundled arithmetic.
        dtype: Of weights and activations, in all engines.
    """

    models: tuple[str, str]
    problems: Path | None
    dtype: str

    @classmethod
    def of(cls, paths: Sequence[Path], problems: Path | None) -> RealPair:
        """Returns the pair in these folders, in bf16 where the processor multiplies in it.

        Args:
            paths: The target's and the draft's, or a folder that holds both: then the larger one is the target.

        Raises:
            ValueError: These are not two models.
        """
        folders = paths if len(paths) > 1 else sorted(filter(_is_model, paths[0].iterdir()), key=_size, reverse=True)
        if len(folders) != 2 or not all(map(_is_model, folders)):
            raise ValueError(f"two folders with a config.json are needed: {', '.join(map(str, paths))}")
        return cls((str(folders[0]), str(folders[1])), problems, "bfloat16" if _has_bf16() else "float32")

    def texts(self, count: int, worked_examples: bool) -> tuple[str, ...]:
        """Returns prompts: questions in the models' chat template, or after worked examples, which all have in common.

        Without a file both are those of the bundled task, as they are.
        """
        if self.problems is None:
            task = load_task("arithmetic", seed=_SEED, limit=count)
        else:
            tokenizer = None if worked_examples else _tokenizer(self.models[0])
            task = load_task("gsm8k", seed=_SEED, limit=count, data=self.problems, tokenizer=tokenizer)
        return tuple(problem.prompt for problem in task.problems)

    def tokens(self, texts: Sequence[str]) -> int:
        """Returns those of the longest text."""
        tokenizer = _tokenizer(self.models[0])
        return max(len(tokenizer(text)["input_ids"]) for text in texts)

    def facts(self) -> dict[str, Any]:
        """Returns what results say about the pair."""
        names = [Path(model).name for model in self.models]
        configs = [json.loads((Path(model) / "config.json").read_text(encoding="utf-8")) for model in self.models]
        return {
            "target": {"name": names[0], "config": configs[0]}, "draft": {"name": names[1], "config": configs[1]},
            "dtype": self.dtype, "problems": "arithmetic" if self.problems is None else f"gsm8k, {self.problems.name}",
        }  # fmt: skip


def _is_model(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _has_bf16() -> bool:
    import torch

    return torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()


def _tokenizer(model: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)


# --- decoding ---------------------------------------------------------------------------------------------

Opened = Callable[[int | None], AbstractContextManager[Decode]]
"""An engine ready to decode by the target alone (None) or with `sd` at an L; a process may be started for that."""


@dataclass(frozen=True)
class Contest:
    """Our engine and a peer at the same work, in turns.

    Attributes:
        clock: What speeds are of: CPU seconds on one core, seconds of the wall clock on more.
        lengths: Each one's L; empty for the target alone.
        same_texts: How many; rounding changes some.
    """

    way: str
    peer: str
    batch: int
    cores: int
    clock: str
    lengths: Mapping[str, int]
    prompts: int
    speeds: Mapping[str, Mapping[str, Any]]
    speed_up: Ratio
    same_texts: int

    @property
    def name(self) -> str:
        return f"{self.way} / {self.peer}'s, batch {self.batch}, {self.cores} core(s), tokens per {self.clock}"

    def row(self) -> str:
        key = "tokens_per_cpu_second" if self.cores == 1 else "tokens_per_second"
        speeds = ", ".join(f"{name} {found[key].median:.2f}" for name, found in self.speeds.items())
        lengths = "".join(f", L = {length} ({name})" for name, length in self.lengths.items())
        ratio = f"{self.speed_up.median:.3f} ({self.speed_up.at_least:.3f} to {self.speed_up.at_most:.3f})"
        return f"{self.name}: {ratio}; {speeds}{lengths}; {self.same_texts} of {self.prompts} same texts"


def decoding(pair: RealPair, plan: Plan, core: int | None) -> dict[str, Any]:
    """Returns each engine's best L by batch size, chosen on one core, and what came of all contests."""
    allowed = os.sched_getaffinity(0)
    works = [_work(pair, plan, amount) for amount in plan.amounts]
    peers = _peers(pair, plan, works)
    best: dict[str, dict[int, Lengths]] = {}
    contests: list[Contest] = []
    for cores in range(1, min(_CORES, len(allowed)) + 1):
        os.sched_setaffinity(0, allowed)
        pin(core, cores)
        with serve({OURS: partial(OwnEngine, pair.models, dtype=pair.dtype)}) as own:
            ours = partial(_opened, own[OURS])
            for name, opened in ({OURS: ours} | peers).items():
                taking_part = [work for work in works if name != TRANSFORMERS or work.batch == 1]
                if name not in best:
                    best[name] = _best(opened, plan.lengths, taking_part)
                if name != OURS:
                    for contest in _contests(ours, name, opened, best, taking_part, cores):
                        contests.append(contest)
                        print(contest.row(), flush=True)
    return {"sd_lengths": best, "contests": contests}


def _contests(
    ours: Opened,
    peer: str,
    opened: Opened,
    best: Mapping[str, Mapping[int, Lengths]],
    works: Sequence[WorkOf],
    cores: int,
) -> Iterator[Contest]:
    """Decodes with one peer in turns, at all batch sizes; it starts once for each L."""
    chosen = {work.batch: best[peer][work.batch].best for work in works}
    for length in (None, *sorted(set(chosen.values()))):
        with opened(length) as other:
            for work in works:
                if length in (None, chosen[work.batch]):
                    own = None if length is None else best[OURS][work.batch].best
                    with ours(own) as decode:
                        taken = _in_turns({OURS: decode, peer: other}, work.timed, work.repeats)
                    lengths = {} if own is None or length is None else {OURS: own, peer: length}
                    yield _contest(taken, work.batch, cores, lengths)


@dataclass(frozen=True)
class WorkOf:
    """What is decoded at one batch size. timed: in pieces of one batch; choosing: what L is chosen on."""

    batch: int
    timed: Sequence[Work]
    choosing: Work
    repeats: int


def _work(pair: RealPair, plan: Plan, amount: Amount) -> WorkOf:
    texts = pair.texts(amount.prompts + amount.choosing, worked_examples=False)
    whole = Work(texts, tuple(range(len(texts))), plan.new, (), amount.batch, endless=True)
    timed, choosing = whole.pieces(amount.prompts)
    return WorkOf(amount.batch, timed.pieces(amount.batch), choosing, amount.repeats)


def _peers(pair: RealPair, plan: Plan, works: Sequence[WorkOf]) -> dict[str, Opened]:
    """vLLM, where it is installed, and transformers, which assists one text at a time."""
    longest = max(pair.tokens(part.prompts) for work in works for part in (*work.timed, work.choosing))
    settings = {
        "dtype": pair.dtype, "kv_cache_memory_bytes": _KV_BYTES,
        "max_model_len": longest + plan.new + max(plan.lengths) + 1,
    }  # fmt: skip
    found: dict[str, Opened] = {}
    vllm = find_spec("vllm")
    if vllm is not None and vllm.origin is not None:  # a folder of that name, as tests have one, is no package
        found[VLLM] = partial(_vllm, pair, settings)
    return found | {TRANSFORMERS: partial(_transformers, pair)}


@contextmanager
def _opened(engine: Served, length: int | None) -> Iterator[Decode]:
    yield partial(engine.decode, way=TARGET if length is None else f"{SD} {length}")


@contextmanager
def _vllm(pair: RealPair, settings: Mapping[str, Any], length: int | None) -> Iterator[Decode]:
    with serve({VLLM: partial(VllmEngine, pair.models, length, settings=settings)}) as served:
        yield served[VLLM].decode


@contextmanager
def _transformers(pair: RealPair, length: int | None) -> Iterator[Decode]:
    build = partial(TransformersEngine, pair.models, pair.dtype)
    with serve({TRANSFORMERS: build}) as served, _opened(served[TRANSFORMERS], length) as decode:
        yield decode


def _best(opened: Opened, lengths: Sequence[int], works: Sequence[WorkOf]) -> dict[int, Lengths]:
    """Returns an engine's best L by batch size; it starts once for each L."""
    speeds: dict[int, dict[int, Spread]] = {work.batch: {} for work in works}
    for length in lengths:
        with opened(length) as decode:
            for work in works:
                taken = _in_turns({SD: decode}, [work.choosing], 1)[SD]
                speeds[work.batch][length] = rates([each.on_cpu for each in taken])
    return {batch: Lengths.of(found) for batch, found in speeds.items()}


def _in_turns(engines: Mapping[str, Decode], work: Sequence[Work], repeats: int) -> dict[str, list[Decoded]]:
    """As `decode_in_turns`, with a short first decoding: texts of real models take long."""
    take_turns(engines, [replace(work[0], max_new_tokens=min(_WARM_UP, work[0].max_new_tokens))], 1)
    return take_turns(engines, work, repeats)


def _contest(taken: Mapping[str, Sequence[Decoded]], batch: int, cores: int, lengths: Mapping[str, int]) -> Contest:
    (ours, theirs), peer = taken.values(), list(taken)[1]
    on_cpu = cores == 1
    runs = [[each.on_cpu if on_cpu else each.by_clock for each in decoded] for decoded in (ours, theirs)]
    same = sum(one.split() == other.split() for one, other in zip(ours[0].texts, theirs[0].texts, strict=True))
    return Contest(
        SD if lengths else TARGET, peer, batch, cores, "CPU second" if on_cpu else "second", lengths,
        len(ours[0].texts), {name: about(decoded) for name, decoded in taken.items()}, speed_up(*runs), same,
    )  # fmt: skip


# --- prefill ----------------------------------------------------------------------------------------------


def prefill(pair: RealPair, plan: Plan, present: Path | None) -> dict[str, Any]:
    """Returns the seconds that prompts of one round with `sd` take, for both models, and those of another revision.

    Args:
        present: A checkout of that revision; None: there is nothing to compare with.
    """
    texts = pair.texts(plan.prefills, worked_examples=True)
    work = Work(texts, tuple(range(len(texts))), 1, (), len(texts), endless=True)
    build = partial(OwnEngine, pair.models, dtype=pair.dtype)
    engines = {OURS: build} | ({PRESENT: build} if present else {})
    with serve(engines, {PRESENT: present} if present else None) as served:
        decode = {name: partial(each.decode, way=f"{SD} 1") for name, each in served.items()}
        take_turns(decode, work.pieces(1)[:1], 1)
        taken = take_turns(decode, [work], plan.prefill_repeats)
    walls = {name: Spread.of([each.wall for each in decoded]) for name, decoded in taken.items()}
    compared = [[each.by_clock for each in taken[name]] for name in (OURS, PRESENT) if name in taken]
    return {
        "prompts": len(texts), "longest": pair.tokens(texts), "seconds": walls,
        "present_revision": None if present is None else revision_of(present),
        "speed_up": speed_up(*compared) if present else None,
    }  # fmt: skip


# --- memory -----------------------------------------------------------------------------------------------


def memory(pair: RealPair, plan: Plan) -> list[dict[str, Any]]:
    """Returns what our engine takes at most at each batch size, in a process of its own, and what is planned."""
    found = []
    for amount in plan.amounts:
        texts = pair.texts(amount.batch, worked_examples=False)
        work = Work(texts, tuple(range(len(texts))), plan.new, (), amount.batch, endless=True)
        with ProcessPoolExecutor(1, get_context("spawn")) as apart:
            found.append(apart.submit(_memory, pair, work, max(plan.lengths)).result())
    return found


def _memory(pair: RealPair, work: Work, length: int) -> dict[str, Any]:
    from fsd_decoding.memory import ModelSize, Workload, need
    from fsd_decoding.models.fingerprint import model_fingerprint

    prompt = pair.tokens(work.prompts)
    workload = Workload(prompt + work.max_new_tokens + length + 1, prompt, length, greedy=True)
    sizes = [ModelSize.of(model, pair.dtype) for model in pair.models]  # imports the models' code, too
    planned = need(sizes[0], sizes[1:], workload, work.batch, "cpu")
    with _Watched() as watched:
        engine = OwnEngine(pair.models, dtype=pair.dtype)
        engine.decode(work, f"{SD} {length}")
    taken, total = watched.most - watched.before, sum(planned.values())
    models = (engine.decoder.target, engine.decoder.draft)
    return {
        "batch": work.batch, "draft_length": length, "longest_prompt": prompt, "planned": planned, "taken": taken,
        "taken_of_planned": taken / total, "run_by": engine.decoder.run_by,
        "fingerprints": [model_fingerprint(model) for model in models],
    }  # fmt: skip


class _Watched:
    """Looks at this process's own memory all the time: without pages of files, which the system may drop.

    Attributes:
        before: bytes at the start.
        most: bytes, so far.
    """

    def __enter__(self) -> _Watched:
        self.before = self.most = _resident()
        self._ended = Event()
        self._thread = Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(_WATCHED):
            self.most = max(self.most, _resident())


def _resident() -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) * 1024


# --- all of it --------------------------------------------------------------------------------------------


def measure(pair: RealPair, plan: Plan, core: int | None, present: Path | None) -> dict[str, Any]:
    pin(core, _CORES)
    kept, filled = memory(pair, plan), prefill(pair, plan, present)
    return {"pair": pair.facts(), "plan": plan, "memory": kept, "prefill": filled, **decoding(pair, plan, core)}


def peer_claims(found: Mapping[str, Any]) -> Iterator[Claim]:
    """Claims of what `measure` returns; one whose peer did not take part was not measured."""
    for (peer, batch), times in _WANTED.items():
        contests = [one for one in found["contests"] if (one.way, one.peer, one.batch) == (SD, peer, batch)]
        if not contests:
            yield Claim.faster(f"{SD} / {peer}'s, batch {batch}", times, None)
        yield from (Claim.faster(one.name, times, one.speed_up) for one in contests)
    filled = found["prefill"]
    name = f"prefill of {filled['prompts']} prompts of up to {filled['longest']} tokens / the present one"
    yield Claim.faster(name, _PREFILL, filled["speed_up"])
    for one in found["memory"]:
        name = f"most memory at batch {one['batch']}: share of the plan that it is off by"
        yield Claim.at_most(name, _MEMORY, abs(one["taken_of_planned"] - 1))


def table(found: Mapping[str, Any]) -> str:
    """Returns lines with all speeds and memory."""
    lines = [one.row() for one in found["contests"]]
    for name, seconds in found["prefill"]["seconds"].items():
        lines.append(f"prefill, {name}: {seconds.median:.1f} s ({seconds.low:.1f} to {seconds.high:.1f})")
    for one in found["memory"]:
        total = sum(one["planned"].values())
        lines.append(f"memory, batch {one['batch']}: {one['taken'] / 1e9:.2f} GB, planned {total / 1e9:.2f} GB")
    return "\n".join(lines)
