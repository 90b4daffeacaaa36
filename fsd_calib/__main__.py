"""`python -m fsd_calib`: the command `fsd`."""

from fsd_calib.cli.entry import fsd

fsd()
