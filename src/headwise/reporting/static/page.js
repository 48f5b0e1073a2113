"use strict";
// Nothing here builds HTML from text: tokens and names only ever become text nodes and attributes.

const report = JSON.parse(document.getElementById("report-data").textContent);
const { heads, curves, attention } = report;
const chosen = { site: null, index: 0 };
const view = { sentence: 0, site: null, lines: false };
const byId = (id) => document.getElementById(id);

function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(drawing, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const drawing = (() => {
  const holder = document.createElement("div");
  holder.innerHTML = "<svg></svg>";
  return holder.firstChild.namespaceURI;
})();

// The tip beside the pointer, or beside the element that has the keyboard's focus.

function showTip(text, x, y) {
  const tip = byId("tip");
  tip.textContent = text;
  tip.hidden = false;
  const left = Math.min(x + 14, innerWidth - tip.offsetWidth - 8);
  const top = y + 18 + tip.offsetHeight > innerHeight ? y - tip.offsetHeight - 12 : y + 18;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, top)}px`;
}

function hideTip() {
  byId("tip").hidden = true;
}

function tipFor(node, text) {
  node.addEventListener("pointermove", (event) => showTip(text, event.clientX, event.clientY));
  node.addEventListener("pointerleave", hideTip);
  node.addEventListener("focus", () => {
    const box = node.getBoundingClientRect();
    showTip(text, box.left, box.bottom - 14);
  });
  node.addEventListener("blur", hideTip);
}

// Choosing a head: maps, table and attention all follow.

function choose(site, index) {
  Object.assign(chosen, { site, index });
  markChosenInTable();
  if (byId("maps")) {
    showChosen();
  }
  markChosenInMaps();
  if (byId("head-view")) showHead();
  if (byId("attention") && site in attention[view.sentence].sites) {
    view.site = site;
    showAttention();
  }
}

function chosenRow() {
  return heads.sites.findIndex(
    (site, row) => site === chosen.site && heads.indices[row] === chosen.index,
  );
}

const headName = (row) => `${heads.sites[row]}.${heads.indices[row]}`;

// Learning curves: the nearest point under the pointer.

function watchCurve(svg, place) {
  const line = svg.querySelector("polyline");
  const here = draw("circle", { class: "here", r: 4, visibility: "hidden" });
  svg.append(here);
  svg.addEventListener("pointerleave", () => { here.setAttribute("visibility", "hidden"); hideTip(); });
  svg.addEventListener("pointermove", (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const points = [...line.points];
    const nearest = points.reduce((best, point, index) => (
      Math.abs(point.x - at.x) < Math.abs(points[best].x - at.x) ? index : best), 0);
    fill(here, { cx: points[nearest].x, cy: points[nearest].y, visibility: "visible" }, []);
    showTip(`${curves[place].name}\n${curves[place].texts[nearest]}`, event.clientX, event.clientY);
  });
}

// The head shown first has the largest value of the first measure.
function firstChoice() {
  if (byId("head-view")) {
    const row = addressedRow() < 0 ? report.opening : addressedRow();
    if (row !== null) return [heads.sites[row], heads.indices[row]];
  }
  const values = heads.columns[numericColumns[0]]?.values;
  if (!values) return [Object.keys(attention[0]?.sites ?? {})[0], 0];
  const row = values.reduce((best, value, at) => (value !== null && (values[best] === null || value > values[best]) ? at : best), 0);
  return [heads.sites[row], heads.indices[row]];
}

function start() {
  document.documentElement.classList.add("scripted");
  document.querySelectorAll("#learning svg").forEach(watchCurve);
  if (byId("heads")) setUpTable();
  if (byId("maps")) setUpMaps();
  if (byId("attention")) setUpAttention();
  if (byId("head-view")) setUpInspection();
  choose(...firstChoice());
  if (byId("head-view")) goToHead();
}

document.addEventListener("DOMContentLoaded", start); // when the scripts below were read too
