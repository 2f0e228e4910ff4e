"""Models of transformers and peft, with tiny random weights: exact like a one-row-at-a-time loop, and end to end.

The packages are not needed by Veil; where they are not installed these tests are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import veil
from tests.gradients.conftest import loop
from veil.gradients import GradientEngine, GradientError
from veil.problem import Problem
from veil.training.losses import row_losses

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")

ROWS, WORDS = 40, 60
GENERATOR = torch.Generator().manual_seed(0)
TOKENS = torch.randint(5, WORDS, (ROWS, 7), generator=GENERATOR)
CLASSES = torch.randint(0, 2, (ROWS,), generator=GENERATOR)
GROUPS = ["a" if row % 3 else "b" for row in range(ROWS)]
SIZES = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 32, "num_labels": 2}
TEXT = {"vocab_size": WORDS, "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SETTINGS: dict[str, Any] = {"method": "dp-sgd", "epsilon": 2.0, "steps": 3, "batch_size": 10, "seed": 3}


def text(mask: bool = True) -> Problem:
    inputs = {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)}
    return Problem.from_arrays(inputs if mask else {"input_ids": TOKENS}, CLASSES, GROUPS)


def images() -> Problem:
    return Problem.from_arrays({"pixel_values": torch.rand(ROWS, 3, 32, 32, generator=GENERATOR)}, CLASSES, GROUPS)


def bert() -> nn.Module:
    return transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES, **TEXT))


def distilbert() -> nn.Module:
    config = transformers.DistilBertConfig(dim=16, n_layers=2, n_heads=2, hidden_dim=32, **TEXT)
    return transformers.DistilBertForSequenceClassification(config)


def roberta() -> nn.Module:
    return transformers.RobertaForSequenceClassification(transformers.RobertaConfig(**SIZES, **TEXT))


def gpt2() -> nn.Module:
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 32, "vocab_size": WORDS}
    tokens = {name: TEXT[name] for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    return transformers.GPT2ForSequenceClassification(transformers.GPT2Config(**sizes, **tokens))


def llama() -> nn.Module:
    return transformers.LlamaForSequenceClassification(
        transformers.LlamaConfig(**SIZES, **TEXT, num_key_value_heads=2, use_cache=False)
    )


def vit() -> nn.Module:
    return transformers.ViTForImageClassification(transformers.ViTConfig(**SIZES, image_size=32, patch_size=8))


def resnet() -> nn.Module:
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=2)
    return frozen(transformers.ResNetForImageClassification(config))


def convnext() -> nn.Module:
    config = transformers.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, num_labels=2)
    return transformers.ConvNextForImageClassification(config)


def frozen(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    return model


def adapted(kind: str, build: Callable[[], nn.Module] = bert) -> nn.Module:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    if kind == "lora":
        config = peft.LoraConfig(r=2, target_modules=["query", "value"], task_type="SEQ_CLS")
    else:
        config = peft.IA3Config(target_modules=["query"], feedforward_modules=[], task_type="SEQ_CLS")
    return peft.get_peft_model(build(), config)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Problem]]] = {
    "BERT": (bert, text),
    "DistilBERT": (distilbert, text),
    "RoBERTa": (roberta, text),
    "GPT-2": (gpt2, text),
    "Llama": (llama, text),
    "ViT": (vit, images),
    "ResNet, frozen BatchNorm": (resnet, images),
    "ConvNeXt": (convnext, images),
    "LoRA": (lambda: adapted("lora"), text),
    "IA3": (lambda: adapted("ia3"), text),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_of_packages_are_the_loop(name: str) -> None:
    torch.manual_seed(0)
    build, rows = MODELS[name]
    model, batch = frozen(build().eval()), rows().batch(np.arange(4))
    wanted, found = loop(model, row_losses, batch), GradientEngine(model, row_losses).gradients(batch)
    size = max(float(values.abs().max()) for values in wanted.values())
    for part, values in found.items():
        assert float((values - wanted[part]).abs().max()) <= 1e-5 * size, part


@pytest.mark.parametrize("name", MODELS)
def test_models_of_packages_train_by_fit_and_by_a_loop_of_ones_own(name: str) -> None:
    build, rows = MODELS[name]
    problem = rows()
    run = veil.fit(build(), problem, loss=F.cross_entropy, evaluation=problem, **SETTINGS)
    assert run.metrics is not None
    assert not any("could not be tried" in sentence for sentence in run.certificate.not_covered)
    model = build()
    session = veil.session(model, problem, **SETTINGS)
    for inputs, targets in session:
        session.step(F.cross_entropy(model(**inputs).logits, targets, reduction="none"))
    assert session.finish().certificate.epsilon <= 2.0 + 1e-6


def test_a_table_of_datasets_trains() -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    sentences = [TOKENS[row, : 2 + row % 5].tolist() for row in range(ROWS)]
    columns = {"input_ids": sentences, "label": CLASSES.tolist(), "sex": GROUPS, "text": ["words"] * ROWS}
    table = datasets.Dataset(datasets.table.InMemoryTable.from_pydict(columns), fingerprint="test")
    problem = Problem.from_dataset(table, "sex", inputs=["input_ids"], pad=True)
    assert veil.fit(bert(), problem, evaluation=problem, **SETTINGS).metrics is not None


def test_gradient_checkpointing_is_refused_before_anything_is_spent() -> None:
    model = bert()
    model.gradient_checkpointing_enable()
    with pytest.raises(GradientError, match="micro_batch"):
        veil.fit(model, text(), **SETTINGS)
