// @ts-check
import {html, nothing} from "../vendor/lit.js";
import {complete} from "./completion.js";
import {Part} from "./element.js";

/** The field of a `$filter`, with completion. Events: `change-filter`, `run`. */
class FilterInput extends Part {
  static properties = {
    value: {attribute: false},
    known: {attribute: false},
    isBad: {attribute: false},
    items: {state: true},
    chosen: {state: true},
  };

  constructor() {
    super();
    this.value = "";
    this.isBad = false;
    /** @type {import("./completion.js").Known} */
    this.known = {names: [], types: () => [], values: () => []};
    /** @type {import("./completion.js").Completion[]} */
    this.items = [];
    this.chosen = -1;
    this.from = 0;
  }

  get input() {
    return /** @type {HTMLInputElement} */ (this.querySelector("input"));
  }

  takeFocus() {
    this.input.focus();
    this.input.select();
  }

  update(/** @type {any} */ changed) {
    super.update(changed);
    this.querySelector("[aria-selected='true']")?.scrollIntoView({block: "nearest"});
  }

  render() {
    const isOpen = this.items.length > 0;
    return html`<input
        class="filter mono"
        type="text"
        role="combobox"
        aria-label="Filter"
        aria-autocomplete="list"
        aria-expanded=${isOpen}
        aria-controls="filter-list"
        aria-activedescendant=${isOpen && this.chosen >= 0 ? `filter-${this.chosen}` : nothing}
        aria-invalid=${this.isBad}
        placeholder="PartitionKey eq 'Sales' and Age gt 30"
        spellcheck="false"
        autocomplete="off"
        .value=${this.value}
        @input=${this.onInput}
        @click=${this.suggest}
        @keydown=${this.onKeyDown}
        @blur=${this.close}
      />
      <ul id="filter-list" class="completions" role="listbox" aria-label="Completions" ?hidden=${!isOpen}>
        ${this.items.map(
          (each, at) => html`<li
            id=${`filter-${at}`}
            role="option"
            aria-selected=${at === this.chosen}
            @pointerdown=${(/** @type {Event} */ event) => {
              event.preventDefault();
              this.take(at);
            }}
          >
            <span class="mono">${each.text}</span><span class="note">${each.note}</span>
          </li>`,
        )}
      </ul>`;
  }

  onInput() {
    this.value = this.input.value;
    this.suggest();
    this.dispatchEvent(new CustomEvent("change-filter", {detail: this.value}));
  }

  suggest() {
    const at = this.input.selectionStart ?? 0;
    const {from, items} = complete(this.input.value.slice(0, at), this.known);
    this.from = from;
    this.items = items;
    this.chosen = -1;
  }

  close() {
    this.items = [];
    this.chosen = -1;
  }

  /** @param {number} at */
  take(at) {
    const {input} = this;
    const caret = input.selectionStart ?? input.value.length;
    const rest = input.value.slice(caret);
    const inserted = this.items[at].text + (rest.startsWith(" ") ? "" : " ");
    this.value = input.value.slice(0, this.from) + inserted + rest;
    input.value = this.value;
    const end = this.from + inserted.length;
    input.setSelectionRange(end, end);
    this.dispatchEvent(new CustomEvent("change-filter", {detail: this.value}));
    this.suggest();
  }

  /** @param {KeyboardEvent} event */
  onKeyDown(event) {
    const count = this.items.length;
    if (event.key === "ArrowDown" && count) this.chosen = (this.chosen + 1) % count;
    else if (event.key === "ArrowDown") this.suggest();
    else if (event.key === "ArrowUp" && count) this.chosen = (this.chosen + count - 1) % count;
    else if (event.key === "Tab" && count && this.chosen >= 0 && !event.shiftKey) this.take(this.chosen);
    else if (event.key === "Enter" && count && this.chosen >= 0 && !event.ctrlKey) this.take(this.chosen);
    else if (event.key === "Enter") {
      this.close();
      this.dispatchEvent(new CustomEvent("run"));
    } else if (event.key === "Escape" && count) this.close();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}

customElements.define("filter-input", FilterInput);
