"""`--config` and `--print-config`: every option of a command as a TOML file, read and written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from veil.errors import require
from veil.foundation.toml import read_toml, to_toml

FURTHER = "veil.settings"
NOT_KEPT = ("config", "print_config", "dry_run", "resume")


def read_config_file(context: typer.Context, path: Path | None) -> Path | None:
    """Let a TOML file set what the command line does not: options, and any field of `veil.plans.Settings`.

    They stand at the top or in a table `settings`, as in the `config.toml` of a run.
    """
    if path is None:
        return None
    from veil.plans import Settings

    record = read_toml(path)
    settings = record.pop("settings", {})
    require(isinstance(settings, dict), f"{path}: settings must be a table, as in [settings]")
    known: dict[str, Any] = {str(parameter.name): parameter for parameter in context.command.params}
    given: dict[str, object] = {}
    further: dict[str, object] = {}
    for key, value in {**record, **settings}.items():
        name = key.replace("-", "_")
        if name in known:
            joined = isinstance(value, list) and not getattr(known[name], "multiple", False)
            given[name] = ",".join(map(str, value)) if joined else value
        elif name in Settings.model_fields:
            further[name] = value
        else:
            command = context.command.name
            require(name in _NOT_OPTIONS, f'{path}: "{key}" is not an option or setting of veil {command}')
    context.default_map = {name: value for name, value in given.items() if name not in NOT_KEPT}
    context.meta[FURTHER] = further
    return path


# What a run's own config.toml says besides its options.
_NOT_OPTIONS = ("command", "label", "seed", "repetition", "holdout_key")


def further_settings(context: typer.Context) -> dict[str, Any]:
    """Settings of the configuration file without a command-line option."""
    found: dict[str, Any] = context.meta.get(FURTHER, {})
    return found


def config_text(context: typer.Context) -> str:
    """Every option with its value and help as TOML; unset options are comments."""
    from veil.plans import Settings

    lines = [f"# veil {context.command.name} --config THIS_FILE; options on the command line take precedence.", ""]
    for parameter in context.command.params:
        name = str(parameter.name)
        if name in NOT_KEPT or name == "help":
            continue
        lines += _lines(name, context.params.get(name), getattr(parameter, "help", None))
    lines.append("[settings]")
    given = further_settings(context)
    for name, about in Settings.model_fields.items():
        if name not in context.params:
            lines += _lines(name, given.get(name, about.default), about.description)
    return "\n".join(lines).rstrip() + "\n"


def _lines(name: str, value: Any, about: str | None) -> list[str]:
    remark = [f"# {about}"] if about else []
    unset = value is None or value == () or value == []
    return [*remark, f"# {name} =" if unset else to_toml({name: _plain(value)}).strip(), ""]


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
