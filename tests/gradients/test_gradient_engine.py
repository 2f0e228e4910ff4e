"""The engine as a whole: micro-batches, weights, bad rows, empty batches, and a model that stays untouched."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointFunction, checkpoint

from veil.gradients import FallbackWarning, GradientEngine, GradientError, PerRow
from veil.gradients.recomputing import activations_kept

MODELS = {
    "linear layers": lambda: nn.Sequential(nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 3)),
    "convolutions": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 3, 4)), nn.Conv2d(1, 4, 2), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(24, 3)
    ),
    "attention": lambda: nn.Sequential(
        nn.Unflatten(1, (3, 4)),
        nn.TransformerEncoderLayer(4, 2, 6, 0.0, batch_first=True),
        nn.Flatten(),
        nn.Linear(12, 3),
    ),
}


def build(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]().to(dtype)


def data(rows: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, 12, dtype=dtype, generator=generator), torch.randint(0, 3, (rows,), generator=generator)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def clip(per_row: PerRow) -> Tensor:
    return 0.5 / per_row.norms.clamp_min(0.5)


def ranked(per_row: PerRow) -> Tensor:
    """Weights that depend on the whole batch: the row's rank by loss."""
    return per_row.losses.argsort().argsort().to(per_row.norms) / per_row.losses.shape[0]


@settings(deadline=None, derandomize=True, max_examples=20)
@given(rows=st.integers(1, 9), size=st.integers(1, 10), name=st.sampled_from(sorted(MODELS)), whole=st.booleans())
def test_results_do_not_depend_on_the_split_into_micro_batches(rows, size, name, whole):
    model, batch = build(name), data(rows)
    weigh = ranked if whole else clip
    one = GradientEngine(model, loss).weighted_sum(batch, weigh)
    split = GradientEngine(model, loss, micro_batch=size).weighted_sum(batch, weigh)
    assert torch.allclose(one.weights, split.weights, rtol=1e-9)
    assert torch.allclose(one.per_row.losses, split.per_row.losses, rtol=1e-9)
    assert torch.allclose(one.per_row.norms, split.per_row.norms, rtol=1e-9)
    for key, value in one.sums[0].items():
        assert torch.allclose(value, split.sums[0][key], rtol=1e-9, atol=1e-12)


def test_row_local_weights_take_one_round_and_others_two():
    model, batch = build("linear layers"), data(6)
    calls = []

    def counted(model: nn.Module, part: tuple[Tensor, Tensor]) -> Tensor:
        calls.append(part[0].shape[0])
        return loss(model, part)

    class Local:
        row_local = True

        def __call__(self, per_row: PerRow) -> Tensor:
            return clip(per_row)

    engine = GradientEngine(model, counted, micro_batch=2)
    local = engine.weighted_sum(batch, Local())
    assert calls == [2, 2, 2]
    whole = engine.weighted_sum(batch, clip)
    assert calls == [2] * 9
    for key, value in whole.sums[0].items():
        assert torch.allclose(value, local.sums[0][key], rtol=1e-9, atol=1e-12)


def test_both_rounds_draw_the_same_dropout_masks():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 50), nn.Dropout(0.5), nn.Linear(50, 3)).double()
    batch = data(6)
    engine = GradientEngine(model, loss, micro_batch=2)
    torch.manual_seed(1)
    result = engine.weighted_sum(batch, lambda facts: torch.eye(6, dtype=torch.float64))
    after = torch.get_rng_state()
    found = torch.stack([sum(v.square().sum() for v in row.values()).sqrt() for row in result.sums])
    assert torch.allclose(found, result.per_row.norms, rtol=1e-9)
    torch.manual_seed(1)
    GradientEngine(model, loss, micro_batch=2).norms_and_losses(batch)
    assert torch.equal(torch.get_rng_state(), after)


def test_a_model_that_differs_between_rounds_is_refused():
    model, noise = build("linear layers"), iter(range(100))

    def unsteady(model: nn.Module, part: tuple[Tensor, Tensor]) -> Tensor:
        return loss(model, part) * (1 + next(noise))

    with pytest.raises(GradientError, match="deterministic"):
        GradientEngine(model, unsteady, micro_batch=2).weighted_sum(data(4), clip)


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("micro_batch", [None, 2])
def test_rows_that_are_not_finite_contribute_exactly_zero_and_poison_nothing(name, bad, micro_batch):
    model, (inputs, labels) = build(name), data(5)
    clean = inputs.clone()
    inputs[1, 0] = bad
    inputs[4] = bad
    good = torch.tensor([True, False, True, True, False])
    for _ in range(2):
        engine = GradientEngine(model, loss, micro_batch=micro_batch)
        engine.weighted_sum((clean, labels), clip)
        found = engine.weighted_sum((inputs, labels), lambda per_row: 1 / per_row.norms)
        wanted = engine.weighted_sum((inputs[good], labels[good]), lambda per_row: 1 / per_row.norms)
        assert found.per_row.finite.tolist() == good.tolist()
        assert (found.per_row.norms[~good] == 0).all()
        assert (found.per_row.losses[~good] == 0).all()
        assert (found.weights[~good] == 0).all()
        assert torch.allclose(found.per_row.norms[good], wanted.per_row.norms, rtol=1e-9)
        for key, value in wanted.sums[0].items():
            assert torch.allclose(found.sums[0][key], value, rtol=1e-9, atol=1e-12)
        assert all((values[~good] == 0).all() for values in engine.gradients((inputs, labels)).values())


def test_a_row_with_an_infinite_loss_only_is_left_out():
    model = nn.Linear(2, 1).double()

    def logarithm(model: nn.Module, rows: Tensor) -> Tensor:
        return model(rows).squeeze(1) + rows[:, 0].log()

    result = GradientEngine(model, logarithm).weighted_sum(torch.tensor([[1.0, 2.0], [0.0, 1.0]]).double(), clip)
    assert result.per_row.finite.tolist() == [True, False]
    assert result.per_row.losses[1] == 0


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("weigh", [clip, lambda per_row: torch.ones(3, per_row.norms.shape[0])])
def test_an_empty_batch_gives_zero_sums_without_calling_the_model(name, weigh):
    model = build(name)

    def never(model: nn.Module, batch: object) -> Tensor:
        raise AssertionError("the model was called")

    engine = GradientEngine(model, never)
    result = engine.weighted_sum(data(0), weigh)
    assert len(result.sums) == (1 if weigh is clip else 3)
    assert all(list(sums) == [name for name, _ in model.named_parameters()] for sums in result.sums)
    assert all((value == 0).all() for sums in result.sums for value in sums.values())
    assert engine.norms_and_losses(data(0)).norms.shape == (0,)
    assert all(value.shape[0] == 0 for value in engine.gradients(data(0)).values())


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_batch_of_one_row_is_its_ordinary_gradient(name):
    model, batch = build(name), data(1)
    result = GradientEngine(model, loss).weighted_sum(batch, lambda per_row: torch.ones_like(per_row.norms))
    wanted = torch.autograd.grad(loss(model, batch).sum(), list(model.parameters()))
    for found, gradient in zip(result.sums[0].values(), wanted, strict=True):
        assert torch.allclose(found, gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_same_inputs_give_the_same_bits_in_a_new_engine(name, dtype):
    batch = data(7, dtype)
    runs = [GradientEngine(build(name, dtype), loss).weighted_sum(batch, clip) for _ in range(2)]
    assert torch.equal(runs[0].per_row.norms, runs[1].per_row.norms)
    assert all(torch.equal(value, runs[1].sums[0][key]) for key, value in runs[0].sums[0].items())


@pytest.mark.parametrize("name", sorted(MODELS))
def test_later_passes_give_the_bits_of_the_first_so_that_a_resumed_run_is_the_same(name):
    model, batch = build(name), data(7)
    engine = GradientEngine(model, loss)
    first, second = (engine.weighted_sum(batch, clip) for _ in range(2))
    assert torch.equal(first.per_row.norms, second.per_row.norms)
    assert all(torch.equal(value, second.sums[0][key]) for key, value in first.sums[0].items())


def test_a_structure_that_changes_after_the_first_pass_is_recorded_again(loop_gradients):
    class Switching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(12, 3).double(), nn.Linear(12, 3).double()
            self.mode = 0

        def forward(self, inputs: Tensor) -> Tensor:
            if self.mode == 0:
                return self.one(inputs) + self.two(inputs)
            if self.mode == 1:
                return self.one(inputs) * F.linear(inputs, self.one.weight)
            return F.prelu(self.one(inputs), self.two.bias)

    model, batch = Switching(), data(4)
    engine = GradientEngine(model, loss)
    for mode in (0, 0, 1, 0):
        model.mode = mode
        wanted = loop_gradients(model, loss, batch)
        assert all(torch.allclose(v, wanted[k], rtol=1e-9, atol=1e-12) for k, v in engine.gradients(batch).items())
    model.mode = 2
    wanted = loop_gradients(model, loss, batch)
    with pytest.warns(FallbackWarning, match="two.bias"):
        found = engine.gradients(batch)
    assert all(torch.allclose(value, wanted[key], rtol=1e-9, atol=1e-12) for key, value in found.items())


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_untouched_before_during_and_after_a_pass(name, fails):
    model, batch = build(name), data(4)
    before = {key: (id(value), value.clone()) for key, value in model.state_dict(keep_vars=True).items()}
    attributes = {key: set(vars(module)) for key, module in model.named_modules()}

    def check() -> None:
        now = model.state_dict(keep_vars=True)
        assert list(now) == list(before)
        for key, (identity, value) in before.items():
            assert id(now[key]) == identity
            assert torch.equal(now[key], value)
            assert now[key].grad is None
            assert now[key].requires_grad
            assert not now[key]._backward_hooks
        for key, module in model.named_modules():
            assert set(vars(module)) == attributes[key]
            assert not module._forward_hooks
            assert not module._forward_pre_hooks
            assert not module._backward_hooks

    def watched(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        check()
        result = loss(model, batch)
        check()
        if fails:
            raise RuntimeError("the loss fails")
        return result

    engine = GradientEngine(model, watched)
    for _ in range(2):
        if fails:
            with pytest.raises(RuntimeError, match="the loss fails"):
                engine.weighted_sum(batch, clip)
        else:
            engine.weighted_sum(batch, clip)
        check()
    copy.deepcopy(model)
    pickle.loads(pickle.dumps(model))
    assert torch.equal(model(batch[0]), copy.deepcopy(model)(batch[0]))


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_pass_leaves_no_activation_alive(name):
    model, batch = build(name), data(4)
    alive: list[weakref.ref[Tensor]] = []

    def watched(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        output = model(batch[0])
        alive.append(weakref.ref(output))
        return F.cross_entropy(output, batch[1], reduction="none")

    engine = GradientEngine(model, watched)
    gc.disable()
    try:
        for _ in range(2):
            engine.norms_and_losses(batch)
    finally:
        gc.enable()
    assert [reference() for reference in alive] == [None, None]


def test_each_group_gets_its_own_sum_in_one_pass(loop_gradients):
    model, batch = build("linear layers"), data(6)
    groups = torch.tensor([0, 1, 2, 0, 1, 0])
    per_group = F.one_hot(groups).t().double()
    result = GradientEngine(model, loss).weighted_sum(batch, lambda facts: per_group * clip(facts))
    wanted = loop_gradients(model, loss, batch)
    for group, sums in enumerate(result.sums):
        weights = (groups == group) * clip(result.per_row)
        for key, value in sums.items():
            assert torch.allclose(value, torch.einsum("b,b...->...", weights, wanted[key]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop])
def test_any_optimizer_schedule_and_weight_decay_step_as_with_ordinary_gradients(optimizer):
    models = [build("linear layers") for _ in range(2)]
    batch = data(5)
    optimizers = [optimizer(model.parameters(), lr=0.1, weight_decay=0.01) for model in models]
    schedules = [torch.optim.lr_scheduler.StepLR(one, 1, 0.5) for one in optimizers]
    engine = GradientEngine(models[0], loss)
    for _ in range(3):
        sums = engine.weighted_sum(batch, lambda per_row: torch.full_like(per_row.norms, 1 / 5)).sums[0]
        for key, parameter in models[0].named_parameters():
            parameter.grad = sums[key]
        optimizers[1].zero_grad()
        loss(models[1], batch).mean().backward()
        for one, schedule in zip(optimizers, schedules, strict=True):
            one.step()
            schedule.step()
    for found, wanted in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.allclose(found, wanted, rtol=1e-7, atol=1e-10)


def test_max_memory_splits_the_batch_and_keeps_the_result():
    model, batch = build("convolutions"), data(40)
    sizes = []

    def counted(model: nn.Module, part: tuple[Tensor, Tensor]) -> Tensor:
        sizes.append(part[0].shape[0])
        return loss(model, part)

    engine = GradientEngine(model, counted, max_memory=12_000)
    found = engine.weighted_sum(batch, clip)
    assert 1 < max(sizes) < 40
    wanted = GradientEngine(model, loss).weighted_sum(batch, clip)
    for key, value in wanted.sums[0].items():
        assert torch.allclose(found.sums[0][key], value, rtol=1e-9, atol=1e-12)
    with pytest.raises(GradientError, match="allow at least"):
        GradientEngine(model, loss, max_memory=100).weighted_sum(batch, clip)


BATCHES = {
    "tensor": lambda x, y: x,
    "list": lambda x, y: [x, y],
    "dict": lambda x, y: {"x": x, "more": {"y": (y,)}},
}


@pytest.mark.parametrize("shape", BATCHES)
@pytest.mark.parametrize("micro_batch", [None, 2])
def test_any_nesting_of_tensors_is_a_batch(shape, micro_batch):
    model, (inputs, labels) = build("linear layers"), data(5)
    batch = BATCHES[shape](inputs, labels)

    def taken(model: nn.Module, part: object) -> Tensor:
        rows = part if isinstance(part, Tensor) else part[0] if isinstance(part, list) else part["x"]  # type: ignore[index]
        return model(rows).square().sum(1)

    found = GradientEngine(model, taken, micro_batch=micro_batch).norms_and_losses(batch)
    wanted = GradientEngine(model, taken).norms_and_losses(inputs)
    assert torch.allclose(found.norms, wanted.norms, rtol=1e-9)


def test_wrong_input_is_refused_with_a_sentence_that_says_what_to_do():
    model, batch = build("linear layers"), data(3)
    engine = GradientEngine(model, loss)
    with pytest.raises(GradientError, match=r"shape \(2,\) for 3 rows"):
        engine.weighted_sum(batch, lambda facts: torch.ones(2))
    with pytest.raises(GradientError, match="NaN or infinite"):
        engine.weighted_sum(batch, lambda facts: torch.full((3,), float("nan")))
    with pytest.raises(GradientError, match="reduction='none'"):
        GradientEngine(model, lambda model, batch: loss(model, batch).mean()).norms_and_losses(batch)
    with pytest.raises(GradientError, match=r"first dimensions \[2, 3\]"):
        engine.norms_and_losses((batch[0], batch[1][:2]))
    with pytest.raises(GradientError, match="no tensor"):
        engine.norms_and_losses(("a",))
    with pytest.raises(GradientError, match="at least 1 row"):
        GradientEngine(model, loss, micro_batch=0)
    with pytest.raises(GradientError, match="no trainable parameter"):
        GradientEngine(build("linear layers").requires_grad_(False), loss).norms_and_losses(batch)


def test_torch_has_its_own_checkpointing_back_whichever_pass_ends_first() -> None:
    gc.collect()
    own, first, second = torch.utils.checkpoint.CheckpointFunction, activations_kept(), activations_kept()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert torch.utils.checkpoint.CheckpointFunction is not own, "the second pass is open"
    second.__exit__(None, None, None)
    assert torch.utils.checkpoint.CheckpointFunction is own


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_checkpointed_activations_are_kept_and_the_gradients_are_the_loop(name, reentrant, loop_gradients):
    model, batch, passes = build(name), data(4), []

    def forward(rows: Tensor) -> Tensor:
        passes.append(1)
        return model(rows)

    def checkpointed(_: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(checkpoint(forward, batch[0], use_reentrant=reentrant), batch[1], reduction="none")

    wanted, engine = loop_gradients(model, loss, batch), GradientEngine(model, checkpointed)
    for _ in range(2):  # the second time with what the engine remembers
        passes.clear()
        found = engine.gradients(batch)
        assert len(passes) == 1
        assert all(torch.allclose(v, wanted[k], rtol=1e-9, atol=1e-12) for k, v in found.items())
    passes.clear()
    gc.collect()  # a pass that another test gave up ends here
    checkpoint(forward, batch[0].requires_grad_(), use_reentrant=reentrant).sum().backward()
    assert len(passes) == 2, "outside of a private pass torch recomputes as before"


def test_other_reentrant_checkpointing_is_refused_because_it_hides_parameters():
    model = build("linear layers")

    def hidden(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        rows = batch[0].clone().requires_grad_()
        return F.cross_entropy(CheckpointFunction.apply(model, True, rows), batch[1], reduction="none")

    with pytest.raises(GradientError, match="checkpoint"):
        GradientEngine(model, hidden).norms_and_losses(data(3))


def test_freezing_unfreezing_and_replacing_parameters_between_passes_is_noticed(loop_gradients):
    model, batch = build("linear layers"), data(4)
    engine = GradientEngine(model, loss)

    def agrees() -> None:
        wanted = loop_gradients(model, loss, batch)
        for _ in range(2):
            sums = engine.weighted_sum(batch, lambda per_row: torch.ones_like(per_row.norms)).sums[0]
            assert list(sums) == list(wanted)
            assert all(torch.allclose(sums[name], rows.sum(0), rtol=1e-9) for name, rows in wanted.items())

    agrees()
    model[0].requires_grad_(False)
    agrees()
    model[0].weight.requires_grad_(True)
    agrees()
    model[2].weight = nn.Parameter(torch.ones_like(model[2].weight))
    agrees()
    model.append(nn.Linear(3, 3).double())
    agrees()


def test_a_batch_whose_rows_are_not_its_slices_cannot_be_split():
    bag = nn.EmbeddingBag(5, 2, mode="sum")
    batch = {"index": torch.tensor([0, 1, 2, 3]), "offsets": torch.tensor([0, 1, 2, 2])}
    engine = GradientEngine(bag, lambda model, b: model(b["index"], b["offsets"]).sum(1), micro_batch=2)
    with pytest.raises(GradientError, match="cannot be split"):
        engine.weighted_sum({**batch, "more": torch.zeros(4)}, clip, rows=5)


def test_indices_of_any_integer_type_are_looked_up():
    model = nn.Embedding(5, 2).double()
    norms = [
        GradientEngine(model, lambda m, i: torch.sin(m(i)).sum((1, 2))).norms_and_losses(
            torch.tensor([[0, 1], [2, 2]], dtype=kind)
        )
        for kind in (torch.int32, torch.int64)
    ]
    assert torch.equal(norms[0].norms, norms[1].norms)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_weights_of_any_type_count_as_numbers(dtype):
    model, batch = build("linear layers"), data(3)
    engine = GradientEngine(model, loss)
    chosen = torch.tensor([1, 0, 1])
    found = engine.weighted_sum(batch, lambda facts: chosen.to(dtype)).sums[0]
    wanted = engine.weighted_sum(batch, lambda facts: chosen.double()).sums[0]
    assert all(torch.equal(value, wanted[key]) for key, value in found.items())


@pytest.mark.parametrize("name", sorted(MODELS))
def test_memory_kept_between_passes_changes_no_result_already_given(name):
    model = build(name)
    engine = GradientEngine(model, loss)
    first, rows = engine.weighted_sum(data(6), clip), engine.gradients(data(6))
    before = {key: value.clone() for key, value in first.sums[0].items()}
    rows_before = {key: value.clone() for key, value in rows.items()}
    for size in (3, 9, 6):
        engine.weighted_sum(data(size), clip)
    assert all(torch.equal(value, before[key]) for key, value in first.sums[0].items())
    assert all(torch.equal(value, rows_before[key]) for key, value in rows.items())
    fresh = GradientEngine(model, loss).weighted_sum(data(6), clip).sums[0]
    again = engine.weighted_sum(data(6), clip).sums[0]
    assert all(torch.equal(value, again[key]) for key, value in fresh.items())


def test_gradients_coarser_than_single_precision_are_refused():
    """A sum of 2,000 rows in bfloat16 is rounded by several times what one row may move it."""
    model = nn.Linear(6, 3)

    def loss(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(batch[0].bfloat16())
        return F.cross_entropy(outputs.float(), batch[1], reduction="none")

    batch = torch.randn(8, 6), torch.randint(0, 3, (8,))
    engine = GradientEngine(model, loss)
    enabled = torch.backends.mkldnn.set_flags(False)[0]  # not every processor has its products in bfloat16
    try:
        for _ in range(2):
            with pytest.raises(GradientError, match=r"bfloat16.*float32"):
                engine.weighted_sum(batch, lambda per_row: 1 / per_row.norms)
    finally:
        torch.backends.mkldnn.set_flags(enabled)
