"""`anabasis …` with light stand-ins for the workers: `python -m tests.support.stand_in_stack up --port 0`."""

from __future__ import annotations

import sys

from anabasis.cli.main import main
from workers import detached, embedded
from workers.health import AGGREGATOR_PARTS, CONTROL_PARTS
from workers.supervisor import WorkerSpec

embedded.WORKERS = (
    WorkerSpec("control", "tests.support.stand_in_control", CONTROL_PARTS),
    WorkerSpec("aggregator", "tests.support.stand_in_aggregator", AGGREGATOR_PARTS),
)

detached.PROGRAM = "tests.support.stand_in_stack"

if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].startswith("{"):
        detached.main(sys.argv[1:])  # the background process itself
    main()
