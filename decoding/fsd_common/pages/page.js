"use strict";
(() => {
  const root = document.documentElement;
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const charts = read("charts"), themes = read("themes");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 640px)");
  const theme = () => root.dataset.theme || (dark.matches ? "dark" : "light");

  // As in themes.py: data and the names of series stay as they are. A copy, since drawing changes data.
  const ofData = ["values", "domain", "sort"];
  function coloured(spec, colours) {
    if (typeof spec === "string") return spec.startsWith("@") ? colours[spec.slice(1)] : spec;
    if (Array.isArray(spec)) return spec.map((part) => coloured(part, colours));
    if (spec === null || typeof spec !== "object") return spec;
    const of = (name, part) => ofData.includes(name) ? structuredClone(part) : coloured(part, colours);
    return Object.fromEntries(Object.entries(spec).map(([name, part]) => [name, of(name, part)]));
  }

  // A legend beside the plot would leave no room for it on a phone, and one of four columns would be cut off.
  function config(settings) {
    return narrow.matches ? { ...settings, legend: { ...settings.legend, columns: 2, labelLimit: 140 } } : settings;
  }

  function draw() {
    const { colours, settings } = themes[theme()];
    root.style.colorScheme = theme();
    for (const [name, spec] of Object.entries(charts)) {
      const options = { config: config(settings), actions: false, renderer: "svg", tooltip: { theme: "custom" } };
      const sized = { width: "container", autosize: { type: "fit-x", contains: "padding" }, ...coloured(spec, colours) };
      vegaEmbed(document.getElementById("chart-" + name), sized, options).catch((error) => console.error(name, error));
    }
  }

  const button = document.getElementById("theme");
  const label = () => { button.textContent = theme() === "dark" ? "Light theme" : "Dark theme"; };
  function redraw() { label(); draw(); }
  button.addEventListener("click", () => { root.dataset.theme = theme() === "dark" ? "light" : "dark"; redraw(); });
  dark.addEventListener("change", redraw);
  narrow.addEventListener("change", draw);

  // Numbers sort by value: cells hold what a reader sees, such as "1,041.0", "97.1%" or "–" for none, which comes last.
  const value = (cell) => {
    const text = cell.textContent.trim(), number = parseFloat(text.replace(/[,≥≤%]/g, ""));
    return Number.isNaN(number) ? (text === "–" ? null : text) : number;
  };
  function compare(a, b, sign) {
    if (a === null || b === null) return (a === null) - (b === null);
    if (typeof a === "number" && typeof b === "number") return sign * (a - b);
    return sign * String(a).localeCompare(String(b));
  }
  for (const heading of document.querySelectorAll("th button")) {
    heading.addEventListener("click", () => {
      const column = heading.closest("th"), table = column.closest("table"), body = table.tBodies[0];
      const rising = column.getAttribute("aria-sort") !== "ascending";
      for (const other of column.parentNode.children) other.removeAttribute("aria-sort");
      column.setAttribute("aria-sort", rising ? "ascending" : "descending");
      const rows = [...body.rows].map((row) => [value(row.cells[column.cellIndex]), row]);
      rows.sort((a, b) => compare(a[0], b[0], rising ? 1 : -1));
      body.append(...rows.map(([, row]) => row));
    });
  }
  redraw();
})();
