// @ts-check
import {html, nothing, ref} from "../vendor/lit.js";
import {Part} from "./element.js";
import {bytes, whole} from "./format.js";
import {colourOf} from "./curve.js";
import {DECADES, KINDS, SHADES, countsIn, draw, keysOf, partitionOf, placeOf, rowKeyOf, shade} from "./heat-cells.js";

const GUTTER = 176;
const FOOT = 22;
const ROW_PIXELS_MIN = 3;
const LABEL_PIXELS = 17;
const KEYS_SHOWN_MIN = 2;
const MINUTES_SHOWN_MIN = 5;
const ZOOM = 1.25;

/**
 * Keys × time on a canvas. Dispatches `pick` (a cell), `row` and `column`, and `view` after a zoom.
 *
 * The wheel zooms the keys, with Shift the time; dragging pans; a double click shows everything.
 */
class HeatMap extends Part {
  static properties = {
    columns: {attribute: false},
    kind: {attribute: false},
    since: {attribute: false},
    until: {attribute: false},
    hover: {state: true},
    picked: {attribute: false},
  };

  constructor() {
    super();
    /** @type {import("./heat-cells.js").Column[]} */
    this.columns = [];
    this.kind = "all";
    this.since = 0;
    this.until = 0;
    /** @type {{row: number, slot: number, x: number, y: number} | null} */
    this.hover = null;
    /** @type {{first: string, last: string, from: number, to: number} | null} */
    this.picked = null;
    /** The part of the keys that is shown; null: all. @type {{first: string, last: string} | null} */
    this.shownKeys = null;
    /** The part of the time that is shown; null: all. @type {{since: number, until: number} | null} */
    this.shownTime = null;
    /** @type {import("./heat-cells.js").Picture | null} */
    this.picture = null;
    /** @type {string[]} */
    this.keys = [];
    /** @type {{x: number, y: number, from: number, to: number, since: number, until: number, isMoved: boolean} | null} */
    this.drag = null;
    this.frame = 0;
    this.resized = new ResizeObserver(() => this.plan());
    this.themes = new MutationObserver(() => this.plan());
    this.onScheme = () => this.plan();
  }

  connectedCallback() {
    super.connectedCallback();
    this.resized.observe(this);
    this.themes.observe(document.documentElement, {attributeFilter: ["data-theme"]});
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", this.onScheme);
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    this.resized.disconnect();
    this.themes.disconnect();
    matchMedia("(prefers-color-scheme: dark)").removeEventListener("change", this.onScheme);
    cancelAnimationFrame(this.frame);
  }

  get isZoomed() {
    return Boolean(this.shownKeys || this.shownTime);
  }

  reset() {
    this.shownKeys = null;
    this.shownTime = null;
    this.viewChanged();
  }

  viewChanged() {
    this.plan();
    this.dispatchEvent(new Event("view"));
  }

  willUpdate(/** @type {Map<string, unknown>} */ changed) {
    if (changed.has("columns")) this.keys = keysOf(this.columns);
  }

  updated(/** @type {Map<string, unknown>} */ changed) {
    if (["columns", "kind", "since", "until", "picked"].some((name) => changed.has(name))) this.plan();
    this.placeTip();
  }

  /** Draw in the next frame. */
  plan() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.paint());
  }

  /** The places of the keys that are shown, both inside. */
  get bounds() {
    if (!this.shownKeys) return {from: 0, to: this.keys.length - 1};
    const from = Math.min(placeOf(this.keys, this.shownKeys.first), this.keys.length - 1);
    return {from, to: Math.max(from, Math.min(placeOf(this.keys, this.shownKeys.last), this.keys.length - 1))};
  }

  get time() {
    return this.shownTime ?? {since: this.since, until: this.until};
  }

  get canvas() {
    return /** @type {HTMLCanvasElement | null} */ (this.querySelector("canvas"));
  }

  /** The size of the cells, without gutter and foot. */
  get inner() {
    return {width: Math.max(1, this.clientWidth - GUTTER), height: Math.max(1, this.clientHeight - FOOT)};
  }

  paint() {
    const {canvas} = this;
    if (!canvas || !this.keys.length || this.clientWidth < GUTTER + 40) return;
    const {width, height} = this.inner;
    const {from, to} = this.bounds;
    const {since, until} = this.time;
    this.picture = draw(this.columns, {
      keys: this.keys,
      from,
      to,
      since,
      until,
      kind: this.kind,
      rowsMax: Math.max(1, Math.floor(height / ROW_PIXELS_MIN)),
      slotsMax: Math.max(1, width >> 1),
    });
    const scale = devicePixelRatio || 1;
    canvas.width = Math.round(this.clientWidth * scale);
    canvas.height = Math.round(this.clientHeight * scale);
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.scale(scale, scale);
    context.fillStyle = "#000";
    context.fillRect(GUTTER, 0, width, height);
    context.imageSmoothingEnabled = false;
    const cells = this.cellImage();
    const shown = (this.picture.slots * this.picture.step) / (until - since);
    context.drawImage(cells, 0, 0, cells.width, cells.height, GUTTER, 0, width * shown, height);
    context.clearRect(GUTTER + width, 0, this.clientWidth, height);
    this.labels(context);
    this.mark(context);
    this.requestUpdate("picture");
  }

  /** One pixel for each cell; the first key is at the bottom. */
  cellImage() {
    const {rows, slots, cells, peak} = /** @type {import("./heat-cells.js").Picture} */ (this.picture);
    const canvas = new OffscreenCanvas(slots, rows.length);
    const context = /** @type {OffscreenCanvasRenderingContext2D} */ (canvas.getContext("2d"));
    const image = context.createImageData(slots, rows.length);
    for (let slot = 0; slot < slots; slot += 1) {
      for (let row = 0; row < rows.length; row += 1) {
        const [red, green, blue] = shade(cells[slot * rows.length + row], peak);
        const at = ((rows.length - 1 - row) * slots + slot) * 4;
        image.data[at] = red;
        image.data[at + 1] = green;
        image.data[at + 2] = blue;
        image.data[at + 3] = 255;
      }
    }
    context.putImageData(image, 0, 0);
    return canvas;
  }

  /** @param {CanvasRenderingContext2D} context */
  labels(context) {
    const {rows} = /** @type {import("./heat-cells.js").Picture} */ (this.picture);
    const {width, height} = this.inner;
    const {since, until} = this.time;
    const each = height / rows.length;
    const [text, muted] = [colourOf("--text"), colourOf("--muted")];
    context.font = '11px ui-monospace, "DejaVu Sans Mono", monospace';
    context.textBaseline = "middle";
    context.textAlign = "right";
    let free = height;
    let partition = "";
    for (let row = 0; row < rows.length; row += 1) {
      const y = height - (row + 0.5) * each;
      const own = partitionOf(rows[row].first);
      const isNew = own !== partition;
      if (y > free - LABEL_PIXELS / 2 || y < 6) continue;
      if (!isNew && y > free - LABEL_PIXELS) continue;
      context.fillStyle = isNew ? text : muted;
      const name = isNew ? own || '""' : rowKeyOf(rows[row].first);
      context.fillText(fitted(context, name, GUTTER - 14), GUTTER - 8, y);
      partition = own;
      free = y - LABEL_PIXELS / 2;
    }
    context.textAlign = "center";
    context.fillStyle = muted;
    context.font = "11px system-ui, sans-serif";
    for (const at of timeMarks(since, until, width)) {
      const x = GUTTER + ((at - since) / (until - since)) * width;
      context.fillRect(Math.round(x), height, 1, 4);
      context.fillText(timeText(at, until - since), Math.min(Math.max(x, GUTTER + 18), GUTTER + width - 20), height + 13);
    }
  }

  /** Outline the chosen cell. @param {CanvasRenderingContext2D} context */
  mark(context) {
    const {picked} = this;
    if (!picked) return;
    const {rows} = /** @type {import("./heat-cells.js").Picture} */ (this.picture);
    const {width, height} = this.inner;
    const {since, until} = this.time;
    const each = height / rows.length;
    const lows = rows.findIndex((row) => row.last >= picked.first);
    const row = Math.max(0, lows);
    const x = GUTTER + ((picked.from - since) / (until - since)) * width;
    const right = GUTTER + ((picked.to - since) / (until - since)) * width;
    context.strokeStyle = "#fff";
    context.lineWidth = 1;
    context.strokeRect(x - 0.5, height - (row + 1) * each - 0.5, Math.max(3, right - x) + 1, each + 1);
    context.setLineDash([2, 3]);
    context.globalAlpha = 0.6;
    context.strokeRect(GUTTER, height - (row + 1) * each - 0.5, width, each + 1);
    context.strokeRect(x - 0.5, 0, Math.max(3, right - x) + 1, height);
    context.globalAlpha = 1;
    context.setLineDash([]);
  }

  // Pointer and keys

  /** @param {{offsetX: number, offsetY: number}} event */
  cellAt(event) {
    const {picture} = this;
    if (!picture?.rows.length) return null;
    const {width, height} = this.inner;
    const {since, until} = this.time;
    const at = since + ((event.offsetX - GUTTER) / width) * (until - since);
    const row = Math.floor((1 - event.offsetY / height) * picture.rows.length);
    const slot = Math.floor((at - picture.since) / picture.step);
    return {
      row: row >= 0 && row < picture.rows.length ? row : -1,
      slot: event.offsetX >= GUTTER && slot >= 0 && slot < picture.slots ? slot : -1,
    };
  }

  /** @param {PointerEvent} event */
  onMove(event) {
    if (this.drag) {
      this.pan(event);
      return;
    }
    const found = this.cellAt(event);
    this.hover = found && (found.row >= 0 || found.slot >= 0) ? {...found, x: event.offsetX, y: event.offsetY} : null;
  }

  /** @param {PointerEvent} event */
  onDown(event) {
    if (event.button !== 0) return;
    const {from, to} = this.bounds;
    this.drag = {x: event.offsetX, y: event.offsetY, from, to, ...this.time, isMoved: false};
    this.canvas?.setPointerCapture(event.pointerId);
  }

  /** @param {PointerEvent} event */
  onUp(event) {
    const {drag} = this;
    this.drag = null;
    if (!drag || drag.isMoved) return;
    const found = this.cellAt(event);
    if (!found || !this.picture) return;
    const {picture} = this;
    const row = found.row >= 0 ? picture.rows[found.row] : null;
    const from = picture.since + found.slot * picture.step;
    const detail = {row, from: found.slot >= 0 ? from : null, to: from + picture.step};
    const name = found.slot < 0 ? "row" : row ? "pick" : "column";
    if (row || found.slot >= 0) this.dispatchEvent(new CustomEvent(name, {detail}));
  }

  /** @param {PointerEvent} event */
  pan(event) {
    const drag = /** @type {NonNullable<typeof this.drag>} */ (this.drag);
    const {width, height} = this.inner;
    const [dx, dy] = [event.offsetX - drag.x, event.offsetY - drag.y];
    if (!drag.isMoved && Math.hypot(dx, dy) < 4) return;
    drag.isMoved = true;
    this.hover = null;
    const seconds = -(dx / width) * (drag.until - drag.since);
    const keys = Math.round((dy / height) * (drag.to - drag.from + 1));
    if (this.shownTime) this.showTime(drag.since + seconds, drag.until + seconds);
    if (this.shownKeys) this.showKeys(drag.from + keys, drag.to + keys);
  }

  /** @param {WheelEvent} event */
  onWheel(event) {
    event.preventDefault();
    const by = Math.sign(event.deltaY || event.deltaX) > 0 ? ZOOM : 1 / ZOOM;
    const {width, height} = this.inner;
    if (event.shiftKey) this.zoomTime(by, Math.max(0, Math.min(1, (event.offsetX - GUTTER) / width)));
    else this.zoomKeys(by, 1 - Math.max(0, Math.min(1, event.offsetY / height)));
  }

  /** @param {number} by @param {number} [place] the share of the height that stays where it is */
  zoomKeys(by, place = 0.5) {
    const {from, to} = this.bounds;
    const size = to - from + 1;
    const wanted = Math.max(KEYS_SHOWN_MIN, by > 1 ? Math.ceil(size * by) : Math.floor(size * by));
    const start = Math.round(from + (size - wanted) * place);
    this.showKeys(start, start + wanted - 1);
  }

  /** @param {number} by @param {number} [place] */
  zoomTime(by, place = 1) {
    const {since, until} = this.time;
    const wanted = Math.max(MINUTES_SHOWN_MIN * 60, (until - since) * by);
    const start = since + (until - since - wanted) * place;
    this.showTime(start, start + wanted);
  }

  /** @param {number} from @param {number} to */
  showKeys(from, to) {
    const size = to - from + 1;
    if (size >= this.keys.length) this.shownKeys = null;
    else {
      const start = Math.max(0, Math.min(this.keys.length - size, from));
      this.shownKeys = {first: this.keys[start], last: this.keys[start + size - 1]};
    }
    this.viewChanged();
  }

  /** @param {number} since @param {number} until */
  showTime(since, until) {
    const size = until - since;
    if (size >= this.until - this.since) this.shownTime = null;
    else {
      const start = Math.round(Math.max(this.since, Math.min(this.until - size, since)) / 60) * 60;
      this.shownTime = {since: start, until: start + Math.round(size / 60) * 60};
    }
    this.viewChanged();
  }

  /** @param {number} keys @param {number} time shares of what is shown */
  panBy(keys, time) {
    const {from, to} = this.bounds;
    const {since, until} = this.time;
    const step = Math.round((to - from + 1) * keys) || Math.sign(keys);
    if (keys && this.shownKeys) this.showKeys(from + step, to + step);
    if (time && this.shownTime) this.showTime(since + (until - since) * time, until + (until - since) * time);
  }

  // Rendering

  render() {
    const {picture} = this;
    const title = `Heat by keys and time; the hottest ranges are in the table below. ${picture ? `The peak is ${rateText(picture.peak, this.kind)}.` : ""}`;
    return html`<canvas
        role="img"
        aria-label=${title}
        @pointermove=${this.onMove}
        @pointerdown=${this.onDown}
        @pointerup=${this.onUp}
        @pointercancel=${() => (this.drag = null)}
        @pointerleave=${() => (this.hover = null)}
        @dblclick=${this.reset}
        @wheel=${{handleEvent: (/** @type {WheelEvent} */ event) => this.onWheel(event), passive: false}}
      ></canvas>
      ${this.hover && picture ? this.tip() : nothing}`;
  }

  tip() {
    const picture = /** @type {import("./heat-cells.js").Picture} */ (this.picture);
    const {row, slot} = /** @type {NonNullable<typeof this.hover>} */ (this.hover);
    const range = picture.rows[row];
    const from = picture.since + slot * picture.step;
    const until = Math.min(from + picture.step, this.until);
    return html`<div class="heat-tip" aria-hidden="true">
      ${range ? rangeText(range) : nothing}
      ${slot >= 0 ? html`<div class="muted">${fullTime(from)} – ${fullTime(until).slice(-5)}</div>` : nothing}
      ${range && slot >= 0
        ? html`<table>
            <tbody>
              ${Object.entries(this.countsAt(range, from, from + picture.step)).map(
                ([name, value]) => html`<tr><td>${name}</td><td class="number">${value}</td></tr>`,
              )}
            </tbody>
          </table>`
        : html`<div>${slot < 0 ? "Click: open the query of this range" : "Click: slow requests of this time"}</div>`}
    </div>`;
  }

  /** @param {{first: string, last: string}} range @param {number} from @param {number} to */
  countsAt(range, from, to) {
    const [first, last] = [placeOf(this.keys, range.first), placeOf(this.keys, range.last)];
    const found = countsIn(this.columns, {keys: this.keys, from: first, to: last, since: from, until: to});
    return {
      "Entities read": whole(Math.round(found.reads)),
      "Entities written": whole(Math.round(found.writes)),
      Bytes: bytes(Math.round(found.bytes)),
    };
  }

  placeTip() {
    const tip = /** @type {HTMLElement | null} */ (this.querySelector(".heat-tip"));
    if (!tip || !this.hover) return;
    const {x, y} = this.hover;
    const left = x + 16 + tip.offsetWidth > this.clientWidth ? x - tip.offsetWidth - 12 : x + 16;
    tip.style.left = `${Math.max(0, left)}px`;
    tip.style.top = `${Math.max(0, Math.min(y + 12, this.clientHeight - tip.offsetHeight))}px`;
  }
}

/** @param {{first: string, last: string}} range */
export function rangeText({first, last}) {
  const key = (/** @type {string} */ text) => html`<b>${partitionOf(text) || '""'}</b> / ${rowKeyOf(text) || '""'}`;
  if (first === last) return html`<div class="mono heat-range">${key(first)}</div>`;
  return html`<div class="mono heat-range">${key(first)}</div>
    <div class="mono heat-range"><span class="muted">to</span> ${partitionOf(first) === partitionOf(last) ? rowKeyOf(last) || '""' : key(last)}</div>`;
}

/** @param {number} rate @param {string} kind */
export function rateText(rate, kind) {
  if (kind === "bytes") return `${bytes(Math.round(rate))}/s`;
  const text = rate >= 100 ? whole(Math.round(rate)) : String(Number(rate.toPrecision(2)));
  return `${text} ${KINDS[kind].unit}`;
}

/** Draw the scale of colours. @param {number} peak @param {string} kind */
export function scaleLegend(peak, kind) {
  const paint = (/** @type {Element | undefined} */ found) => {
    if (!(found instanceof HTMLCanvasElement)) return;
    const context = /** @type {CanvasRenderingContext2D} */ (found.getContext("2d"));
    for (let x = 0; x < found.width; x += 1) {
      const [red, green, blue] = SHADES[Math.floor((x / found.width) * SHADES.length)];
      context.fillStyle = `rgb(${red} ${green} ${blue})`;
      context.fillRect(x, 0, 1, found.height);
    }
  };
  return html`<span class="heat-scale"
    ><span>${rateText(peak / 10 ** DECADES, kind).replace(/ .*/, "")}</span><canvas width="140" height="10" ${ref(paint)} aria-hidden="true"></canvas
    ><span>${rateText(peak, kind)}</span></span
  >`;
}

/** @param {CanvasRenderingContext2D} context @param {string} text @param {number} width */
function fitted(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let count = text.length;
  while (count > 1 && context.measureText(`${text.slice(0, count)}…`).width > width) count -= 1;
  return `${text.slice(0, count)}…`;
}

const STEPS = [60, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

/** @param {number} since @param {number} until @param {number} width */
function timeMarks(since, until, width) {
  const step = STEPS.find((each) => ((until - since) / each) * 70 <= width) ?? 86400;
  const shift = new Date(since * 1000).getTimezoneOffset() * 60;
  const marks = [];
  for (let at = Math.ceil((since - shift) / step) * step + shift; at < until; at += step) marks.push(at);
  return marks;
}

/** @param {number} at @param {number} span */
function timeText(at, span) {
  const full = fullTime(at);
  return span > 86400 ? full.slice(5) : full.slice(-5);
}

/** @param {number} at seconds since 1970 */
export function fullTime(at) {
  const when = new Date(at * 1000);
  const two = (/** @type {number} */ part) => String(part).padStart(2, "0");
  return `${when.getFullYear()}-${two(when.getMonth() + 1)}-${two(when.getDate())} ${two(when.getHours())}:${two(when.getMinutes())}`;
}

customElements.define("heat-map", HeatMap);
