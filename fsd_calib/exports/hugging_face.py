"""transformers: assisted generation with an ensemble weight, and our own decoding in `generate` for all other rules."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from fsd_calib.exports.base import BASE, Engine, Flags, Knob, number
from fsd_common.errors import UsageError

if TYPE_CHECKING:
    from fsd_decoding.profile.threshold_profile import ThresholdProfile
    from fsd_decoding.scores import Score

_VERSIONS = ">=5.17,<6"
_USUAL_LIMIT = 256  # new tokens, where the profile does not say


def _weight(score: Score, threshold: float) -> dict[str, Any]:
    return {"assistant_ensemble_weight": number(1 - threshold)} if threshold > 0 else {}


class Transformers(Engine):
    """transformers (read in 5.17 and 5.24)."""

    name, title, versions = "transformers", "transformers", _VERSIONS
    knobs: ClassVar = {"ensemble": Knob(_VERSIONS, _weight)}

    def has(self, profile: ThresholdProfile) -> bool:
        return True  # by the hook

    def decoder(self, profile: ThresholdProfile) -> str:
        from fsd_decoding.profile.parts import OWN_ENGINE

        return self.name if _assisted(profile) else OWN_ENGINE

    def rule_for(self, greedy: bool) -> str:
        return "ensemble" if greedy else BASE

    def obstacles(self, profile: ThresholdProfile) -> Iterator[str]:
        if profile.draft.kind == "vllm":
            yield f"the profile's draft is {profile.draft.id}, which transformers cannot load; calibrate a draft model"
        if profile.beams is not None and profile.beams.answer == "majority":
            yield (
                f"the profile is of {profile.beams}, and what is exported returns the best-scored text; decode with "
                "SpeculativeDecoder.generate_beams and vote by its majority, or calibrate with --beam-answer best"
            )
        if not _assisted(profile):
            return
        yield from super().obstacles(profile)
        if (profile.threshold or 0.0) >= 1:
            yield (
                f"the profile's T is {profile.threshold:g}, where the draft alone would decide, and "
                "assistant_ensemble_weight = 1 - T must be above 0; calibrate a T below 1"
            )

    def flags(self, profile: ThresholdProfile) -> Flags:
        if _assisted(profile):
            options, versions = self.knob_of(profile)
            drafting = {"num_assistant_tokens": profile.followed.draft_length,
                        "num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.0}  # fmt: skip
            settings = [f"    {name}={_literal(value)}," for name, value in drafting.items()]
            lines = [*_loading(profile, "assistant"), "assistant.generation_config.update(", *settings, ")"]
            return Flags("\n".join(lines + _completing(profile, "assistant_model=assistant", options)), versions)
        if profile.file is None:
            raise UsageError("the profile has no file, which fsd_generate reads; save it first")
        ours = {"fsd_profile": str(profile.file.absolute()), **({"fsd_allow_edited": True} if profile.edited else {})}
        ours |= {} if profile.beams is None else {"num_beams": profile.beams.number}
        hook = "custom_generate=fsd_generate, draft_model=draft, fsd_tokenizer=tokenizer"
        note = "transformers has no such rule: its generate calls fsd-calib's own decoding, which follows the profile."
        lines = ["from fsd_calib import fsd_generate", *_loading(profile, "draft")]
        return Flags("\n".join(lines + _completing(profile, hook, ours)), self.versions, (note,))


def _assisted(profile: ThresholdProfile) -> bool:
    """Whether transformers' own assisted generation does what decoders of the profile do."""
    if profile.threshold is not None:
        return profile.score == "ensemble"
    return profile.followed.rule == "sd" and profile.followed.tree is None and profile.draft.kind == "model"


def _loading(profile: ThresholdProfile, draft: str) -> list[str]:
    """Lines that load the tokenizer and both models, the draft under this name."""
    from fsd_decoding.profile.drafts import draft_of

    target, drafted = profile.target, profile.draft
    imports = ["from transformers import AutoModelForCausalLM, AutoTokenizer"]
    loaded = f"AutoModelForCausalLM.from_pretrained({_literal(drafted.id)}, dtype={_literal(drafted.dtype)})"
    if drafted.kind != "model":
        imports.append(f"from fsd_calib import {'Eagle' if drafted.kind == 'eagle' else 'NGram'}")
        loaded = repr(draft_of(drafted)) if drafted.kind == "ngram" else f"Eagle({_literal(drafted.id)}).load(model)"
    if profile.prompt is not None and profile.prompt.stop:
        imports[0] += ", StopStringCriteria"
    return [
        *imports,
        "",
        f"tokenizer = AutoTokenizer.from_pretrained({_literal(target.id)})",
        f"model = AutoModelForCausalLM.from_pretrained({_literal(target.id)}, dtype={_literal(target.dtype)})",
        f"{draft} = {loaded}",
    ]


def _completing(profile: ThresholdProfile, how: str, options: dict[str, Any]) -> list[str]:
    """Lines that define `complete(prompt)`, which decodes as the calibration did."""
    prompt = profile.prompt
    limit = _USUAL_LIMIT if prompt is None else prompt.max_new_tokens
    plain = "" if prompt is None or prompt.special_tokens else ", add_special_tokens=False"
    asked, cut = [_arguments(options)] if options else [], list[str]()
    if prompt is not None and prompt.stop:
        stops = _literal(list(prompt.stop))
        asked.append(f"stopping_criteria=[StopStringCriteria(tokenizer, {stops})]")
        # Assisted generation sees a stop only where a round happens to end with it.
        cut = [f"    for stop in {stops}:", "        text = text.partition(stop)[0]"]
    return [
        "",
        "",
        f"def complete(prompt, max_new_tokens={limit}):",
        f'    inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False{plain})',
        "    tokens = model.generate(",
        f"        **inputs, max_new_tokens=max_new_tokens, {how},",
        *(f"        {each}," for each in [*asked, _arguments(_sampling(profile))]),
        "    )",
        '    text = tokenizer.decode(tokens[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)',
        *cut,
        "    return text",
    ]


def _sampling(profile: ThresholdProfile) -> dict[str, Any]:
    """The calibration's sampling, none of which is left to the model's generation_config.json."""
    sampling = profile.sampling
    chosen: dict[str, Any] = {"do_sample": sampling.temperature > 0, "repetition_penalty": sampling.repetition_penalty}
    if sampling.temperature > 0:
        chosen |= {"temperature": sampling.temperature, "top_k": sampling.top_k or 0, "top_p": sampling.top_p or 1.0,
                   "min_p": sampling.min_p}  # fmt: skip
    return chosen


def _arguments(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_literal(value)}" for name, value in values.items())


def _literal(value: Any) -> str:
    """A value in Python, texts in double quotes."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | list) else repr(value)
