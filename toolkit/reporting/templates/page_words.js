/** Typed arrays from what encode.py wrote; NaN for an undefined value. */
function decode(array) {
  if (!array) return null;
  const bytes = Uint8Array.from(atob(array.data), (character) => character.charCodeAt(0));
  if (array.kind === "uint32") return new Uint32Array(bytes.buffer);
  const codes = new Uint16Array(bytes.buffer);
  if (array.kind === "uint16") return codes;
  const values = new Float32Array(codes.length), range = array.high - array.low;
  for (let i = 0; i < codes.length; i++) {
    const code = codes[i];
    if (code === 65535) values[i] = NaN;
    else if (array.kind === "even") values[i] = array.low + (code / 65534) * range;
    else values[i] = code === 0 ? 0 : Math.exp(array.low + ((code - 1) / 65533) * range);
  }
  return values;
}

/** A number as the report writes it: significant digits, a power of ten where it is small. */
function number(value, digits = 3) {
  if (value === null || value === undefined) return "not recorded";
  if (Number.isNaN(value)) return "undefined";
  if (value === 0) return "0";
  const size = Math.floor(Math.log10(Math.abs(value)));
  if (size < -4) return value.toExponential(digits - 1).replace("e-", "e−");
  return size >= digits ? Math.round(value).toLocaleString("en") : value.toFixed(Math.max(0, digits - 1 - size));
}
const percent = (value) => (Number.isNaN(value) ? "undefined" : `${number(100 * value)} %`);
const epochName = (epoch) => (Number.isInteger(epoch) ? String(epoch) : number(epoch));
const count = (value) => (value === null || value === undefined ? "not recorded" : value.toLocaleString("en"));

class RunWords {
  constructor(text, vocabularies) {
    const data = JSON.parse(text), arrays = data.arrays;
    Object.assign(this, data);
    for (const name of Object.keys(arrays)) this[name] = decode(arrays[name]);
    const names = vocabularies[this.vocabulary];
    this.names = Array.from(this.words, (place) => names[place]);
    this.lower = this.names.map((name) => name.toLowerCase());
    this.text = (place) => names[place];
    const n = this.num_words, last = this.epochs.length - 2;
    this.atEpoch = (values, epoch, i) => values[epoch * n + i];
    this.drift = this.norm.subarray(last * n, (last + 1) * n);
    this.angle = this.angle_degrees.subarray(last * n, (last + 1) * n);
    this.relative = Float32Array.from(this.drift, (value, i) => (this.norm_before[i] ? value / this.norm_before[i] : NaN));
    this.kept = Float32Array.from({ length: n }, (_, i) => this.countKept(i));
    this.placeOf = new Map(Array.from(this.words, (place, i) => [place, i]));
    this.rank();
  }

  neighbours(i, when) {
    const k = this.num_neighbours, found = [];
    for (let j = i * k; j < (i + 1) * k; j++) {
      if (this[when][j]) found.push({ place: this[when][j] - 1, similarity: this[`${when}_similarity`][j] });
    }
    return found;
  }

  countKept(i) {
    const before = this.neighbours(i, "before");
    if (!before.length) return NaN;
    const after = new Set(this.neighbours(i, "after").map((one) => one.place));
    return before.filter((one) => after.has(one.place)).length;
  }

  /** Words by relative drift, farthest first, and the fifth of them that each is in. */
  rank() {
    const value = (i) => (Number.isNaN(this.relative[i]) ? -1 : this.relative[i]);
    this.order = Array.from({ length: this.num_words }, (_, i) => i).sort((a, b) => value(b) - value(a));
    this.cuts = [0.5, 0.75, 0.9, 0.98].map((share) => value(this.order[Math.floor((1 - share) * (this.num_words - 1))]));
    this.levels = Uint8Array.from({ length: this.num_words }, (_, i) => this.cuts.filter((cut) => value(i) > cut).length);
  }

  coordinates(map) {
    const n = this.num_words, split = (values, from) => {
      const axes = [new Float32Array(n), new Float32Array(n)];
      for (let i = 0; i < n; i++) { axes[0][i] = values[2 * (from + i)]; axes[1][i] = values[2 * (from + i) + 1]; }
      return axes;
    };
    const start = decode(map.start), moves = decode(map.moves);
    return { start: split(start, 0), moves: this.epochs.slice(1).map((_, epoch) => split(moves, epoch * n)) };
  }
}

const WORD_COLUMNS = [
  { name: "word", label: "Word", value: (run, i) => run.lower[i], show: (run, i) => run.names[i], how: "The token as the model's vocabulary spells it; ## continues a word." },
  { name: "steps", label: "Steps", value: (run, i) => run.num_steps && run.num_steps[i], show: (run, i) => count(run.num_steps && run.num_steps[i]), how: "Optimizer steps whose batch held the word: only these gave its row a gradient." },
  { name: "tokens", label: "Tokens", value: (run, i) => run.num_tokens && run.num_tokens[i], show: (run, i) => count(run.num_tokens && run.num_tokens[i]), how: "How often the word stood in the training texts, over all epochs." },
  { name: "drift", label: "Drift", value: (run, i) => run.drift[i], show: (run, i) => number(run.drift[i]), how: "Euclidean distance between the word's row after training and before, in weight units." },
  { name: "relative", label: "Relative", value: (run, i) => run.relative[i], show: (run, i) => percent(run.relative[i]), how: "Drift divided by the length of the row before training. Undefined for a row of length 0." },
  { name: "angle", label: "Angle", value: (run, i) => run.angle[i], show: (run, i) => (Number.isNaN(run.angle[i]) ? "undefined" : `${number(run.angle[i])}°`), how: "Angle between the word's row before and after training." },
  { name: "kept", label: "Neighbours kept", value: (run, i) => run.kept[i], show: (run, i) => (Number.isNaN(run.kept[i]) ? "undefined" : `${run.kept[i]} of ${run.num_neighbours}`), how: "How many of the nearest words before training are still among the nearest after, by cosine, over all words of the vocabulary. Close rivals change places by any drift: alone, a lost neighbour is no evidence." },
];
const LINES = 25;

class WordsApp {
  constructor() {
    this.scripts = [...document.querySelectorAll("script.run-words")];
    this.vocabularies = JSON.parse(element("vocabularies").textContent);
    this.runs = new Map();
    this.sorting = { column: WORD_COLUMNS[4], direction: -1 };
    this.page = 0;
    this.map = new WordMap(element("map"), element("map-tip"), (i) => this.choose(i));
    this.map.describe = (i) => `moved by ${percent(this.run.relative[i])}`;
    this.buildControls();
    this.buildHead();
    this.open(0);
  }

  buildControls() {
    const choice = element("run-choice");
    this.scripts.forEach((script, i) => choice.append(make("option", script.dataset.label, { value: i })));
    choice.closest(".field").hidden = this.scripts.length < 2;
    choice.addEventListener("change", () => this.open(Number(choice.value)));
    const search = element("word-search");
    search.addEventListener("input", () => this.search(search.value));
    search.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && this.shown.length) this.choose(this.shown[0]);
    });
    this.segments("map-scale", [1, 10, 50].map((scale) => [scale, scale === 1 ? "as it is" : `× ${scale}`]), 10, (scale) => this.rescale(scale));
    element("epoch").addEventListener("input", (event) => { this.stop(); this.setEpoch(Number(event.target.value)); });
    element("map-play").addEventListener("click", () => (this.frame ? this.stop() : this.play()));
    element("map-in").addEventListener("click", () => this.map.zoomBy(1.6));
    element("map-out").addEventListener("click", () => this.map.zoomBy(1 / 1.6));
    element("map-fit").addEventListener("click", () => this.map.fit());
    for (const button of document.querySelectorAll("[data-page]")) {
      button.addEventListener("click", () => {
        this.page += Number(button.dataset.page);
        this.fillTable();
        if (button.disabled) document.querySelector(`[data-page="${-button.dataset.page}"]`).focus();
      });
    }
  }

  segments(id, options, checked, onChange) {
    const set = element(id);
    for (const label of set.querySelectorAll("label")) label.remove();
    for (const [value, text] of options) {
      const input = make("input", "", { type: "radio", name: id, value });
      input.checked = value === checked;
      input.addEventListener("change", () => onChange(value));
      set.append(make("label", "", {}, [input, make("span", text)]));
    }
  }

  open(index) {
    this.stop();
    if (!this.runs.has(index)) this.runs.set(index, new RunWords(this.scripts[index].textContent, this.vocabularies));
    this.run = this.runs.get(index);
    const note = element("run-note");
    note.textContent = this.run.note;
    note.hidden = !this.run.note;
    this.scale = this.scale || 10;
    this.segments("map-axes", this.run.maps.map((map, i) => [i, map.title]), 0, (i) => this.openMap(i));
    const slider = element("epoch");
    slider.max = this.run.epochs.length - 1;
    this.map.chosen = -1;
    this.epoch = this.run.epochs.length - 1;
    this.openMap(0);
    this.search(element("word-search").value);
    this.choose(this.shown.length && element("word-search").value ? this.shown[0] : this.run.order[0]);
  }

  openMap(index) {
    const map = this.run.maps[index];
    this.drawn = map;
    const share = (value) => (value === null ? "undefined" : percent(value));
    this.map.axisNames = map.word_shares.map((value, i) => `axis ${i + 1}: ${share(value)} of the variance before training`);
    this.map.scale = this.scale;
    this.map.epoch = this.epoch;
    this.map.show(this.run.coordinates(map), this.run.names, this.run.levels, this.run.order);
    this.setEpoch(this.epoch);
    this.legend();
  }

  legend() {
    const cuts = this.run.cuts.map(percent), texts = [`relative drift to ${cuts[0]}`, `to ${cuts[1]}`, `to ${cuts[2]}`, `to ${cuts[3]}`, "more"];
    element("map-legend").replaceChildren(...texts.map((text, level) => {
      const dot = make("i");
      dot.style.background = `var(--level-${level})`;
      return make("span", "", {}, [dot, text]);
    }));
  }

  rescale(scale) {
    this.scale = scale;
    this.map.set({ scale });
    this.tell();
  }

  setEpoch(epoch) {
    this.epoch = epoch;
    const slider = element("epoch"), whole = Math.round(epoch), name = epochName(this.run.epochs[whole]);
    slider.value = whole;
    slider.setAttribute("aria-valuetext", whole === 0 ? "before training" : `epoch ${name}`);
    element("epoch-name").textContent = whole === 0 ? "0, before training" : name;
    this.map.set({ epoch });
    if (whole === epoch) this.tell();
  }

  /** The map in words, for those who cannot see it. */
  tell() {
    const drift = this.drawn.drift_share === null ? "undefined" : percent(this.drawn.drift_share);
    const drawn = this.scale === 1 ? "Drift is drawn as it is" : `Drift is drawn ${this.scale} times enlarged`;
    element("map-text").textContent = `${drawn}; a line leads from each word's place before training. ${this.drawn.how} These two show ${drift} of the squared drift. Zoom with the buttons, with + and − or with Ctrl and the wheel; drag or use the arrow keys to move.`;
    const epoch = Math.round(this.epoch);
    element("map").setAttribute("aria-label", `Map of ${count(this.run.num_words)} words at epoch ${epochName(this.run.epochs[epoch])}, axes ${this.drawn.title}`);
    const most = epoch === 0 ? [] : this.run.order.slice(0, 15);
    const lines = most.map((i) => make("li", `${this.run.names[i]}: drift ${number(this.run.atEpoch(this.run.norm, epoch - 1, i))} at epoch ${epochName(this.run.epochs[epoch])}`));
    element("map-list").replaceChildren(...(lines.length ? lines : [make("li", "Before training no word has moved.")]));
  }

  play() {
    const last = this.run.epochs.length - 1, from = this.epoch >= last ? 0 : this.epoch;
    const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches, began = performance.now();
    const step = (time) => {
      const epoch = Math.min(last, from + Math.max(0, time - began) / 900);
      this.setEpoch(isStill ? Math.floor(epoch) : epoch);
      if (epoch < last) this.frame = requestAnimationFrame(step); else this.stop();
    };
    this.frame = requestAnimationFrame(step);
    element("map-play").setAttribute("aria-label", "Pause");
    element("map-play").querySelector("path").setAttribute("d", "M2.5 1.5h2.5v9h-2.5zM7 1.5h2.5v9h-2.5z");
  }

  stop() {
    if (!this.frame) return;
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    this.setEpoch(Math.round(this.epoch));
    element("map-play").setAttribute("aria-label", "Play the epochs");
    element("map-play").querySelector("path").setAttribute("d", "M3 1.5v9l7.5-4.5z");
  }

  search(query) {
    const wanted = query.trim().toLowerCase(), { run } = this;
    this.query = wanted;
    const found = [];
    for (let i = 0; i < run.num_words; i++) if (!wanted || run.lower[i].includes(wanted)) found.push(i);
    this.found = found;
    this.page = 0;
    this.map.set({ found: wanted ? this.sorted(found) : [] });
    element("word-count").textContent = wanted ? `${count(found.length)} of ${count(run.num_words)} words` : `${count(run.num_words)} words`;
    this.fillTable();
    if (wanted && run.lower[this.shown[0]] === wanted) this.choose(this.shown[0]);
  }

  /** Words in the order of the table; what was typed comes first, then words that begin with it. */
  sorted(words) {
    const { column, direction } = this.sorting, { run, query } = this;
    const fit = (i) => (!query ? 0 : run.lower[i] === query ? 0 : run.lower[i].startsWith(query) ? 1 : 2);
    const keys = new Map(words.map((i) => [i, column.value(run, i)]));
    const isNone = (key) => key === null || key === undefined || Number.isNaN(key);
    return [...words].sort((a, b) => {
      const first = fit(a) - fit(b), x = keys.get(a), y = keys.get(b);
      if (first) return first;
      if (isNone(x) || isNone(y)) return isNone(x) - isNone(y);
      return x < y ? -direction : x > y ? direction : a - b;
    });
  }

  buildHead() {
    const row = document.querySelector("#word-table thead tr");
    for (const column of WORD_COLUMNS) {
      const sort = make("button", column.label, { type: "button", class: "sort", "data-tip": column.how, "aria-description": column.how });
      const info = make("button", "i", { type: "button", class: "info", tabindex: -1, "aria-label": `About “${column.label}”`, "data-tip": column.how });
      sort.addEventListener("click", () => {
        const isSame = this.sorting.column === column;
        this.sorting = { column, direction: isSame ? -this.sorting.direction : column.name === "word" ? 1 : -1 };
        this.page = 0;
        this.fillTable();
      });
      row.append(make("th", "", { scope: "col", class: column.name === "word" ? null : "number" }, [make("span", "", { class: "head" }, [sort, info])]));
    }
  }

  fillTable() {
    const { run } = this, table = document.querySelector("#word-table table");
    this.shown = this.sorted(this.found);
    const pages = Math.max(1, Math.ceil(this.shown.length / LINES));
    this.page = Math.min(Math.max(0, this.page), pages - 1);
    const lines = this.shown.slice(this.page * LINES, (this.page + 1) * LINES).map((i) => make("tr", "", { class: i === this.map.chosen ? "chosen" : null, "data-word": i }, WORD_COLUMNS.map((column) => {
      if (column.name !== "word") return make("td", column.show(run, i), { class: "number" });
      return make("th", "", { scope: "row" }, [make("button", run.names[i], { type: "button", class: "word-button", onclick: () => this.choose(i, true) })]);
    })));
    table.tBodies[0].replaceChildren(...lines);
    [...table.tHead.rows[0].cells].forEach((head, i) => {
      const isSorted = WORD_COLUMNS[i] === this.sorting.column;
      if (isSorted) head.setAttribute("aria-sort", this.sorting.direction > 0 ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
    document.querySelector(".pager span").textContent = this.shown.length ? `Page ${count(this.page + 1)} of ${count(pages)}` : "No word matches.";
    document.querySelector('[data-page="-1"]').disabled = this.page === 0;
    document.querySelector('[data-page="1"]').disabled = this.page >= pages - 1;
  }

  choose(i, isFromTable = false) {
    this.map.set({ chosen: i });
    for (const row of document.querySelectorAll("#word-table tbody tr")) row.classList.toggle("chosen", Number(row.dataset.word) === i);
    this.fillCard(i);
    if (isFromTable) element("word-card").scrollIntoView({ block: "nearest" });
  }

  fillCard(i) {
    const { run } = this, card = element("word-card"), hadFocus = card.contains(document.activeElement);
    const seen = run.num_steps ? `Seen in ${count(run.num_steps[i])} steps, as ${count(run.num_tokens[i])} tokens` : "Exposure was not recorded";
    const bars = make("div", "", { class: "bars" });
    const drifts = run.epochs.slice(1).map((_, epoch) => run.atEpoch(run.norm, epoch, i)), most = Math.max(...drifts) || 1;
    drifts.forEach((drift, epoch) => {
      const bar = make("i");
      bar.style.width = `${(100 * drift) / most}%`;
      const relative = run.norm_before[i] ? percent(drift / run.norm_before[i]) : "undefined";
      bars.append(make("span", `epoch ${epochName(run.epochs[epoch + 1])}`), make("span", "", { class: "track" }, [bar]), make("span", `${number(drift)}, ${relative}`));
    });
    const angle = Number.isNaN(run.angle[i]) ? "undefined" : `${number(run.angle[i])}°`;
    card.replaceChildren(
      make("h3", run.names[i], { tabindex: -1 }),
      make("p", `${seen}. Row ${count(run.rows[i])}, turned by ${angle}.`),
      make("h4", "Drift since before training"),
      bars,
      this.pairs(i),
    );
    if (hadFocus) card.querySelector("h3").focus();  // the button that was pressed is gone
    if (card.querySelector(".unseen")) card.append(make("p", "Grey: words that training never showed.", { class: "grey-note" }));
  }

  pairs(i) {
    const sides = ["before", "after"].map((when) => this.run.neighbours(i, when));
    const lists = sides.map((side, s) => {
      const others = new Set(sides[1 - s].map((one) => one.place));
      return make("ol", "", {}, side.map(({ place, similarity }) => {
        const known = this.run.placeOf.get(place), text = this.run.text(place);
        const name = known === undefined ? make("span", text, { class: "unseen" }) : make("button", text, { type: "button", onclick: () => this.choose(known) });
        const mark = others.has(place) ? [] : [make("em", s ? "new" : "lost", { class: s ? "new" : "lost" })];
        return make("li", "", {}, [make("span", "", {}, [name, ...mark]), make("span", number(similarity))]);
      }));
    });
    const titles = ["Nearest before", "Nearest after"];
    return make("div", "", { class: "pairs" }, lists.map((list, s) => make("div", "", {}, [make("h4", titles[s]), list])));
  }
}

if (document.querySelector("script.run-words")) {
  const start = () => { window.words = new WordsApp(); document.documentElement.classList.add("has-words"); };
  requestAnimationFrame(() => setTimeout(start, 0));  // the overview is painted first
}
