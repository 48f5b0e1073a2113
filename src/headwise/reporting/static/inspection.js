// Inspections: matrices by layer, links to heads, and the view of one head.

const unordered = new Set(["offset"]); // measures whose size says nothing
const examplesShown = 3;
const addressOf = (row) => `#head=${headName(row)}`;

function setUpInspection() {
  for (const table of document.querySelectorAll("#by-layer table")) setUpMatrix(table);
  tableRows.forEach((node) => node.removeAttribute("id")); // else the browser would scroll there itself
  fillSelect(byId("whole-head"), tableRows.map((_, row) => [row, headName(row)]));
  byId("whole-head").addEventListener("change", () => chooseRow(Number(byId("whole-head").value)));
  byId("head-before").addEventListener("click", () => stepRow(-1));
  byId("head-after").addEventListener("click", () => stepRow(1));
  addEventListener("hashchange", goToHead);
  document.addEventListener("click", (event) => {
    // an address that stands there already changes nothing, so the browser says nothing
    const link = event.target.closest?.("a[href^='#head=']");
    if (link && link.hash === location.hash) goToHead();
  });
}

function setUpMatrix(table) {
  const cells = [...table.querySelectorAll("[data-row]")];
  for (const cell of cells) {
    const row = Number(cell.dataset.row);
    tipFor(cell, cell.title);
    cell.setAttribute("aria-label", cell.title);
    cell.removeAttribute("title");
    cell.tabIndex = -1;
    cell.addEventListener("click", () => chooseRow(row));
  }
  cells[0].tabIndex = 0;
  table.setAttribute("role", "grid");
  table.addEventListener("keydown", moveInMap);
}

const chooseRow = (row) => choose(heads.sites[row], heads.indices[row]);

function stepRow(by) {
  chooseRow((chosenRow() + by + tableRows.length) % tableRows.length);
}

// The row that the page's address names, or -1.
function addressedRow() {
  const address = decodeURIComponent(location.hash);
  return tableRows.findIndex((_, row) => addressOf(row) === address);
}

function goToHead() {
  const row = addressedRow();
  if (row < 0) return;
  chooseRow(row);
  byId("head-view").scrollIntoView({ behavior: "instant" });
  byId("head-title").focus({ preventScroll: true });
}

function showHead() {
  const row = chosenRow();
  byId("head-view").hidden = row < 0;
  if (row < 0) return;
  byId("whole-head").value = row;
  byId("head-title").textContent = headName(row);
  byId("head-address").href = addressOf(row);
  byId("head-roles").textContent = rolesOf(row);
  byId("head-measures").replaceChildren(...numericColumns
    .filter((place) => heads.columns[place].values[row] !== null)
    .map((place) => measureRow(row, place)));
  showExamples(row);
}

function rolesOf(row) {
  const columns = ["roles", "role"].map((name) => heads.columns.find((column) => column.name === name));
  const found = columns.map((column) => column?.values[row]).find(Boolean);
  if (!columns.some(Boolean)) return "";
  return found ? `Roles: ${found.replaceAll("_", " ")}.` : "No role was found.";
}

function measureRow(row, place) {
  const column = heads.columns[place];
  const name = make("th", { scope: "row" }, column.name);
  if (column.meaning) tipFor(name, column.meaning);
  const texts = [cellText(row, place), intervalText(row, place)];
  const ranks = unordered.has(column.name) ? ["", ""] : [kindRows(row), layerRows(row)].map((rows) => rank(column.values, row, rows));
  return make("tr", {}, name, ...[...texts, ...ranks].map((text) => make("td", {}, text)));
}

function kindRows(row) {
  const layers = Object.values(heads.maps).find((kind) => kind.some(([, rows]) => rows.includes(row)));
  return layers.flatMap(([, rows]) => rows);
}

function layerRows(row) {
  return tableRows.map((_, place) => place).filter((place) => heads.sites[place] === heads.sites[row]);
}

// The largest has rank 1; heads without a value do not count.
function rank(values, row, rows) {
  const known = rows.filter((place) => place !== null && values[place] !== null);
  return `${1 + known.filter((place) => values[place] > values[row]).length} of ${known.length}`;
}

function showExamples(row) {
  const drawn = attention.filter(({ sites }) => sites[heads.sites[row]]?.[heads.indices[row]]);
  const named = drawn.filter(({ examples }) => examples?.includes(headName(row)));
  const shown = [...new Set([...named, ...drawn])].slice(0, examplesShown);
  byId("head-examples").replaceChildren(...shown.map((sentence) => exampleFigure(sentence, row)));
}

function exampleFigure(sentence, row) {
  const site = heads.sites[row];
  const [queries, keys] = tokensOf(sentence, site);
  const picture = matrixPicture(sentence.sites[site][heads.indices[row]], queries, keys, 250);
  return make("figure", {}, make("figcaption", {}, shortened(queries.join(" "))), make("div", { class: "scroll picture" }, picture));
}
