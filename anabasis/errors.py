"""The one exception tree.

::

    AnabasisError                blame      retryable
    ├── UserError                user       no
    │   ├── InvalidSpec
    │   └── UserCodeError        the recipe raised
    ├── StorageError             us
    │   ├── ObjectNotFound                  no
    │   ├── PreconditionFailed              no    (lost a create-if-absent or compare-and-swap race)
    │   ├── StoreUnavailable     cloud      yes   (network, 5xx, throttled, disk full)
    │   └── StoreDenied          user       no    (credentials, missing bucket)
    ├── CorruptData              us         no    (hash, shape or format is wrong)
    ├── Fenced                   us         no    (someone newer holds this slot, version or lock)
    ├── Diverged                 user       no    (non-finite or exploding loss)
    ├── TemporalUnavailable      cloud      yes   (no server answers at the address)
    │   └── WorkersUnavailable              yes   (the server answers, no control worker does)
    ├── CampaignError            user       no
    │   ├── CampaignNotFound
    │   ├── AlreadyRunning
    │   ├── AlreadyCompleted                      (and not asked to go on)
    │   ├── UpdateRejected                        (the campaign says no)
    │   └── CampaignFailed                        (how a campaign ended)
    ├── StackError               user       no    (local stack: port taken, running already, program missing)
    └── ProviderError            cloud
        ├── CapacityError        capacity   yes   (next offer)
        ├── QuotaError           user       no    (limit zero or credentials: permanent)
        └── Throttled            cloud      yes   (wait as told)

Every error answers two questions: may the same call be tried again (`retryable`), and who has to act
(`blame`). Messages are one line that names the thing, its value and the mend.
"""

from __future__ import annotations

from typing import ClassVar, Literal

Blame = Literal["user", "cloud", "capacity", "us"]


class AnabasisError(Exception):
    """Base of every error that Anabasis raises on purpose."""

    retryable: ClassVar[bool] = False
    blame: ClassVar[Blame] = "us"

    @property
    def kind(self) -> str:
        """Stable name, used as Temporal's `ApplicationError.type` and in `--json` output."""
        return type(self).__name__


class UserError(AnabasisError):
    """Something that the person who started the campaign can mend."""

    blame = "user"


class InvalidSpec(UserError):
    """A campaign spec has problems; `problems` holds every one of them.

    Args:
        problems: pairs of (path such as `fleet.slots`, what is wrong and the mend).
    """

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        self.problems = problems
        super().__init__("; ".join(f"{path}: {text}" for path, text in problems))


class UserCodeError(UserError):
    """The recipe's own code raised; the message carries its traceback."""


class StorageError(AnabasisError):
    """The object store could not do what was asked."""


class ObjectNotFound(StorageError):
    """No object has this key."""


class PreconditionFailed(StorageError):
    """The object exists already, or was changed since it was read."""


class StoreUnavailable(StorageError):
    """The store did not answer, or answered that it cannot now (5xx, throttled, disk full)."""

    retryable = True
    blame = "cloud"


class StoreDenied(StorageError):
    """Credentials are wrong or missing, or the bucket or folder does not exist."""

    blame = "user"


class CorruptData(AnabasisError):
    """Bytes are not what their hash, shape or format promises."""


class Fenced(AnabasisError):
    """A newer owner exists; this one must stop without effect."""


class Diverged(AnabasisError):
    """The loss or the parameters are not finite, or the loss left its allowed band."""

    blame = "user"


class TemporalUnavailable(AnabasisError):
    """No Temporal server answers at the configured address."""

    retryable = True
    blame = "cloud"


class WorkersUnavailable(TemporalUnavailable):
    """Temporal answers, but no control worker does: nothing decides, nothing is lost."""

    blame = "us"


class CampaignError(AnabasisError):
    """What was asked of a campaign is not possible."""

    blame = "user"


class CampaignNotFound(CampaignError):
    """Temporal knows no campaign of this name (any more)."""


class AlreadyRunning(CampaignError):
    """A campaign of this name runs."""


class AlreadyCompleted(CampaignError):
    """A campaign of this name has reached its target, and nobody said to go on from there."""


class UpdateRejected(CampaignError):
    """The campaign refuses a command: it makes no sense in its phase, or the campaign is over."""


class CampaignFailed(CampaignError):
    """A campaign ended without reaching its target.

    Args:
        failure: stable name: the kind of the error that ended it (`UserCodeError`, `InvalidSpec`, …), or
            `Cancelled`, `Terminated`, `TimedOut`.
    """

    def __init__(self, message: str, *, failure: str) -> None:
        self.failure = failure
        super().__init__(message)


class StackError(AnabasisError):
    """The local stack cannot be started or stopped as things are (a port is taken, a program is missing)."""

    blame = "user"


class ProviderError(AnabasisError):
    """A provider of nodes failed."""

    retryable = True
    blame = "cloud"


class CapacityError(ProviderError):
    """The provider has no machine of this kind now; another offer may have."""

    blame = "capacity"


class QuotaError(ProviderError):
    """A limit of zero, or credentials that may not: trying again cannot help."""

    retryable = False
    blame = "user"


class Throttled(ProviderError):
    """Too many requests; try again after `retry_after_seconds`."""

    def __init__(self, message: str, *, retry_after_seconds: float = 1.0) -> None:
        self.retry_after_seconds = retry_after_seconds
        super().__init__(message)
