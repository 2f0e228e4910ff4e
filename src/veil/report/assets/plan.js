/* Sliders: ε, δ, epochs and batch. Noise is recomputed from prepared Rényi costs; nothing is interpolated.
   The smallest prepared noise whose ε, computed here, is at most the one asked for: never too little. */
(() => {
  const { noise, plan } = twin;
  const { formats } = charts;
  const slider = (name) => document.getElementById(`slide-${name}`);
  const shown = (name, text) => {
    document.getElementById(`show-${name}`).textContent = text;
  };

  const epsilonOf = (batch, place, steps, delta) => {
    const costs = noise.costs[batch][place];
    let best = Infinity;
    noise.orders.forEach((order, index) => {
      const found = steps * costs[index] + Math.log1p(-1 / order) - (Math.log(delta) + Math.log(order)) / (order - 1);
      best = Math.min(best, found);
    });
    /* Rounding of this sum is far below a part in a billion: it is counted against us. */
    return Math.max(0, best) * (1 + 1e-9);
  };
  const least = (batch, steps, delta, epsilon) =>
    noise.noises.findIndex((_, place) => epsilonOf(batch, place, steps, delta) <= epsilon);

  const unheard = (needed) => plan.budgets[0].groups.filter((group) => group.rows < needed).length;

  const update = () => {
    const at = (name) => Number(slider(name).value);
    const epsilon = noise.epsilons[at("epsilon")];
    const delta = noise.deltas[at("delta")];
    const epochs = noise.epochs[at("epochs")];
    const batch = noise.batches[at("batch")];
    const steps = Math.max(1, Math.round((epochs * noise.rows) / batch));
    const texts = {
      epsilon: formats.number(epsilon),
      delta: formats.number(delta, 2),
      epochs: formats.number(epochs),
      batch: batch === noise.rows ? `${formats.number(batch)} (all rows)` : formats.number(batch),
    };
    for (const [name, text] of Object.entries(texts)) {
      shown(name, text);
      slider(name).setAttribute("aria-valuetext", text);
    }
    const place = least(at("batch"), steps, delta, epsilon);
    const multiplier = place < 0 ? null : noise.noises[place];
    shown("noise", multiplier === null ? "none is enough" : formats.number(multiplier, 4));
    shown("promised", multiplier === null ? "–" : formats.number(epsilonOf(at("batch"), place, steps, delta), 4));
    shown("steps", formats.number(steps));
    shown("drowned", multiplier === null ? "–" : formats.percent(multiplier / batch));
    const kappa = noise.single[at("delta")][at("epsilon")];
    const { known_to: known, luck } = noise.heard;
    const needed = Math.ceil((luck + Math.hypot(luck, 2 * known * kappa * noise.heard.noise)) / (2 * known ** 2));
    shown("kappa", formats.number(noise.rows / kappa));
    shown("heard", formats.number(needed));
    shown("unheard", `${unheard(needed)} of ${plan.budgets[0].groups.length} groups have fewer`);
  };

  for (const name of ["epsilon", "delta", "epochs", "batch"]) slider(name).addEventListener("input", update);
  update();
})();
