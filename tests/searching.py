"""Owns how long hypothesis searches: the profiles, and the number of examples of a test under each. Finds nothing.

``ci``, the default, takes a third of the examples: other ones in each run, so what a run misses a later one finds.
``thorough`` (``--hypothesis-profile=thorough``) takes all. Where the number of cases is itself the proof, a test counts
them itself and asks nobody.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

LEAST = 20  # below that a search is none


SHARES = {"thorough": 100, "ci": 34}
# Imported by conftest.py, so before test modules, whose settings are made of the profile that is loaded then.
# No deadline and no complaint about slow data: on a busy machine both tell of the machine.
for name, number in SHARES.items():
    settings.register_profile(
        name, max_examples=number, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile("ci")


def examples(thorough: int) -> int:
    """The number for this run, of what ``thorough`` would take."""
    return min(thorough, max(LEAST, thorough * settings.default.max_examples // SHARES["thorough"]))
