"""Loading weights without transformers' progress bars, which would come between a caller's own lines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from transformers.utils import logging


@contextmanager
def without_weight_bars() -> Iterator[None]:
    """Inside, transformers shows no bars; afterwards it does what it did before.

    Bars of downloads, which take minutes, are huggingface_hub's and stay as they are: transformers switches both.
    """
    shown, downloads = logging.is_progress_bar_enabled(), not are_progress_bars_disabled()
    logging.disable_progress_bar()
    if downloads:
        enable_progress_bars()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
            if not downloads:
                disable_progress_bars()
