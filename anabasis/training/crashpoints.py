"""Places where a test may kill the process, to prove that any line may be the last.

`ANABASIS_CRASH_POINT=name` or `name:n` ends the process at the n-th passing of that point, at once and without
clean-up, as a power failure would.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "ANABASIS_CRASH_POINT"

POINTS = (
    "mail_read",
    "merged",
    "before_delta",
    "delta_written",
    "before_commit",
    "after_commit",
    "before_checkpoint",
    "checkpoint_parameters_written",
    "checkpoint_outer_written",
    "before_checkpoint_manifest",
    "after_checkpoint_manifest",
    "garbage_collected",
    "before_rollback",
    "after_rollback",
    "prepared_spec",
    "prepared_dataset",
    "prepared_snapshot",
    "published_files",
    "published",
)
"""Every point, in the order of a campaign's life."""

_passed: dict[str, int] = {}


def crash_point(name: str) -> None:
    """End the process here if the environment asks for it."""
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return
    point, _, number = wanted.partition(":")
    if point != name:
        return
    _passed[name] = _passed.get(name, 0) + 1
    if _passed[name] == int(number or 1):
        os.kill(os.getpid(), signal.SIGKILL)
