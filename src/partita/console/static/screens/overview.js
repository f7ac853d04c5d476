// @ts-check
import {get} from "../api.js";
import "../parts/curve.js";
import {bytes, counted, duration, whole} from "../parts/format.js";
import {icon} from "../parts/icons.js";
import {emptyState, errorPanel, waiting} from "../parts/panels.js";
import {operationsOf, readings} from "../parts/rates.js";
import {Screen} from "../parts/screen.js";
import {slowTable} from "../parts/slow.js";
import {go, to} from "../router.js";
import {html, nothing} from "../vendor/lit.js";

const SLOW_SHOWN = 200;
const SLOW_FIRST = 8;
const SLOW_MS = 3000;
const OPERATIONS_SHOWN = 12;
const WINDOWS = /** @type {[string, string, number][]} */ ([
  ["2m", "2 min", 120],
  ["10m", "10 min", 600],
  ["30m", "30 min", 1800],
]);
const SERVICES = [
  {name: "tables", colour: "series-1"},
  {name: "queues", colour: "series-2"},
  {name: "blobs", colour: "series-3"},
];

/** Rates, latencies, sizes and slow requests of the server, live. */
class OverviewScreen extends Screen {
  static properties = {...Screen.properties, tick: {state: true}, slow: {state: true}, isPaused: {state: true}, isWhole: {state: true}, isBySlowness: {state: true}};
  static keys = /** @type {[string, string][]} */ ([
    ["p", "Pause or continue"],
    ["1 – 3", "Show 2, 10 or 30 minutes"],
  ]);

  constructor() {
    super();
    this.tick = 0;
    /** @type {any[] | null} */
    this.slow = null;
    this.isPaused = false;
    this.isWhole = false;
    this.isBySlowness = false;
    /** @type {number | undefined} */
    this.timer = undefined;
    this.onReading = () => {
      if (!this.isPaused) this.tick += 1;
    };
  }

  connectedCallback() {
    super.connectedCallback();
    if (!this.session.has_operations) return;
    readings.addEventListener("reading", this.onReading);
    readings.start();
    this.loadSlow();
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    if (!this.session.has_operations) return;
    readings.removeEventListener("reading", this.onReading);
    readings.stop();
    clearTimeout(this.timer);
  }

  async loadSlow() {
    try {
      if (!this.isPaused) this.slow = (await get("/operations/slow", {limit: SLOW_SHOWN})).slow;
    } catch {
      // The error of the readings is shown; this one has the same cause.
    }
    clearTimeout(this.timer);
    if (this.isConnected) this.timer = setTimeout(() => this.loadSlow(), SLOW_MS);
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    if (event.key === "p") this.isPaused = !this.isPaused;
    else if ("123".includes(event.key)) this.choose(WINDOWS[Number(event.key) - 1][0]);
    else return false;
    return true;
  }

  /** @param {string} name */
  choose(name) {
    go(to(this.account.name, "overview", [], {window: name === WINDOWS[0][0] ? "" : name}), {replace: true});
  }

  get window() {
    return WINDOWS.find(([name]) => name === this.place.query.get("window")) ?? WINDOWS[0];
  }

  render() {
    const {now} = readings;
    return html`<header class="screen-header">
        <h1>Overview</h1>
        ${now
          ? html`<span class="muted">Partita ${now.version}, up ${duration(now.uptime_seconds)}</span>`
          : nothing}
        <span class="space"></span>
        ${this.session.has_operations
          ? html`<div class="choices" role="group" aria-label="Time shown">
                ${WINDOWS.map(
                  ([name, title]) => html`<button aria-pressed=${name === this.window[0]} @click=${() => this.choose(name)}>${title}</button>`,
                )}
              </div>
              <button aria-pressed=${this.isPaused} @click=${() => (this.isPaused = !this.isPaused)}>
                ${icon(this.isPaused ? "play" : "pause")} ${this.isPaused ? "Paused" : "Pause"}
              </button>`
          : nothing}
      </header>
      <div class="screen-body">${this.content()}</div>`;
  }

  content() {
    if (!this.session.has_operations) return withoutOperations("There are no metrics here");
    if (!readings.now) return readings.error ? errorPanel(readings.error) : waiting("Reading the first values…");
    return html`${readings.error ? errorPanel(readings.error, {title: "The values are not current"}) : nothing}
      ${this.tiles()} ${this.curves()}
      <div class="section-line">
        <h2 class="section">Slow requests</h2>
        ${this.slow?.length
          ? html`<div class="choices" role="group" aria-label="Order">
              <button class="small" aria-pressed=${!this.isBySlowness} @click=${() => (this.isBySlowness = false)}>Newest</button>
              <button class="small" aria-pressed=${this.isBySlowness} @click=${() => (this.isBySlowness = true)}>Slowest</button>
            </div>`
          : nothing}
      </div>
      ${this.slowRequests()}
      <h2 class="section">Operations</h2>
      ${this.operations()}`;
  }

  tiles() {
    const {now} = readings;
    const point = readings.points.at(-1);
    const sum = (/** @type {Record<string, number>} */ of) => Object.values(of ?? {}).reduce((total, each) => total + (each ?? 0), 0);
    const total = sum(point?.requests);
    const errors = sum(point?.errors);
    const connections = sum(/** @type {any} */ (Object.fromEntries(Object.entries(now.services).map(([name, each]) => [name, /** @type {any} */ (each).connections]))));
    const trouble = [
      now.store.sync_failures_total && `${counted(now.store.sync_failures_total, "sync failure")}`,
      now.throttled_total && `${whole(now.throttled_total)} throttled`,
      now.refused_signatures_total && `${counted(now.refused_signatures_total, "refused signature")}`,
      now.log_dropped_total && `${counted(now.log_dropped_total, "dropped log line")}`,
      now.loop.long_turns_total && `${counted(now.loop.long_turns_total, "long turn")} of the loop, longest ${seconds(now.loop.longest_turn_seconds)}`,
    ].filter(Boolean);
    return html`<dl class="tiles">
        ${tile("Requests", rate(total), "per second")}
        ${tile("Errors", rate(errors), "per second", errors > 0 ? "warn-text" : "")}
        ${tile("Latency p50", seconds(point?.p50), "last 10 s")}
        ${tile("Latency p99", seconds(point?.p99), "last 10 s")}
        ${tile("Commit p99", seconds(point?.commit99), `${whole(now.store.queue_length)} waiting`)}
        ${tile("Store", bytes(now.store.store_bytes), `WAL ${bytes(now.store.wal_bytes)}`)}
        ${tile("Connections", whole(connections), "open")}
      </dl>
      ${trouble.length ? html`<p class="since-start"><span class="muted">Since the start:</span> ${trouble.map((each) => html`<span class="chip warn">${each}</span>`)}</p>` : nothing}`;
  }

  curves() {
    const [, , span] = this.window;
    const end = readings.now.at;
    const points = readings.points.filter((each) => each.at >= end - span);
    const times = points.map((each) => each.at);
    const of = (/** @type {((each: any) => number | null)[]} */ ...from) => [times, ...from.map((value) => points.map(value))];
    const named = SERVICES.filter((each) => readings.now.services[each.name]);
    const services = named.map((each) => ({label: each.name, colour: each.colour, isFilled: true}));
    const by = (/** @type {string} */ field) => of(...named.map((each) => (/** @type {any} */ point) => point[field][each.name]));
    return html`<div class="curves">
      <live-curve .heading=${"Requests per second"} .series=${services} .values=${by("requests")} .format=${rate}></live-curve>
      <live-curve
        .heading=${"Latency"}
        .series=${[{label: "p50", colour: "series-1"}, {label: "p99", colour: "series-4"}]}
        .values=${of((each) => each.p50, (each) => each.p99)}
        .format=${seconds}
      ></live-curve>
      <live-curve .heading=${"Errors per second"} .series=${services} .values=${by("errors")} .format=${rate}></live-curve>
      <live-curve
        .heading=${"Commit"}
        .series=${[{label: "p50", colour: "series-1"}, {label: "p99", colour: "series-4"}, {label: "wait p99", colour: "series-2"}]}
        .values=${of((each) => each.commit50, (each) => each.commit99, (each) => each.queue99)}
        .format=${seconds}
      ></live-curve>
      <live-curve
        .heading=${"Files"}
        .series=${[{label: "store", colour: "series-1", isFilled: true}, {label: "WAL", colour: "series-2"}]}
        .values=${of((each) => each.store, (each) => each.wal)}
        .format=${bytes}
        .steps=${"binary"}
      ></live-curve>
      <live-curve .heading=${"Connections"} .series=${services.map((each) => ({...each, isFilled: false}))} .values=${by("connections")} .format=${(/** @type {number} */ value) => whole(Math.round(value * 10) / 10)}></live-curve>
    </div>`;
  }

  slowRequests() {
    if (!this.slow) return waiting();
    if (!this.slow.length) {
      return html`<p class="muted calm">No request was slow since the start. The limit is <code>--slow-ms</code>, 100 ms by default.</p>`;
    }
    const slow = this.isBySlowness ? [...this.slow].sort((one, other) => other.ms - one.ms) : this.slow;
    const shown = this.isWhole ? slow : slow.slice(0, SLOW_FIRST);
    return html`${slowTable(shown, this.account.name)}
      ${slow.length > shown.length ? html`<p class="calm"><button class="small" @click=${() => (this.isWhole = true)}>Show all ${whole(slow.length)}</button></p>` : nothing}`;
  }

  operations() {
    const found = operationsOf(readings.answers).slice(0, OPERATIONS_SHOWN);
    if (!found.length) return html`<p class="muted calm">No request since the start.</p>`;
    return html`<table class="list dense">
      <thead>
        <tr>
          <th>Service</th><th>Operation</th><th class="number">Per second</th><th class="number">p50</th><th class="number">p99</th>
          <th class="number">Since the start</th><th class="number">Errors</th>
        </tr>
      </thead>
      <tbody>
        ${found.map(
          (each) => html`<tr>
            <td class="muted">${each.service}</td>
            <td>${each.name}</td>
            <td class="number">${each.rate ? rate(each.rate) : "–"}</td>
            <td class="number">${seconds(each.p50)}</td>
            <td class="number">${seconds(each.p99)}</td>
            <td class="number">${whole(each.total)}</td>
            <td class="number ${each.errors ? "warn-text" : "muted"}">${whole(each.errors)}</td>
          </tr>`,
        )}
      </tbody>
    </table>`;
  }
}

/** @param {string} title */
export function withoutOperations(title) {
  return emptyState({
    icon: "gauge",
    title,
    text: html`<p>They come from the server itself. Start the console beside it:</p>
      <pre class="example">partita serve --console</pre>
      <p>or let this console ask a server that was started with <code>--metrics-port 10004</code>:</p>
      <pre class="example">partita console --connect … --metrics http://127.0.0.1:10004 \\
  --metrics-token-file operations.token</pre>
      <p>Other accounts, such as those of Azure, have no such endpoint.</p>`,
  });
}

/** @param {string} name @param {unknown} value @param {string} note @param {string} [kind] */
function tile(name, value, note, kind = "") {
  return html`<div class="tile"><dt>${name}</dt><dd class=${kind}>${value}</dd><dd class="note">${note}</dd></div>`;
}

/** @param {number} value */
export function rate(value) {
  if (value >= 100) return whole(Math.round(value));
  return value >= 10 || value === 0 ? value.toFixed(0) : value.toFixed(1);
}

/** @param {number | null | undefined} value */
export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  if (value < 0.001) return `${Math.round(value * 1e6)} µs`;
  if (value < 0.1) return `${Number((value * 1000).toFixed(1))} ms`;
  return value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(1)} s`;
}

customElements.define("overview-screen", OverviewScreen);
