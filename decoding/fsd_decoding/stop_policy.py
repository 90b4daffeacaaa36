"""The former place of `fsd_decoding.policies.stopping`, kept for code that imports from here."""

from fsd_decoding.policies.stopping import *  # noqa: F403
