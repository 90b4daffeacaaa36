"""The former place of `fsd_decoding.policies.threshold`, kept for code that imports from here."""

from fsd_decoding.policies.threshold import *  # noqa: F403
