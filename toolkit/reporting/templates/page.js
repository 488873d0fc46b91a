"use strict";

const element = (id) => document.getElementById(id);

function startTheme() {
  const button = element("theme");
  const root = document.documentElement, text = button.querySelector("span");
  const name = () => { text.textContent = root.dataset.theme === "dark" ? "Light" : "Dark"; };
  name();
  addEventListener("themechange", name);
  button.addEventListener("click", window.switchTheme);
}

function startContents() {
  const nav = document.querySelector(".contents"), button = element("contents-button");
  const open = (is) => { nav.classList.toggle("open", is); button.setAttribute("aria-expanded", is); };
  button.addEventListener("click", () => open(!nav.classList.contains("open")));
  nav.addEventListener("keydown", (event) => { if (event.key === "Escape") { open(false); button.focus(); } });
  const links = new Map();
  for (const link of nav.querySelectorAll("a")) {
    link.addEventListener("click", () => open(false));
    const section = element(decodeURIComponent(link.hash.slice(1)));
    if (section) links.set(section, link);
  }
  let current = null;
  const mark = () => {
    let now = null;
    for (const [section, link] of links) if (section.getBoundingClientRect().top < innerHeight * 0.3) now = link;
    if (now === current) return;
    current?.removeAttribute("aria-current");
    now?.setAttribute("aria-current", "true");
    current = now;
  };
  addEventListener("scroll", () => requestAnimationFrame(mark), { passive: true });
  mark();
}

/** How a number was computed: on hover, on keyboard focus and on tap. */
function startTips() {
  const tip = element("tip");
  let owner = null;
  const hide = () => { tip.hidden = true; owner?.removeAttribute("aria-describedby"); owner = null; };
  const show = (target) => {
    hide();
    owner = target;
    owner.setAttribute("aria-describedby", "tip");
    tip.textContent = target.classList.contains("info") ? target.previousElementSibling.dataset.tip : target.dataset.tip;
    tip.hidden = false;
    const at = target.getBoundingClientRect(), size = tip.getBoundingClientRect();
    const left = Math.min(Math.max(12, at.left + at.width / 2 - size.width / 2), document.documentElement.clientWidth - size.width - 12);
    const above = at.top - size.height - 9;
    tip.style.left = `${left}px`;
    tip.style.top = `${above > 4 ? above : at.bottom + 9}px`;
  };
  const tipped = (event) => event.target.closest?.("[data-tip], .info");
  document.addEventListener("pointerover", (event) => {
    if (event.pointerType === "touch") return;
    const target = tipped(event);
    if (target) show(target); else if (event.target !== tip) hide();
  });
  document.addEventListener("focusin", (event) => { const target = tipped(event); if (target) show(target); else hide(); });
  document.addEventListener("focusout", hide);
  document.addEventListener("click", (event) => {
    const target = tipped(event);
    if (target?.classList.contains("info")) show(target); else hide();
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  const follow = () => { if (owner === document.activeElement) show(owner); else hide(); };  // focus may scroll
  addEventListener("scroll", follow, { passive: true, capture: true });
}

/** What a cell is sorted by: its first number, or its text; null where there is none. */
function sortKey(text) {
  const shown = text.trim();
  if (shown === "" || /^(undefined|not applicable)/.test(shown)) return null;
  const number = /^[[(]?([+-]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:e[+-]?\d+)?)/.exec(shown.replace(/−/g, "-"));
  return number ? Number(number[1].replace(/,/g, "")) : shown.toLowerCase();
}

function compareKeys(a, b) {
  if (a === null || b === null) return a === b ? 0 : a === null ? 2 : -2;
  if (typeof a === typeof b) return a < b ? -1 : a > b ? 1 : 0;
  return typeof a === "number" ? -1 : 1;
}

function sortTable(table, column, direction) {
  const body = table.tBodies[0];
  const lines = [...body.rows].map((row) => ({ row, key: sortKey(row.cells[column].textContent) }));
  lines.sort((a, b) => { const order = compareKeys(a.key, b.key); return Math.abs(order) === 2 ? order : order * direction; });
  const shown = lines.filter(({ row }) => !row.classList.contains("more")).length;
  lines.forEach(({ row }, i) => row.classList.toggle("more", i >= shown));
  body.append(...lines.map(({ row }) => row));
}

function startTables() {
  for (const figure of document.querySelectorAll("figure.table")) {
    const table = figure.querySelector("table"), heads = table.tHead.rows[0].cells;
    for (const { cells } of table.tBodies[0].rows) {
      for (const cell of cells) cell.dataset.label = heads[cell.cellIndex].querySelector(".sort").textContent;
    }
    for (const button of figure.querySelectorAll(".sort")) {
      button.addEventListener("click", () => {
        const head = button.closest("th");
        const before = head.getAttribute("aria-sort") ?? (head.classList.contains("number") ? "ascending" : "descending");
        const direction = before === "descending" ? 1 : -1;
        for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
        sortTable(table, Number(button.dataset.column), direction);
      });
    }
    const all = figure.querySelector(".show-all");
    if (all) {
      const label = all.textContent;
      all.addEventListener("click", () => {
        const isOpen = figure.classList.toggle("all");
        all.setAttribute("aria-expanded", isOpen);
        all.textContent = isOpen ? "Show fewer lines" : label;
      });
    }
  }
}

/** A table that is wider than its place is set tighter, or becomes a list: a line per cell, led by its column's name. */
function fit(box) {
  for (const kind of ["tight", "stacked"]) box.classList.remove(kind);
  for (const kind of ["tight", "stacked"]) if (box.scrollWidth > box.clientWidth + 1) box.classList.add(kind);
}

/** Boxes that scroll sideways can be reached by tab; those that hold all they show need not be. */
function startScrolling() {
  const watch = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (target.matches(".table *")) fit(target);
      if (target.scrollWidth > target.clientWidth + 1) target.tabIndex = 0;
      else target.removeAttribute("tabindex");
    }
  });
  for (const box of document.querySelectorAll(".scroll")) watch.observe(box);
}

function startCopy() {
  for (const button of document.querySelectorAll(".commands button")) button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1600);
  });
}

startTheme();
startContents();
startTips();
startTables();
startScrolling();
startCopy();
function startPrinting() {
  const root = document.documentElement;
  let theme = "", opened = [];
  addEventListener("beforeprint", () => {
    theme = root.dataset.theme;
    opened = [...document.querySelectorAll("details.fold:not([open])")];
    root.dataset.theme = "light";
    for (const fold of opened) fold.open = true;
    dispatchEvent(new Event("themechange"));
  });
  addEventListener("afterprint", () => {
    root.dataset.theme = theme;
    for (const fold of opened) fold.open = false;
    dispatchEvent(new Event("themechange"));
  });
}

startPrinting();
