"""The ranges of settings that `--algorithm_kwargs` may give."""

from __future__ import annotations

from sf.config.ranges import Range
from sf.errors import ConfigError


def expect_in_range(algorithm: str, **settings: tuple[float, Range]) -> None:
    """Compares settings with the values that an algorithm can take.

    Args:
        algorithm: its name.
        settings: value and range of each, by name.

    Raises:
        ConfigError: some are outside, with a sentence for each.
    """
    wrong = [
        f"{name}={value} of algorithm={algorithm} must be {wanted}."
        for name, (value, wanted) in settings.items()
        if value not in wanted
    ]
    if wrong:
        raise ConfigError(wrong)
