// @ts-check
import {get, post} from "../api.js";
import {bytes, counted, duration, whole} from "../parts/format.js";
import {icon} from "../parts/icons.js";
import {emptyState, errorPanel, waiting} from "../parts/panels.js";
import {Screen} from "../parts/screen.js";
import {toastError} from "../parts/toasts.js";
import {go, to} from "../router.js";
import {html, nothing, repeat} from "../vendor/lit.js";

const POLL_MS = 2000;
const ROWS_PER_PAGE = 100;
const VALUE_CHARACTERS = 300;
const TABS = [
  {path: "collections", title: "Collections"},
  {path: "locks", title: "Locks"},
  {path: "replicas", title: "Replicas and log"},
];

/** A reliable state: collections with their rows, locks, replicas. */
class StateScreen extends Screen {
  static properties = {
    ...Screen.properties,
    where: {state: true},
    found: {state: true},
    error: {state: true},
    rows: {state: true},
    next: {state: true},
    rowsError: {state: true},
    locks: {state: true},
    locksError: {state: true},
    isReading: {state: true},
    opened: {state: true},
  };
  static keys = /** @type {[string, string][]} */ ([
    ["r", "Read again"],
    ["g", "Go to a key"],
  ]);

  constructor() {
    super();
    /** @type {{where: string, is_on_nats: boolean, partitions: string[]} | null} */
    this.where = null;
    /** @type {{status: any, collections: any[], error: string | null} | null} */
    this.found = null;
    /** @type {any} */
    this.error = null;
    /** @type {any[] | null} */
    this.rows = null;
    /** @type {string | null} */
    this.next = null;
    /** @type {any} */
    this.rowsError = null;
    /** @type {any} */
    this.locks = null;
    /** @type {any} */
    this.locksError = null;
    this.isReading = false;
    /** Rows whose whole value is shown. @type {Set<number>} */
    this.opened = new Set();
    this.shownRows = "";
    /** The sequence of the rows that are shown. */
    this.rowsSequence = 0;
    this.shownPartition = "";
    /** @type {number | undefined} */
    this.timer = undefined;
  }

  connectedCallback() {
    super.connectedCallback();
    if (this.session.has_states) this.load();
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    clearTimeout(this.timer);
  }

  // The address

  get tab() {
    return TABS.find((each) => each.path === this.place.parts[0])?.path ?? TABS[0].path;
  }

  get partition() {
    return this.place.query.get("partition") ?? this.where?.partitions[0] ?? "";
  }

  /** Whether a program has the state open: then what is shown is renewed. */
  get isLive() {
    return this.where?.is_on_nats || this.found?.status.kind === "open";
  }

  get collection() {
    return this.place.query.get("collection") ?? this.found?.collections[0]?.name ?? "";
  }

  get start() {
    return this.place.query.get("start") ?? undefined;
  }

  /** @param {{tab?: string, partition?: string, collection?: string, start?: string | undefined}} change */
  address(change) {
    const {tab, ...query} = {
      tab: this.tab,
      partition: this.where?.is_on_nats ? this.partition : "",
      collection: this.place.query.get("collection") ?? "",
      start: this.start,
      ...change,
    };
    return to(this.account.name, "state", [tab], query);
  }

  willUpdate(/** @type {Map<string, unknown>} */ changed) {
    if (!changed.has("place") || !this.where) return;
    if (this.partition !== this.shownPartition) this.load();
    else this.loadRows();
    if (this.tab === "locks") this.loadLocks();
  }

  // Reading

  async load() {
    clearTimeout(this.timer);
    try {
      this.where ??= await get("/state");
      const {partition} = this;
      if (this.where?.is_on_nats && !partition) return;
      const found = await get("/state/status", {partition: partition || undefined});
      if (partition !== this.partition) return;
      this.found = found;
      this.error = null;
      if (this.shownPartition !== partition) this.shownRows = "";
      this.shownPartition = partition;
      await this.loadRows();
      await this.renewRows();
      if (this.tab === "locks") await this.loadLocks();
    } catch (error) {
      this.error = error;
      this.where ??= null;
    }
    clearTimeout(this.timer);
    if (this.isConnected && this.isLive) this.timer = setTimeout(() => this.load(), POLL_MS);
  }

  /** Read the first page of the collection, unless it is shown. */
  async loadRows() {
    const wanted = JSON.stringify([this.partition, this.collection, this.start]);
    if (!this.found || !this.collection || wanted === this.shownRows) return;
    this.shownRows = wanted;
    this.rows = null;
    this.next = null;
    this.opened = new Set();
    await this.more();
  }

  /** Read the first page again after a commit, unless the user has opened a value or gone on. */
  async renewRows() {
    const isFirst = this.rows !== null && this.rows.length <= ROWS_PER_PAGE && !this.opened.size;
    const isNew = this.rowsSequence !== this.found?.status.sequence;
    if (this.isLive && this.tab === "collections" && isFirst && isNew) await this.readRows(null);
  }

  async more() {
    await this.readRows(this.next);
  }

  /** @param {string | null} after where the page begins; null: at the first one */
  async readRows(after) {
    const wanted = this.shownRows;
    try {
      const page = await get("/state/rows", {
        partition: this.partition || undefined,
        collection: this.collection,
        limit: ROWS_PER_PAGE,
        after: after ?? undefined,
        start: after || this.start === undefined ? undefined : keyJson(this.start),
      });
      if (wanted !== this.shownRows) return;
      this.rows = after ? [...(this.rows ?? []), ...page.rows] : page.rows;
      this.rowsSequence = page.sequence;
      this.next = page.next;
      this.rowsError = null;
    } catch (error) {
      if (wanted === this.shownRows) this.rowsError = error;
    }
  }

  async loadLocks() {
    try {
      this.locks = await get("/state/locks", {partition: this.partition || undefined});
      this.locksError = null;
    } catch (error) {
      this.locksError = error;
    }
  }

  async again() {
    if (this.isReading) return;
    this.isReading = true;
    try {
      if (this.where && !this.isLive && this.found) await post("/state/refresh", {});
    } catch (error) {
      toastError(error);
    }
    this.shownRows = "";
    await this.load();
    this.isReading = false;
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    if (event.key === "r") this.again();
    else if (event.key === "g") /** @type {HTMLElement | null} */ (this.querySelector("input[type=search]"))?.focus();
    else return false;
    return true;
  }

  /** @param {number} row */
  toggle(row) {
    const opened = new Set(this.opened);
    if (!opened.delete(row)) opened.add(row);
    this.opened = opened;
  }

  // Rendering

  render() {
    return html`<header class="screen-header">
        <h1>Reliable state</h1>
        ${this.where ? html`<span class="muted mono">${this.where.where}</span>` : nothing}
        ${this.where?.is_on_nats && this.where.partitions.length
          ? html`<select
              aria-label="Partition"
              @change=${(/** @type {any} */ event) => go(to(this.account.name, "state", [this.tab], {partition: event.target.value}))}
            >
              ${this.where.partitions.map((name) => html`<option ?selected=${name === this.partition}>${name}</option>`)}
            </select>`
          : nothing}
        <span class="space"></span>
        ${this.session.has_states
          ? html`<button ?disabled=${this.isReading} @click=${this.again}>${icon("refresh")} Read again</button>`
          : nothing}
      </header>
      ${this.found ? this.tabs() : nothing}
      <div class="screen-body" tabindex="0" role="region" aria-label="State">${this.content()}</div>`;
  }

  tabs() {
    return html`<nav class="tabs" aria-label="Parts of the state">
      ${TABS.map(
        (each) => html`<a href=${this.address({tab: each.path})} aria-current=${each.path === this.tab ? "page" : nothing}>${each.title}</a>`,
      )}
    </nav>`;
  }

  content() {
    if (!this.session.has_states) {
      return emptyState({
        icon: "state",
        title: "No reliable state is shown here",
        text: html`<p>Start a console with the folder of a state, or with the NATS servers that keep its log:</p>
          <pre class="example">partita console --state ./state
partita console --state nats://127.0.0.1:4222</pre>
          <p>A folder can be read while no program has it open. A program shows the state that it has open itself, with its locks:</p>
          <pre class="example">with open_state("./state") as state, show_state(state) as address: …</pre>
          <p>On NATS the console observes: it never takes the lease of a partition.</p>`,
      });
    }
    if (this.error && !this.found) return errorPanel(this.error, {retry: () => this.load()});
    if (this.where?.is_on_nats && !this.where.partitions.length) {
      return emptyState({
        icon: "state",
        title: "These NATS servers have no partition",
        text: html`A partition is created by the first program that opens it:
          <pre class="example">async with open_state("nats://127.0.0.1:4222", partition="orders") as state: …</pre>`,
      });
    }
    if (!this.found) return waiting("Reading the state…");
    const trouble = this.error ? errorPanel(this.error, {title: "The values are not current"}) : nothing;
    const {status} = this.found;
    // Elsewhere only what explains why nothing changes.
    const isQuiet = this.tab !== "replicas" && status.replicas.some((/** @type {any} */ each) => each.role === "primary");
    return html`${trouble} ${(isQuiet ? [] : status.notes).map((/** @type {string} */ note) => html`<p class="muted note-text">${note}</p>`)}
      ${this.tab === "locks" ? this.lockList() : this.tab === "replicas" ? this.replicas() : this.collections()}`;
  }

  collections() {
    const {collections, error} = /** @type {NonNullable<typeof this.found>} */ (this.found);
    if (error) return html`<p class="note-line">${icon("warn")} The rows cannot be shown: ${error}</p>`;
    if (!collections.length) {
      return emptyState({
        icon: "state",
        title: "The state has no collections yet",
        text: html`A collection is created by the first program that asks for it:
          <pre class="example">orders = await state.dictionary("orders", key=str, value=Order)</pre>`,
      });
    }
    const chosen = collections.find((each) => each.name === this.collection);
    return html`<div class="state-split">
      <ul class="state-list" aria-label="Collections">
        ${collections.map(
          (each) => html`<li>
            <a href=${this.address({collection: each.name, start: undefined})} aria-current=${each.name === this.collection ? "true" : nothing}>
              <span class="state-name">${icon(each.kind === "dictionary" ? "table" : "queue")} ${each.name}</span>
              <span class="number">${whole(each.count)}</span>
              <span class="muted">${each.kind.replaceAll("_", " ")}</span>
            </a>
          </li>`,
        )}
      </ul>
      <div class="state-rows">${chosen ? this.collectionRows(chosen) : errorPanel({message: `The state has no collection ${this.collection}.`})}</div>
    </div>`;
  }

  /** @param {any} chosen */
  collectionRows(chosen) {
    const isQueue = chosen.kind !== "dictionary";
    return html`<div class="state-head">
        <h2>${chosen.name}</h2>
        <span class="muted">${counted(chosen.count, isQueue ? "item" : "row")}, <code>${isQueue ? chosen.value : `${chosen.key} → ${chosen.value}`}</code>, version ${chosen.written_version}</span>
        ${chosen.indexes.map(
          (/** @type {any} */ each) => html`<span class="chip ${each.is_ready ? "" : "warn"}" title=${each.is_ready ? "" : "The index is being built"}>index ${each.name}: ${whole(each.count)}</span>`,
        )}
        <span class="space"></span>
        ${isQueue
          ? nothing
          : html`<form
              @submit=${(/** @type {SubmitEvent} */ event) => {
                event.preventDefault();
                const typed = String(new FormData(/** @type {HTMLFormElement} */ (event.target)).get("start"));
                go(this.address({collection: chosen.name, start: typed || undefined}));
              }}
            >
              <input type="search" name="start" aria-label="Go to a key" placeholder="Go to a key" .value=${this.start ?? ""} />
            </form>`}
      </div>
      ${this.rowsError ? errorPanel(this.rowsError) : nothing}
      ${!this.rows
        ? this.rowsError
          ? nothing
          : waiting()
        : !this.rows.length
          ? html`<p class="muted calm">${this.start ? "No row has this key or a later one." : isQueue ? "The queue is empty." : "The dictionary is empty."}</p>`
          : this.rowTable(isQueue)}`;
  }

  /** @param {boolean} isQueue */
  rowTable(isQueue) {
    const rows = /** @type {any[]} */ (this.rows);
    const hasDeliveries = rows.some((each) => each.deliveries !== null || each.visible_from || each.expires);
    return html`<table class="list dense state-table">
        <thead>
          <tr>
            <th>${isQueue ? "Place" : "Key"}</th><th>Value</th>
            ${hasDeliveries ? html`<th>Expires, visible</th>` : nothing}
            <th class="number">Version</th><th class="number">Bytes</th>
          </tr>
        </thead>
        <tbody>
          ${repeat(rows, (_, n) => n, (each, n) => {
            const isLong = each.value.length > VALUE_CHARACTERS || /^[[{]/.test(each.value);
            const isOpen = this.opened.has(n);
            return html`<tr>
              <td class="mono key-cell">${each.key || '""'}</td>
              <td class="value-cell">
                ${each.is_cut
                  ? html`<span class="muted">not shown: too large</span>`
                  : each.is_unreadable
                    ? html`<span class="chip bad">cannot be decoded</span> <span class="muted">run <code>partita state verify</code></span>`
                    : isLong
                      ? html`<button class="value-toggle" aria-expanded=${isOpen} @click=${() => this.toggle(n)}>
                            ${icon(isOpen ? "down" : "right")}<span class="hidden">Value of ${each.key}</span><code>${isOpen ? "" : each.value.slice(0, VALUE_CHARACTERS)}</code>
                          </button>
                          ${isOpen ? html`<pre class="state-value">${indented(each.value)}</pre>` : nothing}`
                      : html`<code>${each.value}</code>`}
              </td>
              ${hasDeliveries
                ? html`<td class="when">${[each.expires && `expires ${each.expires}`, each.visible_from && `visible ${each.visible_from}`, each.deliveries && counted(each.deliveries, "delivery", "deliveries")].filter(Boolean).join(", ")}</td>`
                : nothing}
              <td class="number">${each.version ? whole(each.version) : ""}</td>
              <td class="number">${each.bytes ? whole(each.bytes) : ""}</td>
            </tr>`;
          })}
        </tbody>
      </table>
      <p class="state-more">
        <span class="muted">${counted(rows.length, "row")} shown${this.next ? "" : ", no more follow"}</span>
        ${this.next ? html`<button @click=${this.more}>Show more</button>` : nothing}
      </p>`;
  }

  lockList() {
    if (this.locksError) return errorPanel(this.locksError, {retry: () => this.loadLocks()});
    if (!this.locks) return waiting();
    const {locks, count, transactions, waiting: waits, replica} = this.locks;
    if (!locks.length) {
      return emptyState({
        icon: "unlock",
        title: "No key is locked",
        text: this.isLive
          ? `${counted(transactions, "transaction")} open on the primary ${replica}.`
          : "Locks exist only in the program that has the state open, and no program has this folder open.",
      });
    }
    return html`<p class="muted calm">
        ${counted(count, "locked key")}, ${counted(transactions, "open transaction")}, ${counted(waits, "waiting request")}${replica ? html`; primary <code>${replica}</code>` : nothing}
      </p>
      <table class="list dense locks">
        <thead><tr><th>Collection</th><th>Key</th><th>Held by</th><th>Waiting</th></tr></thead>
        <tbody>
          ${locks.map(
            (/** @type {any} */ each) => html`<tr>
              <td>${each.collection}</td>
              <td class="mono key-cell">${each.key === null ? html`<span class="muted">the whole collection</span>` : plain(each.key)}</td>
              <td>${each.holders.map(owner)}</td>
              <td>${each.waiters.length ? each.waiters.map(owner) : html`<span class="muted">–</span>`}</td>
            </tr>`,
          )}
        </tbody>
      </table>`;
  }

  replicas() {
    const {status} = /** @type {NonNullable<typeof this.found>} */ (this.found);
    const {log, checkpoint, backup} = status;
    const ago = (/** @type {number | null | undefined} */ seconds) => (seconds === null || seconds === undefined ? "" : `${duration(seconds)} ago`);
    return html`<dl class="tiles four">
        ${tile("Sequence", whole(status.sequence), status.last_commit ? `last commit ${status.last_commit.slice(0, 19).replace("T", " ")} UTC` : "no commit yet")}
        ${tile("Log", log ? (log.bytes === null ? whole(Math.max(0, log.last - log.first + 1)) : bytes(log.bytes)) : "–", log ? `records ${whole(log.first)} to ${whole(log.last)}${log.segments ? `, ${counted(log.segments, "file")}` : ""}` : "")}
        ${tile("Checkpoint", checkpoint ? whole(checkpoint.sequence) : "none", checkpoint ? `${bytes(checkpoint.bytes)} ${ago(checkpoint.age_seconds)}` : "the log is read from its start")}
        ${tile("Backup", backup ? whole(backup.sequence) : "none", backup ? `${backup.kind}, ${ago(backup.age_seconds)}` : "none was taken by a replica")}
      </dl>
      ${status.kind === "nats" || status.replicas.length > 1
        ? html`<h2 class="section">Replicas</h2>
            ${status.replicas.length
              ? html`<table class="list dense">
                  <thead>
                    <tr>
                      <th>Replica</th><th>Role</th><th class="number">Epoch</th><th class="number">Applied</th><th class="number">Lag</th><th class="number">Checkpoint</th><th>Version</th>
                    </tr>
                  </thead>
                  <tbody>
                    ${status.replicas.map(
                      (/** @type {any} */ each) => html`<tr>
                        <td><code>${each.replica}</code> <span class="muted">${each.address}</span></td>
                        <td><span class="chip ${each.role === "primary" ? "good" : ""}">${each.role}</span> ${status.lease?.replica === each.replica ? html`<span class="muted">has the lease</span>` : nothing}</td>
                        <td class="number">${each.epoch ?? "–"}</td>
                        <td class="number">${whole(each.applied)}</td>
                        <td class="number ${each.lag ? "warn-text" : ""}">${whole(each.lag)}</td>
                        <td class="number">${whole(each.checkpoint)}</td>
                        <td>${each.version ?? "–"}</td>
                      </tr>`,
                    )}
                  </tbody>
                </table>`
              : html`<p class="muted calm">No replica is running. The log stays on the NATS servers.</p>`}
            ${status.nodes.length ? this.nodes(status.nodes) : nothing}`
        : html`<p class="muted calm">${this.isLive ? "A program has this state open, and there are no replicas." : "This is the state in a folder: one program opens it at a time, and there are no replicas."}</p>`}`;
  }

  /** @param {any[]} nodes */
  nodes(nodes) {
    return html`<h2 class="section">NATS servers of the log</h2>
      <table class="list dense">
        <thead><tr><th>Server</th><th>State</th><th class="number">Lag</th></tr></thead>
        <tbody>
          ${nodes.map(
            (/** @type {any} */ each) => html`<tr>
              <td>${each.name}</td>
              <td>
                <span class="chip ${each.is_offline ? "bad" : each.is_current || each.is_leader ? "good" : "warn"}">${each.is_offline ? "offline" : each.is_leader ? "leader" : each.is_current ? "current" : "behind"}</span>
              </td>
              <td class="number">${whole(each.lag)}</td>
            </tr>`,
          )}
        </tbody>
      </table>`;
  }
}

/** @param {any} each */
function owner(each) {
  const times = [
    each.waited_seconds === null || each.waited_seconds === undefined ? "" : `waits ${duration(each.waited_seconds)}`,
    each.age_seconds === null || each.age_seconds === undefined ? "" : `open for ${duration(each.age_seconds)}`,
  ].filter(Boolean);
  return html`<div><span class="chip ${each.waited_seconds === null || each.waited_seconds === undefined ? "info" : "warn"}">${each.mode}</span> <code>${each.transaction}</code> <span class="muted">${times.join(", ")}${each.origin ? html` at <code title=${each.origin}>${each.origin.split("/").slice(-2).join("/")}</code>` : nothing}</span></div>`;
}

/** @param {string} name @param {unknown} value @param {string} note */
function tile(name, value, note) {
  return html`<div class="tile"><dt>${name}</dt><dd>${value}</dd><dd class="note" title=${note}>${note}</dd></div>`;
}

/** @param {unknown} key */
function plain(key) {
  return typeof key === "string" ? key || '""' : JSON.stringify(key);
}

/** Indent JSON without reading its numbers: those of the page have 53 bits. @param {string} json */
function indented(json) {
  let depth = 0;
  return json.replace(/"(?:[^"\\]|\\.)*"|\[\]|\{\}|[[\]{},:]/g, (part) => {
    const line = () => `\n${"  ".repeat(depth)}`;
    if (part === "{" || part === "[") {
      depth += 1;
      return part + line();
    }
    if (part === "}" || part === "]") {
      depth -= 1;
      return line() + part;
    }
    return part === "," ? part + line() : part === ":" ? ": " : part;
  });
}

/** The JSON of a typed key: as it is if it is JSON, else a text. @param {string} typed */
function keyJson(typed) {
  try {
    JSON.parse(typed);
    return typed;
  } catch {
    return JSON.stringify(typed);
  }
}

customElements.define("state-screen", StateScreen);
