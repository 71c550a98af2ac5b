"use strict";
// What the page can do beside being read: everything it needs is in the page, as text.

const all = (selector, from = document) => [...from.querySelectorAll(selector)];

function bytes(count) {
  for (const [size, unit] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (count >= size) return `${(count / size).toFixed(count / size >= 100 ? 0 : count / size >= 10 ? 1 : 2)} ${unit}`;
  }
  return `${count} B`;
}

// --- the budget

function followBudget(section) {
  const slider = section.querySelector("input[type=range]");
  const choices = all("li[data-from]", section);
  const chart = section.closest(".group").querySelector("svg.frontier");
  const stops = slider.dataset.stops.split(" ").map(Number);
  const show = () => {
    const budget = stops[Number(slider.value)];
    const best = choices.filter((one) => Number(one.dataset.from) <= budget).pop();
    for (const one of choices) one.classList.toggle("best", one === best);
    section.querySelector(".amount").textContent = bytes(budget);
    section.querySelector("output").textContent = best.querySelector("span").textContent;
    slider.setAttribute("aria-valuetext", bytes(budget));
    if (chart) drawBudget(chart, budget, best.dataset.case);
  };
  slider.addEventListener("input", show);
  section.querySelector(".slider").hidden = false;
  show();
}

function drawBudget(chart, budget, best) {
  const [low, high, left, right] = ["low", "high", "left", "right"].map((name) => Number(chart.dataset[name]));
  const x = left + ((budget - low) / (high - low)) * (right - left);
  for (const name of ["x1", "x2"]) chart.querySelector(".budget").setAttribute(name, Math.min(Math.max(x, left), right));
  for (const point of all(".point", chart)) {
    point.classList.toggle("beyond", Number(point.dataset.peak) > budget);
    point.classList.toggle("best", point.dataset.case === best);
  }
}

// --- the points of the frontier: one stop of the tab key, arrow keys within

function followPoints(chart) {
  const memory = (point) => Number.parseFloat(point.querySelector(".mark").getAttribute("cx"));
  const points = all(".point", chart).sort((one, other) => memory(one) - memory(other));
  const shown = chart.closest("figure").querySelector(".shown");
  const show = (point) => { shown.textContent = point.getAttribute("aria-label"); };
  const enter = (point) => {
    for (const one of points) one.setAttribute("tabindex", one === point ? "0" : "-1");
  };
  points.forEach((point, at) => {
    point.addEventListener("mouseenter", () => show(point));
    point.addEventListener("click", () => { enter(point); show(point); });
    point.addEventListener("focus", () => { enter(point); show(point); });
    point.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (step) {
        event.preventDefault();
        points[(at + step + points.length) % points.length].focus();
      } else if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        show(point);
      }
    });
  });
  if (points.length) enter(points[0]);
}

// --- the table

const text = (cell) => cell.textContent.trim();

function number(words) {
  if (words === "baseline") return 0;
  const found = Number.parseFloat(words.replace(/[,±<]/g, ""));
  return Number.isNaN(found) ? null : found;
}

function compare(one, other, isNumber) {
  if (!isNumber) return one.localeCompare(other, "en", { numeric: true });
  return number(one) - number(other);
}

function sortBy(table, column) {
  const heads = all("thead th", table);
  const isDown = heads[column].getAttribute("aria-sort") === "ascending";
  heads.forEach((head, at) => {
    if (at === column) head.setAttribute("aria-sort", isDown ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  });
  const isNumber = heads[column].classList.contains("number");
  const isMissing = (row) => isNumber && number(text(row.cells[column])) === null;
  const rows = all("tbody tr", table);
  rows.sort((one, other) => {
    if (isMissing(one) || isMissing(other)) return isMissing(one) - isMissing(other);
    return (isDown ? -1 : 1) * compare(text(one.cells[column]), text(other.cells[column]), isNumber);
  });
  table.tBodies[0].append(...rows);
}

function followTable(table) {
  const section = table.closest("section");
  const said = section.querySelector(".said");
  all("thead th", table).forEach((head, at) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text(head);
    button.addEventListener("click", () => {
      sortBy(table, at);
      said.textContent = `sorted by ${button.textContent}, ${head.getAttribute("aria-sort")}`;
    });
    head.replaceChildren(button);
  });
  section.querySelector(".filter").addEventListener("input", (event) => {
    const wanted = event.target.value.trim().toLowerCase();
    const rows = all("tbody tr", table);
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
    said.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
  });
  for (const button of all(".copy", section)) {
    button.addEventListener("click", () => copy(button.dataset.as === "csv" ? csv(table) : markdown(table), section, said));
  }
  section.querySelector(".tools").hidden = false;
}

const lines = (table) => all("tr", table).filter((row) => !row.hidden).map((row) => all("th, td", row).map(text));

function markdown(table) {
  const line = (cells) => `| ${cells.map((cell) => cell.replace(/[\\`*_[\]<>|#$~&]/g, "\\$&")).join(" | ")} |`;
  const [head, ...rows] = lines(table);
  const rule = all("thead th", table).map((one) => (one.classList.contains("number") ? "---:" : "---"));
  return [line(head), `| ${rule.join(" | ")} |`, ...rows.map(line)].join("\n") + "\n";
}

function csv(table) {
  const isNumber = /^[-+±]?[\d,.]+( %)?( \([-+\d., ]+\))?$/;
  const cell = (words) => {
    if (words === "-") return "";
    const safe = /^[=+\-@＝＋－＠]/.test(words) && !isNumber.test(words) ? `'${words}` : words; // a spreadsheet would run it
    return /[",\n]/.test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe;
  };
  return lines(table).map((cells) => cells.map(cell).join(",")).join("\n") + "\n";
}

async function copy(words, section, said) {
  const area = section.querySelector(".copied");
  try {
    await navigator.clipboard.writeText(words);
    area.hidden = true;
    said.textContent = "copied";
  } catch {
    area.value = words;
    area.hidden = false;
    area.select();
    said.textContent = "this browser does not let a page copy: the text is selected, copy it by hand";
  }
}

// --- the command, and the colours

function followCommand(button) {
  const section = button.closest("section");
  const words = section.querySelector(".command").textContent;
  button.addEventListener("click", () => copy(words, section, section.querySelector(".told")));
  button.closest(".tools").hidden = false;
}

function followTheme(button) {
  const themes = ["", "light", "dark"];
  button.addEventListener("click", () => {
    const theme = themes[(themes.indexOf(document.documentElement.dataset.theme || "") + 1) % themes.length];
    document.documentElement.dataset.theme = theme;
    button.textContent = `Colours: ${theme || "as the system"}`;
  });
  button.hidden = false;
}

all(".budgets").forEach(followBudget);
all("svg.frontier").forEach(followPoints);
all("table.sortable").forEach(followTable);
all(".copy-command").forEach(followCommand);
all(".theme").forEach(followTheme);
window.addEventListener("beforeprint", () => { for (const one of all("details")) one.open = true; });
