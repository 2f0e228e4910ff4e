"""Fields: the options of a command, made from the fields of a request; a new option is one field there."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from operator import getitem
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from veil.cli.completing import complete_method, complete_methods, complete_model, complete_requirement
from veil.cli.config_file import further_settings
from veil.request.settings import Asked, Settings

_COMPLETIONS: dict[str, Callable[[str], list[str]]] = {
    "method": complete_method,
    "methods": complete_methods,
    "model": complete_model,
    "require": complete_requirement,
}


def asks(request: type[Asked]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a request. It is called with its context and its own options."""
    options = _options(request)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)
        first, *others = own.parameters.values()

        @wraps(command)
        def wrapper(**values: Any) -> None:
            command(**{name: value for name, value in values.items() if name in own.parameters})

        further = [*options, *(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in others)]
        parameters = [first, *sorted(further, key=lambda one: one.default is not inspect.Parameter.empty)]
        wrapper.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapper

    return decorate


def values_of(request: type[Asked], context: typer.Context) -> dict[str, Any]:
    """Values of the request's fields from the command line and its configuration file."""
    asked = context.params
    given = {name: asked[name] for name in _own(request) if asked.get(name) is not None}
    if "settings" not in request.model_fields:
        return given
    settings = {name: asked[name] for name in _further(request)}
    return given | {"settings": settings | further_settings(context)}


def _options(request: type[Asked]) -> list[inspect.Parameter]:
    return [_parameter(name, field) for name, field in (_own(request) | _further(request)).items()]


def _own(request: type[Asked]) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in request.model_fields.items() if name != "settings"}


def _further(request: type[Asked]) -> dict[str, FieldInfo]:
    """Settings that are command-line options, except those the request renames or hides."""
    if "settings" not in request.model_fields:
        return {}
    taken = {*_own(request), *getattr(request, "without", ())}
    shown = {name: field for name, field in Settings.model_fields.items() if _extra(field).get("option")}
    return {name: field for name, field in shown.items() if name not in taken}


def _extra(field: FieldInfo) -> dict[str, Any]:
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    """A field as a parameter that typer makes an option from."""
    kind, default = _typed(field)
    if _extra(field).get("argument"):
        about: Any = typer.Argument(help=field.description)
        kind, default = (kind | None, None) if field.is_required() else (kind, default)
    elif kind is bool:
        about = typer.Option(f"--{name.replace('_', '-')}", help=field.description)
    else:
        about = typer.Option(
            help=field.description, autocompletion=_COMPLETIONS.get(name), envvar=_extra(field).get("envvar")
        )
    annotation: Any = getitem(Annotated, (kind, about))
    given = inspect.Parameter.empty if default is PydanticUndefined else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=given, annotation=annotation)


def _typed(field: FieldInfo) -> tuple[Any, Any]:
    """The type and the default of a field as they are typed: lists by commas, pairs one by one."""
    kind, default = field.annotation, field.get_default(call_default_factory=True)
    if _extra(field).get("unset") is not None:
        return str, _extra(field)["unset"]
    origin = get_origin(kind)
    if origin is tuple:
        return str, ",".join(default)
    if origin in (list, dict):
        return list[str] | None, None
    if origin is Literal:
        return str, default
    if origin in (Union, UnionType):
        (inner,) = (one for one in get_args(kind) if one is not NoneType)
        return (str if get_origin(inner) is Literal else inner) | None, default
    if field.is_required():
        return kind, inspect.Parameter.empty
    return kind, str(default) if kind is Path else default
