"""Exports: an engine keeps at the printed options what the score keeps at T, and what cannot be printed is refused.

What an engine keeps is restated here from its source. tests/vllm has what vLLM's own configuration makes of the text.
"""

from __future__ import annotations

import json
import shlex
import tempfile
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fsd_calib import SpeculativeDecoder, export_profile, load_task
from fsd_calib.exports.engines import ENGINES
from fsd_data import pair_paths
from fsd_decoding.loading import load_model, load_tokenizer
from fsd_decoding.models.fingerprint import tokenizer_fingerprint
from fsd_decoding.policies.markers import Marker
from fsd_decoding.policies.phase import Phase
from fsd_decoding.policies.shapes import Schedule
from fsd_decoding.profile.parts import ModelInfo, PolicyInfo
from fsd_decoding.rules import RULES
from fsd_decoding.scores import FAMILIES, Seen, score_named
from support.calibration.profiles import LOSSLESS, UNCERTIFIED, UNTESTED, profile, values
from support.messages import usage_error

SAMPLED = {"sampling": {"temperature": 0.6, "top_k": 20, "top_p": None}}
FLY = {"rule": "fsd-sd", "score": "fly@2@3", "threshold": 0.8, "logits": "processed"}
ACCEPT = {"rule": "fsd-sd", "score": "accept-threshold@0.9", "threshold": 0.35, "logits": "processed", **SAMPLED}
RELAXED = {"rule": "fsd-sd", "score": "relaxed@10", "threshold": 0.6}
ENSEMBLE = {"rule": "ensemble", "score": "ensemble", "threshold": 0.3}
OWN: dict[str, dict[str, Any]] = {
    "vllm": FLY,
    "sglang": ACCEPT,
    "tensorrt-llm": RELAXED,
    "max": RELAXED,
    "transformers": ENSEMBLE,
}
BLOCK = {**UNCERTIFIED, "rule": "sd-block"}
HEAD = {"draft.kind": "eagle", "draft.attention": None, "draft.id": "head"}


def exported(to: str, changes: dict[str, Any]) -> str:
    return export_profile(profile(changes), to)


def options_of(to: str, changes: dict[str, Any]) -> dict[str, Any]:
    """The options of speculative decoding that an export tells its engine."""
    text = exported(to, changes)
    if to in ("tensorrt-llm", "max"):
        (read,) = (part for name, part in yaml.safe_load(text).items() if name.startswith("speculative"))
        return dict(read)
    words = shlex.split(text.replace("\\\n", ""), comments=True)
    if to == "vllm":
        return dict(json.loads(words[words.index("--speculative-config") + 1]))
    flags = {name[2:]: value for name, value in pairwise(words) if name.startswith("--")}
    return {name: value for name, value in flags.items() if name.startswith("speculative-")}


def test_every_engine_has_its_own_scores_and_rules_under_the_names_that_they_have_here() -> None:
    for name, engine in ENGINES.items():
        assert set(engine.knobs) <= {*FAMILIES, *RULES}
        assert exported(name, OWN[name])


def vllm_keeps(options: dict[str, Any], p: Tensor, x: int, u: float) -> bool:
    """FLy, where the window holds: `compute_fly_entropy` and the kernels' condition, vLLM 0.33."""
    largest = p.topk(min(options["fly_entropy_top_k"], len(p))).values
    entropy = -(largest * largest.clamp_min(1e-300).log()).sum()
    return bool(entropy >= options["fly_entropy_threshold"] and p[x] > 0)


def sglang_keeps(options: dict[str, Any], p: Tensor, x: int, u: float) -> bool:
    """`TreeSpeculativeSamplingTargetOnly` of a chain, SGLang 0.5.23; what is below 1 keeps more than the exact rule."""
    single, acc = (float(options[f"speculative-accept-threshold-{name}"]) for name in ("single", "acc"))
    return bool(p[x] >= single or (acc < 1 and u < p[x] / acc))


def relaxed_keeps(options: dict[str, Any], p: Tensor, x: int, u: float) -> bool:
    """`mtpRelaxedAcceptanceKernel` of TensorRT-LLM within thinking, and `_relaxed_thinking_verdict` of MAX."""
    values, tokens = p.topk(min(options["relaxed_topk"], len(p)))
    return any(token == x and value >= p.max() - options["relaxed_delta"]
               for token, value in zip(tokens, values, strict=True))  # fmt: skip


KEEPS = {
    "vllm": (vllm_keeps, FLY, ["fly@2@3", "fly@1@1", "fly@4@2"]),
    "sglang": (sglang_keeps, ACCEPT, ["accept-threshold", "accept-threshold@0.9", "accept-threshold@0.5"]),
    "tensorrt-llm": (relaxed_keeps, RELAXED, ["relaxed@1", "relaxed@3", "relaxed@10"]),
    "max": (relaxed_keeps, RELAXED, ["relaxed@1", "relaxed@3", "relaxed@10"]),
}


@pytest.mark.parametrize("to", KEEPS)
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(-40, 40), min_size=5, max_size=5, unique=True), st.integers(0, 4), st.floats(0.001, 0.999),
    st.floats(0.0, 0.99), st.integers(0, 2),
)  # fmt: skip
@example([0, 10, 20, 30, -500], 3, 0.5, 0.0, 0)
def test_the_engine_keeps_at_the_printed_options_what_the_score_keeps_at_t(
    to: str, tenths: list[int], x: int, u: float, threshold: float, which: int
) -> None:
    keeps, changes, scores = KEEPS[to]
    target = torch.tensor(tenths, dtype=torch.float64) / 10
    seen = Seen(target, target, torch.tensor(x), lambda: torch.tensor(u, dtype=torch.float64))
    score = float(score_named(scores[which]).of(seen))
    if abs(score - threshold) < 1e-6:  # on the edge rounding decides
        return
    options = options_of(to, {**changes, "score": scores[which], "threshold": threshold})
    assert keeps(options, target.softmax(-1), x, u) == (score <= threshold)


@pytest.mark.parametrize("length", [3, 9])
def test_the_draft_and_its_length_are_the_profile_s(length: int) -> None:
    at = {"draft_length": length}
    assert options_of("vllm", FLY | at) == {
        "model": "small", "method": "draft_model", "num_speculative_tokens": length, "rejection_sample_method": "fly",
        "fly_window_size": 2, "fly_entropy_top_k": 3, "fly_entropy_threshold": pytest.approx(0.298612289, abs=1e-9),
    }  # fmt: skip
    sglang = options_of("sglang", ACCEPT | at)
    assert sglang == {
        "speculative-algorithm": "STANDALONE", "speculative-draft-model-path": "small", "speculative-eagle-topk": "1",
        "speculative-num-steps": str(length), "speculative-num-draft-tokens": str(length + 1),
        "speculative-accept-threshold-single": "0.65", "speculative-accept-threshold-acc": "0.9",
    }  # fmt: skip
    relaxed = {"use_relaxed_acceptance_for_thinking": True, "relaxed_topk": 10, "relaxed_delta": 0.6}
    mtp = {"decoding_type": "MTP", "num_nextn_predict_layers": length}
    assert options_of("tensorrt-llm", RELAXED | at) == mtp | relaxed
    assert options_of("max", RELAXED | at) == {"speculative_method": "mtp", "num_speculative_tokens": length} | relaxed


def test_a_head_drafts_where_the_engine_relaxes_what_heads_draft() -> None:
    recipe = yaml.safe_load(exported("max", RELAXED | HEAD))
    assert recipe["draft_model"] == {"model_path": "head"}
    assert recipe["speculative"]["speculative_method"] == "eagle"
    assert "MTP layers" not in exported("max", RELAXED | HEAD)
    assert "the profile drafted with 'small'" in exported("max", RELAXED).replace("\n#  ", "")


def by_phase(inside: float, outside: float, begin: Marker, end: Marker) -> dict[str, Any]:
    return {"policy": PolicyInfo.of(str(Phase(inside, outside, begin, end).identity)).model_dump()}


@pytest.mark.parametrize("to", ["tensorrt-llm", "max"])
def test_a_t_within_thinking_is_what_these_engines_do(to: str) -> None:
    thinking, everywhere = (
        exported(to, changes).replace("\n#  ", "")
        for changes in (RELAXED | by_phase(0.6, 0, "<think>", "</think>"), RELAXED)
    )
    assert "relaxed@10 <= 0.6 by phase (begin '<think>', end '<" in thinking
    assert "The profile's T held between '<think>' and '</think>', which these have to be." in thinking
    assert "Elsewhere it decodes exactly, where the profile's T held, too." in everywhere
    assert yaml.safe_load(thinking) == yaml.safe_load(everywhere)


def test_ids_of_markers_are_tensorrt_llm_s_own() -> None:
    options = options_of("tensorrt-llm", RELAXED | by_phase(0.6, 0, 5, 7))
    assert (options["begin_thinking_phase_token"], options["end_thinking_phase_token"]) == (5, 7)
    assert "DeepSeek" not in exported("tensorrt-llm", RELAXED | by_phase(0.6, 0, 5, 7))


@pytest.mark.parametrize("to", ["tensorrt-llm", "max"])
@pytest.mark.parametrize(("inside", "outside"), [(0.6, 0.15), (0.15, 0.6), (0, 0.6)])
def test_a_t_outside_thinking_is_not(to: str, inside: float, outside: float) -> None:
    said = usage_error(lambda: exported(to, RELAXED | by_phase(inside, outside, "<think>", "</think>")))
    assert said.startswith("the profile's threshold policy is phase (")
    assert said.endswith("has one T, while the target thinks; calibrate with --threshold-policy phase-inside")


def test_exact_decoding_sets_nothing_that_is_lossy() -> None:
    assert options_of("vllm", LOSSLESS) == {"model": "small", "num_speculative_tokens": 4, "method": "draft_model"}
    assert not [name for name in options_of("sglang", LOSSLESS | SAMPLED) if "threshold" in name]
    drafting = {"decoding_type": "Draft_Target", "max_draft_len": 4, "speculative_model": "small"}
    assert options_of("tensorrt-llm", LOSSLESS) == drafting
    assert yaml.safe_load(exported("max", LOSSLESS | HEAD))["speculative"] == {
        "speculative_method": "eagle", "num_speculative_tokens": 4,
    }  # fmt: skip
    for name in ("vllm", "sglang", "tensorrt-llm", "transformers"):
        assert "# It is lossless, and needs no certificate." in exported(name, LOSSLESS)


@pytest.mark.parametrize("changes", [BLOCK, BLOCK | SAMPLED], ids=["greedy", "sampled"])
def test_block_verification_is_vllm_s_own_in_the_runner_that_has_it(changes: dict[str, Any]) -> None:
    assert options_of("vllm", changes)["rejection_sample_method"] == "block"
    assert "\nVLLM_USE_V2_MODEL_RUNNER=1 vllm serve big" in exported("vllm", changes)
    assert "\nvllm serve big" in exported("vllm", LOSSLESS)


def test_sampled_drafts_are_sampled() -> None:
    assert options_of("vllm", FLY | SAMPLED)["draft_sample_method"] == "probabilistic"
    assert '{"temperature": 0.6, "top_k": 20, "top_p": 1.0}' in exported("sglang", ACCEPT)
    text = exported("transformers", ENSEMBLE | SAMPLED)
    assert "do_sample=True, repetition_penalty=1.0, temperature=0.6, top_k=20, top_p=1.0, min_p=None" in text


@pytest.mark.parametrize("changes", [{}, ACCEPT], ids=["divergence", "score"])
def test_scores_that_vllm_has_not_are_followed_by_the_plugin(changes: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        saved = profile(changes)
        saved.save(Path(folder) / "profile.json")
        words = shlex.split(export_profile(saved, "vllm").replace("\\\n", ""), comments=True)
        assert json.loads(words[words.index("--additional-config") + 1]) == {
            "fsd": {"profile": f"{folder}/profile.json"}
        }
        assert "rejection_sample_method" not in json.loads(words[words.index("--speculative-config") + 1])
    for to in ("vllm", "transformers"):
        assert "the profile has no file" in usage_error(partial(exported, to, changes))


CASES: list[tuple[str, dict[str, Any], str]] = [
    ("sglang", RELAXED, "score is 'relaxed@10', and SGLang has accept-threshold alone; calibrate with one of these, or "
                        "take an engine that has this score: --to vllm, tensorrt-llm, max, transformers"),
    ("sglang", {}, "score is 'js', and SGLang has accept-threshold alone; calibrate with one of these, or take an "
                   "engine that has this score: --to vllm, transformers"),
    ("tensorrt-llm", {"rule": "fsd-sd", "score": "margin@10"}, "score is 'margin@10', and TensorRT-LLM has"),
    ("max", ENSEMBLE, "rule is 'ensemble', and MAX has relaxed alone; calibrate with one of these, or take an engine "
                      "that has this rule: --to transformers"),
    ("vllm", ENSEMBLE, "rule is 'ensemble', and vLLM has fly, and other scores by our plugin; calibrate"),
    ("vllm", FLY | SAMPLED | {"rule": "fsd-coupled"}, "samples under rule 'fsd-coupled', and vLLM as 'fsd-sd' does"),
    ("tensorrt-llm", RELAXED | {"rule": "fsd"}, "rule is 'fsd', and TensorRT-LLM keeps and replaces tokens as"),
    ("vllm", FLY | {"score": "fly@0"}, "score is 'fly@0' at L = 5, and vLLM's window of FLy has from 1 to L - 1"),
    ("vllm", FLY | {"score": "fly@5"}, "score is 'fly@5' at L = 5"),
    ("vllm", FLY | {"sampling": {"temperature": 0.6, "top_k": None, "top_p": None, "min_p": 0.1}},
     "samples with min_p 0.1, which vLLM has not"),
    ("sglang", ACCEPT | {"sampling.repetition_penalty": 1.25}, "samples with repetition_penalty 1.25"),
    ("sglang", ACCEPT | {"sampling": {"temperature": 0.0, "top_k": None, "top_p": None}},
     "is greedy (temperature 0), where SGLang decodes exactly"),
    ("sglang", ACCEPT | {"threshold": 1.0}, "T is 1, where SGLang would keep tokens of probability 0"),
    ("tensorrt-llm", RELAXED | SAMPLED, "samples (temperature 0.6), and TensorRT-LLM relaxes greedy decoding alone"),
    ("max", RELAXED | {"score": "relaxed"}, "score is 'relaxed', of tokens of any rank, and MAX asks"),
    ("max", RELAXED | {"logits": "processed"}, "score is of processed logits, and MAX reads raw ones"),
    ("max", LOSSLESS, "has no threshold and the draft model 'small', and MAX drafts with EAGLE heads"),
    ("transformers", ENSEMBLE | {"threshold": 1.0}, "T is 1, where the draft alone would decide"),
    ("vllm", FLY | {"draft.kind": "ngram", "draft.id": "NGram()"}, "'NGram()', and vLLM is told of"),
    ("transformers", {"draft.kind": "vllm", "draft.id": '{"method": "mtp"}'}, "which transformers cannot load"),
    ("sglang", ACCEPT | {"draft.kind": "ngram", "draft.id": "NGram()"}, "draft is the n-gram draft 'NGram()'"),
]  # fmt: skip
ANY: dict[str, dict[str, Any]] = {
    "trees of": {"tree": {"top_k": 2, "nodes": 6}},
    "threshold policy is schedule": {"policy": PolicyInfo.of(str(Schedule(0.1, 0.5, 9).identity))
                                     .model_dump()},
    "rejects tokens outside the target's support": {"within_support": True},
    "ends drafts by a predictor": {"early_stop": {"predictor": "p", "fingerprint": "f", "draft_step": 0.1,
                                                  "verify": 0.2, "position": 0.0, "rates": {}}},
}  # fmt: skip


@pytest.mark.parametrize(("to", "changes", "message"), CASES, ids=[f"{to}-{said[:24]}" for to, _, said in CASES])
def test_what_an_engine_cannot_do_is_refused_by_name_with_the_way_out(
    to: str, changes: dict[str, Any], message: str
) -> None:
    said = usage_error(lambda: exported(to, changes))
    assert said.startswith("the profile")
    assert message in said
    assert "; calibrate " in said


@pytest.mark.parametrize("message", ANY)
@pytest.mark.parametrize("to", ENGINES)
def test_what_no_engine_has_is_refused_by_all(to: str, message: str) -> None:
    assert message in usage_error(lambda: exported(to, OWN[to] | ANY[message]))


def test_an_unknown_engine_is_refused_with_the_known_ones() -> None:
    assert usage_error(lambda: exported("llama.cpp", {})) == (
        "unknown engine 'llama.cpp'; known: vllm, sglang, tensorrt-llm, max, transformers"
    )


@pytest.mark.parametrize(
    ("to", "changes", "said"),
    [
        ("vllm", FLY, "The certificate is of fsd-calib, our own engine, and not of vLLM's own FLy, which ends rounds"),
        (
            "vllm",
            FLY | {"engine": {"name": "vllm", "version": "0.32.0"}},
            "is of vllm 0.32.0, and not of vLLM's own FLy",
        ),
        ("sglang", ACCEPT | {"engine": {"name": "vllm", "version": "0.33.0"}}, "is of vllm 0.33.0, and not of SGLang"),
        ("max", RELAXED | UNTESTED | {"threshold": 0.6}, "# Nothing is certified of it."),
    ],
    ids=["ours", "the plugin's", "another's", "nobody's"],
)
def test_the_certificate_is_of_the_engine_that_was_calibrated(to: str, changes: dict[str, Any], said: str) -> None:
    assert said in exported(to, changes).replace("\n#  ", "")


def test_the_plugin_keeps_the_certificate_that_it_was_calibrated_with(tmp_path: Path) -> None:
    followed = profile({"engine": {"name": "vllm", "version": "0.32.0"}})
    followed.save(tmp_path / "profile.json")
    assert "# The certificate is of vllm 0.32.0, which decodes here, too." in export_profile(followed, "vllm")


def test_nothing_is_certified_of_what_was_edited() -> None:
    edited = profile(ACCEPT).model_copy(update={"seed": 5})
    assert "# Nothing is certified of it." in export_profile(edited, "sglang")


def test_how_models_were_loaded_is_said_where_their_names_do_not() -> None:
    loaded = {"target.revision": "abc123", "draft.quantization": "int8"}
    text = exported("sglang", ACCEPT | loaded)
    assert "# The target was 'big' at commit abc123." in text
    assert "# The weights of the draft were quantised: int8." in text
    assert "commit" not in exported("sglang", ACCEPT)


def test_names_are_quoted() -> None:
    odd = {"target.id": "my target's", "draft.id": 'the "draft" $HOME'}
    words = shlex.split(exported("sglang", ACCEPT | odd).replace("\\\n", ""), comments=True)
    assert words[words.index("--model-path") + 1] == odd["target.id"]
    assert words[words.index("--speculative-draft-model-path") + 1] == odd["draft.id"]
    assert yaml.safe_load(exported("max", RELAXED | odd))["model"]["model_path"] == odd["target.id"]
    compile(exported("transformers", ENSEMBLE | odd), "export", "exec")


TARGET, DRAFT = map(str, pair_paths())
PAIR = {"target.id": TARGET, "draft.id": DRAFT, "prompt": None}


def completed(text: str, prompts: list[str]) -> list[str]:
    """What the exported Python completes prompts with."""
    names: dict[str, Any] = {}
    exec(compile(text, "export", "exec"), names)
    return [names["complete"](prompt, 40) for prompt in prompts]


def ours(prompts: list[str], **decoding: Any) -> list[str]:
    decoder = SpeculativeDecoder.from_pretrained(TARGET, DRAFT, draft_length=5, dtype="float32", **decoding)
    return [result.text for result in decoder.generate(prompts, 40)]


@pytest.mark.slow
def test_transformers_own_generate_writes_our_texts_of_an_ensemble() -> None:
    prompts = [problem.prompt for problem in load_task("arithmetic", seed=1, limit=4).problems]
    found = completed(exported("transformers", {**ENSEMBLE, **PAIR, "threshold": 0.5}), prompts)
    assert found == ours(prompts, rule="ensemble", threshold=0.5)
    assert found != ours(prompts, rule="sd")


@pytest.mark.slow
def test_generate_with_our_hook_writes_our_texts_of_any_score(tmp_path: Path) -> None:
    prompts = [problem.prompt for problem in load_task("arithmetic", seed=1, limit=4).problems]
    info = {role: ModelInfo.of(load_model(path, "cpu", torch.float32)).model_dump()
            for role, path in (("target", TARGET), ("draft", DRAFT))}  # fmt: skip
    followed = profile({
        **info, "tokenizer": tokenizer_fingerprint(load_tokenizer(TARGET)), "prompt": None, "acceptance": None,
        "rule": "fsd-sd", "score": "margin@10", "threshold": 0.7,
    })  # fmt: skip
    followed.save(tmp_path / "profile.json")
    found = completed(export_profile(followed, "transformers"), prompts)
    assert found == ours(prompts, rule="fsd-sd", score="margin@10", threshold=0.7)
    assert found != ours(prompts, rule="sd")


@pytest.mark.slow
def test_exact_assisted_generation_writes_the_target_s_texts() -> None:
    prompts = [problem.prompt for problem in load_task("arithmetic", seed=1, limit=2).problems]
    stops = {"prompt": values()["prompt"] | {"stop": ["\n"], "special_tokens": True}}
    text = exported("transformers", {**LOSSLESS, **PAIR, **stops})
    assert 'StopStringCriteria(tokenizer, ["\\n"])' in text
    assert completed(text, prompts) == [written.partition("\n")[0] for written in ours(prompts, rule="target")]
