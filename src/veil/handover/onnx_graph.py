"""The graph of an ONNX file, written node by node; names that Veil gives begin with `veil/`, columns keep theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veil.errors import InputError

# Versions that runtimes of 2022 and later read.
OPSET, ML_OPSET, IR_VERSION = 17, 3, 8
ML = "ai.onnx.ml"
OWN = "veil/"
WEIGHT = f"{OWN}weights/"


@dataclass
class Graph:
    """Nodes in the order of computing, and constants; `add` and `constant` give the name of what they add."""

    onnx: ModuleType
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)

    def add(self, kind: str, *given: str, domain: str = "", **attributes: Any) -> str:
        """The result of one more node."""
        name = f"{OWN}{len(self.nodes)}"
        self.name(name, kind, *given, domain=domain, **attributes)
        return name

    def name(self, result: str, kind: str, *given: str, domain: str = "", **attributes: Any) -> None:
        """One more node, whose result has this name."""
        self.nodes.append(self.onnx.helper.make_node(kind, given, [result], domain=domain, **attributes))

    def constant(self, values: Any, kind: Any = np.float32) -> str:
        """A constant."""
        return self._keep(f"{OWN}constant/{len(self.constants)}", np.asarray(values, dtype=kind))

    def weight(self, name: str, values: NDArray[Any]) -> str:
        """A weight of the model, under its own name."""
        return self._keep(f"{WEIGHT}{name}", values)

    def _keep(self, name: str, values: NDArray[Any]) -> str:
        self.constants.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def input(self, name: str, kind: str, width: int) -> str:
        """An input of so many values a row: DOUBLE, FLOAT, INT64 or STRING."""
        proto = getattr(self.onnx.TensorProto, kind)
        self.inputs.append(self.onnx.helper.make_tensor_value_info(name, proto, ["rows", width]))
        return name

    def cast(self, given: str, kind: str) -> str:
        """The same values as another kind of number."""
        return self.add("Cast", given, to=getattr(self.onnx.TensorProto, kind))

    def shaped(self, given: str, *shape: int) -> str:
        """The same values in another shape; 0 keeps a size, −1 takes what is left."""
        return self.add("Reshape", given, self.constant(shape, np.int64))

    def places(self, given: str, places: Sequence[int], axis: int = 1) -> str:
        """Values at these places."""
        return self.add("Gather", given, self.constant(places, np.int64), axis=axis)

    def one_hot(self, places: str, width: int) -> str:
        """1 in the column of each row's place, else 0; a place that no column has is 0 in all."""
        same = self.add("Equal", places, self.constant(np.arange(width)[None, :], np.int64))
        return self.cast(same, "FLOAT")

    def model(self, outputs: Sequence[Any], notes: dict[str, str]) -> Any:
        """The finished file, checked by the rules of the format."""
        helper = self.onnx.helper
        graph = helper.make_graph(self.nodes, "veil", self.inputs, list(outputs), self.constants)
        sets = [helper.make_opsetid("", OPSET), helper.make_opsetid(ML, ML_OPSET)]
        model = helper.make_model(graph, opset_imports=sets, ir_version=IR_VERSION, producer_name="veil")
        helper.set_model_props(model, notes)
        self.onnx.checker.check_model(model)
        return model


def onnx_package() -> ModuleType:
    """The package that writes the format."""
    try:
        for part in ("onnx.helper", "onnx.numpy_helper", "onnx.checker"):
            import_module(part)
        return import_module("onnx")
    except ImportError as error:
        raise InputError('writing and reading ONNX needs the package onnx: pip install "veil-dp[export]"') from error
