"""A model of tables as an ONNX file: raw columns in, probabilities and the predicted class (or the number) out.

The file is a pure function of weights and preprocessing, and holds both: from it alone one can tell whether it is the
certified model and computes what that one computes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veil.accounting.model_digest import Weight
from veil.errors import InputError, require
from veil.handover.onnx_columns import encoded
from veil.handover.onnx_graph import ML, OWN, WEIGHT, Graph, onnx_package
from veil.handover.onnx_layers import layer
from veil.tables.predictor import Predictor, predictor_of

PROBABILITIES, PREDICTED = "probabilities", "predicted"
PREPROCESSING, CERTIFICATE, FORM = "veil.preprocessing", "veil.certificate", "veil.form"
# Raised whenever the same model gives another graph: a file of another form does not verify.
FORM_NOW = "1"


def onnx_model(record: Mapping[str, Any], weights: Mapping[str, Tensor], certificate: str) -> Any:
    """The ONNX model of a run's preprocessing and weights, with the text of its certificate.

    Raises:
        InputError: The model has a layer, or the table a column, that cannot be written.
    """
    require(
        ":" not in str(record["model"]),
        f'model "{record["model"]}" is not one of Veil\'s: use --to sklearn, or torch.onnx with your own preprocessing',
    )
    predictor, graph = predictor_of(record, dict(weights)), Graph(onnx_package())
    for column in predictor.encoding.columns:
        taken = column.name in (PROBABILITIES, PREDICTED) or column.name.startswith(OWN) or not column.name
        require(not taken, f'column "{column.name}" has a name that an output of the file has: rename the column')
    for name, value in weights.items():
        kinds = (torch.float32, torch.int64)
        require(value.dtype in kinds, f'weight "{name}" is {value.dtype}: only models of float32 are written as ONNX')
        graph.weight(name, value.detach().cpu().numpy())
    scores = layer(graph, predictor.model, encoded(graph, predictor.encoding))
    outputs = _outputs(graph, predictor, graph.cast(scores, "DOUBLE"))
    notes = {PREPROCESSING: json.dumps(record, sort_keys=True), CERTIFICATE: certificate, FORM: FORM_NOW}
    return graph.model(outputs, notes)


def _outputs(graph: Graph, predictor: Predictor, scores: str) -> list[Any]:
    """Probabilities [rows, classes] and predicted class [rows]; or the predicted number [rows]."""
    kinds, info = graph.onnx.TensorProto, graph.onnx.helper.make_tensor_value_info
    if not predictor.classes:
        low, high = predictor.target_range or (-1.0, 1.0)
        one, two = graph.constant(1.0, np.float64), graph.constant(2.0, np.float64)
        clamped = graph.add("Clip", graph.shaped(scores, -1), graph.constant(-1.0, np.float64), one)
        part = graph.add("Div", graph.add("Add", clamped, one), two)
        wide = graph.add("Mul", part, graph.constant(high - low, np.float64))
        graph.name(PREDICTED, "Add", graph.constant(low, np.float64), wide)
        return [info(PREDICTED, kinds.DOUBLE, ["rows"])]
    graph.name(PROBABILITIES, "Softmax", scores, axis=1)
    place = graph.add("ArgMax", PROBABILITIES, axis=1, keepdims=0)
    keys = list(range(len(predictor.classes)))
    graph.name(PREDICTED, "LabelEncoder", place, domain=ML, keys_int64s=keys, values_strings=predictor.classes)
    width = len(predictor.classes)
    return [info(PROBABILITIES, kinds.DOUBLE, ["rows", width]), info(PREDICTED, kinds.STRING, ["rows"])]


def read_onnx(path: Path) -> Any:
    """The model in a file.

    Raises:
        InputError: It is none.
    """
    onnx = onnx_package()
    try:
        return onnx.load(path, load_external_data=False)
    except Exception as error:  # of protobuf, whose errors have no base of their own
        raise InputError(f"{path} is not a readable ONNX file: export the model again") from error


def notes_of(model: Any) -> dict[str, str]:
    """What Veil wrote beside the graph."""
    return {entry.key: entry.value for entry in model.metadata_props}


def weights_of(model: Any) -> dict[str, NDArray[Any]]:
    """The weights under their own names, without the constants of the graph.

    Raises:
        InputError: They are damaged, or lie in another file.
    """
    onnx = onnx_package()
    found = {}
    for constant in model.graph.initializer:
        if constant.name.startswith(WEIGHT):
            require(constant.data_location != onnx.TensorProto.EXTERNAL, "the weights lie in another file: export anew")
            try:
                found[constant.name.removeprefix(WEIGHT)] = onnx.numpy_helper.to_array(constant)
            except Exception as error:  # of onnx or numpy, whichever meets the damage first
                raise InputError("the ONNX file holds no readable weights: export the model again") from error
    return found


_KINDS = {"float32": "F32", "int64": "I64"}


def as_stored(weights: Mapping[str, NDArray[Any]]) -> list[Weight]:
    """Weights as a hash is made of them."""
    return [
        (name, _KINDS.get(str(value.dtype), str(value.dtype)), value.shape, np.ascontiguousarray(value).tobytes())
        for name, value in weights.items()
    ]
