"""Made-up requests: few and always the same in `make test`, many at random in `make fuzz`."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

PROFILE = "fuzz"


def look_longer(examples: int) -> None:
    """From now on `tried` means this many, at random."""
    settings.register_profile(PROFILE, max_examples=examples, deadline=None)
    settings.load_profile(PROFILE)


def tried(few: int) -> settings:
    """The settings for a test that tries `few` examples, unless more were asked for."""
    slow = list(HealthCheck)  # a gateway answers in milliseconds, not in microseconds
    if settings.get_current_profile_name() == PROFILE:
        return settings(suppress_health_check=slow, database=None)
    return settings(max_examples=few, derandomize=True, suppress_health_check=slow, database=None)
