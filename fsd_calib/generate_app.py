"""`fsd-generate`: continues prompts as a profile says, and tells on stderr how fast that went.

Knows options and how a prompt becomes a chat. Decoding is `SpeculativeDecoder`'s.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fsd_calib.command_line import quiet_transformers, run, say

if TYPE_CHECKING:
    from fsd_decoding.decoder import Result

NAME = "fsd-generate"
_EPILOG = """
Example: fsd-generate --profile fsd-profile/arithmetic/profile.json "Ann has 3 boxes of 12 pens. How many?"

Exit codes: 0 done · 2 bad input · 130 interrupted
"""

app = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)


@app.command(epilog=_EPILOG)
def command(
    prompts: Annotated[list[str], typer.Argument(help="One or more prompts, each in quotes.")],
    profile: Annotated[Path, typer.Option(help="The profile.json that fsd-calibrate wrote.")],
    target: Annotated[str | None, typer.Option(help="Hub id or local path. By default the profile's.")] = None,
    draft: Annotated[str | None, typer.Option(help="Hub id or local path. By default the profile's.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="The most tokens a text may have.")] = 256,
    threshold: Annotated[
        float | None, typer.Option(help="Instead of the profile's; what it certifies does not hold then.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Give the prompts as they are, not in the chat template.")] = False,
    device: Annotated[str | None, typer.Option(help="cuda, cpu, … By default a GPU where there is one.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16. By default the models' own.")] = None,
) -> None:
    """Continues prompts with two models and the threshold of a profile.

    Prompts are put as a user's message where the tokenizer has a chat template. Texts go to stdout, in the
    prompts' order with an empty line between, and one line on speed to stderr.
    """
    from fsd_decoding.decoder import SpeculativeDecoder
    from fsd_decoding.profile import ThresholdProfile

    quiet_transformers()
    followed = ThresholdProfile.load(profile)
    decoder = SpeculativeDecoder.from_pretrained(
        target or followed.target.id, draft or followed.draft.id, profile=followed, device=device, dtype=dtype
    )
    inputs = prompts if raw else [in_chat(decoder.tokenizer, prompt) for prompt in prompts]
    started = time.perf_counter()
    results = decoder.generate(
        inputs,
        max_new_tokens=max_new_tokens,
        rule=None if threshold is None else followed.rule,  # an uncertified profile follows another rule
        threshold=threshold,
    )
    print("\n\n".join(result.text for result in results))
    say(NAME, summary(results, time.perf_counter() - started))


def main() -> None:
    sys.exit(run(app, NAME))


def in_chat(tokenizer: Any, prompt: str) -> str | list[int]:
    """Token ids of a chat that this message opens; the prompt itself where there is no chat template."""
    if not tokenizer.chat_template:
        return prompt
    ids: list[int] = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}],
        add_generation_prompt=True,
        return_dict=False,
        enable_thinking=False,  # as in calibration
    )
    return ids


def summary(results: Sequence[Result], seconds: float) -> str:
    """Tokens here are those emitted, so an end of text counts, as it does in a profile."""
    tokens = sum(len(result.tokens) + (result.finish_reason == "eos") for result in results)
    rounds = sum(result.rounds for result in results)
    drafted = sum(result.drafted for result in results)
    accepted = sum(result.accepted for result in results) / max(drafted, 1)
    return (
        f"{tokens} tokens in {rounds} rounds, {tokens / rounds:.2f} a round; "
        f"{accepted:.0%} of {drafted} drafted tokens accepted; {tokens / seconds:.1f} tokens/s"
    )
