"""Records as JSON."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from anabasis.errors import CorruptData

R = TypeVar("R", bound=BaseModel)


def to_json(record: BaseModel) -> bytes:
    """Bytes that are the same for equal records, and readable by people."""
    return record.model_dump_json(indent=1).encode()


def parse_record(model: type[R], value: bytes, *, key: str) -> R:
    """The record that these bytes are. Raises `CorruptData`, naming the key and the first problem."""
    try:
        return model.model_validate_json(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CorruptData(f"{key}: {where + ': ' if where else ''}{first['msg']}") from None
