/* Charts: small SVG drawings from the figures in the embedded JSON. Text is only ever set as text. */
"use strict";
const twin = JSON.parse(document.getElementById("facts").textContent);

const charts = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const DASHES = ["", "7 4", "2 4", "9 3 2 3"];
  const MARKS = ["circle", "square", "diamond", "triangle"];

  const make = (name, attributes, parent, text) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    if (parent) parent.appendChild(node);
    return node;
  };
  const html = (name, className, parent, text) => {
    const node = document.createElement(name);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    if (parent) parent.appendChild(node);
    return node;
  };

  const number = (value, digits = 3) => {
    if (value === null || value === undefined) return "–";
    if (Number.isInteger(value)) {
      const whole = Math.abs(value);
      const text = whole >= 10000 ? whole.toString().replace(/\B(?=(\d{3})+$)/g, "\u202f") : String(whole);
      return (value < 0 ? "−" : "") + text;
    }
    const size = Math.abs(value);
    if (size < 1e-4 || size >= 1e6) {
      const [mantissa, power] = value.toExponential(digits - 1).split("e");
      return `${Number(mantissa)}e${Number(power)}`.replace(/^-/, "−");
    }
    return String(Number(value.toPrecision(digits))).replace("-", "−");
  };
  const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)}\u202f%`);
  const signed = (value, digits = 3) => (value > 0 ? "+" : "") + number(value, digits);
  const plain = (value) => (value === null || value === undefined ? "–" : number(Number(value.toPrecision(4)), 4));
  const date = (days) => (days === null || days === undefined ? "–" : new Date(Math.floor(days) * 86400000).toISOString().slice(0, 10));
  const formats = { number, percent, signed, value: plain, date };
  const tick = { ...formats, number: (value) => number(value), percent: (value) => `${Number((100 * value).toFixed(6))}\u202f%` };

  const niceTicks = (low, high, count) => {
    const raw = (high - low) / Math.max(1, count);
    const power = Math.pow(10, Math.floor(Math.log10(raw)));
    const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((one) => one >= raw - 1e-12);
    const found = [];
    for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index += 1) {
      found.push(Number((index * step).toPrecision(12)));
    }
    return found;
  };
  const scale = (low, high, from, to) => {
    const span = high - low || 1;
    return (value) => from + ((value - low) / span) * (to - from);
  };
  const range = (values, pad, zero) => {
    const known = values.filter((value) => value !== null && value !== undefined);
    let low = Math.min(...known);
    let high = Math.max(...known);
    if (!known.length) return [0, 1];
    if (zero) low = Math.min(0, low);
    const extra = (high - low || Math.abs(high) || 1) * pad;
    return [zero && low === 0 ? 0 : low - extra, high + extra];
  };
  const colour = (index) => `var(--c${index % 8})`;
  const dash = (index) => DASHES[Math.floor(index / 8) % DASHES.length];

  const marker = (parent, kind, x, y, size, attributes) => {
    const s = size;
    const shapes = {
      circle: () => make("circle", { cx: x, cy: y, r: s, ...attributes }, parent),
      square: () => make("rect", { x: x - s * 0.9, y: y - s * 0.9, width: s * 1.8, height: s * 1.8, ...attributes }, parent),
      diamond: () => make("path", { d: `M${x} ${y - s * 1.25}L${x + s * 1.25} ${y}L${x} ${y + s * 1.25}L${x - s * 1.25} ${y}Z`, ...attributes }, parent),
      triangle: () => make("path", { d: `M${x} ${y - s * 1.2}L${x + s * 1.15} ${y + s}L${x - s * 1.15} ${y + s}Z`, ...attributes }, parent),
    };
    return shapes[kind]();
  };
  const ruler = document.createElement("canvas").getContext("2d");
  ruler.font = `600 12px ${getComputedStyle(document.body).fontFamily}`;
  const textWidth = (text) => ruler.measureText(text).width;
  const shorten = (text, width) => {
    const letters = [...text];
    while (letters.length > 2 && textWidth(letters.join("")) > width) letters.splice(-2, 2, "…");
    return letters.join("");
  };

  /* A text in lines that fit, broken between words; what is left of it stands in the last one. */
  const wrapped = (text, width, most) => {
    const lines = [];
    for (const word of text.split(" ")) {
      const longer = lines.length ? `${lines[lines.length - 1]} ${word}` : word;
      if (lines.length && (textWidth(longer) <= width || lines.length === most)) lines[lines.length - 1] = longer;
      else lines.push(word);
    }
    return lines.map((line) => shorten(line, width));
  };
  /* Lines of text around a place. */
  const stacked = (svg, lines, x, y, anchor) => lines.forEach((line, index) => make("text", { class: "label strong", x, y: y + (index - (lines.length - 1) / 2) * 15, "text-anchor": anchor }, svg, line));

  const frame = (svg, box, xs, ys, x, y, spec) => {
    const axis = make("g", { class: "axis", "aria-hidden": "true" }, svg);
    for (const value of ys) {
      make("line", { x1: box.left, x2: box.right, y1: y(value), y2: y(value) }, axis);
      make("text", { x: box.left - 8, y: y(value) + 4, "text-anchor": "end" }, axis, tick[spec.yFormat](value));
    }
    for (const value of xs) {
      const text = tick[spec.xFormat](value);
      /* The last one may be long: it stays inside the drawing. */
      const at = Math.min(x(value), box.right + 12 - textWidth(text) / 2);
      make("text", { x: at, y: box.bottom + 18, "text-anchor": "middle" }, axis, text);
    }
    make("text", { x: box.left, y: box.top - 10, "text-anchor": "start" }, axis, shorten(spec.yLabel, box.right - box.left));
    make("text", { x: box.right, y: box.bottom + 36, "text-anchor": "end" }, axis, shorten(spec.xLabel, box.right - box.left));
  };

  const drawLines = (svg, spec, width, hidden) => {
    const height = Math.round(Math.min(380, Math.max(250, width * 0.46)));
    const all = spec.series.flatMap((series) => series.y);
    const marks = spec.references.map((reference) => reference[1]);
    const xsAll = spec.series.flatMap((series) => series.x);
    const [low, high] = spec.span || range([...all, ...marks], 0.06, true);
    const yTicks = niceTicks(low, high, 5);
    const left = Math.max(...yTicks.map((value) => textWidth(tick[spec.format](value)))) + 14;
    const box = { left, right: width - 12, top: 26, bottom: height - 44 };
    const [xLow, xHigh] = spec.diagonal ? [0, 1] : [Math.min(...xsAll), Math.max(...xsAll)];
    const x = scale(xLow, xHigh, box.left, box.right);
    const y = scale(low, high, box.bottom, box.top);
    const xTicks = niceTicks(xLow, xHigh, Math.max(2, Math.floor((box.right - box.left) / (width > 700 || spec.x_format === "date" ? 110 : 72))));
    frame(svg, box, xTicks, yTicks, x, y, { xFormat: spec.x_format, yFormat: spec.format, xLabel: spec.x_label, yLabel: spec.y_label });
    if (spec.diagonal) make("path", { class: "diagonal", d: `M${x(0)} ${y(0)}L${x(1)} ${y(1)}` }, svg);
    for (const [name, value] of spec.references) {
      make("line", { class: "reference", x1: box.left, x2: box.right, y1: y(value), y2: y(value) }, svg);
      make("text", { class: "reference-label", x: box.right, y: y(value) - 6, "text-anchor": "end" }, svg, `${name} ${formats[spec.format](value)}`);
    }
    const shown = [];
    spec.series.forEach((series, index) => {
      if (hidden.has(series.name)) return;
      shown.push([series, index]);
      let path = "";
      series.x.forEach((at, position) => {
        const value = series.y[position];
        if (value === null) return;
        path += `${path && series.y[position - 1] !== null ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
      });
      if (series.band) {
        const edge = (side) => series.x.map((at, position) => `${x(at).toFixed(1)} ${y(Math.min(high, Math.max(low, series.y[position] + side * series.band[position]))).toFixed(1)}`);
        make("path", { d: `M${[...edge(1), ...edge(-1).reverse()].join("L")}Z`, fill: colour(index), opacity: 0.16, "data-band": series.name }, svg);
      }
      const summary = series.role === "summary";
      const style = summary ? {} : { stroke: colour(index), "stroke-dasharray": dash(index) };
      make("path", { class: summary ? "line summary" : "line", d: path, "data-series": series.name, ...style }, svg);
      const last = series.x.length - 1;
      if (!summary && series.y[last] !== null) {
        marker(svg, MARKS[index % MARKS.length], x(series.x[last]), y(series.y[last]), 3.6, { fill: colour(index) });
      }
    });
    const xs = [...new Set(shown.flatMap(([series]) => series.x))].sort((a, b) => a - b);
    const stops = xs.map((at) => ({
      x: x(at), y: box.top, line: [box.top, box.bottom], title: `${spec.x_label} ${formats[spec.x_format](at)}`,
      rows: shown.map(([series]) => [series.name, series.y[series.x.indexOf(at)]]).filter((row) => row[1] !== undefined && row[1] !== null).map(([name, value]) => [name, formats[spec.format](value)]),
    }));
    return { height, stops, byX: true };
  };

  /* Rows with a name: beside the plot where there is room, above each row on a phone. */
  const rowsLayout = (names, width, rowHeight) => {
    const longest = Math.max(...names.map(textWidth)) + 20;
    const beside = width >= 420 && longest <= width * 0.4;
    const labels = beside ? longest : 0;
    const pitch = beside ? rowHeight : rowHeight + 20;
    const top = 8;
    return {
      beside, labels, pitch, top, bottom: top + pitch * names.length,
      centre: (index) => top + pitch * index + (beside ? pitch / 2 : 20 + rowHeight / 2 - 4),
      name: (svg, text, index) => make("text", {
        class: "label strong", x: beside ? labels - 12 : 8, "text-anchor": beside ? "end" : "start",
        y: beside ? top + pitch * index + pitch / 2 + 4 : top + pitch * index + 15,
      }, svg, shorten(text, beside ? labels - 12 : width - 16)),
    };
  };
  const bottomAxis = (svg, ticks, x, top, bottom, format, label, right) => {
    const axis = make("g", { class: "axis", "aria-hidden": "true" }, svg);
    for (const value of ticks) {
      make("line", { x1: x(value), x2: x(value), y1: top, y2: bottom }, axis);
      make("text", { x: x(value), y: bottom + 18, "text-anchor": "middle" }, axis, tick[format](value));
    }
    make("text", { x: right, y: bottom + 38, "text-anchor": "end" }, axis, shorten(label, right));
  };

  const drawForest = (svg, spec, width, hidden) => {
    const shown = spec.series.map((entry, index) => [entry[0], entry[1], index]).filter(([name]) => !hidden.has(name));
    const layout = rowsLayout(spec.rows, width, spec.joined ? 36 : 22 + 13 * spec.series.length);
    const left = layout.labels + 6;
    const right = width - 20;
    const x = scale(0, 1, left + (layout.beside ? 0 : 6), right);
    const ticks = niceTicks(0, 1, right - left < 330 ? 4 : 5);
    spec.rows.forEach((_, index) => {
      if (index % 2 === 0) make("rect", { class: "band", x: 0, width, y: layout.top + layout.pitch * index, height: layout.pitch, rx: 6 }, svg);
    });
    bottomAxis(svg, ticks, x, layout.top, layout.bottom, spec.format, spec.x_label, right);
    const stops = [];
    spec.rows.forEach((row, index) => {
      layout.name(svg, row, index);
      const values = shown.map((entry) => entry[1][index].value).filter((value) => value !== null);
      const middle = layout.centre(index);
      if (spec.joined && values.length > 1) make("line", { class: "joint", x1: x(Math.min(...values)), x2: x(Math.max(...values)), y1: middle, y2: middle }, svg);
      shown.forEach(([name, intervals, series], place) => {
        const one = intervals[index];
        if (one.value === null) return;
        const at = middle + (spec.joined ? 0 : (place - (shown.length - 1) / 2) * 13);
        if (one.low !== null) make("line", { x1: x(one.low), x2: x(one.high), y1: at, y2: at, stroke: colour(series === 2 ? 7 : series), "stroke-width": series ? 2 : 3, "stroke-linecap": "round" }, svg);
        marker(svg, MARKS[series % MARKS.length], x(one.value), at, series ? 4.2 : 5.4, { fill: colour(series === 2 ? 7 : series), "data-series": name });
        const rows = [[name, formats[spec.format](one.value)]];
        if (one.low !== null) rows.push([spec.interval_label, `${formats[spec.format](one.low)} to ${formats[spec.format](one.high)}`]);
        if (one.n !== null) rows.push(["evaluation rows", number(one.n)]);
        stops.push({ x: x(one.value), y: at, title: row, rows });
      });
    });
    return { height: layout.bottom + 46, stops };
  };

  const drawBars = (svg, spec, width) => {
    const layout = rowsLayout(spec.bars.map((bar) => bar.name), width, 34);
    /* With a span bars go to both sides of 0, and need room for their numbers on both. */
    const left = layout.labels + (spec.span ? 56 : 6);
    const right = width - 64;
    const [low, high] = spec.span || [0, range(spec.bars.flatMap((bar) => [bar.value, bar.mark, bar.inner]), 0.04, true)[1]];
    const x = scale(low, high, left, right);
    bottomAxis(svg, niceTicks(low, high, Math.max(2, Math.floor((right - left) / (spec.span ? 45 : 80)))), x, layout.top, layout.bottom, spec.format, spec.x_label, width - 8);
    const stops = [];
    spec.bars.forEach((bar, index) => {
      layout.name(svg, bar.name, index);
      const at = layout.centre(index);
      const value = Math.max(low, bar.value || 0);
      const below = value < 0;
      make("rect", { x: Math.min(x(value), x(0)), y: at - 8, width: Math.abs(x(value) - x(0)), height: 16, rx: 4, fill: colour(below ? 1 : 0) }, svg);
      if (bar.inner !== null) make("rect", { x: left, y: at - 2, width: Math.max(0, x(bar.inner) - left), height: 4, rx: 2, fill: "var(--card)", opacity: 0.75 }, svg);
      if (bar.whisker !== null) make("line", { x1: x(Math.max(low, value - bar.whisker)), x2: x(Math.min(high, value + bar.whisker)), y1: at, y2: at, stroke: "var(--ink)", "stroke-width": 1.5, "data-whisker": bar.name }, svg);
      if (bar.mark !== null) make("line", { x1: x(bar.mark), x2: x(bar.mark), y1: at - 13, y2: at + 13, stroke: "var(--bad)", "stroke-width": 2.5 }, svg);
      const text = formats[spec.format](bar.value);
      const reach = bar.whisker === null ? 0 : Math.abs(x(bar.whisker) - x(0));
      const fits = bar.mark === null || x(bar.mark) < x(value) - 4 || x(bar.mark) - x(value) > textWidth(text) + 18;
      const end = (fits ? x(value) : x(bar.mark)) + (below ? -9 - reach : 9 + reach);
      make("text", { class: "label strong", x: end, y: at + 4, "text-anchor": below ? "end" : "start" }, svg, text);
      const rows = [[spec.value_label, formats[spec.format](bar.value)]];
      if (bar.mark !== null) rows.push([spec.mark_label, formats[spec.format](bar.mark)]);
      if (bar.inner !== null) rows.push([spec.inner_label, formats[spec.format](bar.inner)]);
      if (bar.whisker !== null) rows.push([spec.whisker_label, `± ${formats.value(bar.whisker)}`]);
      stops.push({ x: x(value), y: at, title: bar.name, rows });
    });
    return { height: layout.bottom + 46, stops };
  };

  const drawHeat = (svg, spec, width) => {
    const labels = Math.min(width * 0.34, Math.max(...spec.rows.map(textWidth)) + 14);
    const cell = (width - labels) / spec.columns.length;
    const tall = Math.round(Math.min(100, Math.max(54, 230 / spec.rows.length)));
    const headings = spec.columns.map((column) => wrapped(column, cell - 6, 3));
    const tallest = Math.max(...headings.map((lines) => lines.length));
    const top = 11 + 15 * tallest;
    const known = spec.values.flat().filter((value) => value !== null);
    const centre = spec.middle === null ? (Math.min(...known) + Math.max(...known)) / 2 : spec.middle;
    const middle = spec.diverging ? centre : 0;
    const reach = spec.diverging ? Math.max(0.1, ...known.map((value) => Math.abs(value - middle))) : 1;
    const brief = { percent: (value) => `${Math.round(100 * value)}`, signed: (value) => signed(Number(value.toFixed(1))) };
    const stops = [];
    headings.forEach((lines, index) => stacked(svg, lines, labels + cell * (index + 0.5), top - 12 - 7.5 * (lines.length - 1), "middle"));
    spec.rows.forEach((row, down) => {
      const y = top + down * tall;
      stacked(svg, wrapped(row, labels - 12, 3), labels - 10, y + tall / 2 + 4, "end");
      spec.columns.forEach((column, across) => {
        const value = spec.values[down][across];
        const x = labels + cell * across;
        const share = value === null ? 0 : Math.min(1, Math.abs(value - middle) / reach);
        const end = value !== null && value < middle ? "var(--heat-low)" : "var(--heat-high)";
        /* Capped at 55 % so that the printed number keeps its contrast in both colour schemes. */
        const fill = value === null ? "var(--faint)" : `color-mix(in srgb, ${end} ${Math.round(share * 55)}%, var(--heat-mid))`;
        const tile = make("rect", { x: x + 2, y: y + 2, width: Math.max(1, cell - 4), height: tall - 4, rx: 7 }, svg);
        tile.style.fill = fill;
        const count = spec.counts ? spec.counts[down][across] : null;
        const twoLines = count !== null && cell > 84;
        const whole = formats[spec.format](value, 2);
        const shown = value !== null && textWidth(whole) > cell - 10 ? brief[spec.format](value) : whole;
        make("text", { x: x + cell / 2, y: y + tall / 2 + (twoLines ? -2 : 5), "text-anchor": "middle", class: "label strong heat" }, svg, shown);
        if (twoLines) make("text", { x: x + cell / 2, y: y + tall / 2 + 15, "text-anchor": "middle", class: "label count" }, svg, `${number(count)} rows`);
        stops.push({ x: x + cell / 2, y: y + tall / 2, title: `${row} × ${column}`, rows: [[spec.value_label, formats[spec.format](value)], ...(spec.counts ? [[spec.count_label, number(count)]] : [])] });
      });
    });
    return { height: top + tall * spec.rows.length + 4, stops };
  };

  const drawScatter = (svg, spec, width) => {
    const height = Math.round(Math.min(440, Math.max(300, width * 0.5)));
    const reach = (key) => spec.points.flatMap((point) => [point[key] - (point[`${key}_std`] || 0), point[key] + (point[`${key}_std`] || 0)]);
    /* At least ten points wide, so that a small difference does not look like a large one. */
    const widen = ([low, high]) => [low - Math.max(0, 0.1 - (high - low)) / 2, high + Math.max(0, 0.1 - (high - low)) / 2];
    const clamp = (ends) => [Math.max(0, widen(ends)[0]), Math.min(1, widen(ends)[1])];
    const [xLow, xHigh] = clamp(range(reach("x"), 0.12, false));
    const [yLow, yHigh] = clamp(range(reach("y"), 0.12, false));
    const box = { left: 58, right: width - 16, top: 28, bottom: height - 44 };
    const x = scale(xLow, xHigh, box.left, box.right);
    const y = scale(yLow, yHigh, box.bottom, box.top);
    frame(svg, box, niceTicks(xLow, xHigh, Math.max(3, Math.floor((box.right - box.left) / 100))), niceTicks(yLow, yHigh, 5), x, y, { xFormat: spec.format, yFormat: spec.format, xLabel: spec.x_label, yLabel: spec.y_label });
    const front = spec.points.filter((point) => point.front).sort((a, b) => a.x - b.x);
    if (front.length > 1) make("path", { class: "front", d: front.map((point, index) => `${index ? "L" : "M"}${x(point.x)} ${y(point.y)}`).join("") }, svg);
    const stops = [];
    spec.points.forEach((point) => {
      if (point.x_std) make("line", { class: "whisker", x1: x(point.x - point.x_std), x2: x(point.x + point.x_std), y1: y(point.y), y2: y(point.y) }, svg);
      if (point.y_std) make("line", { class: "whisker", x1: x(point.x), x2: x(point.x), y1: y(point.y - point.y_std), y2: y(point.y + point.y_std) }, svg);
      const fill = point.subject ? "var(--c0)" : point.private ? "var(--c1)" : "var(--c7)";
      marker(svg, point.private ? "circle" : "diamond", x(point.x), y(point.y), point.subject ? 7.5 : 5.5, { fill, stroke: "var(--card)", "stroke-width": 1.5 });
      const std = (value) => (value === null ? "" : ` ± ${(100 * value).toFixed(1)}`);
      stops.push({ x: x(point.x), y: y(point.y), title: point.name, rows: [[spec.y_label, percent(point.y) + std(point.y_std)], [spec.x_label, percent(point.x) + std(point.x_std)]] });
    });
    namePoints(svg, spec.points.map((point) => ({ ...point, x: x(point.x), y: y(point.y) })), box);
    return { height, stops };
  };
  /* Names beside their points, the important ones first; a name that fits nowhere is left to the reading and the table. */
  const namePoints = (svg, points, box) => {
    const taken = points.map((point) => ({ left: point.x - 7, right: point.x + 7, top: point.y - 7, bottom: point.y + 7 }));
    const rank = (point) => (point.subject ? 0 : point.front ? 1 : point.private ? 3 : 2);
    const free = (area) => area.left >= box.left && area.right <= box.right + 12 && area.top >= 0 && area.bottom <= box.bottom
      && !taken.some((one) => one.left < area.right && area.left < one.right && one.top < area.bottom && area.top < one.bottom);
    for (const point of [...points].sort((a, b) => rank(a) - rank(b))) {
      const wide = textWidth(point.name);
      const places = [[10, -8], [-10 - wide, -8], [10, 17], [-10 - wide, 17], [12, 4], [-12 - wide, 4], [-wide / 2, -14], [-wide / 2, 23]];
      const areas = places.map(([dx, dy]) => ({ left: point.x + dx, right: point.x + dx + wide, top: point.y + dy - 10, bottom: point.y + dy + 3 }));
      const area = areas.find(free);
      if (!area) continue;
      taken.push(area);
      make("text", { class: "label strong", x: area.left, y: area.bottom - 3 }, svg, point.name);
    }
  };

  const draw = { lines: drawLines, forest: drawForest, bars: drawBars, heat: drawHeat, scatter: drawScatter };
  return { make, html, draw, marker, colour, dash, formats, MARKS };
})();
