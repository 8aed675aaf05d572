"""What the end of a trainer means, and what of its words travels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from activities.trainer_process import MAX_FAILURE_CHARACTERS, end_of_log, judge

FAILURE = {"type": "UserCodeError", "message": "loss raised ValueError: no", "traceback": "Traceback …\nValueError: no"}


@pytest.mark.parametrize(
    ("code", "phase", "failure", "kind", "type_"),
    [
        (0, "finished", None, "finished", ""),
        (0, "stopped", None, "died", ""),
        (3, "failed", FAILURE, "failed", "UserCodeError"),
        (3, "failed", {"message": "?"}, "failed", "TrainerCrashed"),
        (3, "training", None, "died", ""),
        (4, "fenced", None, "failed", "Fenced"),
        (1, "failed", FAILURE, "died", ""),
        (-9, "training", None, "died", ""),
        (-200, "training", None, "died", ""),
    ],
)
def test_exit_codes(code: int, phase: str, failure: dict[str, str] | None, kind: str, type_: str) -> None:
    ending = judge(code, phase=phase, failure=failure)
    assert (ending.kind, ending.failure) == (kind, type_)


def test_the_signal_is_named() -> None:
    assert "SIGKILL in phase uploading" in judge(-9, phase="uploading", failure=None).text


def test_message_and_traceback_travel_and_stay_small() -> None:
    assert judge(3, phase="failed", failure=FAILURE).text == f"{FAILURE['message']}\n{FAILURE['traceback']}"
    long = {**FAILURE, "traceback": "x" * 50_000 + "the end"}
    text = judge(3, phase="failed", failure=long).text
    assert len(text) <= MAX_FAILURE_CHARACTERS + 10
    assert text.startswith(FAILURE["message"])
    assert text.endswith("the end")


def test_a_message_that_has_its_traceback_is_not_repeated() -> None:
    text = json.dumps(FAILURE)
    assert judge(3, phase="failed", failure={"type": "X", "message": text, "traceback": text}).text == text


def test_the_end_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "trainer.log"
    assert end_of_log(log) == ""
    log.write_text("\n".join(f"line {number}" for number in range(100)) + "\n\n")
    assert end_of_log(log, lines=2) == "line 98\nline 99"
