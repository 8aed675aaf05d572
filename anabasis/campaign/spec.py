"""The campaign spec: one JSON object in which everything but the name has a default.

The same model validates what comes from YAML, from the Temporal CLI, from the Web UI's form and from
Python. `parse_spec` reports every problem at once, by path; `describe_spec` documents every field.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from anabasis.errors import InvalidSpec

MAX_SPEC_BYTES = 65_536
"""A spec is read by people and carried in every workflow start; larger ones are a mistake (data in a spec)."""

MAX_NESTING = 100
"""Levels of free options. Readers of JSON on the way to a node give up near 200, and options lie in other objects."""

NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"

Seconds = Annotated[float, Field(gt=0, le=30 * 86_400, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataSpec(_Section):
    """What is trained on."""

    url: str = Field(
        default="python-stdlib",
        min_length=1,
        max_length=2_048,
        description="`python-stdlib` (the source of this machine's Python), or any URL or path that smart-open "
        "opens (file, s3, gs, https; compressed or not), or a folder of text files",
    )
    tokenizer: Literal["bytes", "bpe"] = Field(
        default="bpe", description="byte-level, or BPE trained on the data itself"
    )
    vocabulary_size: int = Field(
        default=1_024, ge=257, le=262_144, description="entries of the BPE (bytes: always 256)"
    )
    sequence_length: int = Field(default=128, ge=8, le=131_072, description="tokens in one sample")
    partitions: int = Field(
        default=32, ge=1, le=65_536, description="fixed lanes of the sample order; at least as many as slots"
    )
    validation_samples: int = Field(
        default=64, ge=0, le=65_536, description="samples held out from the end for evaluation"
    )
    max_bytes: int | None = Field(default=None, ge=1_024, description="use only this much of the source")


class FleetSpec(_Section):
    """How many nodes, and where they come from."""

    slots: int = Field(default=4, ge=1, le=2_000, description="seats in the fleet: nodes wanted at any time")
    provider: str = Field(
        default="local", min_length=1, max_length=64, description="where nodes come from: local, simulated"
    )
    provider_options: dict[str, Any] = Field(
        default_factory=dict[str, Any], description="what the provider needs to know"
    )
    start_rate_per_second: float = Field(
        default=20.0,
        gt=0,
        le=25,
        description="nodes started per second (a child workflow costs 30-50 ms of server CPU)",
    )
    boot_timeout_seconds: Seconds = Field(default=120.0, description="from request to the node agent serving its queue")
    drain_timeout_seconds: Seconds = Field(default=60.0, description="for a node to finish its round and leave")


class TrainingSpec(_Section):
    """What happens on a node and in the merge."""

    inner_steps: int = Field(
        default=20, ge=1, le=100_000, description="local optimizer steps per round of the fastest node"
    )
    min_inner_steps: int = Field(default=1, ge=1, description="a slow node does at least these")
    work_proportional: bool = Field(default=True, description="slower nodes do fewer steps, weighted by tokens")
    batch_size: int = Field(default=8, ge=1, le=65_536, description="samples per inner step")
    inner_lr: float = Field(default=3e-3, gt=0, le=10, description="peak learning rate of the inner AdamW")
    weight_decay: NonNegative = Field(default=0.1, description="of the inner AdamW")
    betas: tuple[float, float] = Field(default=(0.9, 0.95), description="of the inner AdamW")
    gradient_clip: float | None = Field(default=1.0, gt=0, description="global norm of inner gradients; null = off")
    warmup_fraction: float = Field(
        default=0.05, ge=0, le=1, description="share of the rounds in which the inner lr rises"
    )
    final_lr_fraction: float = Field(
        default=0.1, ge=0, le=1, description="inner lr at the end (cosine) as a share of the peak"
    )
    outer_lr: float | None = Field(
        default=None,
        gt=0,
        le=2,
        description="outer Nesterov step; null = by the number of rounds (0.7 long, 1.0 short)",
    )
    outer_momentum: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="outer Nesterov momentum; null = by the number of rounds (0.9 long, ramped)",
    )
    dense_warmup_rounds: int | None = Field(
        default=None,
        ge=0,
        description="first rounds with few inner steps and no momentum; null = by the number of rounds",
    )
    compression: Literal["int8", "none"] = Field(default="int8", description="of updates, in both directions")
    deterministic: bool = Field(
        default=False,
        description="wait for every slot, fixed steps, inner state saved each round: a killed and resumed run "
        "is bit-identical to an undisturbed one",
    )
    seed: int = Field(default=0, ge=0, le=2**31 - 1, description="of initial parameters and of the sample order")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto = cuda when there is one")
    processes_per_node: int = Field(
        default=1, ge=1, le=64, description="torchrun processes of one node (one per device)"
    )
    threads_per_process: int = Field(default=1, ge=0, le=1_024, description="torch CPU threads; 0 = torch's own choice")
    compile: bool = Field(default=False, description="torch.compile the model")
    bf16: bool = Field(default=True, description="bf16 autocast on cuda")


class RoundsSpec(_Section):
    """When a round closes."""

    quorum: float = Field(
        default=0.5, gt=0, le=1, description="share of the slots that must contribute before a round closes"
    )
    min_contributors: int = Field(default=1, ge=1, description="and at least so many nodes")
    grace_factor: float = Field(
        default=1.5, ge=1, le=100, description="after quorum, wait until this multiple of the expected round time"
    )
    min_deadline_seconds: Seconds = Field(default=2.0, description="never close an incomplete round earlier than this")
    max_deadline_seconds: Seconds = Field(default=3_600.0, description="close with quorum at the latest after this")
    stalled_after_seconds: Seconds = Field(
        default=900.0, description="no quorum for so long: the status says stalled (the campaign goes on waiting)"
    )
    poll_seconds: float = Field(default=0.2, ge=0.01, le=60, description="between looks into the mailbox")


class CheckpointSpec(_Section):
    """How often a campaign can be resumed from, and what is kept."""

    every_rounds: int = Field(default=10, ge=1, le=100_000, description="rounds of a leg; a checkpoint ends each leg")
    keep: int = Field(
        default=3, ge=2, le=10_000, description="newest checkpoints kept (older mail and deltas go with them)"
    )
    evaluate_every_rounds: int = Field(
        default=5, ge=0, description="validation by one node of the round; 0 = only at the end"
    )


class HealthSpec(_Section):
    """How failures are noticed. Shorter is faster, and less tolerant of a slow network or server restart."""

    heartbeat_seconds: Seconds = Field(
        default=30.0,
        description="heartbeat timeout of node work; must exceed the longest restart of the Temporal server",
    )
    stall_seconds: Seconds | None = Field(
        default=None, description="no step progress for so long = frozen; null = the heartbeat timeout"
    )
    spike_factor: float = Field(
        default=3.0, gt=1, description="loss above this multiple of its running mean counts as divergence"
    )
    norm_factor: float = Field(
        default=10.0,
        gt=1,
        description="a contribution whose norm exceeds this multiple of the round's median is rejected",
    )


class FailureSpec(_Section):
    """Budgets per class of failure. Preemption and loss have none: machines come and go."""

    user_code: int = Field(default=3, ge=0, description="recipe errors, before the campaign fails with the traceback")
    diverged: int = Field(default=2, ge=0, description="rollbacks, before the campaign fails")
    provision: int = Field(
        default=8, ge=0, description="consecutive refused or failed starts per slot, before giving up"
    )
    backoff_seconds: Seconds = Field(
        default=1.0, description="before the second start of a slot; doubles up to the maximum"
    )
    max_backoff_seconds: Seconds = Field(default=60.0, description="longest pause between starts of a slot")


class BudgetSpec(_Section):
    """What may be spent. Null = no limit."""

    max_cost: float | None = Field(
        default=None, gt=0, description="in the currency of the prices: checkpoint, release, stop"
    )
    max_node_hours: float | None = Field(default=None, gt=0, description="paid node-hours: checkpoint, release, stop")
    price_per_node_hour: NonNegative = Field(default=0.0, description="where the provider does not say")


class TargetSpec(_Section):
    """When the campaign is finished: whichever comes first."""

    rounds: int = Field(default=20, ge=1, le=10_000_000, description="merged rounds")
    tokens: int | None = Field(default=None, ge=1, description="committed training tokens")
    loss: float | None = Field(default=None, description="training loss, mean of a round")


class ControlSpec(_Section):
    """Of the workflow itself."""

    max_history_events: int | None = Field(
        default=None,
        ge=200,
        le=20_000,
        description="continue-as-new after so many events; null = on the server's advice",
    )
    progress_seconds: Seconds = Field(
        default=5.0, description="at most one progress report to the workflow in this time"
    )
    approve_publish: bool = Field(default=False, description="wait for the `approve` update before publishing")


class CampaignSpec(_Section):
    """A training campaign."""

    name: str = Field(
        pattern=NAME_PATTERN,
        description="lower-case letters, digits, hyphens; at most 63; the workflow id is campaign/<name>",
    )
    recipe: str = Field(
        default="gpt",
        min_length=1,
        max_length=256,
        pattern=r"^[A-Za-z_][\w.]*(:[A-Za-z_]\w*)?$",
        description="`gpt`, `tiny`, or an import path such as `my_package.models:MyRecipe`",
    )
    recipe_options: dict[str, Any] = Field(
        default_factory=dict[str, Any], description="keyword arguments of the recipe"
    )
    store: str | None = Field(
        default=None, min_length=1, max_length=2_048, description="object store URL; null = the workers' default"
    )
    target: TargetSpec = Field(default_factory=TargetSpec)
    data: DataSpec = Field(default_factory=DataSpec)
    fleet: FleetSpec = Field(default_factory=FleetSpec)
    training: TrainingSpec = Field(default_factory=TrainingSpec)
    rounds: RoundsSpec = Field(default_factory=RoundsSpec)
    checkpoint: CheckpointSpec = Field(default_factory=CheckpointSpec)
    health: HealthSpec = Field(default_factory=HealthSpec)
    failures: FailureSpec = Field(default_factory=FailureSpec)
    budget: BudgetSpec = Field(default_factory=BudgetSpec)
    control: ControlSpec = Field(default_factory=ControlSpec)

    @model_validator(mode="after")
    def _across_sections(self) -> CampaignSpec:
        problems = list(_contradictions(self))
        if problems:
            raise ValueError(_JOIN.join(f"{path}{_SPLIT}{text}" for path, text in problems))
        return self


# A model validator may report only one error; several are packed into one and unpacked by `_problems`.
_JOIN, _SPLIT = "\x1e", "\x1f"


def _contradictions(spec: CampaignSpec) -> list[tuple[str, str]]:
    slots, training = spec.fleet.slots, spec.training
    found: list[tuple[str, str]] = []
    if spec.rounds.min_contributors > slots:
        found.append(
            (
                "rounds.min_contributors",
                f"{spec.rounds.min_contributors} can never be met by {slots} slots; use at most fleet.slots",
            )
        )
    if spec.data.partitions < slots:
        found.append(("data.partitions", f"{spec.data.partitions} is less than fleet.slots = {slots}; raise it"))
    if training.min_inner_steps > training.inner_steps:
        found.append(
            (
                "training.min_inner_steps",
                f"{training.min_inner_steps} exceeds training.inner_steps = {training.inner_steps}; lower it",
            )
        )
    if spec.rounds.min_deadline_seconds > spec.rounds.max_deadline_seconds:
        found.append(
            (
                "rounds.min_deadline_seconds",
                f"{spec.rounds.min_deadline_seconds:g} exceeds rounds.max_deadline_seconds = "
                f"{spec.rounds.max_deadline_seconds:g}; lower it",
            )
        )
    if spec.failures.backoff_seconds > spec.failures.max_backoff_seconds:
        found.append(("failures.backoff_seconds", "exceeds failures.max_backoff_seconds; lower it"))
    if not all(0 <= beta < 1 for beta in training.betas):
        found.append(("training.betas", f"{training.betas} must both be in [0, 1)"))
    found.extend(_not_json("recipe_options", spec.recipe_options))
    found.extend(_not_json("fleet.provider_options", spec.fleet.provider_options))
    return found


def _not_json(path: str, options: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What would be changed or refused later, on its way through JSON: nothing else checks free options."""
    todo: list[tuple[str, Any, int]] = [(path, options, 0)]
    while todo:
        where, value, depth = todo.pop()
        if depth > MAX_NESTING:
            yield path, f"is nested more than {MAX_NESTING} levels deep; make it flatter"
            return
        if isinstance(value, dict):
            for key, inner in cast("dict[Any, Any]", value).items():
                if not isinstance(key, str) or not _is_unicode(key):
                    yield where, f"the key {ascii(key)[:80]} is no text; use a string"
                else:
                    todo.append((f"{where}.{key}", inner, depth + 1))
        elif isinstance(value, list | tuple):
            inners = enumerate(cast("list[Any]", value))
            todo += [(f"{where}.{index}", inner, depth + 1) for index, inner in inners]
        elif isinstance(value, str) and not _is_unicode(value):
            yield where, f"{ascii(value)[:80]} is no valid Unicode; correct it"
        elif isinstance(value, float) and not math.isfinite(value):
            yield where, f"{value} cannot be written as JSON; use a finite number"
        elif value is not None and not isinstance(value, str | int | float):
            yield (
                where,
                f"a value of type {type(value).__name__} cannot be written as JSON; use numbers, text, lists, objects",
            )


def _is_unicode(text: str) -> bool:
    """False for lone surrogates, which JSON can escape and UTF-8 cannot carry."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def parse_spec(raw: Any) -> CampaignSpec:
    """Validate one JSON-like object (or JSON text) into a spec.

    Raises:
        InvalidSpec: with every problem by path, each saying the value and the mend.
    """
    if isinstance(raw, CampaignSpec):
        return raw
    if not isinstance(raw, dict):
        raise InvalidSpec([("(spec)", f"must be a JSON object with at least a name, not {_type_name(raw)}")])
    try:
        size = len(json.dumps(raw, default=str))
    except (ValueError, RecursionError):
        raise InvalidSpec([("(spec)", "is nested too deeply or refers to itself")]) from None
    if size > MAX_SPEC_BYTES:
        raise InvalidSpec([("(spec)", f"is {size} bytes; at most {MAX_SPEC_BYTES}: put data behind data.url")])
    try:
        return CampaignSpec.model_validate(raw)
    except ValidationError as error:
        raise InvalidSpec(_problems(error)) from None


def _problems(error: ValidationError) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for item in error.errors(include_url=False):
        path = ".".join(str(part) for part in item["loc"]) or "(spec)"
        if item["type"] == "value_error" and _SPLIT in item["msg"]:
            packed = item["msg"].removeprefix("Value error, ")
            found.extend((p, t) for p, _, t in (entry.partition(_SPLIT) for entry in packed.split(_JOIN)))
        elif item["type"] == "extra_forbidden":
            found.append((path, f"unknown field{_suggestion(item['loc'])}"))
        elif item["type"] == "missing":
            found.append((path, "is required"))
        else:
            found.append((path, f"{item['msg'][:1].lower()}{item['msg'][1:]}, got {_shown(item.get('input'))}"))
    return found


def _suggestion(location: tuple[int | str, ...]) -> str:
    import difflib

    model: Any = CampaignSpec
    for part in location[:-1]:
        model = model.model_fields[str(part)].annotation if str(part) in model.model_fields else None
        if model is None or not hasattr(model, "model_fields"):
            return "; remove it"
    known = list(model.model_fields)
    close = difflib.get_close_matches(str(location[-1]), known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known here: {', '.join(known)}"


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


def _type_name(value: Any) -> str:
    names = {str: "a string", list: "a list", bool: "a boolean", int: "a number", float: "a number"}
    kind: type[Any] = cast("type[Any]", type(value))
    return "nothing" if value is None else names.get(kind, kind.__name__)


def describe_spec(model: type[BaseModel] = CampaignSpec, *, indent: int = 0) -> str:
    """The whole spec as commented YAML with its defaults: what `anabasis spec` prints."""
    lines: list[str] = []
    pad = " " * indent
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            lines.append(f"\n{pad}# {(kind.__doc__ or '').splitlines()[0]}\n{pad}{name}:")
            lines.append(describe_spec(kind, indent=indent + 2))
            continue
        default = "demo  # required" if field.is_required() else _shown(field.get_default(call_default_factory=True))
        lines.append(f"{pad}# {field.description or ''}\n{pad}{name}: {default}")
    return "\n".join(lines)
