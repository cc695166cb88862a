"""Owns the kinds of fields that configuration is made of. Owns no field: see ``site``, ``camera`` and ``model``."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, Strict
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

Auto: TypeAlias = Literal["auto"]
T = TypeVar("T")


class Section(BaseModel):
    """A map of the configuration: no unknown keys, no conversion of types, unchangeable, values kept out of errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, hide_input_in_errors=True, validate_default=False
    )


@dataclass(frozen=True, slots=True, eq=False)
class AlsoAccepts:
    """Notes in the JSON Schema that a short form is accepted besides; a validator beside it makes it the long one."""

    schemas: tuple[dict[str, Any], ...]

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [*self.schemas, handler(schema)]}


@dataclass(frozen=True, slots=True, eq=False)
class Described:
    """A value that ``check`` accepts or refuses, and how the JSON Schema describes it.

    ``check`` gives the value to keep, or raises ValueError with "what is wrong; the remedy". Without a text of its own
    the message is made from the schema, like that of every other field.
    """

    check: Callable[[Any], Any]
    schema: dict[str, Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._checked)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return dict(self.schema)

    def _checked(self, value: Any) -> Any:
        try:
            return self.check(value)
        except ValueError as error:
            raise PydanticCustomError("described", "{text}", {"text": str(error)}) from None


def auto_or(low: int, high: int) -> Described:
    """``auto``, or a whole number from ``low`` to ``high``."""

    def check(value: Any) -> Any:
        if value == "auto" or (type(value) is int and low <= value <= high):
            return value
        raise ValueError

    return Described(check, {"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": low, "maximum": high}]})


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, (dict, Section)) else value


Many: TypeAlias = Annotated[tuple[T, ...], Strict(False)]
"""A list; strictness would ask for a Python tuple, which YAML can't give."""


@dataclass(frozen=True, slots=True, eq=False)
class OrOne:
    """On a list: a single map stands for a list of one."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(_listed, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        listed = handler(schema)
        return {"anyOf": [listed, listed["items"]]}


NAME_PATTERN = r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$"


def check_name(value: Any) -> str:
    """A name that can be part of a topic and of a file's name."""
    if not isinstance(value, str):
        raise ValueError
    if not re.fullmatch(NAME_PATTERN, value, re.ASCII) or "\n" in value:
        raise ValueError(
            "is not a name that topics can carry; use 1 to 64 of the letters a-z A-Z 0-9 . _ - and no dot in front"
        )
    return value


def is_name(text: str) -> bool:
    """Whether ``check_name`` would take it."""
    try:
        check_name(text)
    except ValueError:
        return False
    return True


Name: TypeAlias = Annotated[str, Described(check_name, {"type": "string", "pattern": NAME_PATTERN})]

Milliseconds: TypeAlias = Annotated[int, Field(ge=0)]


def check_time(value: Any) -> datetime:
    """A point of time with its offset from UTC, as ISO 8601 writes it."""
    if isinstance(value, datetime):
        return value
    remedy = "write it like 2026-05-01T12:00:00Z, with Z for UTC or an offset such as +02:00"
    if not isinstance(value, str):
        raise ValueError(f"is not a point of time; {remedy}")
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError(f"is not a point of time; {remedy}") from None
    if time.tzinfo is None:
        raise ValueError(f"has no offset from UTC; {remedy}")
    if not 1970 <= time.year <= 2200 or time.timestamp() < 0:
        raise ValueError(f"is not between the years 1970 and 2200; {remedy}")
    return time.astimezone(UTC)


PointOfTime: TypeAlias = Annotated[datetime, Described(check_time, {"type": "string", "format": "date-time"})]
