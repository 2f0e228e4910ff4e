"""Rows of any structure train, resume and are measured like a tensor; a row never depends on its company."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import veil
from tests.gradients.conftest import loop
from tests.training.small_models import WORDS, Conv1D, Encoder, Tagger
from veil.errors import InputError
from veil.gradients import GradientEngine, GradientError
from veil.problem import Problem
from veil.training.losses import as_row_losses, row_losses

ROWS = 60
SETTINGS: dict[str, Any] = {"method": "dp-sgd", "epsilon": 2.0, "steps": 4, "batch_size": 12, "seed": 3}
RANDOM = np.random.default_rng(0)
LENGTHS = RANDOM.integers(2, 9, ROWS)
SENTENCES = [torch.from_numpy(RANDOM.integers(1, WORDS, length)) for length in LENGTHS]
TOKENS = torch.from_numpy(RANDOM.integers(1, WORDS, (ROWS, 6)))
CLASSES = [int(sentence[0]) % 2 for sentence in SENTENCES]
GROUPS = ["a" if row % 3 else "b" for row in range(ROWS)]


class Items(Dataset[Any]):
    """A map-style data set of dicts, as text data sets are."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"input_ids": SENTENCES[row], "label": CLASSES[row], "sex": GROUPS[row], "text": "some words"}


class Columns:
    """A table with named columns, as Hugging Face data sets are."""

    column_names = ("input_ids", "label", "sex")

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, which: Any) -> Any:
        if isinstance(which, str):
            return [self[row][which] for row in range(ROWS)]
        return {"input_ids": SENTENCES[which].tolist(), "label": CLASSES[which], "sex": GROUPS[which]}

    def __getitems__(self, rows: list[int]) -> list[Any]:
        return [self[row] for row in rows]


def collated(sentences: list[Any]) -> dict[str, Tensor]:
    """A collate function of one's own: all sentences to ten places."""
    padded = torch.stack([F.pad(item["input_ids"], (0, 10 - len(item["input_ids"]))) for item in sentences])
    return {"input_ids": padded, "attention_mask": (padded > 0).long()}


def tags() -> list[list[int]]:
    return [(sentence % 3).tolist() for sentence in SENTENCES]


def whole(item: Any) -> Any:
    return item


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Problem]]] = {
    "dict": (Encoder, lambda: Problem.from_arrays({"input_ids": TOKENS}, CLASSES, GROUPS)),
    "dict with mask": (
        Encoder,
        lambda: Problem.from_arrays({"input_ids": TOKENS, "attention_mask": (TOKENS > 3).long() + 1}, CLASSES, GROUPS),
    ),
    "tuple": (
        lambda: nn.Bilinear(3, 4, 2),
        lambda: Problem.from_arrays((torch.randn(ROWS, 3), np.ones((ROWS, 4))), CLASSES, GROUPS),
    ),
    "sentences": (Tagger, lambda: Problem.from_arrays(SENTENCES, CLASSES, GROUPS)),
    "dict of sentences": (Encoder, lambda: Problem.from_arrays({"input_ids": SENTENCES}, CLASSES, GROUPS)),
    "data set of pairs": (
        lambda: nn.Linear(6, 2),
        lambda: Problem.from_dataset(TensorDataset(TOKENS.float(), torch.tensor(CLASSES)), GROUPS),
    ),
    "data set of dicts": (Encoder, lambda: Problem.from_dataset(Items(), "sex", inputs=["input_ids"], pad=True)),
    "data set to one length": (Encoder, lambda: Problem.from_dataset(Items(), "sex", inputs=["input_ids"], pad=12)),
    "columns": (Encoder, lambda: Problem.from_dataset(Columns(), "sex", pad=True)),
    "own collate": (
        Encoder,
        lambda: Problem.from_dataset(Items(), lambda item: item["sex"], inputs=whole, collate=collated),
    ),
    "tags": (
        lambda: Encoder(3, places=True),
        lambda: Problem.from_arrays({"input_ids": TOKENS}, TOKENS % 3, GROUPS),
    ),
    "tags of sentences": (
        lambda: Encoder(3, places=True),
        lambda: Problem.from_arrays({"input_ids": SENTENCES}, tags(), GROUPS),
    ),
    "labels": (
        lambda: nn.Linear(6, 3),
        lambda: Problem.from_arrays(TOKENS.float(), TOKENS[:, :3] > 9, GROUPS, task="multi-label"),
    ),
    "several numbers": (
        lambda: nn.Linear(6, 3),
        lambda: Problem.from_arrays(TOKENS.float(), TOKENS[:, :3], GROUPS, task="regression"),
    ),
}
pytestmark = pytest.mark.filterwarnings("ignore::veil.gradients.FallbackWarning")


def built(case: str) -> tuple[nn.Module, Problem]:
    torch.manual_seed(1)
    model, problem = CASES[case]
    return model(), problem()


@pytest.mark.parametrize("case", CASES)
def test_each_row_of_a_batch_has_the_gradient_that_it_has_alone(case: str) -> None:
    model, problem = built(case)
    loss = as_row_losses(row_losses, model, problem)
    batch, rows = problem.batch(np.arange(5)), [problem.batch(np.array([row])) for row in range(5)]
    alone = [loop(model, loss, row) for row in rows]
    found = GradientEngine(model, loss).gradients(batch)
    size = max(float(values.abs().max()) for row in alone for values in row.values())
    for name, values in found.items():
        wanted = torch.cat([row[name] for row in alone])
        assert float((values - wanted).abs().max()) <= 1e-5 * size, name


@pytest.mark.parametrize("method", ["dp-sgd", "asc"])
@pytest.mark.parametrize("case", CASES)
def test_rows_of_any_structure_train_and_are_measured(case: str, method: str) -> None:
    model, problem = built(case)
    run = veil.fit(model, problem, evaluation=problem, **{**SETTINGS, "method": method})
    assert run.certificate.epsilon <= 2.0 + 1e-6
    assert run.metrics is not None
    assert set(run.metrics.by_group) == {"a", "b"}
    assert case == "several numbers" or 0.0 <= run.metrics.accuracy <= 1.0


@pytest.mark.parametrize("case", ["dict", "sentences", "data set of dicts", "tags of sentences"])
def test_a_session_hands_out_structured_rows_and_gives_what_fit_gives(case: str) -> None:
    by_fit, problem = built(case)
    veil.fit(by_fit, problem, **SETTINGS)
    by_hand, _ = built(case)
    session = veil.session(by_hand, problem, **SETTINGS)
    for batch in session:
        session.step(row_losses(by_hand, batch))
    session.finish()
    for one, other in zip(by_fit.parameters(), by_hand.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_an_empty_batch_has_the_structure_of_the_others_and_a_run_survives_it(case: str) -> None:
    model, problem = built(case)
    inputs, targets = problem.batch(np.array([], dtype=np.int64))
    full, _ = problem.batch(np.arange(3))
    assert len(targets) == 0
    assert type(inputs) is type(full)
    assert not isinstance(inputs, dict) or list(inputs) == list(full)
    veil.fit(model, problem, **{**SETTINGS, "batch_size": 1, "steps": 6})
    model, problem = built(case)
    veil.fit(model, problem, **{**SETTINGS, "method": "erm", "batch_size": 1, "steps": 6})


@pytest.mark.parametrize("case", CASES)
def test_made_up_rows_have_the_structure_and_kinds_of_real_ones(case: str) -> None:
    _, problem = built(case)
    made, real = problem.made_up(4), problem.batch(np.arange(4))

    def kinds(nested: Any) -> Any:
        if isinstance(nested, dict):
            return {key: kinds(part) for key, part in nested.items()}
        return tuple(map(kinds, nested)) if isinstance(nested, tuple) else (nested.dtype, nested.ndim, len(nested))

    assert kinds(made) == kinds(real)


@pytest.mark.parametrize("first", [6, 3, 12])
def test_a_session_takes_batches_of_as_many_rows_as_there_are_places(first: int) -> None:
    model, problem = built("dict")
    session = veil.session(model, problem, **{**SETTINGS, "batch_size": first, "steps": 20})
    sizes = set()
    for batch in session:
        sizes.add(len(batch[1]))
        session.step(row_losses(model, batch) if len(batch[1]) else torch.zeros(0))
    assert sizes & {1, 2, 3, 6, 12}, "no batch could be taken for places"
    session.finish()


def test_a_tensor_in_a_dict_trains_to_the_same_bits_as_the_tensor() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 2)

        def forward(self, values: Tensor) -> Tensor:
            return self.layer(values)

    found = []
    for inputs in (TOKENS.float(), {"values": TOKENS.float()}):
        torch.manual_seed(0)
        model = Named()
        veil.fit(model, Problem.from_arrays(inputs, CLASSES, GROUPS), **SETTINGS)
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*found)


class Unmasked(Tagger):
    """Takes the mean over all places, padded ones too: a longer neighbour changes what a row gives."""

    def forward(self, words: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(words, torch.ones_like(mask))


@pytest.mark.parametrize("model", [Unmasked(), Encoder(masked=False)], ids=["mean", "attention"])
def test_a_model_that_sees_how_far_its_rows_are_padded_is_refused(model: nn.Module, tmp_path: Path) -> None:
    inputs: Any = SENTENCES if isinstance(model, Tagger) else {"input_ids": SENTENCES}
    with pytest.raises(InputError, match="padded further"):
        veil.fit(model, Problem.from_arrays(inputs, CLASSES, GROUPS), out=tmp_path / "run", **SETTINGS)
    assert not (tmp_path / "run").exists()
    if isinstance(model, Encoder):  # with one length for all batches no row has a say in it
        veil.fit(model, Problem.from_dataset(Items(), "sex", inputs=["input_ids"], pad=12), **SETTINGS)


class Mixing(Encoder):
    """Adds something of the whole batch."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None) -> Any:
        found = super().forward(input_ids, attention_mask)
        found.logits = found.logits - found.logits.mean(0).detach()
        return found


@pytest.mark.parametrize("case", ["dict", "dict of sentences", "data set of dicts", "own collate", "tags"])
def test_a_model_that_mixes_structured_rows_is_refused(case: str) -> None:
    model = Mixing(3, places=True) if case == "tags" else Mixing()
    with pytest.raises(GradientError, match="cannot be trained row by row"):
        veil.fit(model, built(case)[1], **SETTINGS)


def changed(case: str) -> Problem:
    """The problem with one number of one row changed."""
    if case == "dict":
        other = TOKENS.clone()
        other[41, 2] += 1
        return Problem.from_arrays({"input_ids": other}, CLASSES, GROUPS)
    if case == "renamed":
        return Problem.from_arrays({"words": TOKENS}, CLASSES, GROUPS)
    sentences = [sentence.clone() for sentence in SENTENCES]
    if case == "sentences":
        sentences[41][1] += 1
    if case == "a zero longer":
        sentences[41] = F.pad(sentences[41], (0, 1))
    return Problem.from_arrays(sentences, CLASSES, GROUPS)


@pytest.mark.parametrize(("case", "of"), [("dict", "dict"), ("sentences", "sentences"), ("a zero longer", "sentences")])
def test_a_resumed_run_is_held_to_every_number_of_structured_rows(case: str, of: str, tmp_path: Path) -> None:
    class Stop(veil.training.callbacks.Callback):
        def on_step(self, report: Any) -> None:
            if report.step == 1:
                raise RuntimeError("cut short")

    model, problem = built(of)
    settings = {**SETTINGS, "checkpoint_every": 1}
    with pytest.raises(RuntimeError, match="cut short"):
        veil.fit(model, problem, callbacks=[Stop()], out=tmp_path / "run", **settings)
    with pytest.raises(InputError, match="the rows differ"):
        veil.fit(built(of)[0], changed(case), out=tmp_path / "run", resume=True, **settings)
    resumed = veil.fit(built(of)[0], built(of)[1], out=tmp_path / "run", resume=True, **settings)
    undisturbed = veil.fit(*built(of), **settings)
    for one, other in zip(resumed.model.parameters(), undisturbed.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", [np.uint16, np.int16, np.int32, np.uint8, np.int64])
def test_token_ids_on_disk_of_any_kind_reach_the_model_as_whole_numbers(kind: type, tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    TOKENS.numpy().astype(kind).tofile(path)
    mapped = np.memmap(path, dtype=kind, mode="r", shape=tuple(TOKENS.shape))
    model = nn.Sequential(nn.Embedding(WORDS, 4), nn.Flatten(), nn.Linear(24, 2))
    problem = Problem.from_arrays(mapped, CLASSES, GROUPS)
    if kind != np.uint8:  # torch looks up no bytes
        assert veil.fit(model, problem, evaluation=problem, **SETTINGS).metrics is not None
    assert torch.equal(problem.batch(np.arange(7))[0].long(), TOKENS[:7])


class NextToken(nn.Sequential):
    def __init__(self, words: int) -> None:
        super().__init__(nn.Embedding(words, 4), nn.Linear(4, words))


@pytest.mark.parametrize("kind", [np.uint16, np.int32, np.int64])
def test_windows_of_tokens_on_disk_train_as_those_in_memory(kind: type, tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, WORDS, 60 * 5 + 3).astype(kind)
    tokens.tofile(tmp_path / "tokens.bin")
    trained = []
    for given in (np.memmap(tmp_path / "tokens.bin", kind, "r"), tokens):
        problem = Problem.from_tokens(given, 4, ["a", "b", "b"] * 20, vocabulary=WORDS)
        torch.manual_seed(0)
        run = veil.fit(NextToken(WORDS), problem, evaluation=problem, **SETTINGS)
        trained.append((run.metrics, *(parameter.detach() for parameter in run.model.parameters())))
        inputs, targets = problem.batch(np.array([0, 59]))
        assert inputs.tolist() == [tokens[:4].tolist(), tokens[295:299].tolist()]
        assert targets.tolist() == [tokens[1:5].tolist(), tokens[296:300].tolist()], "no token is in two rows"
        assert targets.dtype == torch.int64
    assert trained[0][0] is not None
    assert trained[0][0].by_group == trained[1][0].by_group
    assert all(map(torch.equal, trained[0][1:], trained[1][1:]))


def test_targets_on_disk_are_never_read_as_a_whole(tmp_path: Path) -> None:
    """A file of 16 MiB, whose targets as int64 would take 64: less than an eighth of that is held at any time."""
    count = 1 << 23
    tokens = np.memmap(tmp_path / "tokens.bin", np.uint16, "w+", shape=(count,))
    tokens[:: 1 << 16] = 7
    tracemalloc.start()
    problem = Problem.from_tokens(np.memmap(tmp_path / "tokens.bin", np.uint16, "r"), window=1023, vocabulary=8)
    problem.batch(np.arange(12))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(problem) == count // 1024
    assert most < count * 8 // 8
    # What torch holds is not traced: the targets are the file itself, in its own kind of number.
    assert problem.targets.dtype == torch.uint16
    assert not problem.targets.is_contiguous(), "a view of windows, not a copy of them"


def test_targets_on_disk_that_are_no_classes_are_refused(tmp_path: Path) -> None:
    tokens = np.memmap(tmp_path / "tokens.bin", np.int32, "w+", shape=(100,))
    with pytest.raises(InputError, match="single value"):
        Problem.from_tokens(tokens, 4)
    tokens[:] = np.arange(100)
    with pytest.raises(InputError, match="not one of the classes 0 to 49"):
        Problem.from_tokens(tokens, 4, vocabulary=50)
    with pytest.raises(InputError, match="a window of 100 takes 101"):
        Problem.from_tokens(tokens, 100)
    with pytest.raises(InputError, match="whole numbers in one dimension"):
        Problem.from_tokens(tokens.reshape(10, 10), 4)


def test_each_target_of_a_row_counts_once_in_its_group() -> None:
    model, problem = built("tags of sentences")
    metrics = veil.fit(model, problem, evaluation=problem, **SETTINGS).metrics
    assert metrics is not None
    wanted = {name: sum(int(n) for n, g in zip(LENGTHS, GROUPS, strict=True) if g == name) for name in ("a", "b")}
    assert {name: score.n for name, score in metrics.by_group.items()} == wanted


@pytest.mark.parametrize(
    "case", ["sentences", "dict of sentences", "data set of dicts", "columns", "tags of sentences", "own collate"]
)
def test_no_public_fact_says_how_long_a_row_is(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = built(case)[1].public
    longer = [F.pad(sentence, (0, 1), value=1) for sentence in SENTENCES]
    monkeypatch.setattr(f"{__name__}.SENTENCES", longer)
    assert built(case)[1].public == before


def test_a_collate_function_of_ones_own_is_named_as_not_covered() -> None:
    model, problem = built("own collate")
    said = veil.fit(model, problem, **SETTINGS).certificate.not_covered
    assert any("collate function" in sentence for sentence in said)
    model, problem = built("data set of dicts")
    assert not any("collate function" in s for s in veil.fit(model, problem, **SETTINGS).certificate.not_covered)


class Remainders(nn.Embedding):
    """Knows any whole number by its remainder."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids % self.num_embeddings)


class Pair(nn.Module):
    """Two whole numbers of each row."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items, self.head = nn.Embedding(7, 4), nn.Embedding(2, 4), nn.Linear(8, 3)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.cat([self.users(user), self.items(item)], -1))
        return scores


def test_whole_numbers_that_an_embedding_can_take_train_whatever_else_a_row_holds() -> None:
    """Numbers of Python, a target that no embedding knows beside them, and an embedding that takes any number."""
    plain = [{"user": row % 7, "item": row % 2, "label": row % 3} for row in range(40)]
    veil.fit(Pair(), Problem.from_dataset(plain), **SETTINGS)
    pairs = [((torch.tensor(row % 7), torch.tensor(row % 2)), torch.tensor(row % 3)) for row in range(40)]
    veil.fit(Pair(), Problem.from_dataset(pairs), **SETTINGS)
    hashed = nn.Sequential(Remainders(3, 2), nn.Flatten(), nn.Linear(12, 2))
    veil.fit(hashed, Problem.from_arrays(TOKENS, CLASSES), **SETTINGS)


def test_a_whole_number_that_an_embedding_has_no_entry_for_is_named() -> None:
    model = nn.Sequential(nn.Embedding(3, 2), nn.Flatten(), nn.Linear(12, 2))
    with pytest.raises(GradientError, match="a whole number that the model has no entry for"):
        veil.fit(model, Problem.from_arrays(TOKENS, CLASSES), **SETTINGS)


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "fractions as classes": (lambda: Problem.from_arrays(torch.zeros(4, 2), [0.5, 1.0, 0.5, 2.0]), "task='regression'"),
    "a DataLoader": (lambda: Problem.from_dataset(DataLoader(Items())), "give its data set"),
    "a DataLoader of arrays": (lambda: Problem.from_arrays(DataLoader(Items()), CLASSES), "give its data set"),
    "a DataLoader to train on": (lambda: veil.fit(Encoder(), DataLoader(Items())), "give its data set"),  # type: ignore[arg-type]
    "a Dataset to train on": (lambda: veil.session(Encoder(), Items()), "make a veil.Problem"),  # type: ignore[arg-type]
    "an iterable": (lambda: Problem.from_dataset(iter([1])), "no len and no items by number"),
    "an unknown group": (
        lambda: Problem.from_dataset(Items(), "race"),
        'the items have no "race": they have input_ids',
    ),
    "an unknown input": (lambda: Problem.from_dataset(Items(), inputs=["ids"]), 'the items have no "ids"'),
    "one input as text": (lambda: Problem.from_dataset(Items(), inputs="input_ids"), r'\["input_ids"\]'),
    "text": (lambda: Problem.from_dataset(Items(), "sex", pad=True), '"text" holds text, not numbers'),
    "lengths": (
        lambda: Problem.from_dataset(Items(), inputs=["input_ids"]).batch(np.arange(9)),
        '"input_ids" have different shapes from row to row.*pad=True',
    ),
    "too long": (
        lambda: Problem.from_dataset(Items(), inputs=["input_ids"], pad=4).batch(np.arange(9)),
        "batches are padded to 4",
    ),
    "numbers of rows": (
        lambda: Problem.from_arrays({"a": TOKENS, "b": TOKENS[:9]}, CLASSES),
        "the inputs have 9 and 60 rows",
    ),
    "not finite": (
        lambda: Problem.from_arrays({"a": TOKENS / (TOKENS - TOKENS[7, 2])}, CLASSES),
        "is not a finite number",
    ),
    "floats for places": (
        lambda: Problem.from_arrays(TOKENS, TOKENS.float(), GROUPS),
        "say task='multi-label'",
    ),
    "labels that are neither": (
        lambda: Problem.from_arrays(TOKENS, TOKENS, GROUPS, task="multi-label"),
        "neither 0 nor 1",
    ),
    "targets in a dict": (
        lambda: Problem.from_arrays(TOKENS, {"colour": CLASSES, "shape": CLASSES}, GROUPS),  # type: ignore[arg-type]
        "several targets as columns",
    ),
    "no target": (lambda: Problem.from_dataset([{"a": 1}], None), "which of a is the target"),
    "a key the model does not take": (
        lambda: veil.fit(Encoder(), Problem.from_arrays({"input_ids": TOKENS, "age": TOKENS}, CLASSES), **SETTINGS),
        'the model takes no "age": it takes input_ids, attention_mask',
    ),
    "a class in place of a model": (
        lambda: veil.fit(Encoder, Problem.from_arrays(TOKENS, CLASSES)),
        r"give Encoder\(…\)",
    ),  # type: ignore[arg-type]
    "a model without sizes": (
        lambda: veil.session(nn.LazyLinear(3), Problem.from_arrays(TOKENS.float(), CLASSES), **SETTINGS),
        'does not know the size of "weight" yet',
    ),
    "one-hot targets": (
        lambda: veil.fit(
            nn.Linear(6, 2), Problem.from_arrays(TOKENS.float(), F.one_hot(torch.tensor(CLASSES))), **SETTINGS
        ),
        r"give targets.argmax\(1\)",
    ),
    "a solver": (
        lambda: veil.fit(
            nn.Linear(6, 3), Problem.from_arrays(TOKENS.float(), TOKENS % 3), **{**SETTINGS, "method": "group-gd"}
        ),
        "trains a linear model of a table",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_rows_are_refused_in_one_sentence_before_anything_is_spent(case: str) -> None:
    call, sentence = WRONG[case]
    with pytest.raises(InputError, match=sentence) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_gpt_layers_train_without_the_fallback(recwarn: pytest.WarningsRecorder) -> None:
    model, problem = built("dict")
    assert any(isinstance(module, Conv1D) for module in model.modules())
    veil.fit(model, problem, **SETTINGS)
    assert not [w for w in recwarn if "slower generic path" in str(w.message)]
    assert math.isfinite(sum(float(p.sum()) for p in model.parameters()))


class Torn(Items):
    """A data set of which one row cannot be read, and whose error tells what is in it."""

    def __getitem__(self, row: int) -> Any:
        if row == 17:
            raise OSError("the secret of row 17")
        return super().__getitem__(row)


@pytest.mark.parametrize("at_once", [False, True])
def test_a_row_that_cannot_be_read_is_named_before_anything_is_charged(tmp_path: Path, at_once: bool) -> None:
    items = Torn()
    if at_once:
        items.__getitems__ = lambda rows: [items[row] for row in rows]  # type: ignore[attr-defined]
    problem = Problem.from_dataset(items, targets=CLASSES, groups=GROUPS, inputs=["input_ids"], pad=True)
    with pytest.raises(InputError, match=r"Row 17 of the data set cannot be read \(OSError\)") as error:
        veil.fit(Encoder(), problem, out=tmp_path / "run", **SETTINGS)
    assert "secret" not in str(error.value)
    assert error.value.__suppress_context__
    assert not (tmp_path / "run" / "ledger.jsonl").exists()
