"""The command `lm_eval` with the model `fsd`, for versions of it that look for models in their own package alone."""

from __future__ import annotations

import sys

from fsd_calib.tasks.harness import check_installed
from fsd_common.errors import UsageError


def main() -> None:
    try:
        check_installed()
        from lm_eval.__main__ import cli_evaluate

        import fsd_calib.lm_eval_plugin.model  # noqa: F401  registers it

        cli_evaluate()
    except UsageError as error:
        sys.exit(f"lm_eval: {error}")


if __name__ == "__main__":
    main()
