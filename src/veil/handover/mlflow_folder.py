"""MLflow's model format: a folder with a file `MLmodel` that says how the model in it is loaded and what it takes."""

from __future__ import annotations

import json
import platform
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any


def mlflow_files(record: Mapping[str, Any], packages: Sequence[str]) -> dict[str, bytes]:
    """`MLmodel`, and the files that name the packages it needs: the model is `model.onnx`, its loader `score.py`."""
    python = platform.python_version()
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    about = {
        "flavors": {
            "python_function": {
                "loader_module": "score",
                "code": "code",
                "data": "model.onnx",
                "env": {"conda": "conda.yaml", "virtualenv": "python_env.yaml"},
                "python_version": python,
            }
        },
        "signature": {"outputs": json.dumps(_outputs(record))},
        "metadata": {"input_columns": [column["name"] for column in record["columns"]]},
        "utc_time_created": now,
        "model_uuid": uuid.uuid4().hex,
    }
    listed = [*packages, "pandas", "mlflow"]
    conda = {"name": "mlflow-env", "channels": ["conda-forge"], "dependencies": [f"python={python}", {"pip": listed}]}
    virtual = {"python": python, "build_dependencies": ["pip"], "dependencies": ["-r requirements.txt"]}
    return {
        "MLmodel": as_yaml(about).encode(),
        "conda.yaml": as_yaml(conda).encode(),
        "python_env.yaml": as_yaml(virtual).encode(),
        "requirements.txt": "".join(f"{package}\n" for package in listed).encode(),
    }


def _outputs(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The signature has no kinds of inputs, which `score.py` reads and checks itself.

    MLflow takes no whole numbers where it expects doubles, and its message about a wrong kind prints rows.
    """
    named = [("string" if record["classes"] else "double", "predicted")]
    named += [("double", f"probability of {name}") for name in record["classes"]]
    return [{"type": kind, "name": name, "required": True} for kind, name in named]


def as_yaml(value: Mapping[str, Any], indent: str = "") -> str:
    """Nested mappings as YAML; everything else is JSON, which YAML reads too.

    >>> print(as_yaml({"a": {"b": "x: y"}, "c": [1, 2]}), end="")
    a:
      b: "x: y"
    c: [1, 2]
    """
    lines = []
    for name, item in value.items():
        if isinstance(item, Mapping):
            lines.append(f"{indent}{name}:\n{as_yaml(item, indent + '  ')}")
        else:
            lines.append(f"{indent}{name}: {json.dumps(item)}\n")
    return "".join(lines)
