"""`fsd train`: what learns from traces and from the target's own texts."""

from __future__ import annotations

from fsd_calib.cli.family import Family, VersionOption, group_of

app = Family(
    cls=group_of({"predictor": "train_predictor", "eagle": "train_eagle"}),
    no_args_is_help=True,
    help="Trains a predictor that ends drafts early, or an EAGLE head that drafts.",
)


@app.callback()
def common(version: VersionOption = False) -> None:
    """Options before the command's name."""
