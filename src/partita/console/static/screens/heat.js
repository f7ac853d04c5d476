// @ts-check
import {get} from "../api.js";
import {bytes, whole} from "../parts/format.js";
import {KINDS, filterOf, hottest} from "../parts/heat-cells.js";
import "../parts/heat-map.js";
import {fullTime, rangeText, rateText, scaleLegend} from "../parts/heat-map.js";
import {icon} from "../parts/icons.js";
import {emptyState, errorPanel, waiting} from "../parts/panels.js";
import {Screen} from "../parts/screen.js";
import {slowTable} from "../parts/slow.js";
import {go, to} from "../router.js";
import {html, nothing} from "../vendor/lit.js";
import {withoutOperations} from "./overview.js";

const POLL_MS = 5000;
/** Columns that are read again: the open one, and those that may have been closed since. */
const AGAIN_SECONDS = 180;
const HOTTEST_SHOWN = 10;
const SLOW_MAX = 200;
const SPANS = /** @type {[string, string, number][]} */ ([
  ["1h", "1 h", 3600],
  ["6h", "6 h", 21600],
  ["24h", "24 h", 86400],
  ["7d", "7 d", 604800],
]);

/** Load by ranges of keys and minutes, live. */
class HeatScreen extends Screen {
  static properties = {
    ...Screen.properties,
    tables: {state: true},
    columns: {state: true},
    shapes: {state: true},
    error: {state: true},
    picked: {state: true},
    slow: {state: true},
    view: {state: true},
    until: {state: true},
  };
  static keys = /** @type {[string, string][]} */ ([
    ["+ / −", "Zoom the keys"],
    ["Shift and + / −", "Zoom the time"],
    ["Arrows", "Pan"],
    ["0", "Show everything"],
    ["Wheel", "Zoom the keys; with Shift, the time"],
    ["Double click", "Show everything"],
  ]);

  constructor() {
    super();
    /** @type {{name: string, counts: number[]}[] | null} */
    this.tables = null;
    /** @type {import("../parts/heat-cells.js").Column[] | null} */
    this.columns = null;
    /** @type {any[]} */
    this.shapes = [];
    /** @type {any} */
    this.error = null;
    /** @type {{first: string, last: string, from: number, to: number} | null} */
    this.picked = null;
    /** @type {{from: number, to: number, slow: any[]} | null} */
    this.slow = null;
    this.view = 0;
    this.until = 0;
    this.shown = "";
    /** @type {number | undefined} */
    this.timer = undefined;
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    clearTimeout(this.timer);
    this.shown = "";
  }

  get kind() {
    const kind = this.place.query.get("kind") ?? "all";
    return kind in KINDS ? kind : "all";
  }

  get span() {
    return SPANS.find(([name]) => name === this.place.query.get("span")) ?? SPANS[0];
  }

  get table() {
    return this.place.parts[0] ?? this.tables?.find((each) => each.name)?.name ?? "";
  }

  /** @param {{table?: string, kind?: string, span?: string}} change */
  show(change) {
    const {table, kind, span} = {table: this.place.parts[0], kind: this.kind, span: this.span[0], ...change};
    const query = {kind: kind === "all" ? "" : kind, span: span === SPANS[0][0] ? "" : span};
    go(to(this.account.name, "heat", table ? [table] : [], query), {replace: !change.table});
  }

  get map() {
    return /** @type {any} */ (this.querySelector("heat-map"));
  }

  willUpdate(/** @type {Map<string, unknown>} */ changed) {
    if (!changed.has("place") || !this.session.has_operations) return;
    const wanted = JSON.stringify([this.place.parts[0], this.span[0]]);
    if (wanted === this.shown) return;
    this.shown = wanted;
    this.columns = null;
    this.picked = null;
    this.slow = null;
    this.load();
  }

  async load() {
    clearTimeout(this.timer);
    const wanted = this.shown;
    const [, , span] = this.span;
    const until = Math.ceil(Date.now() / 60000) * 60;
    try {
      const tables = (await get(`${this.api}/heat`, {from: until - span, to: until})).tables;
      if (wanted !== this.shown) return;
      this.tables = tables;
      if (this.table) await this.loadColumns(until, wanted);
      else this.columns = [];
      this.error = null;
    } catch (error) {
      if (wanted !== this.shown) return;
      this.error = error;
    }
    if (this.isConnected) this.timer = setTimeout(() => this.load(), POLL_MS);
  }

  /** @param {number} until @param {string} wanted */
  async loadColumns(until, wanted) {
    const [, , span] = this.span;
    const since = until - span;
    const from = this.columns?.length ? Math.max(since, (this.columns.at(-1)?.start ?? since) - AGAIN_SECONDS) : since;
    const found = await get(`${this.api}/heat/columns`, {table: this.table, from, to: until});
    if (wanted !== this.shown) return;
    const kept = (this.columns ?? []).filter((each) => each.start >= since && each.start + each.seconds <= from);
    const known = new Set(found.columns.map((/** @type {any} */ each) => each.start));
    this.columns = [...kept.filter((each) => !known.has(each.start)), ...found.columns];
    if (from === since || found.columns.length > 1) this.shapes = from === since ? found.shapes : this.shapes;
    this.until = until;
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    const {map} = this;
    if (!map) return false;
    const by = event.key === "+" || event.key === "=" || event.key === "*" ? 1 / 1.5 : event.key === "-" || event.key === "_" ? 1.5 : 0;
    const pans = /** @type {Record<string, [number, number]>} */ ({
      ArrowUp: [0.2, 0],
      ArrowDown: [-0.2, 0],
      ArrowLeft: [0, -0.2],
      ArrowRight: [0, 0.2],
    });
    if (by && event.shiftKey) map.zoomTime(by);
    else if (by) map.zoomKeys(by);
    else if (event.key === "0") map.reset();
    else if (pans[event.key] && map.isZoomed) map.panBy(...pans[event.key]);
    else return false;
    return true;
  }

  /** @param {CustomEvent} event */
  pick(event) {
    const {row, from, to: end} = event.detail;
    this.picked = {...row, from, to: end};
    this.loadSlow(from, end);
  }

  /** @param {{first: string, last: string}} row */
  query(row) {
    return to(this.account.name, "t", [this.table], {filter: filterOf(row)});
  }

  /** @param {number} from @param {number} end */
  async loadSlow(from, end) {
    try {
      const {slow} = await get("/operations/slow", {limit: SLOW_MAX});
      const table = this.table.toLowerCase();
      const inTime = slow.filter((/** @type {any} */ each) => each.at >= from && each.at < end);
      const own = inTime.filter(
        (/** @type {any} */ each) => each.service === "tables" && each.account === this.account.name && each.object.toLowerCase().startsWith(table),
      );
      this.slow = {from, to: end, slow: own};
    } catch (error) {
      this.error = error;
    }
  }

  // Rendering

  render() {
    const hasMap = Boolean(this.columns?.length);
    return html`<header class="screen-header">
        <h1>Heat</h1>
        ${this.tables?.length
          ? html`<select aria-label="Table" @change=${(/** @type {any} */ event) => this.show({table: event.target.value})}>
              ${this.tableNames().map((name) => html`<option value=${name} ?selected=${name === this.table}>${name}</option>`)}
            </select>`
          : nothing}
        <span class="space"></span>
        ${this.session.has_operations
          ? html`<div class="choices" role="group" aria-label="What is shown">
                ${Object.entries(KINDS).map(
                  ([name, {title}]) => html`<button aria-pressed=${name === this.kind} @click=${() => this.show({kind: name})}>${title}</button>`,
                )}
              </div>
              <div class="choices" role="group" aria-label="Time shown">
                ${SPANS.map(([name, title]) => html`<button aria-pressed=${name === this.span[0]} @click=${() => this.show({span: name})}>${title}</button>`)}
              </div>`
          : nothing}
      </header>
      <div class="screen-body heat-screen">
        ${this.error ? errorPanel(this.error, {retry: () => this.load(), ...(hasMap ? {title: "The picture is not current"} : {})}) : nothing}
        ${this.content()}
      </div>`;
  }

  tableNames() {
    const names = (this.tables ?? []).map((each) => each.name).filter(Boolean);
    return this.table && !names.includes(this.table) ? [this.table, ...names] : names;
  }

  content() {
    if (!this.session.has_operations) return withoutOperations("There is no heat here");
    if (!this.columns) return this.error ? nothing : waiting();
    if (!this.columns.length) {
      return emptyState({
        icon: "heat",
        title: this.table ? `${this.table} had no requests in the last ${this.span[1]}` : `No table had requests in the last ${this.span[1]}`,
        text: html`Heat shows which keys of a table are read and written, by the minute. Send requests to a table, or choose a longer
          time. A server that was started with <code>--no-heat</code> measures none.`,
      });
    }
    const picture = this.map?.picture;
    return html`<div class="heat-frame">
        <heat-map
          .columns=${this.columns}
          .kind=${this.kind}
          .since=${this.until - this.span[2]}
          .until=${this.until}
          .picked=${this.picked}
          @pick=${this.pick}
          @row=${(/** @type {CustomEvent} */ event) => go(this.query(event.detail.row))}
          @column=${(/** @type {CustomEvent} */ event) => this.loadSlow(event.detail.from, event.detail.to)}
          @view=${() => (this.view += 1)}
        ></heat-map>
        <div class="heat-foot">
          ${picture ? scaleLegend(picture.peak, this.kind) : nothing}
          <span class="muted">Click a cell for its counts, a key for its query, a time for its slow requests.</span>
          <span class="space"></span>
          <button class="small" aria-label="Zoom in on the keys" title="Zoom in (+)" @click=${() => this.map.zoomKeys(1 / 1.5)}>${icon("plus")}</button>
          <button class="small" aria-label="Zoom out" title="Zoom out (−)" @click=${() => this.map.zoomKeys(1.5)}>${icon("minus")}</button>
          <button class="small" ?disabled=${!this.map?.isZoomed} @click=${() => this.map.reset()}>Show everything</button>
        </div>
      </div>
      ${this.pickedPanel()} ${this.slowPanel()} ${this.advice()} ${this.ranges()}`;
  }

  firstUpdated() {
    this.view += 1; // the legend needs the picture
  }

  updated() {
    // The scale follows the picture, which is drawn after this.
    if (this.map && !this.map.picture) requestAnimationFrame(() => requestAnimationFrame(() => (this.view += 1)));
  }

  pickedPanel() {
    const {picked, map} = this;
    if (!picked || !map) return nothing;
    const counts = map.countsAt(picked, picked.from, picked.to);
    return html`<section class="panel heat-picked" aria-label="The chosen cell">
      <div>${rangeText(picked)}</div>
      <div class="muted">${fullTime(picked.from)} – ${fullTime(picked.to).slice(-5)}</div>
      ${Object.entries(counts).map(([name, value]) => html`<div><span class="muted">${name}</span> <b>${value}</b></div>`)}
      <span class="space"></span>
      <a class="button" href=${this.query(picked)}>${icon("search")} Open the query of this range</a>
      <button class="plain" aria-label="Close" @click=${() => ((this.picked = null), (this.slow = null))}>${icon("close")}</button>
    </section>`;
  }

  slowPanel() {
    if (!this.slow) return nothing;
    const {from, to: end, slow} = this.slow;
    return html`<h2 class="section">Slow requests, ${fullTime(from)} – ${fullTime(end).slice(-5)}</h2>
      ${slow.length
        ? slowTable(slow, this.account.name)
        : html`<p class="muted calm">None of the last ${whole(SLOW_MAX)} slow requests is one of this table in this time.</p>`}`;
  }

  advice() {
    if (!this.shapes.length) return nothing;
    return html`<h2 class="section">What the picture shows</h2>
      <ul class="shapes">
        ${this.shapes.map(
          (each) => html`<li class="panel">
            <span class="chip warn">${each.kind}</span>
            <div>${sentence(each.evidence)} <span class="muted">${each.advice}</span></div>
          </li>`,
        )}
      </ul>`;
  }

  ranges() {
    const time = this.map?.time ?? {since: this.until - this.span[2], until: this.until};
    const found = hottest(this.columns ?? [], {...time, kind: this.kind, count: HOTTEST_SHOWN});
    if (!found.length) return nothing;
    return html`<h2 class="section">Hottest ranges</h2>
      <table class="list dense">
        <thead>
          <tr>
            <th>Keys</th><th class="number">Share</th><th class="number">${KINDS[this.kind].unit}</th><th class="number">Read</th>
            <th class="number">of which scanned</th><th class="number">Written</th><th class="number">Bytes</th><th class="actions"><span class="hidden">Actions</span></th>
          </tr>
        </thead>
        <tbody>
          ${found.map(
            (each) => html`<tr>
              <td>${rangeText(each)}</td>
              <td class="number">${(each.share * 100).toFixed(each.share < 0.1 ? 1 : 0)} %</td>
              <td class="number">${rateText(each.rate, this.kind).replace(/ .*|\/s$/, "")}</td>
              <td class="number">${whole(each.counts[0])}</td>
              <td class="number">${whole(each.counts[1])}</td>
              <td class="number">${whole(each.counts[2])}</td>
              <td class="number">${bytes(each.counts[3] + each.counts[4])}</td>
              <td class="actions"><a href=${this.query(each)}>Query</a></td>
            </tr>`,
          )}
        </tbody>
      </table>
      <p class="muted calm">Counts are sampled; they are those of the time that is shown.</p>`;
  }
}

/** @param {string} text */
function sentence(text) {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${text.endsWith(".") ? "" : "."}`;
}

customElements.define("heat-screen", HeatScreen);
