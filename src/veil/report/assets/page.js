/* The page: charts with legends and readings, sortable tables, the run picker. Everything works by keyboard too. */
(() => {
  const { make, html, draw, marker, colour, dash, MARKS } = charts;

  const swatch = (parent, spec, index, role) => {
    const svg = make("svg", { viewBox: "0 0 26 12", "aria-hidden": "true" }, parent);
    if (spec.kind === "forest") {
      marker(svg, MARKS[index % MARKS.length], 13, 6, 4.5, { fill: colour(index === 2 ? 7 : index) });
    } else if (role === "summary") {
      make("path", { d: "M1 6H25", stroke: "var(--ink)", "stroke-width": 2.5 }, svg);
    } else {
      make("path", { d: "M1 6H25", stroke: colour(index), "stroke-width": 2.2, "stroke-dasharray": dash(index) }, svg);
      marker(svg, MARKS[index % MARKS.length], 13, 6, 3.6, { fill: colour(index) });
    }
  };
  const legendOf = (box, spec, hidden, redraw) => {
    const entries = spec.kind === "forest" ? spec.series.map((one) => [one[0], "group"]) : (spec.series || []).map((one) => [one.name, one.role]);
    if (entries.length < 2) return keysOf(box, spec);
    const set = html("fieldset", "legend", box);
    html("legend", "", set, "Show");
    entries.forEach(([name, role], index) => {
      const label = html("label", "", set);
      const check = html("input", "", label);
      check.type = "checkbox";
      check.checked = true;
      swatch(label, spec, index, role);
      html("span", "", label, name);
      check.addEventListener("change", () => {
        if (check.checked) hidden.delete(name);
        else hidden.add(name);
        redraw();
      });
    });
    return undefined;
  };
  const keysOf = (box, spec) => {
    if (spec.kind !== "bars" || !(spec.mark_label || spec.inner_label)) return;
    const set = html("div", "legend", box);
    const key = (label, attributes) => {
      if (!label) return;
      const one = html("span", "key", set);
      const svg = make("svg", { viewBox: "0 0 26 12", "aria-hidden": "true" }, one);
      for (const shape of attributes) make("rect", shape, svg);
      html("span", "", one, label);
    };
    const bar = { x: 1, y: 1, width: 24, height: 10, rx: 3, fill: "var(--c0)" };
    key(spec.value_label, [bar]);
    key(spec.inner_label, [bar, { x: 1, y: 4, width: 18, height: 4, rx: 2, fill: "var(--card)", opacity: 0.75 }]);
    key(spec.mark_label, [{ x: 12, y: 0, width: 2.5, height: 12, fill: "var(--bad)" }]);
  };

  /* Readings: the nearest stop under the pointer, or one after the other by the arrow keys. */
  const readings = (plot, tip, spec) => {
    const state = { stops: [], byX: false, svg: null, at: -1, cursor: null };
    const clear = () => {
      tip.hidden = true;
      if (state.cursor) state.cursor.remove();
      state.cursor = null;
    };
    const show = (index) => {
      clear();
      const stop = state.stops[index];
      if (!stop) return;
      state.at = index;
      state.cursor = stop.line
        ? make("line", { class: "cross", x1: stop.x, x2: stop.x, y1: stop.line[0], y2: stop.line[1] }, state.svg)
        : make("circle", { class: "ring", cx: stop.x, cy: stop.y, r: 9 }, state.svg);
      tip.replaceChildren();
      html("b", "", tip, stop.title);
      for (const [name, value] of stop.rows) {
        const row = html("div", "", tip);
        html("span", "", row, name);
        html("span", "", row, value);
      }
      tip.hidden = false;
      const room = plot.clientWidth;
      const left = stop.x + 16 + tip.offsetWidth > room ? stop.x - 16 - tip.offsetWidth : stop.x + 16;
      tip.style.left = `${Math.max(0, Math.min(left, room - tip.offsetWidth))}px`;
      tip.style.top = `${Math.max(0, stop.y - 6)}px`;
    };
    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect();
      const x = event.clientX - box.left;
      const y = event.clientY - box.top;
      let best = -1;
      let least = state.byX ? Infinity : 60;
      state.stops.forEach((stop, index) => {
        const far = state.byX ? Math.abs(stop.x - x) : Math.hypot((stop.x - x) * (spec.kind === "bars" ? 0.2 : 1), stop.y - y);
        if (far < least) [best, least] = [index, far];
      });
      if (best < 0) clear();
      else show(best);
    });
    plot.addEventListener("pointerleave", clear);
    plot.addEventListener("blur", clear);
    plot.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") clear();
      if (!move || !state.stops.length) return;
      event.preventDefault();
      show((state.at + move + state.stops.length) % state.stops.length);
    });
    return (svg, outcome) => {
      clear();
      Object.assign(state, { stops: outcome.stops, byX: Boolean(outcome.byX), svg, at: -1 });
    };
  };

  const mount = (box) => {
    const spec = twin.figures[box.dataset.figure];
    const hidden = new Set();
    let width = 0;
    const redraw = () => {
      if (!width) return;
      const svg = make("svg", { "aria-hidden": "true", focusable: "false" });
      const outcome = draw[spec.kind](svg, spec, width, hidden);
      svg.setAttribute("viewBox", `0 0 ${width} ${outcome.height}`);
      svg.setAttribute("height", outcome.height);
      const old = plot.querySelector(":scope > svg");
      if (old) old.replaceWith(svg);
      else plot.prepend(svg);
      ready(svg, outcome);
    };
    legendOf(box, spec, hidden, redraw);
    const plot = html("div", "plot", box);
    plot.tabIndex = 0;
    plot.setAttribute("role", "group");
    plot.setAttribute("aria-label", `Chart: ${spec.title}. Arrow keys read its values; the table below holds them all.`);
    const tip = html("div", "tip", plot);
    tip.hidden = true;
    tip.setAttribute("role", "status");
    const ready = readings(plot, tip, spec);
    new ResizeObserver(() => {
      const now = Math.floor(plot.clientWidth);
      if (now && now !== width) {
        width = now;
        redraw();
      }
    }).observe(plot);
  };

  const sortable = (table) => {
    const heads = [...table.tHead.rows[0].cells];
    const body = table.tBodies[0];
    const key = (row, column) => {
      const cell = row.cells[column];
      const raw = cell.dataset.sort !== undefined ? cell.dataset.sort : cell.textContent;
      return raw === "" ? null : raw;
    };
    heads.forEach((head, column) => {
      const button = html("button");
      button.type = "button";
      html("span", "", button, head.textContent);
      html("span", "arrow", button, "↕").setAttribute("aria-hidden", "true");
      head.replaceChildren(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
        for (const other of heads) {
          other.setAttribute("aria-sort", "none");
          other.querySelector(".arrow").textContent = "↕";
        }
        head.setAttribute("aria-sort", up > 0 ? "ascending" : "descending");
        head.querySelector(".arrow").textContent = up > 0 ? "↑" : "↓";
        const numbers = [...body.rows].every((row) => key(row, column) === null || Number.isFinite(Number(key(row, column))));
        const order = (a, b) => {
          const [one, two] = [key(a, column), key(b, column)];
          if (one === null || two === null) return (one === null) - (two === null);
          return up * (numbers ? Number(one) - Number(two) : one.localeCompare(two));
        };
        body.append(...[...body.rows].sort(order));
      });
    });
  };

  const picker = (select) => {
    const shown = () => {
      for (const block of document.querySelectorAll(".run")) block.hidden = block.dataset.run !== select.value;
      for (const link of document.querySelectorAll("nav a")) {
        const target = link.dataset.section.replace(/-\d+$/, `-${select.value}`);
        link.hidden = !document.getElementById(target);
        link.setAttribute("href", `#${target}`);
      }
    };
    select.addEventListener("change", shown);
    shown();
  };

  document.querySelectorAll("table.sortable").forEach(sortable);
  document.querySelectorAll(".chart").forEach(mount);
  const select = document.getElementById("pick-run");
  if (select) picker(select);
})();
