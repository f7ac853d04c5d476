// @ts-check
import {ApiError, get, post} from "../api.js";
import {html, nothing, repeat} from "../vendor/lit.js";
import {resolveConflict} from "./conflict.js";
import {confirmDialog} from "./dialogs.js";
import {Part} from "./element.js";
import {icon} from "./icons.js";
import {entryOf, memberOf, noteOf} from "./patterns.js";
import {errorPanel, waiting} from "./panels.js";
import {toast, toastError} from "./toasts.js";
import {TYPE_NAMES, problemOf} from "./types.js";

const LONG_TEXT = 60;

/**
 * One property in the editor; `id` stays when its name changes.
 * @typedef {{id: number, name: string, type: string, value: string}} Line
 */

/**
 * The editor of one entity: a line for each property with its type. Types change only when the
 * user changes them. Events: `saved`, `deleted`, `closed`,
 * `clone`, `stage`, `follow`.
 */
class EntityEditor extends Part {
  static properties = {
    path: {attribute: false},
    target: {attribute: false},
    canWrite: {attribute: false},
    lines: {state: true},
    error: {state: true},
    isRaw: {state: true},
    isBusy: {state: true},
    keys: {state: true},
  };

  constructor() {
    super();
    /** The path of the table in the API. */
    this.path = "";
    /** Which entity: its keys, or a new one, perhaps with the lines of another.
     * @type {{pk: string, rk: string} | {copied: {pk: string, rk: string} | null}} */
    this.target = {copied: null};
    this.canWrite = false;
    /** @type {Line[] | null} */
    this.lines = null;
    /** @type {any} */
    this.stored = null;
    this.keys = {pk: "", rk: ""};
    /** @type {any} */
    this.error = null;
    this.isRaw = false;
    this.isBusy = false;
    this.last = 0;
  }

  get isNew() {
    return "copied" in this.target;
  }

  willUpdate(/** @type {Map<string, unknown>} */ changed) {
    if (changed.has("target") || changed.has("path")) this.load();
  }

  async load() {
    const {target} = this;
    this.lines = null;
    this.error = null;
    this.stored = null;
    this.isRaw = false;
    const from = "copied" in target ? target.copied : target;
    this.keys = from ? {pk: from.pk, rk: from.rk} : {pk: "", rk: ""};
    if (!from) {
      this.lines = [];
      return;
    }
    try {
      const stored = await get(`${this.path}/entity`, {pk: from.pk, rk: from.rk});
      if (this.target !== target) return;
      if ("copied" in target) this.keys = {pk: from.pk, rk: ""};
      else this.stored = stored;
      this.lines = this.linesOf(stored.properties);
    } catch (error) {
      if (this.target === target) this.error = error;
    }
  }

  /** @param {[string, string, string][]} properties @returns {Line[]} */
  linesOf(properties) {
    return properties.map(([name, type, value]) => ({id: ++this.last, name, type, value}));
  }

  /** @returns {import("./conflict.js").Properties} */
  get mine() {
    return new Map((this.lines ?? []).map((line) => [line.name, [line.type, line.value]]));
  }

  /** @param {any} stored @returns {import("./conflict.js").Properties} */
  propertiesOf(stored) {
    return new Map(stored.properties.map((/** @type {any} */ [name, type, value]) => [name, [type, value]]));
  }

  get problems() {
    const names = (this.lines ?? []).map((line) => line.name);
    return (this.lines ?? []).map((line, at) => {
      if (!line.name) return "A name is required.";
      if (names.indexOf(line.name) !== at) return "This name appears twice.";
      return problemOf(line.type, line.value);
    });
  }

  get isDirty() {
    if (!this.stored || !this.lines) return this.isNew;
    const base = this.propertiesOf(this.stored);
    const {mine} = this;
    return base.size !== mine.size || [...base].some(([name, [type, value]]) => {
      const own = mine.get(name);
      return own?.[0] !== type || own?.[1] !== value;
    });
  }

  /** The change that saving sends. */
  get change() {
    return {
      kind: this.isNew ? "insert" : "replace",
      partition_key: this.keys.pk,
      row_key: this.keys.rk,
      properties: (this.lines ?? []).map(({name, type, value}) => ({name, type, value})),
      etag: this.stored?.etag ?? "*",
    };
  }

  async save() {
    if (this.isBusy || this.problems.some(Boolean)) return;
    this.isBusy = true;
    this.error = null;
    try {
      await post(`${this.path}/entity`, this.change);
      toast(this.isNew ? "The entity was inserted." : "The entity was saved.");
      this.dispatchEvent(new CustomEvent("saved", {detail: {...this.keys}}));
      if (!this.isNew) await this.load();
    } catch (error) {
      if (error instanceof ApiError && error.status === 412) await this.resolve();
      else this.error = error;
    } finally {
      this.isBusy = false;
    }
  }

  /** Show base, mine and theirs after a refused save, and save what was chosen. */
  async resolve() {
    let theirs;
    try {
      theirs = await get(`${this.path}/entity`, this.keys);
    } catch (error) {
      this.error = error;
      return;
    }
    const chosen = await resolveConflict(
      this.propertiesOf(this.stored),
      this.mine,
      this.propertiesOf(theirs),
    );
    if (!chosen) return;
    this.stored = theirs;
    this.lines = this.linesOf([...chosen].map(([name, [type, value]]) => [name, type, value]));
    this.isBusy = false;
    await this.save();
  }

  async deleteEntity() {
    const isSure = await confirmDialog({
      title: "Delete the entity",
      text: html`<p>This deletes <code>${this.keys.pk}</code> / <code>${this.keys.rk}</code>, if it is still the version that is shown.</p>`,
      action: "Delete",
      danger: true,
    });
    if (!isSure) return;
    try {
      await post(`${this.path}/entity`, {...this.change, kind: "delete", properties: []});
      toast("The entity was deleted.");
      this.dispatchEvent(new CustomEvent("deleted", {detail: {...this.keys}}));
    } catch (error) {
      this.error = error;
    }
  }

  stage() {
    if (this.problems.some(Boolean)) return;
    this.dispatchEvent(new CustomEvent("stage", {detail: this.change}));
  }

  add() {
    this.lines = [...(this.lines ?? []), {id: ++this.last, name: "", type: "s", value: ""}];
    this.updateComplete.then(() => {
      const names = /** @type {NodeListOf<HTMLElement>} */ (this.querySelectorAll(".property-name"));
      names[names.length - 1]?.focus();
    });
  }

  /** @param {KeyboardEvent} event */
  onKeyDown(event) {
    if ((event.ctrlKey || event.metaKey) && (event.key === "s" || event.key === "Enter")) {
      event.preventDefault();
      event.stopPropagation();
      if (this.canWrite) this.save();
    } else if (event.key === "Escape") {
      event.stopPropagation();
      this.dispatchEvent(new CustomEvent("closed"));
    }
  }

  render() {
    return html`<section class="editor" aria-label="Entity" @keydown=${this.onKeyDown}>
      <header>
        <h2>${this.isNew ? "New entity" : html`<span class="mono">${this.keys.pk}</span> <span class="muted">/</span> <span class="mono">${this.keys.rk}</span>`}</h2>
        <button class="plain" aria-label="Close the entity" title="Close (Esc)" @click=${() => this.dispatchEvent(new CustomEvent("closed"))}>
          ${icon("close")}
        </button>
      </header>
      ${this.content()}
    </section>`;
  }

  content() {
    if (!this.lines) {
      return html`<div class="editor-body">
        ${this.error ? errorPanel(this.error, {retry: () => this.load()}) : waiting()}
      </div>`;
    }
    const {problems} = this;
    return html`<div class="editor-body">
        ${this.error ? errorPanel(this.error) : nothing}
        ${this.isNew ? this.keyFields() : html`${this.versions()} ${this.patterns()}`}
        ${this.isRaw
          ? html`<pre class="raw" tabindex="0" aria-label="Entity as JSON">${this.stored?.raw ?? ""}</pre>`
          : html`<div class="properties">
              ${repeat(this.lines, (line) => line.id, (line, at) => this.line(line, problems[at]))}
              ${this.lines.length ? nothing : html`<p class="muted">No properties yet.</p>`}
              ${this.canWrite
                ? html`<button class="add" @click=${this.add}>${icon("plus")} Add a property</button>`
                : nothing}
            </div>`}
      </div>
      ${this.footer(problems.some(Boolean))}`;
  }

  /** What partita.patterns keeps in this row: an outbox entry, or an index row and its entity. */
  patterns() {
    const stored = this.propertiesOf(this.stored);
    const note = noteOf(stored.get("EntityType")?.[1] ?? "");
    if (!note) return nothing;
    const member = memberOf(this.keys.pk, stored);
    const entry = entryOf(stored);
    return html`<div class="panel note-panel">
      <p>This row is maintained by <code>partita.patterns</code>: ${note}.</p>
      ${member ? html`<button class="small" @click=${() => this.dispatchEvent(new CustomEvent("follow", {detail: member}))}>Open its entity <span class="mono">${member.pk} / ${member.rk}</span></button>` : nothing}
      ${entry ? html`<pre class="example">${entry}</pre>` : nothing}
    </div>`;
  }

  versions() {
    return html`<dl class="versions">
      <dt>Timestamp</dt><dd class="mono">${this.stored.timestamp}</dd>
      <dt>ETag</dt><dd class="mono">${this.stored.etag}</dd>
    </dl>`;
  }

  keyFields() {
    const field = (/** @type {"pk" | "rk"} */ key, /** @type {string} */ label) => html`<label class="field">
      <span>${label}</span>
      <input
        class="mono"
        spellcheck="false"
        autocomplete="off"
        .value=${this.keys[key]}
        @input=${(/** @type {InputEvent} */ event) => {
          this.keys = {...this.keys, [key]: /** @type {HTMLInputElement} */ (event.target).value};
        }}
      />
    </label>`;
    return html`<div class="key-fields">${field("pk", "PartitionKey")}${field("rk", "RowKey")}</div>`;
  }

  /** @param {Line} line @param {string} problem */
  line(line, problem) {
    const change = (/** @type {Partial<Line>} */ part) => {
      Object.assign(line, part);
      this.lines = [...(this.lines ?? [])];
    };
    const base = this.stored && this.propertiesOf(this.stored).get(line.name);
    const isChanged = this.stored && (!base || base[0] !== line.type || base[1] !== line.value);
    const readOnly = !this.canWrite;
    return html`<div class="property ${isChanged ? "changed" : ""} ${problem ? "bad" : ""}">
      <input
        class="property-name mono"
        aria-label="Name of the property"
        spellcheck="false"
        autocomplete="off"
        ?readonly=${readOnly}
        .value=${line.name}
        @input=${(/** @type {any} */ event) => change({name: event.target.value})}
      />
      ${this.valueField(line, change, readOnly, problem)}
      <select
        aria-label=${`Type of ${line.name}`}
        ?disabled=${readOnly}
        @change=${(/** @type {any} */ event) => change({type: event.target.value})}
      >
        ${Object.entries(TYPE_NAMES).map(
          ([letter, name]) => html`<option value=${letter} ?selected=${letter === line.type}>${name}</option>`,
        )}
      </select>
      ${readOnly
        ? html`<span></span>`
        : html`<button
            class="plain"
            aria-label=${`Remove ${line.name}`}
            title="Remove"
            @click=${() => (this.lines = (this.lines ?? []).filter((each) => each !== line))}
          >
            ${icon("close")}
          </button>`}
      ${problem ? html`<div class="bad-text problem">${problem}</div>` : nothing}
    </div>`;
  }

  /** @param {Line} line @param {(part: Partial<Line>) => void} change @param {boolean} readOnly @param {string} problem */
  valueField(line, change, readOnly, problem) {
    const label = `Value of ${line.name}`;
    if (line.type === "b" && /^(true|false)$/.test(line.value)) {
      return html`<select class="property-value" aria-label=${label} ?disabled=${readOnly} @change=${(/** @type {any} */ event) => change({value: event.target.value})}>
        ${["true", "false"].map((each) => html`<option ?selected=${each === line.value}>${each}</option>`)}
      </select>`;
    }
    if (line.type === "s" && (line.value.length > LONG_TEXT || line.value.includes("\n"))) {
      return html`<textarea
        class="property-value mono"
        aria-label=${label}
        rows=${Math.min(12, 2 + Math.floor(line.value.length / LONG_TEXT) + (line.value.match(/\n/g)?.length ?? 0))}
        spellcheck="false"
        ?readonly=${readOnly}
        .value=${line.value}
        @input=${(/** @type {any} */ event) => change({value: event.target.value})}
      ></textarea>`;
    }
    return html`<input
      class="property-value mono"
      aria-label=${label}
      aria-invalid=${Boolean(problem)}
      spellcheck="false"
      autocomplete="off"
      ?readonly=${readOnly}
      .value=${line.value}
      @input=${(/** @type {any} */ event) => change({value: event.target.value})}
    />`;
  }

  /** @param {boolean} isBad */
  footer(isBad) {
    const raw = this.isNew
      ? nothing
      : html`<button aria-pressed=${this.isRaw} @click=${() => (this.isRaw = !this.isRaw)}>${icon("braces")} JSON</button>
          <button @click=${this.copy} title="Copy the JSON">${icon("copy")}<span class="hidden">Copy the JSON</span></button>`;
    if (!this.canWrite) return html`<footer>${raw}</footer>`;
    const disabled = isBad || this.isBusy || !this.isDirty;
    return html`<footer>
      ${raw}
      ${this.isNew
        ? nothing
        : html`<button @click=${() => this.dispatchEvent(new CustomEvent("clone", {detail: this.keys}))}>Clone</button>
            <button class="danger" @click=${this.deleteEntity}>${icon("trash")}<span class="hidden">Delete</span></button>`}
      <span class="space"></span>
      <button ?disabled=${disabled} title="Gather it with other changes of the partition" @click=${this.stage}>Stage</button>
      <button class="primary" ?disabled=${disabled} @click=${this.save}>${this.isNew ? "Insert" : "Save"}</button>
    </footer>`;
  }

  async copy() {
    try {
      await navigator.clipboard.writeText(this.stored.raw);
      toast("The JSON was copied.");
    } catch (error) {
      toastError(error);
    }
  }
}

customElements.define("entity-editor", EntityEditor);
