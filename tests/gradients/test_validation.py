"""The validator refuses what mixes rows, and the fix makes it trainable."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from veil.gradients import GradientEngine, GradientError, check, fix, validate

BATCH_NORMS = [nn.BatchNorm1d(4), nn.BatchNorm1d(4, affine=False), nn.BatchNorm2d(4), nn.SyncBatchNorm(4)]


def squares(model: nn.Module, rows: Tensor) -> Tensor:
    return model(rows).flatten(1).square().sum(1)


@pytest.mark.parametrize("norm", BATCH_NORMS, ids=str)
def test_batch_norm_in_any_form_is_refused_with_the_fix_named(norm):
    with pytest.raises(GradientError, match=r"1 \(.*BatchNorm.*veil\.gradients\.fix"):
        check(nn.Sequential(nn.Linear(4, 4), norm))


@pytest.mark.parametrize("tracked", [True, False])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_the_engine_itself_refuses_batch_norm(tracked, affine, first):
    norm, layer = nn.BatchNorm1d(4, affine=affine, track_running_stats=tracked), nn.Linear(4, 4)
    # Without running statistics the batch's own are taken in evaluation mode too.
    model = nn.Sequential(*((norm, layer) if first else (layer, norm))).train(tracked)
    with pytest.raises(GradientError, match="BatchNorm mixes the rows"):
        GradientEngine(model, squares).norms_and_losses(torch.randn(3, 4))


class Mixing(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.kind = kind

    def forward(self, rows: Tensor) -> Tensor:
        output = self.layer(rows)
        if self.kind == "centred":
            return output - output.mean(0)
        if self.kind == "next row":
            return output + output.roll(1, 0)
        if self.kind == "batch size":
            return output / rows.shape[0]
        if self.kind == "attention across rows":
            return torch.softmax(output @ output.t(), 1) @ output
        return output


@pytest.mark.parametrize("kind", ["centred", "next row", "batch size", "attention across rows"])
@pytest.mark.parametrize("loss", [None, squares])
def test_the_probe_finds_rows_that_depend_on_other_rows(kind, loss):
    torch.manual_seed(0)
    batch = torch.randn(5, 4)
    assert validate(Mixing(kind)) == []
    assert validate(Mixing(kind), batch, loss)
    with pytest.raises(GradientError, match="other rows"):
        check(Mixing(kind), batch, loss)


@pytest.mark.parametrize("loss", [None, squares])
def test_the_probe_lets_independent_rows_pass_and_leaves_no_trace(loss):
    torch.manual_seed(0)
    model = nn.Sequential(Mixing("none"), nn.Dropout(0.5), nn.LayerNorm(4))
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    assert validate(model, torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), loss) == []
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.InstanceNorm1d(4, track_running_stats=True), "statistics of private rows"),
        (nn.Embedding(4, 4, max_norm=1.0), "max_norm"),
        (nn.Embedding(4, 4, scale_grad_by_freq=True), "scale_grad_by_freq"),
        (nn.EmbeddingBag(4, 4, max_norm=1.0), "max_norm"),
        (nn.Linear(4, 4).bfloat16(), "bfloat16.*model.float"),
    ],
    ids=str,
)
def test_layers_that_keep_count_or_round_rows_are_refused(module, words):
    with pytest.raises(GradientError, match=words):
        check(nn.Sequential(module, nn.Linear(4, 4)))


def test_a_model_without_trainable_parameters_is_refused():
    with pytest.raises(GradientError, match="no trainable parameter"):
        check(nn.Linear(2, 2).requires_grad_(False))


@pytest.mark.parametrize("inner", [True, False])
def test_a_compiled_module_is_refused_because_its_layers_are_hidden(inner):
    compiled = nn.Linear(4, 4)
    compiled.compile(backend="eager")  # nothing is compiled before the first call
    with pytest.raises(GradientError, match=r"torch\.compile hides the layers"):
        check(nn.Sequential(compiled, nn.ReLU()) if inner else compiled)


def test_a_module_wrapped_by_torch_compile_is_refused():
    class OptimizedModule(nn.Module):
        """As torch's own, whose import takes seconds."""

        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self._orig_mod = inner

    with pytest.raises(GradientError, match=r"torch\.compile hides the layers"):
        check(OptimizedModule(nn.Linear(4, 4)))


def test_fix_puts_group_norm_in_place_and_leaves_the_model_alone():
    torch.manual_seed(0)
    shared = nn.BatchNorm2d(8)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), shared, nn.Sequential(shared, nn.ReLU()), nn.BatchNorm2d(8, affine=False))
    nn.init.uniform_(shared.weight)
    fixed = fix(model)
    assert validate(model)
    assert validate(fixed, torch.randn(3, 1, 5, 5)) == []
    assert isinstance(model[1], nn.BatchNorm2d)
    assert isinstance(fixed[1], nn.GroupNorm)
    assert fixed[1] is fixed[2][0]
    assert torch.equal(fixed[1].weight, shared.weight)
    assert not fixed[3].affine
    engine = GradientEngine(fixed, squares)
    assert (engine.norms_and_losses(torch.randn(3, 1, 5, 5)).norms > 0).all()


def test_fix_turns_running_statistics_off_and_converts_a_bare_batch_norm():
    fixed = fix(nn.Sequential(nn.Conv1d(1, 4, 2), nn.InstanceNorm1d(4, affine=True, track_running_stats=True)))
    assert validate(fixed, torch.randn(3, 1, 5)) == []
    assert set(fixed.state_dict()) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert isinstance(fix(nn.BatchNorm1d(4)), nn.GroupNorm)


def test_modules_that_mix_processes_are_refused() -> None:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        from torch.distributed.fsdp import fully_shard

        wrapped = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
        with pytest.raises(GradientError, match="pass the module that it wraps"):
            check(wrapped)
        spread = fully_shard(nn.Linear(2, 2), mesh=torch.distributed.init_device_mesh("cpu", (1,)))
        with pytest.raises(GradientError, match="use the whole module in each process"):
            check(spread)
    finally:
        torch.distributed.destroy_process_group()
