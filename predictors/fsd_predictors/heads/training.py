"""Training an EAGLE-3 head on the target's own texts."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any, Protocol

import torch
from transformers import LlamaConfig

from fsd_common.errors import UsageError, in_one_line
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.drafters.eagle import files_of
from fsd_decoding.drafters.eagle_head import Eagle3Head
from fsd_decoding.models.fingerprint import model_fingerprint, tokenizer_fingerprint
from fsd_decoding.models.runner import vocabulary_size
from fsd_predictors.heads.card import card, drafts
from fsd_predictors.heads.folder import CARD, CHECKPOINT, TRAINING, HeadFolder, Text
from fsd_predictors.heads.recipe import HeadRecipe
from fsd_predictors.heads.source import Source
from fsd_predictors.heads.unrolled import StepLoss, Texts, unrolled, weighted

_PORTION = 64  # texts decoded before they are kept
_HELD_OUT = 10  # one in so many texts is not trained on
_WARM_UP = 0.04  # of all steps
_BETAS, _CLIP = (0.9, 0.95), 0.5  # as in EAGLE's training code


class Progress(Protocol):
    """Shows the steps of a training, as the commands' progress does."""

    def step(self, title: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
        """Returns a context that yields a function which adds to the work done."""


def train_head(
    target: Any, tokenizer: Any, source: Source, out: Path, recipe: HeadRecipe, progress: Progress
) -> dict[str, Any]:
    """Trains a head and writes it to a folder, with a card of its quality. The same call continues an unfinished one.

    Args:
        target: a loaded causal LM. The head uses its embeddings as they are, and begins with its output layer.
        out: the folder; see `folder.py`.

    Returns:
        what training.json holds.

    Raises:
        UsageError: the folder or the recipe does not suit, or there are too few problems.
    """
    recipe.check_vocabulary(target)
    if len(source.prompts) < 2:
        raise UsageError(f"task {source.name} has {len(source.prompts)} problems for tuning; a head needs at least 2")
    facts = _facts(target, tokenizer, source, recipe)
    folder, held = HeadFolder(out, facts), max(1, len(source.prompts) // _HELD_OUT)
    head = _new_head(target, recipe)  # before hours of decoding, as some targets may have none
    with folder.held():
        texts = _texts(target, tokenizer, source, folder, progress)
        _choose_known(head, target, texts[held:])
        head.to(target.device)
        history = _Training(target, head, texts[held:], texts[:held], recipe, folder).run(progress)
        head.to(target.dtype).eval()  # as it will draft
        with progress.step("measuring its drafts", 0):
            measured = drafts(target, head, tokenizer, source, held)
        tokens = sum(len(completion) for _, completion in texts[held:])
        record = facts | {"trained_on": tokens, "held_out": held, "history": history, "drafts": measured}
        written = {TRAINING: json.dumps(record, indent=2).encode() + b"\n", CARD: card(record).encode()}
        folder.finish(files_of(head) | written)
    return record


def _facts(target: Any, tokenizer: Any, source: Source, recipe: HeadRecipe) -> dict[str, Any]:
    """What decides how a training ends."""
    return {
        "target": str(target.config._name_or_path), "fingerprint": model_fingerprint(target),
        "dtype": str(target.dtype).removeprefix("torch."), "tokenizer": tokenizer_fingerprint(tokenizer),
        "source": {"name": source.name, "problems": len(source.prompts), "digest": source.digest},
        "recipe": asdict(recipe) | {
            "layers": recipe.layers_of(target),
            "learning_rate": recipe.rate(target.config.get_text_config().hidden_size),
        },
    }  # fmt: skip


def _texts(target: Any, tokenizer: Any, source: Source, folder: HeadFolder, progress: Progress) -> list[Text]:
    """The target's own completions, a portion at a time; those that are kept are not decoded again."""
    decoder = SpeculativeDecoder(target, target, tokenizer, rule="target")
    texts = folder.texts()
    with progress.step("decoding the target's own texts", len(source.prompts)) as advance:
        advance(len(texts))
        for start in range(len(texts), len(source.prompts), _PORTION):
            prompts = list(source.prompts[start : start + _PORTION])
            results = decoder.generate(prompts, source.max_new_tokens, stop=source.stop)
            requests = decoder.requests(prompts, source.max_new_tokens)
            portion = [(request.prompt, result.tokens) for request, result in zip(requests, results, strict=True)]
            folder.add(portion)
            texts += portion
            advance(len(portion))
    return texts


def _new_head(target: Any, recipe: HeadRecipe) -> Eagle3Head:
    """A random head on the CPU, which does not know yet which tokens it drafts."""
    torch.manual_seed(recipe.seed % 2**63)  # seeds may be any whole number
    size, own, embeddings = vocabulary_size(target), target.config.get_text_config(), target.get_input_embeddings()
    if (width := getattr(embeddings, "embedding_dim", own.hidden_size)) != own.hidden_size:
        raise UsageError(
            f"the target's embeddings have {width} components and its hidden states {own.hidden_size}; a head needs as "
            "many of both; give another --target"
        )
    try:
        config = _config(own, size)
    except Exception as error:  # what transformers' own checks raise differs by version
        raise UsageError(
            f"the target's sizes are not those of a head: {in_one_line(error)}; give another --target"
        ) from error
    return Eagle3Head(config, recipe.layers_of(target), recipe.vocabulary or size, embeddings, size)


def _config(own: Any, vocabulary: int) -> LlamaConfig:
    """The sizes of a target's head: the target's, as far as a Llama can have them."""
    heads = next(n for n in range(own.num_attention_heads, 0, -1) if own.hidden_size % n == 0)
    size = getattr(own, "head_dim", None) or own.hidden_size // heads
    return LlamaConfig(
        vocab_size=vocabulary, hidden_size=own.hidden_size, num_hidden_layers=1, num_attention_heads=heads,
        intermediate_size=getattr(own, "intermediate_size", None) or 4 * own.hidden_size,
        num_key_value_heads=math.gcd(heads, getattr(own, "num_key_value_heads", None) or heads),
        head_dim=size + size % 2,  # rotary positions turn pairs
        max_position_embeddings=getattr(own, "max_position_embeddings", 2048),
    )  # fmt: skip


def _choose_known(head: Eagle3Head, target: Any, texts: Sequence[Text]) -> None:
    """Has a head draft the most frequent tokens, beginning with the target's output layer."""
    known = _frequent(texts, len(head.known), head.vocabulary)
    head.known.copy_(known)
    output = target.get_output_embeddings().weight  # layers of a target may be on several devices
    with torch.no_grad():
        head.lm_head.weight.copy_(output[known.to(output.device)])


def _frequent(texts: Sequence[Text], count: int, size: int) -> torch.Tensor:
    """Returns the ids (count,) of the most frequent tokens of completions, ascending; of unseen ones the first."""
    seen = Counter(token for _, completion in texts for token in completion)
    ranked = sorted(range(size), key=lambda token: (-seen[token], token))
    return torch.tensor(sorted(ranked[:count]))


class _Training:
    """The epochs of one training, continued from the last one that was kept."""

    def __init__(
        self, target: Any, head: Eagle3Head, texts: Sequence[Text], held: Sequence[Text], recipe: HeadRecipe,
        folder: HeadFolder,
    ) -> None:  # fmt: skip
        self._target, self._head, self._recipe, self._folder = target, head, recipe, folder
        self._texts, self._held = list(filter(_has_pair, texts)), list(filter(_has_pair, held))
        self._optimiser = torch.optim.AdamW(head.parameters(), recipe.rate(head.config.hidden_size), betas=_BETAS)
        steps = recipe.epochs * math.ceil(len(self._texts) / recipe.batch_size)
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimiser, lambda step: _share_of_rate(step, steps))

    def run(self, progress: Progress) -> list[dict[str, Any]]:
        """Trains; returns by epoch the quality on the texts that are held out."""
        history = self._continued()
        batches = math.ceil(len(self._texts) / self._recipe.batch_size)
        with progress.step("training the head", self._recipe.epochs * batches) as advance:
            advance(len(history) * batches)
            for epoch in range(len(history), self._recipe.epochs):
                began = time.perf_counter()
                for texts in self._batches(self._texts, Random(f"{self._recipe.seed}/{epoch}")):
                    self._step(texts)
                    advance(1)
                history.append(self._evaluated() | {"seconds": round(time.perf_counter() - began, 1)})
                self._keep(history)
        return history

    def _step(self, texts: Texts) -> None:
        self._optimiser.zero_grad(set_to_none=True)
        loss = weighted(unrolled(self._head, texts, self._recipe.steps))
        self._check_finite(float(loss.detach()))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._head.parameters(), _CLIP)
        self._optimiser.step()
        self._schedule.step()

    def _check_finite(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise UsageError(
                f"--learning-rate is {self._recipe.rate(self._head.config.hidden_size):g}, and the loss became {loss}; "
                "give a lower one, and another --out"
            )

    @torch.no_grad()
    def _evaluated(self) -> dict[str, Any]:
        """Loss and agreement by step, over all places of the texts that are held out."""
        found = [unrolled(self._head, texts, self._recipe.steps) for texts in self._batches(self._held, None)]
        self._check_finite(sum(float(weighted(steps)) for steps in found))
        steps = list(zip(*found, strict=True)) or [()] * self._recipe.steps
        return {
            "loss": [_mean(each, "loss") for each in steps],
            "agreement": [_mean(each, "agreement") for each in steps],
        }

    def _batches(self, texts: Sequence[Text], shuffled: Random | None) -> Iterator[Texts]:
        """Batches of texts of about the same length, in random order where a generator is given."""
        order, size = list(range(len(texts))), self._recipe.batch_size
        if shuffled is not None:
            shuffled.shuffle(order)
        order.sort(key=lambda index: sum(map(len, texts[index])))
        batches = [order[start : start + size] for start in range(0, len(order), size)]
        if shuffled is not None:
            shuffled.shuffle(batches)
        for batch in batches:
            yield self._read([texts[index] for index in batch])

    def _read(self, texts: Sequence[Text]) -> Texts:
        device = self._target.device
        whole = [torch.tensor(prompt + completion) for prompt, completion in texts]
        tokens = torch.nn.utils.rnn.pad_sequence(whole, batch_first=True).to(device)
        begins = torch.tensor([len(prompt) for prompt, _ in texts], device=device)
        ends = torch.tensor([len(each) for each in whole], device=device)
        return Texts.read(self._target, self._head.target_layers, tokens, begins, ends)

    def _continued(self) -> list[dict[str, Any]]:
        with self._folder.reading(CHECKPOINT):
            kept = self._folder.checkpoint()
            if kept is None:
                return []
            self._head.load_state_dict(kept["head"])
            self._optimiser.load_state_dict(kept["optimiser"])
            self._schedule.load_state_dict(kept["schedule"])
            history: list[dict[str, Any]] = kept["history"]
            return history

    def _keep(self, history: list[dict[str, Any]]) -> None:
        self._folder.keep({
            "head": self._head.state_dict(), "optimiser": self._optimiser.state_dict(),
            "schedule": self._schedule.state_dict(), "history": history,
        })  # fmt: skip


def _has_pair(text: Text) -> bool:
    """Whether a text has two tokens, so that there is one to predict from a state."""
    return sum(map(len, text)) > 1


def _share_of_rate(step: int, steps: int) -> float:
    """A rise over the first steps, and a cosine down to nothing."""
    warm = max(1, round(_WARM_UP * steps))
    return (step + 1) / warm if step < warm else (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm))) / 2


def _mean(batches: Sequence[StepLoss], name: str) -> float | None:
    """Mean over all places; None: there are none."""
    places = sum(int(batch.places) for batch in batches)
    total = sum(float(getattr(batch, name)) * int(batch.places) for batch in batches)
    return total / places if places else None
