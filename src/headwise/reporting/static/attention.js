// Attention: thumbnails of a site's heads, and one head as a matrix or as lines.

function setUpAttention() {
  fillSelect(byId("sentence"), attention.map((sentence, place) => [place, titleOf(sentence)]));
  byId("sentence").addEventListener("change", () => showSentence(Number(byId("sentence").value)));
  byId("site").addEventListener("change", () => choose(byId("site").value, 0));
  byId("head").addEventListener("change", () => choose(view.site, Number(byId("head").value)));
  byId("previous").addEventListener("click", () => step(-1));
  byId("next").addEventListener("click", () => step(1));
  byId("as-matrix").addEventListener("click", () => showAs(false));
  byId("as-lines").addEventListener("click", () => showAs(true));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showAttention);
  showSentence(0);
}

function titleOf(sentence) {
  const [tokens] = Object.values(sentence.tokens);
  return shortened((tokens ?? []).map(visible).join(" "));
}

const shortened = (text) => (text.length > 80 ? `${text.slice(0, 79)}…` : text);

function fillSelect(select, options) {
  select.replaceChildren(...options.map(([value, text]) => make("option", { value }, text)));
}

function showSentence(place) {
  view.sentence = place;
  const sites = Object.keys(attention[place].sites);
  fillSelect(byId("site"), sites.map((site) => [site, site]));
  if (!sites.includes(view.site)) view.site = sites.includes(chosen.site) ? chosen.site : sites[0];
  if (view.site !== undefined) showAttention();
}

function showAs(lines) {
  view.lines = lines;
  byId("as-matrix").setAttribute("aria-pressed", !lines);
  byId("as-lines").setAttribute("aria-pressed", lines);
  showAttention();
}

function step(by) {
  const all = Object.entries(attention[view.sentence].sites)
    .flatMap(([site, list]) => list.map((_, index) => [site, index]));
  const here = all.findIndex(([site, index]) => site === view.site && index === shownHead());
  choose(...all[(here + by + all.length) % all.length]);
}

const shownHead = () => (view.site === chosen.site ? chosen.index : 0);

function showAttention() {
  const list = attention[view.sentence].sites[view.site];
  const index = Math.min(shownHead(), list.length - 1);
  const [queries, keys] = tokensOf(attention[view.sentence], view.site);
  byId("site").value = view.site;
  fillSelect(byId("head"), list.map((_, place) => [place, String(place)]));
  byId("head").value = index;
  byId("site-title").textContent = `All ${list.length} heads of ${view.site}`;
  byId("picture-title").textContent = `Head ${view.site}.${index}`;
  byId("thumbnails").replaceChildren(...list.map(
    (head, place) => thumbnail(head, place, place === index, queries.length, keys.length)));
  byId("picture").replaceChildren((view.lines ? linePicture : matrixPicture)(list[index], queries, keys));
  byId("picture-hint").textContent = view.lines
    ? "Queries are on the left, the keys they attend to on the right. Point at a token to see only its lines."
    : "Each row is a query, each column a key; a stronger colour means a larger weight. Small weights were not recorded.";
}

// Tokens of the queries and of the keys; a position without a token is shown by its number.
function tokensOf({ tokens, sites }, site) {
  const list = sites[site];
  const stack = site.split(".").at(-3) ?? site;
  const lastKey = list.flatMap((head) => [...weightsOf(head)]).reduce((last, [, key]) => Math.max(last, key), -1);
  const padded = (name, length) => {
    const known = tokens[name] ?? [];
    return Array.from({ length: Math.max(known.length, length) }, (_, at) => visible(known[at] ?? String(at)));
  };
  const rows = Math.max(...list.map((head) => head.length));
  return [padded(stack, rows), padded(site.endsWith(".cross") ? "encoder" : stack, lastKey + 1)];
}

function visible(token) {
  const shown = /[\u0000-\u001f]/.test(token) ? JSON.stringify(token).slice(1, -1) : token;
  const text = shown.trim() ? shown : "␣".repeat(Math.max(1, shown.length));
  return text.length > 20 ? `${text.slice(0, 19)}…` : text;
}

function* weightsOf(head) {
  for (const [query, flat] of head.entries()) {
    for (let at = 0; at < flat.length; at += 2) yield [query, flat[at], flat[at + 1] / 1000];
  }
}

function thumbnail(head, place, isShown, rows, columns) {
  const unit = 180 / Math.max(rows, columns);
  const dot = Math.max(unit, 4); // else a weight of a long sentence would be too small to see
  const canvas = make("canvas", { width: columns * unit, height: rows * unit });
  const paint = canvas.getContext("2d");
  paint.fillStyle = getComputedStyle(document.body).getPropertyValue("--accent");
  for (const [query, key, weight] of weightsOf(head)) {
    paint.globalAlpha = Math.min(1, weight);
    paint.fillRect(key * unit, query * unit, dot, dot);
  }
  const button = make("button", { type: "button", "aria-pressed": isShown, "aria-label": `Head ${place}` }, canvas, String(place));
  button.addEventListener("click", () => {
    choose(view.site, place);
    byId("thumbnails").children[place]?.focus();
  });
  return button;
}

// Wide characters (Chinese, Japanese, Korean) take two places of a monospaced font.
const places = (text) => [...text].reduce((sum, sign) => sum + (sign.codePointAt(0) > 0x2e7f ? 2 : 1), 0);
const widest = (tokens, size) => Math.max(0, ...tokens.map(places)) * size * 0.62;

function matrixPicture(head, queries, keys, room = 640) {
  const unit = Math.max(11, Math.min(32, Math.floor(room / Math.max(queries.length, keys.length))));
  const size = Math.min(13, unit - 1);
  const left = widest(queries, size) + 10;
  const top = widest(keys, size) * 0.87 + size;
  const [width, height] = [keys.length * unit, queries.length * unit];
  const right = widest(keys, size) * 0.5 + 4;
  const svg = draw("svg", { width: left + width + right, height: top + height + 4, role: "img", "aria-label": summaryOf(head, queries, keys) });
  const bands = [draw("rect", { class: "band", x: left, width, height: unit }), draw("rect", { class: "band", y: top, width: unit, height })];
  svg.append(...bands, draw("rect", { class: "frame", x: left, y: top, width, height }));
  for (const [query, key, weight] of weightsOf(head)) {
    svg.append(draw("rect", { class: "weight", x: left + key * unit, y: top + query * unit, width: unit, height: unit, "fill-opacity": weight }));
  }
  queries.forEach((token, at) => svg.append(draw("text", { x: left - 6, y: top + (at + 0.5) * unit + size * 0.35, "text-anchor": "end", "font-size": size }, token)));
  keys.forEach((token, at) => svg.append(draw("text", { "font-size": size, transform: `translate(${left + (at + 0.5) * unit + size * 0.2} ${top - 5}) rotate(-60)` }, token)));
  watchMatrix(svg, bands, { head, queries, keys, unit, left, top });
  return svg;
}

function watchMatrix(svg, bands, { head, queries, keys, unit, left, top }) {
  const show = (isShown) => bands.forEach((band) => { band.style.display = isShown ? "" : "none"; });
  const leave = () => { show(false); hideTip(); };
  leave();
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const key = Math.floor((event.clientX - box.left - left) / unit);
    const query = Math.floor((event.clientY - box.top - top) / unit);
    if (!(key in keys) || !(query in queries)) return leave();
    bands[0].setAttribute("y", top + query * unit);
    bands[1].setAttribute("x", left + key * unit);
    show(true);
    const found = [...weightsOf([head[query] ?? []])].find(([, at]) => at === key);
    showTip(`${queries[query]} → ${keys[key]}: ${found ? found[2].toFixed(3) : "too small to be recorded"}`, event.clientX, event.clientY);
  });
}

function summaryOf(head, queries, keys) {
  const strongest = [...weightsOf(head)].sort((one, other) => other[2] - one[2]).slice(0, 5);
  const pairs = strongest.map(([query, key, weight]) => `${queries[query]} to ${keys[key]} ${weight.toFixed(2)}`);
  return `Attention of ${queries.length} queries over ${keys.length} keys; strongest: ${pairs.join(", ")}`;
}

function linePicture(head, queries, keys) {
  const unit = Math.max(queries.length, keys.length) > 60 ? 16 : 22;
  const size = unit * 0.62;
  const left = Math.max(60, widest(queries, size)) + 10;
  const gap = 260;
  const top = 26;
  const height = top + Math.max(queries.length, keys.length) * unit + 6;
  const width = left + gap + Math.max(60, widest(keys, size)) + 20;
  const svg = draw("svg", { width, height, role: "group", "aria-label": summaryOf(head, queries, keys) });
  svg.append(draw("text", { class: "axis", x: left - 8, y: 13, "text-anchor": "end" }, "query"), draw("text", { class: "axis", x: left + gap + 8, y: 13 }, "key"));
  const middle = (at) => top + (at + 0.5) * unit;
  const lines = [...weightsOf(head)].map(([query, key, weight]) => {
    const line = draw("line", { class: "line", x1: left, y1: middle(query), x2: left + gap, y2: middle(key), "stroke-opacity": weight });
    svg.append(line);
    return { query, key, weight, line };
  });
  const sides = [["query", queries, left - 8, "end"], ["key", keys, left + gap + 8, "start"]];
  const labels = Object.fromEntries(sides.map(([side, tokens, x, anchor]) => [side, tokens.map((token, at) =>
    draw("text", { class: "token", x, y: middle(at) + size * 0.35, "text-anchor": anchor, "font-size": size, tabindex: 0 }, token))]));
  for (const [side, nodes] of Object.entries(labels)) {
    nodes.forEach((node, at) => watchToken(node, svg, lines.filter((line) => line[side] === at), labels));
    svg.append(...nodes);
  }
  return svg;
}

function watchToken(node, svg, lines, labels) {
  const toggle = (isOn) => () => {
    svg.classList.toggle("hovering", isOn);
    node.classList.toggle("on", isOn);
    for (const { line, query, key } of lines) {
      for (const touched of [line, labels.query[query], labels.key[key]]) touched.classList.toggle("on", isOn);
    }
  };
  const events = { pointerenter: true, focus: true, pointerleave: false, blur: false };
  for (const [name, isOn] of Object.entries(events)) node.addEventListener(name, toggle(isOn));
}
