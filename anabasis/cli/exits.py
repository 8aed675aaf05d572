"""Exit codes of `anabasis`, and which error has which. Scripts may rely on them."""

from __future__ import annotations

from anabasis.errors import (
    AlreadyCompleted,
    AlreadyRunning,
    AnabasisError,
    CampaignFailed,
    CampaignNotFound,
    InvalidSpec,
    ObjectNotFound,
    StackError,
    StoreUnavailable,
    TemporalUnavailable,
    UpdateRejected,
)

OK = 0
"""Done."""
FAILED = 1
"""It was tried and did not work; stderr says what and why."""
USAGE = 2
"""The command line or the spec is wrong: nothing was done."""
NOT_FOUND = 3
"""There is no campaign, model or file of that name."""
UNAVAILABLE = 4
"""Temporal or the object store does not answer: the same command may work later."""
REFUSED = 5
"""Not possible as things are: already running, port taken, program missing, command rejected by the campaign."""
CAMPAIGN_ENDED_BADLY = 6
"""The campaign that was followed failed or was cancelled."""
INTERRUPTED = 130
"""Ctrl-C."""

IN_WORDS = (
    f"Exit codes: {OK} done; {FAILED} tried, and it did not work; {USAGE} wrong command line or spec; "
    f"{NOT_FOUND} no such campaign, model or file; {UNAVAILABLE} Temporal, its workers or the store do not answer; "
    f"{REFUSED} not possible as things are; {CAMPAIGN_ENDED_BADLY} the campaign that was followed failed or was "
    f"cancelled; {INTERRUPTED} Ctrl-C."
)
"""The end of `anabasis --help`."""

_BY_ERROR: tuple[tuple[type[AnabasisError], int], ...] = (
    (InvalidSpec, USAGE),
    (ObjectNotFound, NOT_FOUND),
    (TemporalUnavailable, UNAVAILABLE),
    (StoreUnavailable, UNAVAILABLE),
    (StackError, REFUSED),
    (CampaignNotFound, NOT_FOUND),
    (AlreadyRunning, REFUSED),
    (AlreadyCompleted, REFUSED),
    (UpdateRejected, REFUSED),
    (CampaignFailed, CAMPAIGN_ENDED_BADLY),
)


def code_for(error: AnabasisError) -> int:
    """The exit code of a command that ended with this error."""
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), FAILED)
