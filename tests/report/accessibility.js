/* A focused accessibility check: returns a list of faults, each beginning with its kind. */
() => {
  const faults = [];
  const visible = (node) => {
    const style = getComputedStyle(node);
    const box = node.getBoundingClientRect();
    return style.visibility !== "hidden" && style.display !== "none" && box.width > 0 && box.height > 0;
  };
  const hiddenFromReaders = (node) => Boolean(node.closest("[aria-hidden='true']"));
  const short = (node) => `${node.tagName.toLowerCase()} "${(node.textContent || "").trim().slice(0, 40)}"`;

  /* Language and title. */
  if (!document.documentElement.lang) faults.push("language: html has no lang");
  if (!document.title.trim()) faults.push("title: the page has none");
  if (!document.querySelector("main")) faults.push("landmark: no main");

  /* Headings: one h1, no level is skipped on the way down. */
  const headings = [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].filter(visible);
  if (headings.filter((node) => node.tagName === "H1").length !== 1) faults.push("heading: there must be one h1");
  headings.reduce((before, node) => {
    const level = Number(node.tagName[1]);
    if (level > before + 1) faults.push(`heading: h${before} is followed by ${short(node)}`);
    return level;
  }, 0);

  /* Ids are unique, and what refers to one finds it. */
  const ids = [...document.querySelectorAll("[id]")].map((node) => node.id);
  for (const id of new Set(ids.filter((one, index) => ids.indexOf(one) !== index))) faults.push(`id: ${id} occurs twice`);
  for (const node of document.querySelectorAll("[aria-labelledby]")) {
    if (!document.getElementById(node.getAttribute("aria-labelledby"))) faults.push(`id: nothing labels ${short(node)}`);
  }

  /* Controls have names and can be reached. */
  for (const node of document.querySelectorAll("a, button, input, select, summary, [tabindex='0']")) {
    if (!visible(node)) continue;
    const label = node.labels && node.labels.length ? node.labels[0].textContent : "";
    const name = node.getAttribute("aria-label") || label || node.textContent;
    if (!name.trim()) faults.push(`name: ${node.outerHTML.slice(0, 60)} has none`);
    if (node.tabIndex < 0) faults.push(`focus: ${short(node)} cannot be reached by keyboard`);
    if (hiddenFromReaders(node)) faults.push(`focus: ${short(node)} is hidden from screen readers`);
  }
  for (const node of document.querySelectorAll("*")) {
    const style = getComputedStyle(node);
    const scrolls = /auto|scroll/.test(style.overflowX) && node.scrollWidth > node.clientWidth + 1;
    const reachable = node.tabIndex >= 0 || node.querySelector("a, button, input, select");
    if (visible(node) && scrolls && !reachable) faults.push(`focus: ${short(node)} scrolls but not by keyboard`);
  }

  /* Tables have a caption and headers with a scope. */
  for (const table of document.querySelectorAll("table")) {
    if (!table.caption || !table.caption.textContent.trim()) faults.push(`table: no caption on ${short(table)}`);
    const heads = [...table.querySelectorAll("th")];
    if (!heads.some((head) => head.scope === "col")) faults.push(`table: no column header in ${short(table)}`);
    if (heads.some((head) => !head.scope)) faults.push(`table: a header without scope in ${short(table)}`);
    if ([...table.tBodies[0].rows].some((row) => row.cells.length !== table.tHead.rows[0].cells.length)) {
      faults.push(`table: ragged rows in ${short(table)}`);
    }
  }

  /* Contrast: text against what lies behind it. */
  const parse = (text) => {
    const numbers = (text.match(/-?[\d.]+(?:e-?\d+)?/g) || []).map(Number);
    if (text.startsWith("color(srgb")) return [numbers[0] * 255, numbers[1] * 255, numbers[2] * 255, numbers[3] ?? 1];
    return text.startsWith("rgb") ? [numbers[0], numbers[1], numbers[2], numbers[3] ?? 1] : null;
  };
  const over = (top, below) => [0, 1, 2].map((k) => top[k] * top[3] + below[k] * (1 - top[3])).concat(1);
  const luminance = ([r, g, b]) => {
    const linear = [r, g, b].map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const ratio = (a, b) => {
    const [high, low] = [luminance(a), luminance(b)].sort((x, y) => y - x);
    return (high + 0.05) / (low + 0.05);
  };
  const backdrop = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour && colour[3] > 0) layers.push(colour);
    }
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
  };
  const behindText = (text) => {
    const below = backdrop(text.closest("div"));
    const box = text.getBoundingClientRect();
    const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
    const tiles = [...text.ownerSVGElement.querySelectorAll("rect")].filter((rect) => {
      const area = rect.getBoundingClientRect();
      const earlier = rect.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_FOLLOWING;
      return earlier && x > area.left && x < area.right && y > area.top && y < area.bottom;
    });
    return tiles.reduce((under, tile) => over(parse(getComputedStyle(tile).fill) || [0, 0, 0, 0], under), below);
  };
  const judge = (node, colour, behind) => {
    const style = getComputedStyle(node);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const found = ratio(over(colour, behind), behind);
    if (found < (large ? 3 : 4.5)) faults.push(`contrast: ${found.toFixed(2)} for ${short(node)}`);
  };
  for (const node of document.querySelectorAll("body *:not(script):not(style):not(noscript)")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || !visible(node) || node.closest("option")) continue;
    const inChart = Boolean(node.ownerSVGElement);
    if (hiddenFromReaders(node) && !inChart) continue;
    const colour = parse(getComputedStyle(node)[inChart ? "fill" : "color"]);
    if (colour) judge(node, colour, inChart ? behindText(node) : backdrop(node));
  }
  return faults;
}
