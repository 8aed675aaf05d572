"""The start of a campaign: validate, ask the workers what they make of it, write what it stands on."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError

with workflow.unsafe.imports_passed_through():
    from anabasis.campaign import messages as m
    from anabasis.campaign.reducer import resume_from_store
    from anabasis.campaign.spec import CampaignSpec, parse_spec
    from anabasis.campaign.state import CampaignState
    from anabasis.errors import InvalidSpec

PREFLIGHT_SECONDS = 60.0
"""To import the recipe (torch: seconds) and to read the first bytes of the data."""

PREPARE_SECONDS = 86_400.0
"""A large data set takes hours to tokenise; heartbeats notice a dead worker long before."""

_RETRY = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30), maximum_attempts=20)


async def open_campaign(raw: Any) -> CampaignState:
    """The first state of a campaign, or one `InvalidSpec` failure with every problem."""
    problems: list[tuple[str, str]] = []
    spec: CampaignSpec | None = None
    try:
        spec = parse_spec(raw)
    except InvalidSpec as error:
        problems += error.problems
    else:
        expected = f"campaign/{spec.name}"
        actual = workflow.info().workflow_id
        if actual != expected:
            problems.append(("name", f"the workflow id is {actual!r}; a campaign of this name must be {expected!r}"))
    # What is no spec at all is not passed on: written again, it may exceed what Temporal takes.
    unreadable = any(path == "(spec)" for path, _ in problems)
    report = await _preflight(None if unreadable else raw, patient=spec is not None and not problems)
    known = {path for path, _ in problems}
    problems += [(problem.path, problem.text) for problem in report.problems if problem.path not in known]
    if problems or spec is None:
        raise _invalid(problems)
    prepared = await _prepare(spec, report.store_url)
    state = CampaignState(
        spec=spec,
        seed=workflow.uuid4().hex,
        store_url=report.store_url,
        started_at=workflow.time(),
        desired_slots=spec.fleet.slots,
        target_rounds=spec.target.rounds,
        target_tokens=spec.target.tokens,
        target_loss=spec.target.loss,
        max_cost=spec.budget.max_cost,
        max_node_hours=spec.budget.max_node_hours,
        quiet_finish=workflow.patched("quiet-finish"),
        start_allowance=max(1.0, spec.fleet.start_rate_per_second),
        start_allowance_at=workflow.time(),
    )
    resume_from_store(state, prepared)
    return state


async def _preflight(raw: Any, *, patient: bool) -> m.PreflightReport:
    """Check recipe, data, store and provider as far as the (possibly bad) spec names them well."""
    try:
        return await workflow.execute_activity(
            "preflight",
            _preflight_request(raw),
            result_type=m.PreflightReport,
            task_queue=m.AGGREGATOR_QUEUE,
            start_to_close_timeout=timedelta(seconds=PREFLIGHT_SECONDS),
            heartbeat_timeout=timedelta(seconds=30),
            # A spec that is known to be bad fails within seconds even when no aggregator worker runs.
            schedule_to_start_timeout=None if patient else timedelta(seconds=5),
            retry_policy=_RETRY if patient else RetryPolicy(maximum_attempts=1),
            summary="check recipe, data and store",
        )
    except ActivityError as error:
        if not patient:
            return m.PreflightReport()
        _raise_if_cancelled(error)
        raise ApplicationError(
            f"preflight failed: {error.cause or error}", type="PreflightFailed", non_retryable=True
        ) from error


def _preflight_request(raw: Any) -> m.PreflightRequest:
    fields: dict[str, Any] = raw if isinstance(raw, dict) else {}  # pyright: ignore[reportUnknownVariableType]

    def section(name: str) -> dict[str, Any]:
        value = fields.get(name)
        return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]

    def text(value: Any, default: str | None) -> str | None:
        if value is None:
            return default
        return value if isinstance(value, str) and 0 < len(value) <= 2_048 else None

    try:
        # Defaults come from the model, never from a second list.
        default = CampaignSpec(name="defaults")
        return m.PreflightRequest(
            recipe=text(fields.get("recipe"), default.recipe),
            recipe_options=section("recipe_options"),
            data_url=text(section("data").get("url"), default.data.url),
            store=text(fields.get("store"), default.store),
            provider=text(section("fleet").get("provider"), default.fleet.provider),
        )
    except ValueError:
        return m.PreflightRequest()


async def _prepare(spec: CampaignSpec, store_url: str) -> m.PrepareResult:
    try:
        return await workflow.execute_activity(
            "prepare",
            m.PrepareRequest(spec=spec.model_dump(mode="json"), store_url=store_url),
            result_type=m.PrepareResult,
            task_queue=m.AGGREGATOR_QUEUE,
            start_to_close_timeout=timedelta(seconds=PREPARE_SECONDS),
            heartbeat_timeout=timedelta(seconds=30),
            retry_policy=_RETRY,
            cancellation_type=workflow.ActivityCancellationType.TRY_CANCEL,
            summary="write spec, data set and version 0",
        )
    except ActivityError as error:
        _raise_if_cancelled(error)
        cause = error.cause
        if isinstance(cause, ApplicationError):
            raise ApplicationError(cause.message, type=cause.type, non_retryable=True) from error
        raise ApplicationError(f"prepare failed: {cause or error}", type="PrepareFailed", non_retryable=True) from error


def _raise_if_cancelled(error: ActivityError) -> None:
    """Of a cancelled workflow, whose activity only ends with it: that is no failure."""
    if isinstance(error.cause, CancelledError) and workflow.patched("cancelled-while-opening"):
        raise CancelledError("cancelled before anything was started") from error


def _invalid(problems: list[tuple[str, str]]) -> ApplicationError:
    listed = "; ".join(f"{path}: {text}" for path, text in problems)
    return ApplicationError(
        f"invalid spec: {listed}",
        [{"path": path, "text": text} for path, text in problems],
        type="InvalidSpec",
        non_retryable=True,
    )
