"""A process that must not outlive the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
"""From <linux/prctl.h>."""


def die_with_parent(parent_pid: int | None = None) -> None:
    """Have the kernel kill this process (SIGKILL) when its parent dies, however it dies. Linux only.

    The kernel means the *thread* that started this process: start it from one that lives as long as its process.

    Args:
        parent_pid: who the parent should be; exits at once when it is another one by now.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if parent_pid is not None and os.getppid() != parent_pid:
        os._exit(1)
