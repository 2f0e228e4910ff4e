"""JAX-Privacy in the peers' environment, which imports nothing of Veil: its execution plan, as its examples use it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from benchmarks.tables.peers import Job

# The example of its repository that trains on rows of numbers (dp_logistic_regression.py), with the plan that its
# documentation names for standard DP-SGD (one band).
JAX_PRIVACY = {"iterations": 500, "batch_size": 1000, "clip_norm": 1.0, "learning_rate": 0.5}
BANDS = 1
PADDING = 32  # batches of about the same size share one compiled step


def mlp(job: Job, fit: dict[str, Any], hidden: int) -> NDArray[np.float64]:
    """DP-SGD by JAX-Privacy with one hidden layer: Poisson sampling, noise calibrated by its PLD accountant."""
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    import jax
    import jax.numpy as jnp
    import optax
    from jax_privacy.batch_selection import pad_to_multiple_of
    from jax_privacy.experimental.execution_plan import BandMFExecutionPlanConfig

    rows, labels = job.rows(job.train).astype(np.float32), job.labels
    batch = min(int(JAX_PRIVACY["batch_size"]), len(rows))
    plan = BandMFExecutionPlanConfig.default(
        num_bands=BANDS,
        iterations=int(JAX_PRIVACY["iterations"]),
        epsilon=fit["epsilon"],
        delta=job.delta,
        sampling_prob=min(1.0, batch / len(rows) * BANDS),
        l2_clip_norm=JAX_PRIVACY["clip_norm"],
        normalize_by=batch,
        noise_seed=fit["seed"],
    ).plan

    def scores(weights: Any, inputs: Any) -> Any:
        return jax.nn.relu(inputs @ weights["in"] + weights["in_bias"]) @ weights["out"] + weights["out_bias"]

    def loss(weights: Any, inputs: Any, targets: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(scores(weights, inputs), targets).mean()

    first, second = jax.random.split(jax.random.key(fit["seed"]))
    start = jax.nn.initializers.lecun_normal()
    weights: Any = {
        "in": start(first, (rows.shape[1], hidden)),
        "in_bias": jnp.zeros(hidden),
        "out": start(second, (hidden, len(job.classes))),
        "out_bias": jnp.zeros(len(job.classes)),
    }
    gradient = plan.clipped_grad(loss, batch_argnums=(1, 2))
    noise, optimizer = plan.noise_addition_transform, optax.sgd(JAX_PRIVACY["learning_rate"])

    @jax.jit
    def step(weights: Any, inputs: Any, targets: Any, padding: Any, state: Any) -> Any:
        found = gradient(weights, inputs, targets, is_padding_example=padding)
        noisy, noise_state = noise.update(found, state[0])
        changes, optimizer_state = optimizer.update(noisy, state[1])
        return optax.apply_updates(weights, changes), (noise_state, optimizer_state)

    state = noise.init(weights), optimizer.init(weights)
    for chosen in plan.batch_selection_strategy.batch_iterator(len(rows), rng=fit["seed"]):
        index = pad_to_multiple_of(chosen, PADDING)
        weights, state = step(weights, rows[index], labels[index], index == -1, state)
    return np.asarray(jax.nn.softmax(scores(weights, job.rows(job.test).astype(np.float32)), axis=1), dtype=np.float64)
