"""Training an EAGLE-3 head on the target's own texts, and the model card that reports how well it drafts.

The loss is that of training-time test (EAGLE-3, arXiv 2503.01840, section 3.2): the head drafts several tokens after
one another, from every place of a text. In the first step it is fed the target's features, in each later one its own
states of the step before, as in decoding; the tokens are those of the text.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig

from fsd_common.argument_checks import named
from fsd_common.errors import UsageError, in_one_line
from fsd_common.packed_ids import pack_ids
from fsd_common.pages.blocks import Sheet
from fsd_common.pages.markdown import table
from fsd_common.progress.base import Progress
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.drafters.eagle import KEYS, TRAINING, files_of
from fsd_decoding.drafters.eagle_head import Eagle3Head, Rotation
from fsd_decoding.models.fingerprint import model_fingerprint, tokenizer_fingerprint
from fsd_decoding.models.runner import vocabulary_size
from fsd_decoding.tree_shape import TreeShape
from fsd_predictors.heads.folder import CARD, HeadFolder, Text
from fsd_predictors.heads.recipe import HeadRecipe, Source

_DRAFTS = {"chain of 3": (3, None), "chain of 5": (5, None), "tree 5 deep, 16 nodes": (5, TreeShape(4, 16))}
_TEXT = """# EAGLE-3 head for {target}

Drafts {known} of the target's tokens from its hidden states {layers}. Load it with `Eagle(folder)`.

It was trained on {trained_on:,} tokens that the target wrote itself for problems of the tuning part of task {task}:
{epochs} epochs by {steps} steps of training-time test, {batch} texts at a time, with a learning rate up to {rate:.2g}
and seed {seed}. The figures below are of {held_out} other problems of that part.

{along}

{drafts}
"""


def tokens_per_round(target: Any, head: Eagle3Head, tokenizer: Any, source: Source, count: int) -> dict[str, float]:
    """Returns tokens per round of lossless greedy decoding of the first `count` prompts, by what is drafted."""
    found = {}
    for name, (length, tree) in _DRAFTS.items():
        decoder = SpeculativeDecoder(target, head, tokenizer, rule="coupled", draft_length=length, tree=tree)
        results = decoder.generate(list(source.prompts[:count]), source.max_new_tokens, stop=source.stop)
        found[name] = sum(r.emitted for r in results) / max(1, sum(r.rounds for r in results))
    return found


def card(record: Mapping[str, Any]) -> str:
    """Returns the card.

    Args:
        record: what training.json holds.
    """
    recipe = record["recipe"]
    known = "all" if recipe["vocabulary"] is None else recipe["vocabulary"]
    return _TEXT.format(
        target="/".join(Path(record["target"]).parts[-2:]), layers=", ".join(map(str, recipe["layers"])), known=known,
        task=record["source"]["name"], trained_on=record["trained_on"], held_out=record["held_out"],
        epochs=recipe["epochs"], steps=recipe["steps"], batch=recipe["batch_size"], rate=recipe["learning_rate"],
        seed=recipe["seed"],
        along=_markdown(by_epoch(record)), drafts=_markdown(by_draft(record)),
    )  # fmt: skip


def by_epoch(record: Mapping[str, Any]) -> Sheet:
    """Returns the table of loss and agreement after each epoch."""
    numbers = range(1, record["recipe"]["steps"] + 1)
    return Sheet(
        "Along the target's text",
        ("epoch", *(f"loss {n}" for n in numbers), *(f"agreement {n}" for n in numbers)),
        tuple(
            (str(number), *("-" if each is None else f"{each:.3f}" for each in (*epoch["loss"], *epoch["agreement"])))
            for number, epoch in enumerate(record["history"], 1)
        ),
        "Loss: the cross-entropy of q under the target's p, in nats, for the 1st, 2nd, … token drafted after one "
        "another. Agreement: the share of places where q and p have the same likeliest token. "
        "-: there is none, as all texts are too short.",
    )


def by_draft(record: Mapping[str, Any]) -> Sheet:
    """Returns the table of tokens per round."""
    return Sheet(
        "Decoding",
        ("draft", "tokens per round"),
        tuple((name, f"{value:.2f}") for name, value in record["drafts"].items()),
        "Lossless and greedy: the drafted tokens that are accepted in a round, and one of the target's own.",
    )


def _markdown(sheet: Sheet) -> str:
    return f"## {sheet.title}\n\n{table(sheet)}\n\n{sheet.note}"


_DECAY = 0.8  # weight of each step, in terms of the one before, as in EAGLE's training code


@dataclass(frozen=True)
class Texts:
    """A batch of texts, and what the target made of them.

    Args:
        tokens: (B, S) prompts and completions, padded on the right.
        begins, ends: (B,) where completions begin, and end.
        states: (B, S, layers·H) the hidden states that the head reads, one after the other.
        logits: (B, S, V) of the token after each.
    """

    tokens: Tensor
    begins: Tensor
    ends: Tensor
    states: Tensor
    logits: Tensor

    @classmethod
    def read(cls, target: Any, layers: tuple[int, ...], tokens: Tensor, begins: Tensor, ends: Tensor) -> Texts:
        """Lets the target read texts. What is padded on the right changes nothing before it."""
        with torch.no_grad():
            mask = torch.ones_like(tokens)  # some models warn without one
            out = target(input_ids=tokens, attention_mask=mask, use_cache=False, output_hidden_states=True)
        states = torch.cat([out.hidden_states[layer].to(tokens.device) for layer in layers], -1)
        return cls(tokens, begins, ends, states.float(), out.logits.to(tokens.device).float())


@dataclass(frozen=True)
class StepLoss:
    """One step of the unrolled head, over all places of a batch whose next token is a completion's.

    Args:
        loss: mean cross-entropy of q, in nats, under the target's distribution over the tokens that the head knows.
        agreement: share of places where q and p have the same likeliest token.
        places: how many there are.
    """

    loss: Tensor
    agreement: Tensor
    places: Tensor


def unrolled(head: Eagle3Head, texts: Texts, steps: int) -> list[StepLoss]:
    """Drafts `steps` tokens from every place of the texts, and compares q with p after each."""
    pairs = texts.tokens.shape[1] - 1
    place = torch.arange(pairs, device=texts.tokens.device)
    rotation, grown = Rotation(head.config, pairs + steps, texts.states), _Grown()
    features, found = head.fuse(texts.states)[:, :-1], list[StepLoss]()
    for step in range(steps):
        fed = texts.tokens[:, (place + 1 + step).clamp_max(pairs)]
        mask = _visible(pairs, step, features)
        features = head(fed, features, rotation((place + step)[None]), mask, grown)
        found.append(_compared(head, texts, features, place + 1 + step))
    return found


def weighted(found: list[StepLoss]) -> Tensor:
    """Returns the loss of all steps together."""
    total: Tensor = torch.stack([each.loss * _DECAY**step for step, each in enumerate(found)]).sum()
    return total


def _compared(head: Eagle3Head, texts: Texts, states: Tensor, last: Tensor) -> StepLoss:
    """Compares q with p after the text up to positions `last` (pairs,), where a completion goes on."""
    fits = (last + 1 >= texts.begins[:, None]) & (last + 1 < texts.ends[:, None])  # (B, pairs)
    logits = texts.logits[:, last.clamp_max(texts.logits.shape[1] - 1)][fits]  # (N, V)
    own = head.known_logits(states[fits])  # (N, K)
    p = torch.softmax(logits[:, head.known], -1)
    places = fits.sum()
    cross = -(p * torch.log_softmax(own, -1)).sum() / places.clamp_min(1)
    same = (head.known[own.argmax(-1)] == logits.argmax(-1)).sum() / places.clamp_min(1)
    return StepLoss(cross, same.detach(), places)


def _visible(pairs: int, step: int, like: Tensor) -> Tensor:
    """The additive mask (1, 1, pairs, (step + 1)·pairs): the text before each place, and its own later steps."""
    text = torch.ones(pairs, pairs, dtype=torch.bool, device=like.device).tril()
    own = torch.eye(pairs, dtype=torch.bool, device=like.device)
    seen = torch.cat([text, *[own] * step], 1)
    return like.new_zeros(seen.shape).masked_fill(~seen, torch.finfo(like.dtype).min)[None, None]


class _Grown:
    """Keys and values of all steps so far, through which gradients pass."""

    def __init__(self) -> None:
        self._keys, self._values = list[Tensor](), list[Tensor]()

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        self._keys.append(keys)
        self._values.append(values)
        return torch.cat(self._keys, 2), torch.cat(self._values, 2)


_PORTION = 64  # texts decoded before they are kept
_HELD_OUT = 10  # one in so many texts is not trained on
_WARM_UP = 0.04  # of all steps
_BETAS, _CLIP = (0.9, 0.95), 0.5  # as in EAGLE's training code


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
            measured = tokens_per_round(target, head, tokenizer, source, held)
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
        "source": {
            "name": source.name, "problems": len(source.prompts), "digest": source.digest, KEYS: pack_ids(source.keys),
        },
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
            "many of both; give another target"
        )
    try:
        config = _config(own, size)
    except Exception as error:  # what transformers' own checks raise differs by version
        raise UsageError(
            f"the target's sizes are not those of a head: {in_one_line(error)}; give another target"
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
                f"{named('learning_rate')} is {self._recipe.rate(self._head.config.hidden_size):g}, and the loss "
                f"became {loss}; give a lower one, and another {named('out')}"
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
