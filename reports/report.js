// What a report's page does beyond its text: tables sort and filter (DataTables), figures show the value under the pointer.
"use strict";

const NEAR = 24; // How far from a point of a figure, in its own units, the pointer may be.
const MOST_ROWS = 200; // A longer table has pages.

function sortAndFilter(table) {
  const count = table.tBodies[0].rows.length;
  const grouped = table.dataset.grouped !== undefined;
  const options = {
    paging: count > MOST_ROWS, pageLength: MOST_ROWS, lengthChange: false, info: count > MOST_ROWS, autoWidth: false, order: [],
    language: { search: "", searchPlaceholder: "filter rows", emptyTable: "no rows" },
  };
  if (grouped) {
    // The first column names the group: it becomes a line above each group, and groups keep their order.
    Object.assign(options, {
      rowGroup: { dataSrc: (row) => row[0].display }, orderFixed: [[0, "asc"]], columnDefs: [{ targets: 0, visible: false }],
    });
  }
  new window.dataTables.default(table, options).on("draw", () => {
    // DataTables calls a column "ascending" whatever its order where another column is fixed before it.
    for (const heading of table.tHead.querySelectorAll("[aria-sort]")) {
      heading.setAttribute("aria-sort", heading.classList.contains("dt-ordering-desc") ? "descending" : "ascending");
    }
  });
}

function showValues(figure) {
  const drawing = figure.querySelector("svg"), values = drawing && drawing.querySelector("metadata[id$=values]");
  if (!values) return;
  const series = JSON.parse(values.textContent);
  const tip = document.createElement("div"), dot = document.createElementNS("http://www.w3.org/2000/svg", "circle");
  tip.className = "tip";
  tip.setAttribute("role", "status");
  tip.hidden = true;
  dot.setAttribute("r", "3.5");
  dot.setAttribute("class", "pointed");
  figure.append(tip);
  const hide = () => { tip.hidden = true; dot.remove(); };
  const show = (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(drawing.getScreenCTM().inverse());
    let best = null, least = NEAR;
    for (const { label, points } of series) {
      for (const [x, y, text] of points) {
        const distance = Math.hypot(x - at.x, y - at.y);
        if (distance < least) [least, best] = [distance, { x, y, text: label ? `${label}\n${text}` : text }];
      }
    }
    if (best === null) return hide();
    dot.setAttribute("cx", best.x);
    dot.setAttribute("cy", best.y);
    drawing.append(dot);
    tip.textContent = best.text;
    tip.hidden = false;
    const width = document.documentElement.clientWidth;
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, width - tip.offsetWidth - 4))}px`;
    tip.style.top = `${event.clientY + 18}px`;
  };
  drawing.addEventListener("pointermove", show);
  drawing.addEventListener("pointerdown", show);
  drawing.addEventListener("pointerleave", hide);
}

document.addEventListener("DOMContentLoaded", () => {
  if (window.dataTables) document.querySelectorAll("table.sortable").forEach(sortAndFilter);
  document.querySelectorAll("figure").forEach(showValues);
  // A link into the appendix opens it.
  const open = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (target && target.querySelector("details")) target.querySelector("details").open = true;
  };
  window.addEventListener("hashchange", open);
  open();
});
