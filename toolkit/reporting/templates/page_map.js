/** The map of words: dots on two axes that stay where they are, while the epoch moves the dots. */
class WordMap {
  constructor(canvas, tip, onChoose) {
    this.canvas = canvas;
    this.tip = tip;
    this.onChoose = onChoose;
    this.points = null;
    this.chosen = -1;
    this.found = [];
    this.view = { x: 0, y: 0, zoom: 1 };
    this.listen();
    new ResizeObserver(() => this.resize()).observe(canvas);
  }

  /** points: {start: [x, y], moves: [[dx, dy] per later epoch]}, typed arrays; level: 0 to 4 per word. */
  show(points, names, levels, order) {
    Object.assign(this, { points, names, levels, order });
    this.now = [new Float32Array(names.length), new Float32Array(names.length)];
    this.fit();
  }

  set(values) {
    Object.assign(this, values);
    if (!this.points) return;
    if ("scale" in values) this.fit(); else this.draw();
  }

  /** The square that holds the words before training and at the last epoch, the farthest few apart. */
  fit() {
    if (!this.points) return;
    const bounds = [0, 1].map((axis) => {
      const start = this.points.start[axis], last = this.points.moves[this.points.moves.length - 1][axis];
      const all = new Float32Array(start.length * 2);
      for (let i = 0; i < start.length; i++) { all[i] = start[i]; all[start.length + i] = start[i] + this.scale * last[i]; }
      all.sort();
      const at = (share) => all[Math.min(all.length - 1, Math.max(0, Math.round(share * (all.length - 1))))];
      return all.length > 400 ? [at(0.001), at(0.999)] : [at(0), at(1)];
    });
    if (this.chosen >= 0) this.include(bounds, this.chosen);
    this.center = bounds.map(([low, high]) => (low + high) / 2);
    this.extent = bounds.map(([low, high]) => Math.max(high - low, 1e-12));
    this.view = { x: 0, y: 0, zoom: 1 };
    this.resize();
  }

  /** Widens the bounds to hold a word, unless it lies so far off that the others would shrink to a dot. */
  include(bounds, i) {
    bounds.forEach((bound, axis) => {
      const reach = 0.4 * (bound[1] - bound[0]), start = this.points.start[axis][i];
      for (const value of [start, start + this.scale * this.points.moves[this.points.moves.length - 1][axis][i]]) {
        bound[0] = Math.min(bound[0], Math.max(value, bound[0] - reach));
        bound[1] = Math.max(bound[1], Math.min(value, bound[1] + reach));
      }
    });
  }

  resize() {
    const box = this.canvas.getBoundingClientRect(), ratio = Math.min(devicePixelRatio || 1, 2);
    if (!this.points || !box.width) return;
    this.width = box.width;
    this.height = box.height;
    const width = Math.round(box.width * ratio), height = Math.round(box.height * ratio);
    if (this.canvas.width !== width || this.canvas.height !== height) Object.assign(this.canvas, { width, height });
    this.context = this.canvas.getContext("2d");
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.draw();
  }

  /** Places every word at the epoch, a whole number or, while it plays, one between two. */
  place() {
    const low = Math.floor(this.epoch), part = this.epoch - low, moves = this.points.moves;
    const before = low > 0 ? moves[low - 1] : null, after = part > 0 ? moves[low] : null;
    const unit = this.unit = Math.min((this.width - 40) / this.extent[0], (this.height - 40) / this.extent[1]) * this.view.zoom;
    const middle = [this.width / 2 + this.view.x, this.height / 2 + this.view.y];
    for (const axis of [0, 1]) {
      const start = this.points.start[axis], now = this.now[axis], sign = axis ? -unit : unit;
      for (let i = 0; i < start.length; i++) {
        let move = before ? before[axis][i] : 0;
        if (after) move += part * (after[axis][i] - move);
        now[i] = middle[axis] + sign * (start[i] + this.scale * move - this.center[axis]);
      }
    }
  }

  from(i) {
    return [this.width / 2 + this.view.x + this.unit * (this.points.start[0][i] - this.center[0]),
            this.height / 2 + this.view.y - this.unit * (this.points.start[1][i] - this.center[1])];
  }

  draw() {
    if (!this.context) return;
    this.place();
    const pen = this.context, style = getComputedStyle(document.documentElement), [x, y] = this.now;
    const colour = (name) => style.getPropertyValue(name).trim();
    pen.clearRect(0, 0, this.width, this.height);
    const hasSearch = this.found.length > 0, size = Math.min(3.2, Math.max(1.1, 60 / Math.sqrt(x.length))) * Math.min(2, Math.sqrt(this.view.zoom));
    this.drawTrails(pen, colour("--soft"));
    for (let level = 0; level < 5; level++) {
      pen.fillStyle = colour(`--level-${level}`);
      pen.globalAlpha = hasSearch ? 0.3 : level > 2 ? 0.95 : 0.8;
      pen.beginPath();
      for (let i = 0; i < x.length; i++) {
        if (this.levels[i] === level && this.isInside(i)) { pen.moveTo(x[i] + size, y[i]); pen.arc(x[i], y[i], size, 0, 7); }
      }
      pen.fill();
    }
    pen.globalAlpha = 1;
    if (hasSearch) this.drawDots(pen, this.found, size + 2, colour("--accent"));
    if (this.chosen >= 0) this.drawChosen(pen, colour("--ink"), size + 4.5);
    this.drawNames(pen, colour("--ink"), colour("--page"));
    this.drawAxes(pen, colour("--soft"), colour("--page"));
  }

  isInside(i) {
    return this.now[0][i] > -5 && this.now[0][i] < this.width + 5 && this.now[1][i] > -5 && this.now[1][i] < this.height + 5;
  }

  /** A line from where each word began, for those that moved farther than a dot. */
  drawTrails(pen, ink) {
    const [x, y] = this.now;
    pen.strokeStyle = ink;
    pen.lineWidth = 0.7;
    pen.globalAlpha = (this.found.length ? 0.4 : 1) * Math.min(0.35, 900 / this.names.length * Math.min(3, this.view.zoom));
    pen.beginPath();
    for (let i = 0; i < x.length; i++) {
      const [a, b] = this.from(i);
      if (this.isInside(i) && Math.abs(a - x[i]) + Math.abs(b - y[i]) > 4) { pen.moveTo(a, b); pen.lineTo(x[i], y[i]); }
    }
    pen.stroke();
    pen.globalAlpha = 1;
  }

  drawDots(pen, words, size, ink) {
    pen.fillStyle = ink;
    pen.beginPath();
    for (const i of words) { pen.moveTo(this.now[0][i] + size, this.now[1][i]); pen.arc(this.now[0][i], this.now[1][i], size, 0, 7); }
    pen.fill();
  }

  drawChosen(pen, ink, size) {
    const [a, b] = this.from(this.chosen), x = this.now[0][this.chosen], y = this.now[1][this.chosen];
    pen.strokeStyle = ink;
    pen.lineWidth = 1.6;
    pen.beginPath();
    pen.moveTo(a, b);
    pen.lineTo(x, y);
    pen.moveTo(x + size, y);
    pen.arc(x, y, size, 0, 7);
    pen.stroke();
  }

  /** Names of the chosen word, of what was searched and of those that moved most, wherever there is room. */
  drawNames(pen, ink, paper) {
    pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
    pen.textBaseline = "middle";
    pen.lineJoin = "round";
    const taken = [[this.width - 50, 0, 50, 125], [0, this.height - 26, this.width, 26], [0, 0, 24, this.height]];
    const most = this.found.length ? [] : this.order.slice(0, 400);
    let left = Math.round(this.width / 22);
    for (const i of [this.chosen, ...this.found.slice(0, 60), ...most]) {
      if (i < 0 || !this.isInside(i) || !left) continue;
      const name = this.names[i].length > 24 ? `${this.names[i].slice(0, 23)}…` : this.names[i];
      const width = pen.measureText(name).width, top = this.now[1][i] - 8;
      const gap = i === this.chosen ? 11 : 7, isLeft = this.now[0][i] + gap + width > this.width;
      const box = [isLeft ? this.now[0][i] - gap - width : this.now[0][i] + gap, top, width, 16];
      const isFree = taken.every((t) => box[0] > t[0] + t[2] || box[0] + box[2] < t[0] || box[1] > t[1] + t[3] || box[1] + box[3] < t[1]);
      if (!isFree && i !== this.chosen) continue;
      taken.push(box);
      left--;
      pen.strokeStyle = paper;
      pen.lineWidth = 3.5;
      pen.strokeText(name, box[0], this.now[1][i]);
      pen.fillStyle = ink;
      pen.fillText(name, box[0], this.now[1][i]);
    }
  }

  drawAxes(pen, ink, paper) {
    pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    pen.fillStyle = ink;
    pen.textBaseline = "alphabetic";
    pen.strokeStyle = paper;
    pen.lineWidth = 3.5;
    pen.strokeText(this.axisNames[0], 12, this.height - 9);
    pen.fillText(this.axisNames[0], 12, this.height - 9);
    pen.save();
    pen.translate(16, this.height - 30);
    pen.rotate(-Math.PI / 2);
    pen.strokeText(this.axisNames[1], 0, 0);
    pen.fillText(this.axisNames[1], 0, 0);
    pen.restore();
  }

  nearest(event) {
    const box = this.canvas.getBoundingClientRect();
    const px = event.clientX - box.left, py = event.clientY - box.top;
    let best = -1, least = event.pointerType === "touch" ? 900 : 220;
    for (let i = 0; i < this.now[0].length; i++) {
      const distance = (this.now[0][i] - px) ** 2 + (this.now[1][i] - py) ** 2;
      if (distance < least) { least = distance; best = i; }
    }
    return best;
  }

  zoomBy(factor, px = this.width / 2, py = this.height / 2) {
    const zoom = Math.min(60, Math.max(0.5, this.view.zoom * factor)), by = zoom / this.view.zoom;
    const dx = px - this.width / 2, dy = py - this.height / 2;
    this.view = { zoom, x: dx + (this.view.x - dx) * by, y: dy + (this.view.y - dy) * by };
    this.draw();
  }

  listen() {
    const canvas = this.canvas;
    let start = null;
    canvas.addEventListener("pointerdown", (event) => {
      start = { x: event.clientX, y: event.clientY, view: { ...this.view }, isDrag: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!this.points) return;
      if (start) {
        const dx = event.clientX - start.x, dy = event.clientY - start.y;
        if (!start.isDrag && Math.hypot(dx, dy) < 5) return;
        start.isDrag = true;
        this.tip.hidden = true;
        this.view = { ...this.view, x: start.view.x + dx, y: start.view.y + dy };
        this.draw();
      } else this.hover(event);
    });
    canvas.addEventListener("pointerup", (event) => {
      if (start && !start.isDrag) {
        const i = this.nearest(event);
        if (i >= 0) this.onChoose(i);
      }
      start = null;
    });
    canvas.addEventListener("pointercancel", () => { start = null; });
    canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    canvas.addEventListener("dblclick", (event) => this.zoomBy(2, event.offsetX, event.offsetY));
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;  // a page that is scrolled past must not zoom the map
      event.preventDefault();
      this.zoomBy(Math.exp(-event.deltaY / 300), event.offsetX, event.offsetY);
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => this.key(event));
    addEventListener("themechange", () => this.draw());
  }

  hover(event) {
    const i = this.nearest(event);
    this.tip.hidden = i < 0;
    if (i < 0) return;
    this.tip.textContent = `${this.names[i]}: ${this.describe(i)}`;
    const right = this.now[0][i] + 14, width = this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(4, right + width > this.width ? this.now[0][i] - width - 14 : right)}px`;
    this.tip.style.top = `${Math.max(4, Math.min(this.height - 40, this.now[1][i] - 16))}px`;
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;  // the browser's own: it zooms the page, goes back
    const pans = { ArrowLeft: [40, 0], ArrowRight: [-40, 0], ArrowUp: [0, 40], ArrowDown: [0, -40] };
    if (pans[event.key]) {
      this.view = { ...this.view, x: this.view.x + pans[event.key][0], y: this.view.y + pans[event.key][1] };
      this.draw();
    } else if (event.key === "+" || event.key === "=") this.zoomBy(1.4);
    else if (event.key === "-") this.zoomBy(1 / 1.4);
    else if (event.key === "0") this.fit();
    else return;
    event.preventDefault();
  }
}
