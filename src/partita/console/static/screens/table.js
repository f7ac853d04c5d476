// @ts-check
import {encode, get, post} from "../api.js";
import {priceText, readPrices} from "../parts/cost.js";
import {confirmDialog, openDialog} from "../parts/dialogs.js";
import "../parts/editor.js";
import "../parts/filter-input.js";
import {followJob} from "../parts/follow.js";
import {bytes, counted, duration, whole} from "../parts/format.js";
import "../parts/grid.js";
import {keyOf} from "../parts/grid.js";
import {icon} from "../parts/icons.js";
import {Pages} from "../parts/pages.js";
import {emptyState, errorPanel} from "../parts/panels.js";
import {hasPatterns, noteOf} from "../parts/patterns.js";
import "../parts/plan-line.js";
import "../parts/query-builder.js";
import {Screen} from "../parts/screen.js";
import {reviewGroups} from "../parts/staging.js";
import {toast, toastError} from "../parts/toasts.js";
import {exportDialog, importDialog} from "../parts/transfer.js";
import {literal} from "../parts/types.js";
import {go, to} from "../router.js";
import {html, nothing} from "../vendor/lit.js";

const PLAN_DELAY_MS = 200;
const VALUES_MAX = 8;

/** One table: filter, plan, grid, entity, staged changes. */
class TableScreen extends Screen {
  static properties = {
    ...Screen.properties,
    filter: {state: true},
    plan: {state: true},
    question: {state: true},
    staged: {state: true},
    count: {state: true},
    isBuilding: {state: true},
    tick: {state: true},
  };
  static keys = /** @type {[string, string][]} */ ([
    ["/", "Edit the filter"],
    ["Ctrl+Enter", "Run the filter"],
    ["b", "Show the conditions of the filter as fields"],
    ["g", "Go to a key"],
    ["Arrows", "Move in the grid"],
    ["Enter", "Open the entity"],
    ["Space", "Select the entity"],
    ["f", "Filter by the value of the cell"],
    ["n", "New entity"],
    ["d", "Stage the deletion of the selected entities"],
    ["r", "Read again"],
  ]);

  constructor() {
    super();
    this.filter = "";
    /** @type {any} */
    this.plan = null;
    /** The filter that waits for an answer, because it may read the whole table. */
    this.question = "";
    /** @type {Map<string, any>} */
    this.staged = new Map();
    /** @type {any} */
    this.count = null;
    this.isBuilding = false;
    /** The number of entities of the table, once it was counted or read to its end. @type {number | null} */
    this.total = null;
    this.tick = 0;
    /** @type {Pages | null} */
    this.pages = null;
    this.shown = "";
    /** Filters that the user agreed to scan for. @type {Set<string>} */
    this.agreed = new Set();
    /** @type {number | undefined} */
    this.timer = undefined;
    /** @type {any} */
    this.target = null;
  }

  // The address

  get table() {
    return this.place.parts[0] ?? "";
  }

  get path() {
    return `${this.api}/tables/${encode(this.table)}`;
  }

  /** What of the query the address holds: the entity is not part of it. */
  get wanted() {
    const {query} = this.place;
    return {
      filter: query.get("filter") ?? "",
      pk: query.get("from_pk") ?? undefined,
      rk: query.get("from_rk") ?? undefined,
    };
  }

  /** @param {{filter?: string, from_pk?: string, from_rk?: string}} query */
  show(query) {
    this.question = "";
    go(to(this.account.name, "t", [this.table], query));
  }

  /** @param {Record<string, string | undefined>} more */
  goEntity(more) {
    const {filter, pk, rk} = this.wanted;
    go(to(this.account.name, "e", [this.table], {...more, filter, from_pk: pk, from_rk: rk}));
  }

  /** Open the entity of an index row, in the table of its type if that is known. @param {{type: string, pk: string, rk: string}} member */
  follow({type, pk, rk}) {
    const table = this.session.types[type];
    if (!table || table === this.table) this.goEntity({pk, rk});
    else go(to(this.account.name, "e", [table], {pk, rk}));
  }

  closeEntity() {
    const {filter, pk, rk} = this.wanted;
    this.show({filter, from_pk: pk, from_rk: rk});
    this.grid?.view?.focus();
  }

  willUpdate(/** @type {Map<string, unknown>} */ changed) {
    if (!changed.has("place")) return;
    const {query} = this.place;
    const before = this.target;
    if (this.place.screen !== "e") this.target = null;
    else if (query.has("new")) {
      const pk = query.get("clone_pk");
      const copied = pk === null ? null : {pk, rk: query.get("clone_rk") ?? ""};
      if (!before?.key || before.key !== location.search) this.target = {copied, key: location.search};
    } else {
      const target = {pk: query.get("pk") ?? "", rk: query.get("rk") ?? ""};
      if (before?.pk !== target.pk || before?.rk !== target.rk) this.target = target;
    }
    const wanted = JSON.stringify([this.table, this.wanted]);
    if (wanted === this.shown) return;
    if (JSON.parse(this.shown || "[]")[0] !== this.table) {
      this.staged = new Map();
      this.total = null;
    }
    this.shown = wanted;
    this.filter = this.wanted.filter;
    this.count = null;
    this.start();
  }

  /** Plan the query of the address, and read its first page unless it must be asked for. */
  async start() {
    this.pages?.close();
    this.pages = null;
    const {filter} = this.wanted;
    const wanted = this.shown;
    try {
      const plan = await get(`${this.path}/plan`, {filter});
      if (wanted !== this.shown) return;
      this.plan = plan;
    } catch (error) {
      this.plan = null;
    }
    if (this.plan?.error) return;
    if (this.plan?.is_scan && !this.agreed.has(filter)) {
      this.question = filter;
      return;
    }
    this.open();
  }

  open() {
    const {filter, pk, rk} = this.wanted;
    const scan = this.agreed.has(filter) ? "1" : undefined;
    this.pages?.close();
    const pages = new Pages((start, top, signal) => {
      const from = start ? {next_pk: start[0], next_rk: start[1]} : {};
      // Continuations belong to the same filter: the key to begin with is part of it.
      return get(`${this.path}/entities`, {filter, scan, top, from_pk: pk, from_rk: rk, ...from}, signal);
    });
    pages.addEventListener("change", () => {
      this.tick += 1;
      if (pages.isComplete && !filter && pk === undefined) this.total = pages.known;
    });
    this.pages = pages;
    this.question = "";
    this.grid?.show(pages);
    this.tick += 1;
  }

  get grid() {
    return /** @type {import("../parts/grid.js").EntityGrid | null} */ (this.querySelector("entity-grid"));
  }

  updated() {
    if (this.pages && this.grid && this.grid.pages !== this.pages) {
      this.grid.show(this.pages);
      this.pages.ensure(0, 1);
    }
    const {grid} = this;
    if (grid) {
      grid.marks = new Map([...this.staged].map(([key, each]) => [key, each.kind === "delete" ? "gone" : "edited"]));
      grid.schedule();
    }
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    this.pages?.close();
    clearTimeout(this.timer);
  }

  // The filter

  /** @param {string} filter */
  typed(filter) {
    this.filter = filter;
    clearTimeout(this.timer);
    this.timer = setTimeout(async () => {
      try {
        const plan = await get(`${this.path}/plan`, {filter});
        if (filter === this.filter) this.plan = plan;
      } catch {
        this.plan = null;
      }
    }, PLAN_DELAY_MS);
  }

  run() {
    const filter = this.filter.trim();
    if (filter === this.wanted.filter && !this.wanted.pk) this.start();
    else this.show({filter});
  }

  agree() {
    this.agreed.add(this.question);
    this.open();
    this.pages?.ensure(0, 1);
  }

  /** What completion knows: names, types and values of the pages that are held. */
  get known() {
    const {pages} = this;
    return {
      names: pages?.names ?? [],
      types: (/** @type {string} */ name) =>
        name === "Timestamp" ? ["t"] : name === "PartitionKey" || name === "RowKey" ? ["s"] : [...(pages?.types.get(name) ?? [])],
      values: (/** @type {string} */ name) => this.valuesOf(name),
    };
  }

  /** @param {string} name @returns {[string, string][]} */
  valuesOf(name) {
    const found = new Map();
    const at = name === "PartitionKey" ? 0 : name === "RowKey" ? 1 : -1;
    for (const page of this.pages?.held.values() ?? []) {
      const column = page.positions.get(name);
      for (const row of page.rows) {
        const typed = at >= 0 ? ["s", row[at]] : column === undefined ? null : row[4 + column];
        if (typed && typed[1].length < 60) found.set(typed.join(":"), typed);
        if (found.size >= VALUES_MAX) return [...found.values()];
      }
    }
    return [...found.values()];
  }

  /** What is known of the size of the table, for the cost of a plan. */
  get size() {
    const {pages} = this;
    return {entities: this.total, entityBytes: pages?.returned ? pages.bytes / pages.returned : 0};
  }

  get fromText() {
    const {pk, rk} = this.wanted;
    return pk === undefined ? "" : `${pk}${rk ? ` / ${rk}` : ""}`;
  }

  toggleBuilder() {
    this.isBuilding = !this.isBuilding;
    if (!this.isBuilding) this.filterInput?.takeFocus();
  }

  filterByCell() {
    const cell = this.grid?.activeCell;
    if (!cell?.typed) return;
    const condition = `${cell.name} eq ${literal(cell.typed[0], cell.typed[1])}`;
    const isBare = !this.filter.trim();
    this.filter = isBare ? condition : /\sor\s/i.test(this.filter) ? `(${this.filter}) and ${condition}` : `${this.filter} and ${condition}`;
    this.typed(this.filter);
    this.filterInput?.takeFocus();
  }

  get filterInput() {
    return /** @type {any} */ (this.querySelector("filter-input"));
  }

  // Keys

  /** @param {KeyboardEvent} event */
  onKey(event) {
    if (event.ctrlKey && event.key === "Enter") this.run();
    else if (event.ctrlKey || event.altKey) return false;
    else if (event.key === "/") this.filterInput?.takeFocus();
    else if (event.key === "b") this.toggleBuilder();
    else if (event.key === "g") this.askKey();
    else if (event.key === "f") this.filterByCell();
    else if (event.key === "n" && this.canWrite) this.goEntity({new: "1"});
    else if (event.key === "d" && this.canWrite) this.stageDeletes();
    else if (event.key === "r") this.start();
    else return false;
    return true;
  }

  async askKey() {
    const found = await openDialog("Go to a key", ({close}) => html`<form
      @submit=${(/** @type {SubmitEvent} */ event) => {
        event.preventDefault();
        const form = /** @type {HTMLFormElement} */ (event.target);
        const value = (/** @type {string} */ name) => /** @type {HTMLInputElement} */ (form.elements.namedItem(name)).value;
        close({pk: value("pk"), rk: value("rk")});
      }}
    >
      <div class="body">
        <p class="muted">The grid begins with the first entity at this key or after it.</p>
        <label class="field"><span>PartitionKey</span><input class="mono" name="pk" autocomplete="off" spellcheck="false" autofocus /></label>
        <label class="field"><span>RowKey (may be empty)</span><input class="mono" name="rk" autocomplete="off" spellcheck="false" /></label>
      </div>
      <footer>
        <button type="button" @click=${() => close()}>Cancel</button>
        <button class="primary">Go</button>
      </footer>
    </form>`);
    if (found) this.show({filter: this.wanted.filter, from_pk: found.pk, from_rk: found.rk});
  }

  // Changes

  /** @param {any} change */
  stage(change) {
    this.staged = new Map(this.staged).set(keyOf({pk: change.partition_key, rk: change.row_key}), change);
    toast(`${counted(this.staged.size, "change")} staged.`);
    this.closeEntity();
  }

  stageDeletes() {
    const {grid} = this;
    const active = grid?.activeCell?.row;
    const rows = grid?.selected.size ? [...grid.selected.values()] : active ? [active] : [];
    const staged = new Map(this.staged);
    for (const row of rows) {
      staged.set(keyOf(row), {kind: "delete", partition_key: row.pk, row_key: row.rk, properties: [], etag: row.etag});
    }
    this.staged = staged;
    grid?.clearSelection();
  }

  async review() {
    const changes = [...this.staged.values()];
    const result = await reviewGroups(this.path, changes);
    if (!result) return;
    const left = new Map(this.staged);
    for (const index of result.done) left.delete(keyOf({pk: changes[index].partition_key, rk: changes[index].row_key}));
    this.staged = left;
    if (result.done.length) this.start();
  }

  // Jobs

  async startCount() {
    const {filter} = this.wanted;
    if (filter && this.plan?.is_scan && !(await this.confirmScan("Count"))) return;
    try {
      const job = await post(`${this.path}/count`, {filter});
      this.count = job;
      const ended = await followJob(job.id, (now) => (this.count = now));
      if (ended.state === "done" && !filter) this.total = ended.counts.entities;
    } catch (error) {
      toastError(error);
    }
  }

  /** @param {string} action */
  confirmScan(action) {
    return confirmDialog({
      title: "Read the whole table?",
      text: html`<p>This filter reads every entity of the table to find the ones that fulfil it.</p>`,
      action,
    });
  }

  async deleteWhere() {
    const {filter} = this.wanted;
    const isSure = await confirmDialog({
      title: "Delete what the filter finds",
      text: html`<p>A job deletes every entity of <strong>${this.table}</strong> that fulfils</p>
        <pre class="example">${filter || "(no filter: every entity)"}</pre>
        <p class="muted">${this.plan?.span ?? ""} It can be cancelled; what is deleted stays deleted.</p>`,
      action: "Delete",
      danger: true,
      typed: this.table,
    });
    if (!isSure) return;
    try {
      const job = await post(`${this.path}/delete-where`, {filter, confirm: this.table});
      this.count = job;
      const ended = await followJob(job.id, (now) => (this.count = now));
      if (ended.state === "done") toast(`${counted(ended.counts.entities ?? 0, "entity", "entities")} deleted.`);
      this.start();
    } catch (error) {
      toastError(error);
    }
  }

  async startImport() {
    await importDialog(this.path, this.table);
    this.start();
  }

  async cancelJob() {
    try {
      this.count = await post(`/jobs/${this.count.id}/cancel`, {});
    } catch (error) {
      toastError(error);
    }
  }

  // Rendering

  render() {
    return html`<header class="screen-header">
        <h1><a class="crumb" href=${to(this.account.name, "tables")}>Tables</a> <span class="crumb">/</span> ${this.table}</h1>
        <span class="space"></span>
        <button @click=${this.startCount}>${icon("count")} Count</button>
        <button @click=${() => exportDialog(this.path, this.table, this.wanted.filter)}>${icon("download")} Export…</button>
        ${this.canWrite
          ? html`<button @click=${this.startImport}>${icon("upload")} Import…</button>
              <button class="danger" @click=${this.deleteWhere}>${icon("trash")} Delete where…</button>
              <button class="primary" @click=${() => this.goEntity({new: "1"})}>${icon("plus")} New entity</button>`
          : nothing}
      </header>
      ${this.queryBar()}
      <div class="split">
        <div class="split-main">${this.content()} ${this.statusBar()}</div>
        ${this.target
          ? html`<entity-editor
              .path=${this.path}
              .target=${this.target}
              .canWrite=${this.canWrite}
              @closed=${this.closeEntity}
              @saved=${this.entitySaved}
              @deleted=${this.entityDeleted}
              @clone=${(/** @type {CustomEvent} */ event) => this.goEntity({new: "1", clone_pk: event.detail.pk, clone_rk: event.detail.rk})}
              @follow=${(/** @type {CustomEvent} */ event) => this.follow(event.detail)}
              @stage=${(/** @type {CustomEvent} */ event) => this.stage(event.detail)}
            ></entity-editor>`
          : nothing}
      </div>
      ${this.staged.size ? this.stagedBar() : nothing}`;
  }

  /** @param {CustomEvent} event */
  entitySaved(event) {
    const isNew = this.place.query.has("new");
    if (isNew) this.goEntity({pk: event.detail.pk, rk: event.detail.rk});
    this.start();
  }

  entityDeleted() {
    this.closeEntity();
    this.start();
  }

  queryBar() {
    return html`<div class="query">
      <div class="query-line">
        <filter-input
          .value=${this.filter}
          .known=${this.known}
          .isBad=${Boolean(this.plan?.error)}
          @change-filter=${(/** @type {CustomEvent} */ event) => this.typed(event.detail)}
          @run=${this.run}
        ></filter-input>
        <button aria-expanded=${this.isBuilding} @click=${this.toggleBuilder} title="Conditions as fields (b)">${icon("filter")} Conditions</button>
        <button class="primary" @click=${this.run} title="Run (Ctrl+Enter)">${icon("play")} Run</button>
        <button @click=${this.askKey} title="Go to a key (g)">Go to…</button>
        <button @click=${this.start} aria-label="Read again" title="Read again (r)">${icon("refresh")}</button>
      </div>
      ${this.isBuilding
        ? html`<query-builder
            .plan=${this.plan}
            .text=${this.filter}
            .known=${this.known}
            @change-filter=${(/** @type {CustomEvent} */ event) => this.typed(event.detail)}
            @run=${this.run}
          ></query-builder>`
        : nothing}
      <plan-line .plan=${this.plan} .from=${this.fromText} .known=${this.size} @prices=${() => this.requestUpdate()}></plan-line>
      ${this.patternsLine()}
    </div>`;
  }

  /** The kinds of rows that partita.patterns keeps in this table, each a filter. */
  patternsLine() {
    const kinds = this.pages?.kinds ?? new Map();
    const hasTypes = Object.values(this.session.types).some((table) => table.toLowerCase() === this.table.toLowerCase());
    if (!hasPatterns(kinds) && !hasTypes) return nothing;
    return html`<div class="plan patterns">
      ${kinds.size ? html`<span class="muted">Typed rows seen:</span>` : nothing}
      ${[...kinds].map(
        ([type, count]) => html`<button class="small" title=${noteOf(type) || "entities"} @click=${() => this.show({filter: `EntityType eq ${literal("s", type)}`})}>
          <span class="mono">${type}</span> ${whole(count)} ${noteOf(type) ? html`<span class="muted">${noteOf(type).split(":")[0]}</span>` : nothing}
        </button>`,
      )}
      <a href=${to(this.account.name, "p", [this.table])}>Indexes, outbox and drift</a>
    </div>`;
  }

  content() {
    const {pages} = this;
    if (this.question) {
      return emptyState({
        icon: "warn",
        title: "This filter may read the whole table",
        text: html`It names no partition, so every entity is read to find those that fulfil
            <span class="mono">${this.plan?.residual}</span>.`,
        actions: html`<button @click=${() => this.show({})}>Show all entities</button>
          <button class="primary" @click=${this.agree}>Read it anyway</button>`,
      });
    }
    if (this.plan?.error && !pages) {
      return emptyState({icon: "search", title: "The filter is not valid", text: `${this.plan.error} ${this.plan.hint}`});
    }
    if (pages?.error && !pages.known) {
      return html`<div class="screen-body">${errorPanel(pages.error, {retry: () => this.start()})}</div>`;
    }
    if (pages?.isComplete && !pages.known) return this.nothingFound();
    return html`<entity-grid
      @open=${(/** @type {CustomEvent} */ event) => this.goEntity({pk: event.detail.pk, rk: event.detail.rk})}
      @selection=${() => (this.tick += 1)}
    ></entity-grid>`;
  }

  nothingFound() {
    if (this.wanted.filter || this.wanted.pk !== undefined) {
      return emptyState({
        icon: "search",
        title: this.wanted.filter ? "No entity fulfils the filter" : "There is no entity at this key or after it",
        actions: html`<button @click=${() => this.show({})}>Show all entities</button>`,
      });
    }
    return emptyState({
      icon: "table",
      title: "The table is empty",
      text: "Insert an entity here, or write some with a program.",
      actions: this.canWrite ? html`<button class="primary" @click=${() => this.goEntity({new: "1"})}>New entity</button>` : nothing,
    });
  }

  statusBar() {
    const {pages, grid} = this;
    const selected = grid?.selected.size ?? 0;
    const {count} = this;
    const prices = readPrices();
    return html`<div class="status" role="status">
      ${pages
        ? html`<span><strong>${whole(pages.known)}${pages.isComplete ? "" : "+"}</strong> ${pages.known === 1 && pages.isComplete ? "entity" : "entities"}</span>
            <span class="muted">${counted(pages.requests, "page")}, ${pages.examined === null ? nothing : html`<span class=${pages.examined > 10 * pages.returned + 100 ? "warn-text" : nothing}>${whole(pages.examined)} examined</span>, `}${whole(pages.returned)} returned, ${bytes(pages.bytes)}, ${duration(pages.ms / 1000)}${prices ? `, ${priceText(pages, prices)} per million runs` : ""}</span>
            ${pages.plan ? html`<span class="muted plan-text" title=${pages.plan}>read as <span class="mono">${pages.plan}</span></span>` : nothing}
            ${pages.reading >= 0 ? html`<span class="muted"><span class="spinner"></span> reading <button class="plain small" @click=${() => pages.stop()}>Stop</button></span>` : nothing}
            ${pages.isPaused ? html`<span class="warn-text">paused</span> <button class="small" @click=${() => pages.resume()}>Continue</button>` : nothing}
            ${pages.error && pages.known ? html`<span class="bad-text">${pages.error.message}</span> <button class="small" @click=${() => pages.resume()}>Try again</button>` : nothing}`
        : nothing}
      <span class="space"></span>
      ${count
        ? html`<span class="chip ${count.state}">${count.kind === "count" ? "count" : "delete"}: ${whole(count.counts.entities ?? 0)}${count.state === "running" ? "…" : ""}${count.state === "failed" ? ` ${count.error?.message}` : ""}${count.state === "cancelled" ? " (cancelled)" : ""}</span>
            ${count.state === "running" ? html`<button class="small" @click=${this.cancelJob}>Cancel</button>` : nothing}`
        : nothing}
      ${selected
        ? html`<span>${whole(selected)} selected</span>
            ${this.canWrite ? html`<button class="small" @click=${this.stageDeletes}>Stage deletion</button>` : nothing}`
        : nothing}
    </div>`;
  }

  stagedBar() {
    const changes = [...this.staged.values()];
    const partitions = new Set(changes.map((each) => each.partition_key)).size;
    return html`<div class="staged" role="region" aria-label="Staged changes">
      ${icon("edit")} <strong>${counted(changes.length, "staged change")}</strong>
      <span class="muted">in ${counted(partitions, "partition")}; nothing is written yet</span>
      <span class="space"></span>
      <button @click=${() => (this.staged = new Map())}>Discard</button>
      <button class="primary" @click=${this.review}>Review and apply…</button>
    </div>`;
  }
}

customElements.define("table-screen", TableScreen);
