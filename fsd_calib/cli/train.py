"""`fsd train`: what learns from traces and from the target's own texts."""

from __future__ import annotations

from fsd_calib.cli.family import Family, VersionOption, ending, group_of

app = Family(
    cls=group_of({"predictor": "train_predictor", "eagle": "train_eagle"}),
    no_args_is_help=True,
    help="Trains a predictor that ends drafts early, or an EAGLE head that drafts.",
    epilog=ending(
        "Exit codes: 0 done · 2 bad input · 130 interrupted",
        "fsd train predictor --traces traces --out predictor",
        "fsd train eagle --task arithmetic --out head",
        "fsd calibrate --task arithmetic --min-acc 0.98 --predictor predictor",
    ),
)


@app.callback()
def common(version: VersionOption = False) -> None:
    """Options before the command's name."""
