"""Starts the processes of a node of several with torchrun, and watches over them.

Also the small program that becomes torchrun: `python -m anabasis.training.launch <parent pid> <torchrun argument…>`
ties itself to its parent first.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from anabasis.errors import AnabasisError, Fenced
from anabasis.training.progress import PHASES_OF_THE_END, Phase, read_record

PID_VARIABLE = "ANABASIS_TRAINER_PID"
"""The pid that the agent knows, for the leading process to report."""

POLL_SECONDS = 0.1

KILL_AFTER_SECONDS = 45.0
"""From SIGTERM to SIGKILL: torchrun gives its processes 30 seconds."""


class RanksFailed(AnabasisError):
    """The processes of a node ended without a verdict (one was killed, most likely)."""


def launch(config_path: Path, *, work_dir: Path, processes: int, stop: Callable[[], bool]) -> Phase:
    """Run the node's processes until they end.

    Returns:
        `finished` or `stopped`.

    Raises:
        Fenced: they say so. RanksFailed: they ended in any other way; failure.json may say why.
    """
    command = [
        sys.executable, "-m", "anabasis.training.launch", str(os.getpid()),
        "--nnodes=1", f"--nproc-per-node={processes}", "--max-restarts=0", "--rdzv-backend=c10d",
        "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1",
        "-m", "anabasis.training.trainer", "--config", str(config_path), "--rank",
    ]  # fmt: skip
    environment = {**os.environ, PID_VARIABLE: str(os.getpid())}
    ranks = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
    told_at: float | None = None
    while ranks.poll() is None:
        if stop() and told_at is None:
            told_at = time.monotonic()
            ranks.send_signal(signal.SIGTERM)
        if told_at is not None and time.monotonic() - told_at > KILL_AFTER_SECONDS:
            ranks.kill()
        time.sleep(POLL_SECONDS)
    return _verdict(work_dir, code=ranks.returncode)


def _verdict(work_dir: Path, *, code: int) -> Phase:
    phase = read_record(work_dir / "progress.json").get("phase")
    failed = (work_dir / "failure.json").exists()
    if phase == "fenced" and not failed:
        raise Fenced("the node's processes found that their slot is held by someone newer")
    for end in PHASES_OF_THE_END:
        if phase == end and not failed:
            return end
    raise RanksFailed(f"the node's processes ended with code {code} in phase {phase}")


def main() -> None:
    """Become torchrun, tied to the parent."""
    from torch.distributed.run import main as torchrun

    from anabasis.training.tether import die_with_parent

    die_with_parent(int(sys.argv[1]))
    torchrun(sys.argv[2:])


if __name__ == "__main__":
    main()
