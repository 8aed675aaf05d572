"""A trainer without torch: it ticks, and does what the file `behave` in its work directory says.

(nothing) ticks   freeze: lives without ticks   finish   fail: UserCodeError   fence   crash   deaf: ignores SIGTERM
late: says nothing for a second
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

STEP_SECONDS = 0.05


def main(config: Path) -> int:
    work = Path(json.loads(config.read_text())["work_dir"])
    print(f"fake trainer {os.getpid()} in {work}", flush=True)
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    if _behaviour(work) == "late":
        time.sleep(1.0)
    ticks = 0
    while True:
        what = _behaviour(work)
        if what != "freeze":
            ticks += 1
            _write(work, ticks, phase="finished" if what == "finish" else "training")
        if what == "finish":
            return 0
        if what == "fail":
            failure = {
                "type": "UserCodeError",
                "message": "loss raised ValueError: no",
                "traceback": "Traceback …\nloss",
            }
            (work / "failure.json").write_text(json.dumps(failure))
            return 3
        if what == "fence":
            return 4
        if what == "crash":
            print("last words", flush=True)
            return 17
        if stopped and what != "deaf":
            _write(work, ticks, phase="stopped")
            return 0
        time.sleep(STEP_SECONDS)


def _behaviour(work: Path) -> str:
    try:
        return (work / "behave").read_text().strip()
    except FileNotFoundError:
        return ""


def _write(work: Path, ticks: int, *, phase: str) -> None:
    record = {
        "pid": os.getpid(), "generation": 1, "ticks": ticks, "steps": ticks, "version": ticks // 10, "phase": phase,
        "at": time.time(), "tokens": ticks * 8,
    }  # fmt: skip
    partial = work / ".progress.partial"
    partial.write_text(json.dumps(record))
    partial.replace(work / "progress.json")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[sys.argv.index("--config") + 1])))
