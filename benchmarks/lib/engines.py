"""Engines in processes of their own, on the same cores, that take turns at the same work: ours, vLLM, transformers."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lib.common.timing import Run, Spread, rates, take_turns

if TYPE_CHECKING:  # an engine of another checkout imports all of fsd-calib from there
    from fsd_calib.tasks.base import Problem, Task

OURS, VLLM, TRANSFORMERS = "ours", "vLLM", "transformers"
TARGET, SD = "target", "sd"
LARGEST_BATCH = 32
VLLM_SETTINGS: Mapping[str, Any] = {
    "dtype": "float32", "enforce_eager": True, "max_model_len": 400, "max_num_seqs": LARGEST_BATCH,
    # Our engine has no prefix cache, and repeated prompts would be found in one.
    "enable_prefix_caching": False,
    "kv_cache_memory_bytes": 256 << 20,
}  # fmt: skip
"""vLLM's settings that all of its contestants have in common."""
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine's work is this process's, whose CPU seconds are counted
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # it stays on the cores that it is started on
    "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR",
}  # fmt: skip
_SOURCES = ("", "collectors", "predictors", "decoding", "data")  # folders of a checkout that packages are in


@dataclass(frozen=True)
class Work:
    """Prompts that an engine decodes greedily, `batch` of them at a time; each that ends makes room for the next.

    Attributes:
        endless: Whether no token ends a text, so that all engines decode as many.
    """

    prompts: tuple[str, ...]
    ids: tuple[int, ...]
    max_new_tokens: int
    stop: tuple[str, ...]
    batch: int
    endless: bool = False

    @classmethod
    def of(cls, task: Task, problems: Sequence[Problem], batch: int) -> Work:
        prompts, ids = tuple(p.prompt for p in problems), tuple(p.id for p in problems)
        return cls(prompts, ids, task.max_new_tokens, tuple(task.stop), batch)

    def pieces(self, size: int) -> list[Work]:
        """Returns the same work as several, of `size` prompts each.

        A piece is to take half a second or more: the first steps after another process had the core find its caches
        empty, unlike those of a server.
        """
        cuts = [slice(at, at + size) for at in range(0, len(self.prompts), size)]
        return [replace(self, prompts=self.prompts[cut], ids=self.ids[cut]) for cut in cuts]


@dataclass(frozen=True)
class Decoded:
    """Texts in the order of their prompts, with what they took. The sum of two is of both works, in order."""

    texts: tuple[str, ...]
    tokens: int  # new ones, those that end a text included
    steps: int  # of the engine; 0: it does not count them
    cpu: float  # seconds of the engine's process, all threads
    wall: float  # seconds

    def __add__(self, other: Decoded) -> Decoded:
        return Decoded(
            self.texts + other.texts, self.tokens + other.tokens, self.steps + other.steps, self.cpu + other.cpu,
            self.wall + other.wall,
        )  # fmt: skip

    @property
    def on_cpu(self) -> Run:
        """Tokens and CPU seconds."""
        return Run(self.tokens, self.cpu)

    @property
    def by_clock(self) -> Run:
        """Tokens and seconds of the wall clock."""
        return Run(self.tokens, self.wall)

    @property
    def of_steps(self) -> Run:
        """Steps and CPU seconds."""
        return Run(self.steps, self.cpu)


# --- processes --------------------------------------------------------------------------------------------


class Engine(Protocol):
    """Decodes work in one of its ways."""

    def decode(self, work: Work, way: str) -> Decoded: ...


class Served:
    """An engine in another process, seen from here."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self._answer()  # when it is built

    def decode(self, work: Work, way: str = "") -> Decoded:
        """Decodes work. Raises RuntimeError with what the process wrote if decoding failed."""
        self._pipe.send((work, way))
        decoded = self._answer()
        assert decoded is not None
        return decoded

    def _answer(self) -> Decoded | None:
        answer: Decoded | str | None = self._pipe.recv()
        if isinstance(answer, str):
            raise RuntimeError(f"an engine failed in its process:\n{answer}")
        return answer


def pin(core: int | None, threads: int = 1) -> dict[str, Any]:
    """Leaves this process, and those that it starts, as many cores as threads; returns facts for results.

    Intel's OpenMP, which vLLM recommends on x86, is loaded by all engines where the environment has it.

    Args:
        core: The first of them; None: the last that this process may run on. Others follow from the last on.
    """
    allowed, openmp = sorted(os.sched_getaffinity(0), reverse=True), Path(sys.prefix, "lib", "libiomp5.so")
    first = allowed[0] if core is None else core
    chosen = [first, *(other for other in allowed if other != first)][:threads]
    os.sched_setaffinity(0, chosen)
    os.environ.update(_ENVIRONMENT | {"OMP_NUM_THREADS": str(threads)})
    if openmp.exists():
        os.environ["LD_PRELOAD"] = str(openmp)
    return {"core": first, "threads": threads, "intel_openmp": openmp.exists()}


@contextmanager
def serve(
    engines: Mapping[str, Callable[[], Engine]], checkouts: Mapping[str, Path] | None = None
) -> Iterator[dict[str, Served]]:
    """Builds engines, each in a process of its own, one after the other, and ends these at the end.

    Args:
        engines: What builds each of them, which is sent to its process.
        checkouts: Folders with another revision of fsd-calib, for the engines that are to be of one.
    """
    with ExitStack() as running:
        served: dict[str, Served] = {}
        for name, build in engines.items():
            print(f"starting {name}", flush=True)
            served[name] = running.enter_context(_started(build, (checkouts or {}).get(name)))
        yield served


@contextmanager
def _started(build: Callable[[], Engine], checkout: Path | None) -> Iterator[Served]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, build, checkout), daemon=True)
    before = list(sys.path)
    if checkout is not None:
        sys.path[:0] = [str(checkout / part) for part in _SOURCES]
    try:
        process.start()  # with this process's path
    finally:
        sys.path[:] = before
    theirs.close()  # so that the end of the process ends the pipe
    try:
        yield Served(ours)
    finally:
        ours.close()
        process.join(30)
        process.kill()


def _serve(pipe: Any, build: Callable[[], Engine], checkout: Path | None) -> None:
    """Builds an engine, says so by None, and answers work until the pipe ends; an error's traceback is an answer."""
    try:
        engine = build()
        found = sys.modules.get("fsd_decoding")
        if checkout is not None and not (found and Path(str(found.__file__)).is_relative_to(checkout.absolute())):
            raise ImportError(f"fsd-calib was not imported from {checkout}")
        pipe.send(None)
        while True:
            pipe.send(engine.decode(*pipe.recv()))
    except EOFError:
        return
    except Exception:
        pipe.send(traceback.format_exc())


# --- turns ------------------------------------------------------------------------------------------------

Decode = Callable[[Work], Decoded]


@dataclass(frozen=True)
class Lengths:
    """The best L of an engine's `sd`, and tokens per CPU second at each L that was tried."""

    best: int
    tokens_per_cpu_second: Mapping[int, Spread]

    @classmethod
    def of(cls, speeds: Mapping[int, Spread]) -> Lengths:
        return cls(max(speeds, key=lambda length: speeds[length].median), speeds)


def decode_in_turns(contestants: Mapping[str, Decode], work: Sequence[Work], repeats: int) -> dict[str, list[Decoded]]:
    """Returns what each contestant's repeats took, as `take_turns` does, after all have decoded the first piece."""
    take_turns(contestants, work[:1], 1)  # warms up
    return take_turns(contestants, work, repeats)


def best_length(exact: Mapping[int, Decode], work: Sequence[Work], repeats: int) -> Lengths:
    """Times an engine's `sd` at all L."""
    taken = decode_in_turns({str(length): decode for length, decode in exact.items()}, work, repeats)
    speeds = {length: rates([each.on_cpu for each in taken[str(length)]]) for length in exact}
    return Lengths.of(speeds)


def about(decoded: Sequence[Decoded]) -> dict[str, Any]:
    """Returns the speeds of a contestant's repeats, as results hold them."""
    return {
        "tokens": decoded[0].tokens, "steps": decoded[0].steps or None,
        "tokens_per_cpu_second": rates([each.on_cpu for each in decoded]),
        "tokens_per_second": rates([each.by_clock for each in decoded]),
    }  # fmt: skip


def speed_line(name: str, about: Mapping[str, Any]) -> str:
    cpu, wall = about["tokens_per_cpu_second"], about["tokens_per_second"]
    return (
        f"  {name:22s} {cpu.median:7.1f} tokens per CPU second ({cpu.low:.1f} to {cpu.high:.1f}), "
        f"{wall.median:.1f} by the clock"
    )


# --- engines ----------------------------------------------------------------------------------------------


class OwnEngine:
    """`SpeculativeDecoder` in this process, whose ways are "target" and "sd L".

    Args:
        models: Paths of the target and the draft.
        lean: Whether its own forward pass runs the models, or transformers' modules.
        dtype: Of weights and activations.
    """

    def __init__(self, models: tuple[str, str], lean: bool = True, dtype: str = "float32") -> None:
        from fsd_calib import SpeculativeDecoder

        self.decoder = SpeculativeDecoder.from_pretrained(*models, device="cpu", dtype=dtype, lean=lean)
        self._eos = self.decoder.target.generation_config.eos_token_id

    def decode(self, work: Work, way: str) -> Decoded:
        self.decoder.target.generation_config.eos_token_id = None if work.endless else self._eos
        rule, _, length = way.partition(" ")
        lengths: dict[str, Any] = {"draft_length": int(length)} if length else {}
        cpu, wall = time.process_time(), time.perf_counter()
        results = self.decoder.generate(
            list(work.prompts), work.max_new_tokens, ids=list(work.ids), stop=work.stop, batch_size=work.batch,
            rule=rule, **lengths,
        )  # fmt: skip
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        return Decoded(tuple(r.text for r in results), sum(r.emitted for r in results), 0, cpu, wall)


def assisted(target: Any, draft: Any, draft_length: int, prompt: list[int], max_new_tokens: int) -> list[int]:
    """Returns transformers' greedy text, EOS included. Every round drafts L tokens; draft: None: it is not assisted."""
    import torch

    if draft is not None:
        # Assisted generation reads these settings from the assistant only, and ignores arguments of `generate`.
        drafting = draft.generation_config
        drafting.num_assistant_tokens = draft_length
        drafting.num_assistant_tokens_schedule = "constant"
        drafting.assistant_confidence_threshold = 0.0
    ids = torch.tensor([prompt], device=target.device)
    out = target.generate(
        ids, attention_mask=torch.ones_like(ids), assistant_model=draft, do_sample=False,
        max_new_tokens=max_new_tokens, pad_token_id=target.config.pad_token_id, repetition_penalty=1.0,
    )  # fmt: skip
    return list(out[0, len(prompt) :].tolist())


class TransformersEngine:
    """transformers in this process. Its ways are "target" and "sd L"; work has a batch of 1 and no stop strings."""

    def __init__(self, models: tuple[str, str], dtype: str = "float32") -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging

        logging.set_verbosity_error()
        self._target, self._draft = (AutoModelForCausalLM.from_pretrained(path, dtype=dtype) for path in models)
        self._tokenizer = AutoTokenizer.from_pretrained(models[0])
        self._eos = self._target.generation_config.eos_token_id

    def decode(self, work: Work, way: str) -> Decoded:
        assert (work.batch, work.stop) == (1, ()), "transformers assists one text at a time, up to EOS"
        for model in (self._target, self._draft):
            model.generation_config.eos_token_id = None if work.endless else self._eos
        length = way.partition(" ")[2]
        draft = self._draft if length else None
        cpu, wall = time.process_time(), time.perf_counter()
        made = [
            assisted(self._target, draft, int(length or 1), self._tokenizer(prompt)["input_ids"], work.max_new_tokens)
            for prompt in work.prompts
        ]
        texts = tuple(str(self._tokenizer.decode(text, skip_special_tokens=True)) for text in made)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        return Decoded(texts, sum(map(len, made)), 0, cpu, wall)


class VllmEngine:
    """vLLM in this process, with or without the plugin that follows a profile.

    Its ways are "", or these words: "at least" asks for one token, as vLLM changes the logits of such requests; "every"
    lets the plugin compute D of every drafted token on a CPU, too, as it must for records; "without" takes it out, so
    that both are of one process: two with the same work differ by a percent or two.

    Args:
        models: Paths of the target and the draft.
        length: L; None: the target alone.
        profile: The profile that the plugin follows; None: there is no plugin in the engine.
        settings: vLLM's, in place of those of `VLLM_SETTINGS`.
    """

    def __init__(
        self,
        models: tuple[str, str],
        length: int | None = None,
        profile: Path | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        from vllm import LLM

        target, draft = models
        own: dict[str, Any] = {}
        if length is not None:
            own["speculative_config"] = {"model": draft, "num_speculative_tokens": length, "method": "draft_model"}
        if profile is not None:  # one at a T of the benchmark's own is an edited one
            own["additional_config"] = {"fsd": {"profile": str(profile), "allow_edited": True}}
        self._engine = LLM(target, **{**VLLM_SETTINGS, **(settings or {}), **own}).llm_engine

    def decode(self, work: Work, way: str) -> Decoded:
        from vllm import SamplingParams

        least = int("at least" in way)
        sampling = SamplingParams(
            temperature=0, max_tokens=work.max_new_tokens, stop=list(work.stop), min_tokens=least,
            ignore_eos=work.endless,
        )  # fmt: skip
        engine, waiting = self._engine, deque(enumerate(work.prompts))
        finished: dict[str, Any] = {}
        with ExitStack() as changed:
            if "without" in way:
                changed.enter_context(self._without_plugin())
            if "every" in way:
                changed.enter_context(self._judging_all())
            steps, cpu, wall = 0, time.process_time(), time.perf_counter()
            while waiting or engine.has_unfinished_requests():
                while waiting and engine.get_num_unfinished_requests() < work.batch:
                    index, prompt = waiting.popleft()
                    engine.add_request(str(index), prompt, sampling)
                finished |= {output.request_id: output.outputs[0] for output in engine.step() if output.finished}
                steps += 1
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        outputs = [finished[str(index)] for index in range(len(work.prompts))]
        return Decoded(tuple(o.text for o in outputs), sum(len(o.token_ids) for o in outputs), steps, cpu, wall)

    @property
    def _worker(self) -> Any:
        core: Any = self._engine.engine_core
        return core.engine_core.model_executor.driver_worker.worker

    @contextmanager
    def _judging_all(self) -> Iterator[None]:
        """Lets the plugin compute D of tokens that the exact rule accepts, too."""
        serving = self._worker.serving
        serving._looks_first = lambda *_: False
        try:
            yield
        finally:
            del serving._looks_first

    @contextmanager
    def _without_plugin(self) -> Iterator[None]:
        """Leaves the engine as vLLM builds it."""
        from vllm.v1.sample.rejection_sampler import RejectionSampler

        worker = self._worker
        runner = worker.model_runner
        replaced = [vars(owner) for owner in (runner, runner.drafter)]
        names = ("_sample", "_sample_draft_tokens")  # of the class, but for the plugin
        kept = [attributes.pop(name) for attributes, name in zip(replaced, names, strict=True)]
        serving, sampler = worker.serving, runner.rejection_sampler
        worker.serving = None
        runner.rejection_sampler = RejectionSampler(runner.sampler, runner.speculative_config, runner.device)
        try:
            yield
        finally:
            worker.serving, runner.rejection_sampler = serving, sampler
            for attributes, name, own in zip(replaced, names, kept, strict=True):
                attributes[name] = own
