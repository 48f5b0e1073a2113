// The table: sorting, filtering, and its texts, which the maps show too.

const tableRows = [...document.querySelectorAll("#heads tbody tr")];
const cellText = (row, column) => tableRows[row].cells[column + 1].firstChild?.textContent ?? "";
const intervalText = (row, column) => tableRows[row].cells[column + 1].querySelector("small")?.textContent ?? "";

function setUpTable() {
  const headers = [...document.querySelectorAll("#heads thead th")];
  headers.forEach((header, place) => {
    const button = make("button", { type: "button" }, ...header.childNodes);
    button.addEventListener("click", () => sortTable(headers, place));
    header.replaceChildren(button);
  });
  tableRows.forEach((node, row) => {
    const name = node.cells[0];
    name.replaceChildren(make("button", { type: "button" }, name.textContent));
    node.addEventListener("click", () => choose(heads.sites[row], heads.indices[row]));
  });
  document.querySelector("#heads .scroll").before(filterBox());
}

function sortTable(headers, place) {
  const column = heads.columns[place - 1]; // the first header is the head's name
  const before = headers[place].getAttribute("aria-sort");
  const descending = before ? before === "ascending" : Boolean(column?.numeric);
  headers.forEach((header) => header.removeAttribute("aria-sort"));
  headers[place].setAttribute("aria-sort", descending ? "descending" : "ascending");
  const values = column ? column.values : tableRows.map((_, row) => row);
  const order = tableRows.map((_, row) => row).sort((one, other) =>
    compare(values[one], values[other], descending) || one - other);
  document.querySelector("#heads tbody").append(...order.map((row) => tableRows[row]));
}

function compare(one, other, descending) {
  if (one === null || other === null) return (one === null) - (other === null);
  const order = one < other ? -1 : Number(one > other);
  return descending ? -order : order;
}

function filterBox() {
  const input = make("input", { type: "search", placeholder: "decoder cross  confidence>0.8" });
  const count = make("span", { class: "hint", role: "status" }, `${tableRows.length} heads`);
  input.addEventListener("input", () => {
    const tests = input.value.split(/\s+/).filter(Boolean).map(testOf);
    const hidden = tableRows.map((_, row) => !tests.every((test) => test(row)));
    hidden.forEach((isHidden, row) => { tableRows[row].hidden = isHidden; });
    count.textContent = `${hidden.filter((isHidden) => !isHidden).length} of ${tableRows.length} heads`;
  });
  return make("div", { class: "filter" }, make("label", {}, "Filter ", input), count);
}

function testOf(word) {
  const [, name, sign, limit] = word.match(/^(.+?)(>=|<=|>|<|=)(-?[\d.]+)$/) ?? [];
  const column = heads.columns.find((column) => column.numeric && column.name === name);
  if (!column) return (row) => tableRows[row].textContent.toLowerCase().includes(word.toLowerCase());
  const signs = { ">": (a, b) => a > b, "<": (a, b) => a < b, "=": (a, b) => a === b };
  return (row) => column.values[row] !== null
    && [...sign].some((part) => signs[part](column.values[row], Number(limit)));
}

function markChosenInTable() {
  const row = chosenRow();
  tableRows.forEach((node, place) => node.classList.toggle("chosen", place === row));
}

// Head maps.

const numericColumns = heads.columns.flatMap((column, place) => (column.numeric ? [place] : []));

function setUpMaps() {
  fillSelect(byId("measure"), numericColumns.map((place) => [place, heads.columns[place].name]));
  byId("measure").addEventListener("change", showMaps);
  showMaps();
}

function showMaps() {
  const place = Number(byId("measure").value);
  const column = heads.columns[place];
  const shade = shadeOf(column.values);
  byId("meaning").textContent = column.meaning;
  byId("map-panels").replaceChildren(...Object.entries(heads.maps).map(
    ([kind, layers]) => mapPanel(kind, layers, place, shade)));
  showScale(place, shade);
  markChosenInMaps();
}

// How strongly a value is coloured: from 0 to 1, below 0 on the other side of a two-sided scale.
function shadeOf(values) {
  const known = values.filter((value) => value !== null);
  const low = known.reduce((one, other) => Math.min(one, other));
  const high = known.reduce((one, other) => Math.max(one, other));
  if (low < 0 && high > 0) {
    const reach = Math.max(-low, high);
    return (value) => value / reach;
  }
  return (value) => (high > low ? (value - low) / (high - low) : 0.5);
}

function mapPanel(kind, layers, place, shade) {
  const width = Math.max(...layers.map(([, rows]) => rows.length));
  const numbers = Array.from({ length: width }, (_, head) => make("th", { scope: "col" }, String(head)));
  const body = layers.map(([layer, rows]) => make("tr", {},
    make("th", { scope: "row" }, String(layer)),
    ...rows.map((row) => mapCell(row, place, shade))));
  const table = make("table", { class: width > 16 ? "map dense" : "map", role: "grid", "aria-label": kind },
    make("thead", {}, make("tr", {}, make("td"), ...numbers)), make("tbody", {}, ...body));
  table.addEventListener("keydown", moveInMap);
  table.querySelector("[data-row]").tabIndex = 0;
  return make("figure", {}, make("figcaption", {}, kind), make("div", { class: "scroll" }, table));
}

function mapCell(row, place, shade) {
  if (row === null) return make("td");
  const value = heads.columns[place].values[row];
  const text = value === null ? "not measured" : cellText(row, place);
  const label = `${headName(row)}: ${text}`;
  const cell = make("td", { "data-row": row, tabindex: -1, "aria-label": label }, value === null ? "" : text);
  colour(cell, value === null ? null : shade(value));
  tipFor(cell, `${headName(row)}\n${heads.columns[place].name} ${text} ${intervalText(row, place)}`);
  cell.addEventListener("click", () => choose(heads.sites[row], heads.indices[row]));
  return cell;
}

function colour(node, shade) {
  node.className = shade === null ? "heat empty" : shade < 0 ? "heat negative" : "heat";
  node.style.setProperty("--t", Math.abs(shade ?? 0).toFixed(3));
}

function moveInMap(event) {
  const cell = event.target.closest("[data-row]");
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  if (cell && (event.key === "Enter" || event.key === " ")) cell.click();
  else if (cell && event.key in steps) {
    const [down, right] = steps[event.key];
    const line = event.currentTarget.rows[cell.parentElement.rowIndex + down];
    const next = line?.cells[cell.cellIndex + right];
    if (next?.dataset.row) focusOnly(cell, next);
  } else return;
  event.preventDefault();
}

function focusOnly(cell, next) {
  cell.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

function showScale(place, shade) {
  const { values } = heads.columns[place];
  const rows = values.map((_, row) => row).filter((row) => values[row] !== null)
    .sort((one, other) => values[one] - values[other]);
  const ends = [rows[0], rows.at(-1)];
  const [low, high] = ends.map((row) => shade(values[row]));
  const swatches = Array.from({ length: 9 }, (_, step) => {
    const swatch = make("i");
    colour(swatch, low + ((high - low) * step) / 8);
    return swatch;
  });
  const [lowest, highest] = ends.map((row) => make("b", {}, cellText(row, place)));
  byId("scale").replaceChildren(lowest, ...swatches, highest);
}

function markChosenInMaps() {
  const row = String(chosenRow());
  for (const cell of document.querySelectorAll(".map [data-row]")) {
    cell.classList.toggle("chosen", cell.dataset.row === row);
  }
}

function showChosen() {
  const row = chosenRow();
  byId("selected").hidden = row < 0;
  if (row < 0) return;
  const title = make("h3", {}, headName(row));
  if (attention.some((sentence) => chosen.site in sentence.sites)) {
    title.append(make("a", { href: "#attention" }, "See its attention"));
  }
  if (byId("head-view")) {
    title.append(make("a", { href: addressOf(row) }, "All measures of this head"));
    return byId("selected").replaceChildren(title);
  }
  const pairs = heads.columns.map((column, place) => [column.name, `${cellText(row, place)} ${intervalText(row, place)}`.trim()])
    .filter(([, text]) => text)
    .map(([name, text]) => make("div", {}, make("dt", {}, name), make("dd", {}, text)));
  byId("selected").replaceChildren(title, make("dl", {}, ...pairs));
}
