// @ts-check
import {html, nothing, repeat} from "../vendor/lit.js";
import {OPERATORS} from "./completion.js";
import {Part} from "./element.js";
import {icon} from "./icons.js";
import {TYPE_NAMES, literal, problemOf} from "./types.js";

/**
 * One condition; `id` stays when it changes.
 * @typedef {{id: number, name: string, operator: string, type: string, value: string}} Line
 */

/**
 * The conditions of a filter as fields, beside its text: each side follows the other. A condition
 * that is not complete is not part of the text. Events: `change-filter`, `run`.
 */
class QueryBuilder extends Part {
  static properties = {
    plan: {attribute: false},
    text: {attribute: false},
    known: {attribute: false},
    lines: {state: true},
  };

  constructor() {
    super();
    /** The plan of the text. Its conditions are name, operator, type and value; null if it has more.
     * @type {{conditions: [string, string, string, string][] | null, error: string} | null} */
    this.plan = null;
    this.text = "";
    /** @type {import("./completion.js").Known} */
    this.known = {names: [], types: () => [], values: () => []};
    /** @type {Line[]} */
    this.lines = [];
    this.last = 0;
    /** The text that the lines mean. */
    this.written = "";
    /** Whether lines can mean the text. */
    this.isPlain = true;
  }

  /** @param {Map<string, unknown>} changed */
  willUpdate(changed) {
    const {plan} = this;
    // While the text is not valid, the lines stay as they are.
    if (!changed.has("plan") || !plan || plan.error || this.text.trim() === this.written) return;
    this.written = this.text.trim();
    this.isPlain = plan.conditions !== null;
    this.lines = (plan.conditions ?? []).map(([name, operator, type, value]) => ({id: ++this.last, name, operator, type, value}));
    if (!this.lines.length) this.lines = [this.newLine()];
  }

  connectedCallback() {
    super.connectedCallback();
    if (!this.lines.length) this.lines = [this.newLine()];
    this.updateComplete.then(() => this.takeFocus());
  }

  /** @returns {Line} */
  newLine() {
    return {id: ++this.last, name: "", operator: "eq", type: "s", value: ""};
  }

  takeFocus() {
    /** @type {HTMLElement | null} */ (this.querySelector("input"))?.focus();
  }

  /** @param {Line} line */
  problem(line) {
    return line.name ? problemOf(line.type, line.value) : "";
  }

  write() {
    const parts = this.lines
      .filter((line) => line.name && !this.problem(line))
      .map((line) => `${line.name} ${line.operator} ${literal(line.type, line.value.trim())}`);
    this.written = parts.join(" and ");
    this.isPlain = true;
    this.dispatchEvent(new CustomEvent("change-filter", {detail: this.written}));
  }

  /** @param {Line} line @param {Partial<Line>} part */
  set(line, part) {
    Object.assign(line, part);
    if (part.name !== undefined) {
      const [type] = this.known.types(line.name);
      if (type) line.type = type;
    }
    if (line.type === "b" && !/^(true|false)$/.test(line.value)) line.value = "true";
    this.lines = [...this.lines];
    this.write();
  }

  add() {
    this.lines = [...this.lines, this.newLine()];
    this.updateComplete.then(() => {
      const names = /** @type {NodeListOf<HTMLElement>} */ (this.querySelectorAll(".builder-name"));
      names[names.length - 1]?.focus();
    });
  }

  /** @param {Line} line */
  removeLine(line) {
    this.lines = this.lines.filter((each) => each !== line);
    if (!this.lines.length) this.lines = [this.newLine()];
    this.write();
    this.updateComplete.then(() => this.takeFocus());
  }

  startOver() {
    this.lines = [this.newLine()];
    this.write();
  }

  render() {
    if (!this.isPlain) {
      return html`<p class="builder muted">
        This filter has more than conditions joined by <code>and</code>: edit its text.
        <button class="small" @click=${this.startOver}>Start with conditions</button>
      </p>`;
    }
    return html`<form
      class="builder"
      aria-label="Conditions"
      @submit=${(/** @type {Event} */ event) => {
        event.preventDefault();
        this.dispatchEvent(new CustomEvent("run"));
      }}
    >
      <datalist id="builder-names">
        ${["PartitionKey", "RowKey", ...this.known.names, "Timestamp"].map((name) => html`<option value=${name}></option>`)}
      </datalist>
      ${repeat(this.lines, (line) => line.id, (line, at) => this.line(line, at))}
      <div class="builder-actions">
        <button type="button" class="small" @click=${this.add}>${icon("plus")} Add a condition</button>
        <span class="muted">All conditions must be fulfilled. The filter above is written from them; Enter runs it.</span>
        <button class="hidden" tabindex="-1">Run</button>
      </div>
    </form>`;
  }

  /** @param {Line} line @param {number} at */
  line(line, at) {
    const problem = this.problem(line);
    const place = `condition ${at + 1}`;
    const values = `builder-values-${line.id}`;
    return html`<div class="builder-line">
      <span class="muted builder-and">${at ? "and" : ""}</span>
      <input class="builder-name mono" list="builder-names" aria-label=${`Property of ${place}`} placeholder="Property" spellcheck="false" autocomplete="off"
        .value=${line.name} @input=${(/** @type {any} */ event) => this.set(line, {name: event.target.value.trim()})} />
      <select aria-label=${`Operator of ${place}`} @change=${(/** @type {any} */ event) => this.set(line, {operator: event.target.value})}>
        ${OPERATORS.map(([name, note]) => html`<option value=${name} ?selected=${name === line.operator}>${note}</option>`)}
      </select>
      ${line.type === "b"
        ? html`<select class="builder-value" aria-label=${`Value of ${place}`} @change=${(/** @type {any} */ event) => this.set(line, {value: event.target.value})}>
            ${["true", "false"].map((each) => html`<option ?selected=${each === line.value}>${each}</option>`)}
          </select>`
        : html`<datalist id=${values}>${this.known.values(line.name).filter(([type]) => type === line.type).map(([, value]) => html`<option value=${value}></option>`)}</datalist>
          <input class="builder-value mono" list=${values} aria-label=${`Value of ${place}`} aria-invalid=${Boolean(problem)} placeholder="Value" spellcheck="false" autocomplete="off"
            .value=${line.value} @input=${(/** @type {any} */ event) => this.set(line, {value: event.target.value})} />`}
      <select aria-label=${`Type of ${place}`} @change=${(/** @type {any} */ event) => this.set(line, {type: event.target.value})}>
        ${Object.entries(TYPE_NAMES).map(([letter, name]) => html`<option value=${letter} ?selected=${letter === line.type}>${name}</option>`)}
      </select>
      <button type="button" class="plain" aria-label=${`Remove ${place}`} title="Remove" @click=${() => this.removeLine(line)}>${icon("close")}</button>
      ${problem ? html`<span class="bad-text builder-problem">${problem}</span>` : nothing}
    </div>`;
  }
}

customElements.define("query-builder", QueryBuilder);
