// @ts-check
import {get, post} from "../api.js";
import {confirmDialog, openDialog, textDialog} from "../parts/dialogs.js";
import {bytes, counted, whole} from "../parts/format.js";
import {icon} from "../parts/icons.js";
import {emptyState, errorPanel, waiting} from "../parts/panels.js";
import {Screen} from "../parts/screen.js";
import {toastError} from "../parts/toasts.js";
import {go, to} from "../router.js";
import {html, nothing, repeat, svg} from "../vendor/lit.js";

const POLL_MS = 2000;
const BAR_WIDTH = 1000;
const GAP = 1.2;
const RANGES_LISTED = 200;
const JOBS_LISTED = 5;
const JOB_KINDS = ["move", "drain"];
const COLOURS = 4;

/** A fleet: shards with their load, ranges of tables, changes; split, merge, move, drain. */
class FleetScreen extends Screen {
  static properties = {...Screen.properties, fleet: {state: true}, tasks: {state: true}, error: {state: true}};
  static keys = /** @type {[string, string][]} */ ([["r", "Read again"]]);

  constructor() {
    super();
    /** @type {any} */
    this.fleet = null;
    /** @type {any[]} the jobs of this console that change the fleet */
    this.tasks = [];
    /** @type {any} */
    this.error = null;
    /** @type {number | undefined} */
    this.timer = undefined;
  }

  connectedCallback() {
    super.connectedCallback();
    if (this.session.has_fleet) this.load();
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    clearTimeout(this.timer);
  }

  async load() {
    clearTimeout(this.timer);
    try {
      const [fleet, {jobs}] = await Promise.all([get("/fleet"), get("/jobs")]);
      this.fleet = fleet;
      this.tasks = jobs.filter((/** @type {any} */ each) => JOB_KINDS.includes(each.kind)).slice(0, JOBS_LISTED);
      this.error = null;
    } catch (error) {
      this.error = error;
    }
    clearTimeout(this.timer);
    if (this.isConnected) this.timer = setTimeout(() => this.load(), POLL_MS);
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    if (event.key !== "r") return false;
    this.load();
    return true;
  }

  get table() {
    const [account, kind, name] = this.place.parts;
    const tables = this.fleet?.tables ?? [];
    return tables.find((/** @type {any} */ each) => each.account === account && each.kind === kind && each.name === name) ?? tables[0];
  }

  get canChange() {
    return !this.session.read_only;
  }

  // Changes

  /** @param {any} range */
  async split(range) {
    const at = await textDialog({
      title: `Split range ${range.id}`,
      label: "First partition key of the second range",
      action: "Split",
      hint: `The range has the keys ${keysText(range)}. Nothing is moved; this takes some milliseconds.`,
    });
    if (at === null) return;
    const {account, name} = this.table;
    await this.change(async () => {
      const {ranges} = await post("/fleet/split", {account, table: name, at});
      return `Ranges ${ranges[0]} and ${ranges[1]} have the keys of range ${range.id} now.`;
    });
  }

  /** @param {any} range @param {any} next */
  async merge(range, next) {
    const isSure = await confirmDialog({
      title: `Merge ranges ${range.id} and ${next.id}`,
      text: html`<p>Both are on ${range.shard}. Nothing is moved; this takes some milliseconds.</p>`,
      action: "Merge",
    });
    if (!isSure) return;
    await this.change(async () => {
      const merged = await post("/fleet/merge", {first: range.id, second: next.id});
      return `Ranges ${range.id} and ${next.id} are range ${merged.range} now.`;
    });
  }

  /** @param {any} range */
  async move(range) {
    const others = this.fleet.shards.filter((/** @type {any} */ each) => each.name !== range.shard && each.state === "open" && !each.problem);
    const target = await openDialog(
      `Move range ${range.id}`,
      ({close}) => html`<form
        @submit=${(/** @type {SubmitEvent} */ event) => {
          event.preventDefault();
          const form = /** @type {HTMLFormElement} */ (event.target);
          close(/** @type {HTMLSelectElement} */ (form.elements.namedItem("shard")).value);
        }}
      >
        <div class="body">
          <p>${this.table.kind === "queue" ? "The messages" : `The keys ${keysText(range)}`} of ${this.table.name} are copied while clients work; then their requests wait for some milliseconds.</p>
          <label class="field"><span>Shard that gets it</span>
            <select name="shard" autofocus>
              ${others.map((/** @type {any} */ each) => html`<option value=${each.name}>${each.name}, ${percent(each.part)} of its capacity</option>`)}
            </select></label>
        </div>
        <footer>
          <button type="button" @click=${() => close()}>Cancel</button>
          <button class="primary" ?disabled=${!others.length}>Move</button>
        </footer>
      </form>`,
    );
    if (target) await this.start("/fleet/move", {range: range.id, to: target});
  }

  /** @param {any} shard */
  async drain(shard) {
    const isSure = await confirmDialog({
      title: `Drain ${shard.name}`,
      text: html`<p>${counted(shard.ranges, "range")} of ${shard.name} are moved to the other shards, one after the other, and it gets no new ones.</p>`,
      action: "Drain",
      danger: true,
      typed: shard.name,
    });
    if (isSure) await this.start(`/fleet/shards/${encodeURIComponent(shard.name)}/drain`, {confirm: shard.name});
  }

  /** @param {string} path @param {unknown} body */
  async start(path, body) {
    await this.change(async () => `${(await post(path, body)).title}: started.`);
  }

  /** @param {string} id */
  async cancel(id) {
    try {
      await post(`/jobs/${id}/cancel`, {});
    } catch (error) {
      toastError(error);
    }
    await this.load();
  }

  // Rendering

  render() {
    const tables = this.fleet?.tables ?? [];
    return html`<header class="screen-header">
        <h1>Fleet</h1>
        ${this.fleet ? html`<span class="muted mono">${this.fleet.catalog}</span>` : nothing}
        <span class="space"></span>
        ${tables.length > 1
          ? html`<select aria-label="Table or queue" @change=${(/** @type {any} */ event) => this.choose(event.target.selectedIndex)}>
              ${tables.map((/** @type {any} */ each) => html`<option ?selected=${each === this.table}>${each.name} (${each.kind === "queue" ? "queue of " : ""}${each.account})</option>`)}
            </select>`
          : nothing}
        ${this.session.has_fleet ? html`<button @click=${this.load} aria-label="Read again" title="Read again (r)">${icon("refresh")}</button>` : nothing}
      </header>
      <div class="screen-body" tabindex="0" role="region" aria-label="Shards and ranges">${this.content()}</div>`;
  }

  /** @param {number} at */
  choose(at) {
    const {account, kind, name} = this.fleet.tables[at];
    go(to(this.account.name, "fleet", [account, kind, name]));
  }

  content() {
    if (!this.session.has_fleet) {
      return emptyState({
        icon: "fleet",
        title: "No fleet is shown here",
        text: html`<p>Start a console with the URL of the catalog, as a role that owns its schema:</p>
          <pre class="example">partita console --fleet postgresql://postgres@catalog/partita</pre>`,
      });
    }
    if (this.error && !this.fleet) return errorPanel(this.error, {retry: () => this.load()});
    if (!this.fleet) return waiting("Reading the catalog…");
    return html`${this.error ? errorPanel(this.error, {title: "The values are not current"}) : nothing} ${this.shards()} ${this.changes()} ${this.ranges()} ${this.advice()}`;
  }

  shards() {
    return html`<table class="list dense">
      <thead>
        <tr><th>Shard</th><th>State</th><th class="number">Ranges</th><th class="number">Size</th><th>Load</th><th class="number">Reads/s</th><th><span class="hidden">Actions</span></th></tr>
      </thead>
      <tbody>
        ${repeat(
          this.fleet.shards,
          (/** @type {any} */ each) => each.name,
          (/** @type {any} */ each, at) => html`<tr>
            <td><i class="legend-key shard-${at % COLOURS}"></i> <strong>${each.name}</strong> <span class="muted mono">${each.url}</span>
              ${each.problem ? html`<div class="bad-text">${each.problem}</div>` : nothing}</td>
            <td><span class="chip ${each.problem ? "bad" : each.state === "open" ? "good" : "warn"}">${each.problem ? "away" : each.state}</span></td>
            <td class="number">${whole(each.ranges)}</td>
            <td class="number">${each.bytes === null ? "" : bytes(each.bytes)}</td>
            <td><progress max="1" value=${Math.min(1, each.part)} aria-label=${`Load of ${each.name}`}></progress> ${percent(each.part)}</td>
            <td class="number">${whole(Math.round(each.load))}</td>
            <td class="actions">
              ${this.canChange && each.state === "open" ? html`<button class="small" aria-label=${`Drain ${each.name}`} @click=${() => this.drain(each)}>Drain…</button>` : nothing}
            </td>
          </tr>`,
        )}
      </tbody>
    </table>`;
  }

  changes() {
    const {changes, steps} = this.fleet;
    if (!changes.length && !this.tasks.length) return nothing;
    return html`<h2 class="section">Changes</h2>
      <table class="list dense" aria-label="Changes">
        <thead><tr><th>What</th><th>State</th><th>Step</th><th>Entities</th><th><span class="hidden">Actions</span></th></tr></thead>
        <tbody>
          ${changes.map(
            (/** @type {any} */ each) => html`<tr>
              <td>${each.kind} ${each.ranges.length ? `range ${each.ranges.join(" and ")}` : ""} <span class="muted">${each.table}</span>
                <div class="muted">${each.shards.join(" → ")}</div>
                ${each.error ? html`<div class="bad-text">${each.error}</div>` : nothing}</td>
              <td><span class="chip ${each.is_running ? "info" : "warn"}">${each.is_running ? "running" : "left"}</span></td>
              <td>${each.step_number
                ? html`<span class="steps" aria-hidden="true">${steps.map((/** @type {string} */ _, /** @type {number} */ n) => html`<i class=${n + 1 < each.step_number ? "past" : n + 1 === each.step_number ? "here" : ""}></i>`)}</span> ${each.step.replaceAll("_", " ")}, ${each.step_number} of ${steps.length}`
                : each.step}</td>
              <td>${copied(each)}</td>
              <td></td>
            </tr>`,
          )}
          ${this.tasks.map(
            (each) => html`<tr>
              <td>${each.title} <span class="muted">by this console</span>
                ${each.error ? html`<div class="bad-text">${each.error.message} <code>${each.error.code}</code></div>` : nothing}</td>
              <td><span class="chip ${each.state}">${each.state}</span></td>
              <td>${each.note}</td>
              <td>${each.counts.entities ? whole(each.counts.entities) : nothing}</td>
              <td class="actions">${each.state === "running" ? html`<button class="small" @click=${() => this.cancel(each.id)}>${icon("stop")} Cancel</button>` : nothing}</td>
            </tr>`,
          )}
        </tbody>
      </table>`;
  }

  ranges() {
    const {table} = this;
    if (!table) return html`<h2 class="section">Ranges</h2><p class="muted calm">No table has been created yet.</p>`;
    const colours = new Map(this.fleet.shards.map((/** @type {any} */ each, /** @type {number} */ at) => [each.name, at % COLOURS]));
    const shown = table.ranges.slice(0, RANGES_LISTED);
    const width = BAR_WIDTH / table.ranges.length;
    return html`<h2 class="section">Ranges of ${table.name} <span class="muted">in ${table.account}</span></h2>
      <div class="panel shard-bars" aria-hidden="true">
        <svg class="range-bar" viewBox="0 0 ${BAR_WIDTH} 22" preserveAspectRatio="none">
          ${table.ranges.map(
            (/** @type {any} */ each, /** @type {number} */ at) => svg`<rect class="shard-${colours.get(each.shard) ?? 0} ${each.state === "open" ? "" : "changing"}" x=${at * width + GAP / 2} y="0" width=${Math.max(1.5, width - GAP)} height="22"><title>${each.id}: ${keysText(each)}, ${each.shard}</title></rect>`,
          )}
        </svg>
        <p class="bar-legend muted">
          ${this.fleet.shards.map((/** @type {any} */ each, /** @type {number} */ at) => html`<span><i class="legend-key shard-${at % COLOURS}"></i> ${each.name}</span>`)}
          <span class="space"></span><span>keys from left to right</span>
        </p>
      </div>
      <table class="list dense" aria-label="Ranges">
        <thead><tr><th>Range</th><th>From</th><th>Before</th><th>Shard</th><th class="number">Reads/s</th><th class="number">Of a shard</th><th>Hot partition</th><th><span class="hidden">Actions</span></th></tr></thead>
        <tbody>
          ${repeat(
            shown,
            (/** @type {any} */ each) => each.id,
            (/** @type {any} */ each, at) => html`<tr>
              <td>${each.id} ${each.state === "open" ? nothing : html`<span class="chip warn">${each.state}</span>`}</td>
              <td class="mono">${each.lower}</td>
              <td class="mono">${each.upper ?? ""}</td>
              <td>${each.shard}</td>
              <td class="number">${whole(Math.round(each.load))}</td>
              <td class="number">${percent(each.part)}</td>
              <td class="mono">${each.hot_key ?? ""}</td>
              <td class="actions">${this.actions(each, table.ranges[at + 1])}</td>
            </tr>`,
          )}
        </tbody>
      </table>
      ${this.fleet.ranges_count > shown.length ? html`<p class="muted calm">${whole(shown.length)} of the ${counted(this.fleet.ranges_count, "range")} of the fleet; <code>partita fleet ranges</code> lists all.</p>` : nothing}`;
  }

  /** @param {any} range @param {any} [next] */
  actions(range, next) {
    if (!this.canChange || range.state !== "open") return nothing;
    return html`${this.table.kind === "table" ? html`<button class="small" aria-label=${`Split range ${range.id}`} @click=${() => this.split(range)}>Split…</button>` : nothing}
      <button class="small" aria-label=${`Move range ${range.id}`} @click=${() => this.move(range)}>Move…</button>
      ${next && next.shard === range.shard ? html`<button class="small" aria-label=${`Merge range ${range.id} with the next`} @click=${() => this.merge(range, next)}>Merge with the next…</button>` : nothing}`;
  }

  advice() {
    const {advice} = this.fleet;
    return html`<h2 class="section">What the balancer would do</h2>
      ${advice.length
        ? html`<ul class="shapes">
            ${advice.map((/** @type {any} */ each) => html`<li class="panel">
              <span class="chip ${each.kind === "action" ? "info" : "warn"}">${each.kind}</span>
              <span>${each.title ? html`<strong>${each.title}</strong>: ` : nothing}${each.reason}</span>
            </li>`)}
          </ul>`
        : html`<p class="muted calm">Nothing is to be done.</p>`}`;
  }
}

/** @param {number} part */
function percent(part) {
  return `${Math.round(part * 100)} %`;
}

/** @param {any} range */
function keysText(range) {
  if (!range.lower && range.upper === null) return "all";
  return `${range.lower ? `from ${range.lower}` : ""}${range.upper === null ? "" : ` before ${range.upper}`}`.trim();
}

/** @param {any} change */
function copied(change) {
  if (change.entities === null) return nothing;
  if (!change.entities_total) return whole(change.entities);
  const total = Math.max(change.entities, change.entities_total);
  return html`<progress max=${Math.max(1, total)} value=${change.entities} aria-label="Entities copied"></progress> ${whole(change.entities)}`;
}

customElements.define("fleet-screen", FleetScreen);
