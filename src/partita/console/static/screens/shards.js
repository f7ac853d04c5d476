// @ts-check
import {get} from "../api.js";
import {counted, duration, whole} from "../parts/format.js";
import {icon} from "../parts/icons.js";
import {emptyState, errorPanel, waiting} from "../parts/panels.js";
import {Screen} from "../parts/screen.js";
import {go, to} from "../router.js";
import {html, nothing, svg} from "../vendor/lit.js";

const POLL_MS = 2000;
const BAR_WIDTH = 1000;
const GAP = 1.2;
const MAPPINGS_LISTED = 200;
const JOB_CHIPS = /** @type {Record<string, string>} */ ({done: "good", running: "info", failed: "bad", paused: "warn", cancelling: "warn"});

/** Shard maps: mappings as bars by shard, and jobs with their progress. */
class ShardsScreen extends Screen {
  static properties = {...Screen.properties, catalog: {state: true}, error: {state: true}};
  static keys = /** @type {[string, string][]} */ ([["r", "Read again"]]);

  constructor() {
    super();
    /** @type {any} */
    this.catalog = null;
    /** @type {any} */
    this.error = null;
    /** @type {number | undefined} */
    this.timer = undefined;
  }

  connectedCallback() {
    super.connectedCallback();
    if (this.session.has_shards) this.load();
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    clearTimeout(this.timer);
  }

  async load() {
    clearTimeout(this.timer);
    try {
      this.catalog = await get("/shards");
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

  get map() {
    const name = this.place.parts[0];
    return this.catalog?.maps.find((/** @type {any} */ each) => each.name === name) ?? this.catalog?.maps[0];
  }

  render() {
    const maps = this.catalog?.maps ?? [];
    return html`<header class="screen-header">
        <h1>Shard maps</h1>
        ${this.catalog ? html`<span class="muted mono" title=${this.catalog.location}>${placeText(this.catalog.location)}</span>` : nothing}
        <span class="space"></span>
        ${maps.length > 1
          ? html`<select aria-label="Shard map" @change=${(/** @type {any} */ event) => go(to(this.account.name, "shards", [event.target.value]))}>
              ${maps.map((/** @type {any} */ each) => html`<option ?selected=${each === this.map}>${each.name}</option>`)}
            </select>`
          : nothing}
        ${this.session.has_shards ? html`<button @click=${this.load} aria-label="Read again" title="Read again (r)">${icon("refresh")}</button>` : nothing}
      </header>
      <div class="screen-body" tabindex="0" role="region" aria-label="Shards and mappings">${this.content()}</div>`;
  }

  content() {
    if (!this.session.has_shards) {
      return emptyState({
        icon: "shards",
        title: "No catalog of shard maps is shown here",
        text: html`<p>Start a console with the URL of the catalog:</p>
          <pre class="example">partita console --shards postgresql+psycopg://localhost/catalog
partita console --shards sqlite:///catalog.db</pre>`,
      });
    }
    if (this.error && !this.catalog) return errorPanel(this.error, {retry: () => this.load()});
    if (!this.catalog) return waiting("Reading the catalog…");
    const {map} = this;
    if (!map) {
      return emptyState({
        icon: "shards",
        title: "The catalog has no shard map yet",
        text: html`Create one:
          <pre class="example">partita shards create-map tenants --kind hash --key int</pre>`,
      });
    }
    return html`${this.error ? errorPanel(this.error, {title: "The values are not current"}) : nothing} ${this.facts(map)} ${this.bars(map)} ${this.jobs()} ${this.mappings(map)}`;
  }

  /** @param {any} map */
  facts(map) {
    const sharded = Object.entries(map.sharded);
    const offline = map.mappings.filter((/** @type {any} */ each) => each.status !== "online").length;
    return html`<p class="map-facts">
      <strong>${map.name}</strong>
      <span class="chip">${map.kind}${map.buckets ? ` of ${whole(map.buckets)} buckets` : ""}</span>
      <span>key <code>${map.key}</code></span>
      <span>${counted(map.shards.length, "shard")}</span>
      <span>${counted(map.mappings_count, "mapping")}</span>
      ${offline ? html`<span class="chip bad">${counted(offline, "mapping")} offline</span>` : nothing}
      ${sharded.length ? html`<span class="muted">sharded: ${sharded.map(([name, by]) => `${name} by ${/** @type {string[]} */ (by).join(" + ")}`).join(", ")}</span>` : nothing}
      ${map.reference.length ? html`<span class="muted">reference: ${map.reference.join(", ")}</span>` : nothing}
    </p>`;
  }

  /** @param {any} map */
  bars(map) {
    if (!map.shards.length) return html`<p class="muted calm">The map has no shards. Add one with <code>partita shards add</code>.</p>`;
    return html`<div class="panel shard-bars" role="list" aria-label="Mappings by shard">
        ${map.shards.map((/** @type {any} */ shard) => {
          const own = map.mappings.filter((/** @type {any} */ each) => each.shard === shard.id);
          return html`<div class="shard-bar" role="listitem" aria-label=${`${shard.name}: ${counted(shard.mappings, "mapping")}, ${shard.status}`}>
            <span class="shard-name" title=${shard.location}>${shard.name}</span>
            <svg viewBox="0 0 ${BAR_WIDTH} 22" preserveAspectRatio="none" aria-hidden="true">
              <rect class="track" x="0" y="0" width=${BAR_WIDTH} height="22"></rect>
              ${own.map((/** @type {any} */ each) => {
                const width = Math.max(1.5, (each.end - each.start) * BAR_WIDTH - GAP);
                const kind = each.status !== "online" ? "offline" : each.is_locked ? "locked" : "online";
                return svg`<rect class=${kind} x=${each.start * BAR_WIDTH + GAP / 2} y="0" width=${width} height="22"><title>${each.range}, ${each.status}${each.is_locked ? ", locked by a job" : ""}</title></rect>`;
              })}
            </svg>
            <span class="number">${whole(shard.mappings)}</span>
            <span class="chip ${shard.status === "online" ? "good" : "bad"}">${shard.status}</span>
          </div>`;
        })}
        <p class="bar-legend muted">
          <span><i class="legend-key online"></i> online</span> <span><i class="legend-key locked"></i> locked by a job</span> <span><i class="legend-key offline"></i> offline</span>
          <span class="space"></span>
          <span>${map.kind === "hash" ? "buckets from left to right" : "keys from left to right"}</span>
        </p>
      </div>
      ${map.mappings_count > map.mappings.length ? html`<p class="muted calm">The first ${whole(map.mappings.length)} of ${whole(map.mappings_count)} mappings are drawn.</p>` : nothing}`;
  }

  jobs() {
    const {jobs, steps} = this.catalog;
    return html`<h2 class="section">Jobs</h2>
      ${jobs.length
        ? html`<table class="list dense">
            <thead>
              <tr><th>Job</th><th>What</th><th>State</th><th>Step</th><th>Rows</th><th class="number">Offline</th><th>Started</th><th>Changed</th></tr>
            </thead>
            <tbody>
              ${jobs.map(
                (/** @type {any} */ each) => html`<tr>
                  <td><code title=${each.id}>${each.id.slice(0, 8)}</code></td>
                  <td>
                    ${each.kind.replaceAll("_", " ")} <b>${each.subject}</b> <span class="muted">in ${each.map}</span>
                    ${each.source ? html`<div class="muted">${each.source} → ${each.target}</div>` : nothing}
                    ${each.error ? html`<div class="bad-text">${each.error}</div>` : nothing}
                  </td>
                  <td><span class="chip ${JOB_CHIPS[each.state] ?? ""}">${each.state}</span></td>
                  <td>${each.step_number ? html`<span class="steps" aria-hidden="true">${steps.map((/** @type {string} */ _, /** @type {number} */ n) => html`<i class=${each.state === "done" || n + 1 < each.step_number ? "past" : n + 1 === each.step_number ? "here" : ""}></i>`)}</span> ${each.state === "done" ? "all" : `${each.step.replaceAll("_", " ")}, ${each.step_number} of ${steps.length}`}` : each.step}</td>
                  <td>${progress(each)}</td>
                  <td class="number">${each.fence_seconds ? duration(each.fence_seconds) : ""}</td>
                  <td class="when">${moment(each.made_at)}</td>
                  <td class="when">${moment(each.changed_at)}</td>
                </tr>`,
              )}
            </tbody>
          </table>`
        : html`<p class="muted calm">There were no jobs. A move is started with <code>partita shards move</code>.</p>`}`;
  }

  /** @param {any} map */
  mappings(map) {
    const shown = map.mappings.slice(0, MAPPINGS_LISTED);
    if (!shown.length) return html`<h2 class="section">Mappings</h2><p class="muted calm">No key is mapped to a shard yet.</p>`;
    const names = new Map(map.shards.map((/** @type {any} */ each) => [each.id, each.name]));
    return html`<h2 class="section">Mappings</h2>
      <table class="list dense">
        <thead><tr><th>${map.kind === "hash" ? "Buckets" : "Keys"}</th><th>Shard</th><th>Status</th></tr></thead>
        <tbody>
          ${shown.map(
            (/** @type {any} */ each) => html`<tr>
              <td class="mono">${each.range}</td>
              <td>${names.get(each.shard)}</td>
              <td><span class="chip ${each.status === "online" ? "good" : "bad"}">${each.status}</span> ${each.is_locked ? html`<span class="chip warn">locked by a job</span>` : nothing}</td>
            </tr>`,
          )}
        </tbody>
      </table>
      ${map.mappings_count > shown.length ? html`<p class="muted calm">The first ${whole(shown.length)} of ${whole(map.mappings_count)}; <code>partita shards mappings</code> lists all.</p>` : nothing}`;
  }
}

/** @param {any} job */
function progress(job) {
  if (!job.rows_total && !job.rows) return nothing;
  const text = job.rows_total ? `${whole(job.rows)} of ${whole(Math.max(job.rows, job.rows_total))}` : whole(job.rows);
  return html`<progress max=${Math.max(1, job.rows, job.rows_total)} value=${job.rows} aria-label="Rows copied"></progress> ${text}`;
}

/** @param {string | null} text */
function moment(text) {
  return text ? text.slice(0, 19).replace("T", " ") : "";
}

/** Shorten the path of a file to its name. @param {string} location */
function placeText(location) {
  return location.startsWith("sqlite") ? location.slice(location.lastIndexOf("/") + 1) : location;
}

customElements.define("shards-screen", ShardsScreen);
