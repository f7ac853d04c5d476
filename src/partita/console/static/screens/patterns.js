// @ts-check
import {encode, get, post} from "../api.js";
import {followJob} from "../parts/follow.js";
import {counted, duration, moment, whole} from "../parts/format.js";
import {icon} from "../parts/icons.js";
import {emptyState, errorPanel, waiting} from "../parts/panels.js";
import {Screen} from "../parts/screen.js";
import {literal} from "../parts/types.js";
import {to} from "../router.js";
import {html, nothing} from "../vendor/lit.js";

const SAMPLE = 1000;
const SAMPLE_MAX = 20_000;
const STATES = /** @type {Record<string, [string, string]>} */ ({
  readable: ["good", "Complete: queries use it."],
  "write-only": ["warn", "Entities that were stored before it may be missing: run partita patterns rebuild."],
  disabled: ["", "Not maintained any more."],
});
const KINDS = /** @type {Record<string, string>} */ ({
  missing: "the entity has no row in the index",
  stale: "the row has other values than its entity",
  orphan: "the row has no entity that belongs to it",
  wrong: "the derived field has another value than its sources",
});

/** What partita.patterns keeps in a table: indexes and their states, the outbox, drift. */
class PatternsScreen extends Screen {
  static properties = {
    ...Screen.properties,
    found: {state: true},
    error: {state: true},
    outbox: {state: true},
    drift: {state: true},
    type: {state: true},
  };
  static keys = /** @type {[string, string][]} */ ([["r", "Read the states again"]]);

  constructor() {
    super();
    /** @type {{indexes: any[], swept_before: string | null, types: string[]} | null} */
    this.found = null;
    /** @type {any} */
    this.error = null;
    /** The job that looks for entries, and the one that compares. @type {any} */
    this.outbox = null;
    /** @type {any} */
    this.drift = null;
    this.type = "";
  }

  get table() {
    return this.place.parts[0] ?? "";
  }

  get path() {
    return `${this.api}/tables/${encode(this.table)}`;
  }

  /** @param {Map<string, any>} changed */
  willUpdate(changed) {
    if (!changed.has("place") || changed.get("place")?.parts[0] === this.table) return;
    this.found = this.outbox = this.drift = null;
    this.load();
  }

  async load() {
    try {
      this.error = null;
      this.found = await get(`${this.path}/patterns`);
      this.type = this.found?.types[0] ?? "";
    } catch (error) {
      this.error = error;
    }
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    if (event.key !== "r") return false;
    this.load();
    return true;
  }

  /**
   * Run a job and keep what it last said.
   * @param {"outbox" | "drift"} which
   * @param {string} path
   * @param {unknown} body
   */
  async run(which, path, body) {
    try {
      this[which] = await post(`${this.path}/${path}`, body);
      await followJob(this[which].id, (job) => (this[which] = job));
    } catch (error) {
      this[which] = {state: "failed", error, counts: {}, result: {}};
    }
  }

  render() {
    return html`<header class="screen-header">
        <h1>
          <a class="crumb" href=${to(this.account.name, "tables")}>Tables</a> <span class="crumb">/</span>
          <a href=${to(this.account.name, "t", [this.table])}>${this.table}</a> <span class="crumb">/</span> Indexes and outbox
        </h1>
        <span class="space"></span>
        <button @click=${this.load} aria-label="Read the states again" title="Read the states again (r)">${icon("refresh")}</button>
      </header>
      <div class="screen-body" tabindex="0" role="region" aria-label="Indexes and outbox">${this.content()}</div>`;
  }

  content() {
    if (this.error) return errorPanel(this.error, {retry: () => this.load()});
    if (!this.found) return waiting();
    if (!this.found.indexes.length && !this.found.types.length && !this.found.swept_before) {
      return emptyState({
        icon: "table",
        title: "partita.patterns keeps no states of indexes in this table",
        text: html`<p>Typed entities with indexes are declared in a program, and their indexes are registered by it:</p>
          <pre class="example">by_email = index(Employee, row="email_{email}", unique=True)
db.create_tables()</pre>`,
        actions: html`<a class="button" href=${to(this.account.name, "t", [this.table])}>Show the entities</a>`,
      });
    }
    return html`<div class="patterns-sections">${this.indexes()} ${this.outboxSection()} ${this.driftSection()}</div>`;
  }

  indexes() {
    const {indexes} = /** @type {NonNullable<typeof this.found>} */ (this.found);
    return html`<section>
      <h2 class="section">Indexes</h2>
      ${indexes.length
        ? html`<table class="list">
            <thead><tr><th>Type</th><th>Index</th><th>State</th><th>Meaning</th><th class="actions"><span class="hidden">Actions</span></th></tr></thead>
            <tbody>
              ${indexes.map((each) => {
                const [chip, meaning] = STATES[each.state] ?? ["", ""];
                return html`<tr>
                  <td>${each.type}</td>
                  <td class="mono">${each.index}</td>
                  <td><span class="chip ${chip}">${each.state}${each.is_rebuilding ? ", rebuilding" : ""}</span></td>
                  <td class="muted">${meaning}</td>
                  <td class="actions"><a class="button small" href=${this.rowsOf(each.table, `${each.type}@${each.index}`)}>Rows</a></td>
                </tr>`;
              })}
            </tbody>
          </table>`
        : html`<p class="muted">No index has a state here yet. A program registers its indexes with <code>db.create_tables()</code>.</p>`}
    </section>`;
  }

  /** @param {string} table @param {string} type */
  rowsOf(table, type) {
    return to(this.account.name, "t", [table], {filter: `EntityType eq ${literal("s", type)}`});
  }

  outboxSection() {
    const {swept_before} = /** @type {NonNullable<typeof this.found>} */ (this.found);
    const job = this.outbox;
    const isRunning = job?.state === "running";
    return html`<section>
      <h2 class="section">Outbox</h2>
      <p class="muted">
        Entries are work that a change left for other partitions; workers do it and remove them.
        ${swept_before ? html`A worker last swept this table: no entry from before <strong>${moment(swept_before)}</strong> UTC was left.` : "No worker has recorded a sweep of this table."}
        Looking for entries reads the keys of the whole table.
      </p>
      <p class="section-action">
        <button ?disabled=${isRunning} @click=${() => this.run("outbox", "outbox", {})}>${icon("search")} Look for entries</button>
        ${isRunning ? html`<span class="muted" role="status"><span class="spinner"></span> ${whole(job.counts.entities ?? 0)} entities read</span>` : nothing}
      </p>
      ${job?.error ? errorPanel(job.error) : nothing} ${job?.state === "done" ? this.entries(job) : nothing}
    </section>`;
  }

  /** @param {any} job */
  entries(job) {
    const {entries, is_whole} = job.result;
    if (!entries.length) return html`<p class="good-text" role="status">No entry waits. ${whole(job.counts.entities ?? 0)} entities were read.</p>`;
    return html`<p role="status"><strong>${counted(entries.length, "entry", "entries")}</strong>${is_whole ? "" : " and perhaps more"}; the oldest has waited for ${duration(entries[0].age_seconds)}. Is a worker running? <code>partita patterns worker MODULE</code></p>
      <table class="list dense">
        <thead><tr><th class="number">Waits for</th><th>Entry</th><th>Work</th></tr></thead>
        <tbody>
          ${entries.map(
            (/** @type {any} */ each) => html`<tr>
              <td class="number">${duration(each.age_seconds)}</td>
              <td class="mono"><a href=${to(this.account.name, "e", [this.table], {pk: each.partition_key, rk: each.row_key})}>${each.partition_key} / ${each.row_key}</a></td>
              <td>${each.problem ? html`<span class="bad-text">${each.problem}</span>` : each.names.map((/** @type {string} */ name) => html`<span class="chip">${name}</span> `)}</td>
            </tr>`,
          )}
        </tbody>
      </table>`;
  }

  driftSection() {
    const {types} = /** @type {NonNullable<typeof this.found>} */ (this.found);
    const job = this.drift;
    const isRunning = job?.state === "running";
    return html`<section>
      <h2 class="section">Drift</h2>
      <p class="muted">Drift is a difference between entities and what is derived from them: index rows, lists, copied and counted fields. Work that waits in the outbox looks like drift until it is done.</p>
      ${types.length
        ? html`<form
              class="section-action"
              @submit=${(/** @type {SubmitEvent} */ event) => {
                event.preventDefault();
                const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
                this.type = String(form.get("type"));
                this.run("drift", "compare", {type: this.type, sample: Number(form.get("sample"))});
              }}
            >
              <label class="field"><span>Type</span><select name="type">${types.map((name) => html`<option ?selected=${name === this.type}>${name}</option>`)}</select></label>
              <label class="field"><span>Entities, and rows of each index, at most</span><input name="sample" type="number" required min="1" max=${SAMPLE_MAX} value=${SAMPLE} /></label>
              <button ?disabled=${isRunning}>${icon("play")} Compare</button>
              ${isRunning ? html`<span class="muted" role="status"><span class="spinner"></span> ${whole(job.counts.entities ?? 0)} compared</span>` : nothing}
            </form>
            ${job?.error ? errorPanel(job.error) : nothing} ${job?.state === "done" ? this.drifts(job) : nothing}`
        : html`<p>The console needs the classes of the entities to compare them. Start it with the modules that have them, or compare on the command line:</p>
            <pre class="example">partita console --connect WHERE --types app.models
partita patterns verify app.models --connect WHERE</pre>`}
    </section>`;
  }

  /** @param {any} job */
  drifts(job) {
    const {counts, result} = job;
    const said = `${counted(counts.entities, "entity", "entities")} and ${counted(counts.rows, "index row")} were compared${result.is_whole ? ", which is everything" : ", the first ones"}.`;
    if (!result.counts.length) return html`<p class="good-text" role="status">No difference. ${said}</p>`;
    return html`<p role="status"><strong>${counted(counts.drifts, "difference")}.</strong> ${said} Repair them with <code>partita patterns verify MODULE:${this.type} --repair</code></p>
      <p>${result.counts.map((/** @type {any} */ [what, kind, count]) => html`<span class="chip warn" title=${KINDS[kind] ?? ""}>${what}: ${whole(count)} ${kind}</span> `)}</p>
      <table class="list dense">
        <thead><tr><th>Index or field</th><th>Difference</th><th>Where</th></tr></thead>
        <tbody>
          ${result.drifts.map(
            (/** @type {any} */ [what, kind, table, pk, rk]) => html`<tr>
              <td class="mono">${what}</td>
              <td><span class="chip warn">${kind}</span> <span class="muted">${KINDS[kind] ?? ""}</span></td>
              <td class="mono"><a href=${to(this.account.name, "e", [table], {pk, rk})}>${table}: ${pk} / ${rk}</a></td>
            </tr>`,
          )}
        </tbody>
      </table>`;
  }
}

customElements.define("patterns-screen", PatternsScreen);
