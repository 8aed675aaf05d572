"""The README's table of measurements, from the results that are checked in: `python -m benchmarks.table`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
README = Path(__file__).parents[1] / "README.md"
HEAD = "| what, and the command | measured | target |\n|---|---|---|\n"


def table() -> str:
    """Markdown, rows only."""
    return "".join(f"| {what} | {measured} | {target} |\n" for what, measured, target in _rows())


def _rows() -> list[tuple[str, str, str]]:
    control, data, overhead = _load("control_plane"), _load("data_plane"), _load("overhead")
    events, loss = control["events_per_node_round"], control["loss_seconds"]
    nodes, rounds = control["nodes"], control["rounds"]
    rows = [
        (
            f"history events of the campaign per node-round, {nodes} simulated nodes × {rounds} rounds, "
            "start of the fleet included (`python -m benchmarks.control_plane`)",
            f"{events['campaign']:.2f}",
            _target("≤ 0.2", met=events["campaign"] <= 0.2),
        ),
    ]
    if "campaign_steady" in events:
        steady = events["campaign_steady"]
        rows.append(("the same once the fleet is complete", f"{steady:.3f}", _target("≤ 0.2", met=steady <= 0.2)))
    decision = loss["decision"]["p95"]
    cpu = control["cpu_ms_per_node_round"]["whole"]
    rows += [
        (
            f"from a loss being known to its replacement being asked for, p95 of {control['losses']} losses",
            f"{decision:.2f} s",
            _target("< 2 s", met=decision < 2),
        ),
        ("CPU per node-round: Temporal's server", f"{cpu['temporal']:.1f} ms", ""),
        ("CPU per node-round: control worker", f"{cpu['control']:.1f} ms", ""),
    ]
    rows += [_data_row(case) for case in data["cases"] if _is_shown(case)]
    for case in overhead:
        rows.append(
            (
                f"tokens/s of a one-node campaign against a bare loop, rounds of {case['inner_steps']} steps "
                f"({case['round_seconds']:.1f} s) (`python -m benchmarks.overhead`)",
                f"{case['ratio']:.1%}",
                _target("≥ 97 %", met=case["ratio"] >= 0.97),
            )
        )
    return rows


def _is_shown(case: dict[str, Any]) -> bool:
    return case["where"] == "disk" and case["contributions"] == 4


def _data_row(case: dict[str, Any]) -> tuple[str, str, str]:
    share, memory = case["share_of_copy"], case["extra_memory"]
    return (
        f"an aggregator's round, {case['parameters'] / 1e6:.0f} M parameters, {case['contributions']} contributions, "
        "on disk (`python -m benchmarks.data_plane`)",
        f"{case['round_rate']:.2f} GB/s = {share:.0%} of copying memory; memory × {memory:.1f}",
        _target("≥ 25 %, ≤ × 4", met=share >= 0.25 and memory <= 4),
    )


def _target(text: str, *, met: bool) -> str:
    return text if met else f"{text}: **not reached**"


def _load(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


if __name__ == "__main__":
    text = README.read_text()
    start = text.index(HEAD) + len(HEAD)
    README.write_text(text[:start] + table() + text[text.index("\n## ", start) :])
    print(table(), end="")
