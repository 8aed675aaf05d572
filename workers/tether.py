"""Start a program that dies with its parent: `python tether.py <parent pid> <program> [argument…]`.

On Linux the kernel kills the program (SIGKILL) as soon as the parent is gone, however the parent died; the
setting survives `exec`, so it works for programs that know nothing of it. Elsewhere the program just starts.

This is a small program of its own, rather than a `preexec_fn`, because running Python between fork and exec in
a process that has threads (Temporal's runtime has) can deadlock. It imports nothing but the standard library.

The kernel means the *thread* that started the program: start it from a thread that lives as long as the process.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
"""From <linux/prctl.h>."""

EXIT_PARENT_GONE = 1


def die_with_parent(parent_pid: int, *, with_signal: int = signal.SIGKILL) -> None:
    """Have the kernel send this process `with_signal` when its parent dies; exits at once if it has already."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, int(with_signal), 0, 0, 0)
    if os.getppid() != parent_pid:  # it died between our start and the line above
        os._exit(EXIT_PARENT_GONE)


def tethered(command: list[str]) -> list[str]:
    """The command line that runs `command` tethered to the calling process (same pid, no extra process)."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606 - a list of arguments, no shell
