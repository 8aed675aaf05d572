"""Objects that are named by number: `versions/000012.json`, `checkpoints/000010.json`."""

from __future__ import annotations

import re

from anabasis.storage.base import ObjectStore

_NAME = re.compile(r"(\d{6,})\.json")
_SORTED_UP_TO = 100_001
"""Keys sort like their numbers up to here (`1000000` sorts before `100002`): listings start here at the latest."""


def numbers_in(store: ObjectStore, folder: str, *, at_least: int = 0) -> list[int]:
    """Numbers of a folder's objects, ascending; other names are left out.

    Args:
        folder: with a slash at its end.
        at_least: smaller numbers are left out, and as far as possible not even listed.
    """
    start = min(at_least, _SORTED_UP_TO) - 1
    listed = store.list(folder, start_after=f"{folder}{start:06d}.json" if start >= 0 else "")
    matches = (_NAME.fullmatch(info.key.removeprefix(folder)) for info in listed)
    return sorted(number for match in matches if match and (number := int(match[1])) >= at_least)
