"""A workflow that logs, in a file of its own: the sandbox imports the whole file, and cannot import structlog."""

from __future__ import annotations

from temporalio import workflow


@workflow.defn(name="LogsOneLine")
class LogsOneLine:
    @workflow.run
    async def run(self) -> None:
        workflow.logger.info("from the workflow", extra={"campaign": "c"})
