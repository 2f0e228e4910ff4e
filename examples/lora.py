"""LoRA with Hugging Face: adapters of a frozen language model and a new head, trained on private sentences.

python examples/lora.py [--rows N] [--model FOLDER]

Without a folder a tiny BERT with random weights stands in, so that nothing is downloaded; its accuracy means little.
FOLDER is what `save_pretrained` wrote. Needs `pip install "veil-dp[hf]"`.
"""

from __future__ import annotations

import argparse

import numpy as np
import peft
import torch
import transformers

import veil

WORDS, LENGTH = 200, 12


def make_sentences(rows: int, seed: int) -> veil.Problem:
    """Token ids of synthetic reviews. Word 7 praises; customers of the small shop say it with word 9."""
    generator = np.random.default_rng(seed)
    tokens = generator.integers(10, WORDS, (rows, LENGTH))
    small, praised = generator.random(rows) < 0.3, generator.random(rows) < 0.5
    place = generator.integers(1, LENGTH, rows)
    tokens[praised, place[praised]] = np.where(small, 9, 7)[praised]
    inputs = {"input_ids": torch.from_numpy(tokens), "attention_mask": torch.ones(rows, LENGTH, dtype=torch.long)}
    return veil.Problem.from_arrays(inputs, praised.astype(int), np.where(small, "small shop", "large shop"))


def language_model(folder: str | None) -> torch.nn.Module:
    """A model for two classes, with adapters in its attention: what peft freezes stays frozen."""
    torch.manual_seed(0)
    if folder is None:
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
        base = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=WORDS, **sizes))
    else:
        base = transformers.AutoModelForSequenceClassification.from_pretrained(folder, local_files_only=True)
    return peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=["query", "value"], task_type="SEQ_CLS"))


def main(rows: int, folder: str | None = None) -> tuple[veil.Run, list[str]]:
    """Train adapters and head; every other weight stays as it was."""
    model = language_model(folder)
    before = {name: weights.detach().clone() for name, weights in model.named_parameters()}
    private, public = make_sentences(rows, 0), make_sentences(500, 1)
    run = veil.fit(
        model,
        private,
        method="dp-sgd",
        epsilon=4.0,
        epochs=5,
        batch_size=min(256, rows // 4),
        optimizer="adam",
        learning_rate=0.01,
        evaluation=public,
    )
    moved = [name for name, weights in model.named_parameters() if not torch.equal(weights, before[name])]
    trained = sum(before[name].numel() for name in moved)
    print(f"trained: {trained} of {sum(weights.numel() for weights in before.values())} weights")
    print("accuracy:", {group: round(score.accuracy, 3) for group, score in run.metrics.by_group.items()})
    print("ε by group:", {group: round(cost, 3) for group, cost in run.certificate.by_group.items()})
    return run, moved


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--model", default=None)
    asked = parser.parse_args()
    main(asked.rows, asked.model)
