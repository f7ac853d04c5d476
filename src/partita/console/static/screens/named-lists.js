// @ts-check
/** The tables, queues and containers of an account: list, search, create, delete. */

import {encode, get, post} from "../api.js";
import {confirmDialog, textDialog} from "../parts/dialogs.js";
import {counted, moment, whole} from "../parts/format.js";
import {icon} from "../parts/icons.js";
import {emptyState, errorPanel, waiting} from "../parts/panels.js";
import {Screen} from "../parts/screen.js";
import {toast, toastError} from "../parts/toasts.js";
import {go, to} from "../router.js";
import {html, nothing, repeat} from "../vendor/lit.js";

const POISON = "-poison";
const SEARCHED_FROM = 9;
/** Rows on the page: an account may have a hundred thousand tables. */
const SHOWN_MAX = 500;
/** @type {{pattern: string, hint: string}} */
const LOWER_CASE = {pattern: "[a-z0-9](-?[a-z0-9]){2,62}", hint: "3 to 63 lower-case letters, digits and single hyphens."};

/**
 * What one of the lists shows.
 * @typedef {object} Listed
 * @property {string} noun
 * @property {string} screen the path of the screen of one of them
 * @property {string} icon
 * @property {string} verb what removes one: Drop, Delete
 * @property {string} removed
 * @property {string} contents what is removed with it
 * @property {string} pattern of a valid name
 * @property {string} hint
 * @property {string} example a program that creates one
 * @property {{title: string, className: string, cell: (each: any) => unknown}[]} columns besides the name
 * @property {(each: any) => unknown} [note] after the name
 */

/** A list of named things; `kind` says which. */
class NamedList extends Screen {
  static properties = {
    ...Screen.properties,
    found: {state: true},
    error: {state: true},
    search: {state: true},
  };

  /** @type {Listed} */
  static kind;

  constructor() {
    super();
    /** @type {{items: {name: string}[], hasMore: boolean} | null} */
    this.found = null;
    /** @type {any} */
    this.error = null;
    this.search = "";
  }

  get kind() {
    return /** @type {typeof NamedList} */ (this.constructor).kind;
  }

  get plural() {
    return `${this.kind.noun}s`;
  }

  connectedCallback() {
    super.connectedCallback();
    this.load();
  }

  async load() {
    try {
      this.error = null;
      const answer = await get(`${this.api}/${this.plural}`);
      const items = answer[this.plural].map((/** @type {any} */ each) => (typeof each === "string" ? {name: each} : each));
      this.found = {items, hasMore: Boolean(answer.has_more)};
    } catch (error) {
      this.error = error;
    }
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    if (event.key === "/") /** @type {HTMLElement | null} */ (this.querySelector("input"))?.focus();
    else if (event.key === "n" && this.canWrite) this.create();
    else if (event.key === "r") this.load();
    else return false;
    return true;
  }

  async create() {
    const {noun, screen, pattern, hint} = this.kind;
    const name = await textDialog({title: `Create a ${noun}`, label: "Name", action: "Create", pattern, hint});
    if (!name) return;
    try {
      await post(`${this.api}/${this.plural}`, {name});
      toast(`${titled(noun)} ${name} was created.`);
      go(to(this.account.name, screen, [name]));
    } catch (error) {
      toastError(error);
    }
  }

  /** @param {string} name */
  async removeOne(name) {
    const {noun, verb, removed, contents} = this.kind;
    const isSure = await confirmDialog({
      title: `${verb} the ${noun}`,
      text: html`<p>This deletes the ${noun} <strong>${name}</strong> of <strong>${this.account.name}</strong> with ${contents}. It cannot be undone.</p>`,
      action: verb,
      danger: true,
      typed: name,
    });
    if (!isSure) return;
    await this.change(async () => {
      await post(`${this.api}/${this.plural}/${encode(name)}/drop`, {confirm: name});
      return `${titled(noun)} ${name} was ${removed}.`;
    });
  }

  render() {
    const {noun} = this.kind;
    const count = this.found?.items.length ?? 0;
    return html`<header class="screen-header">
        <h1>${titled(this.plural)}</h1>
        ${count ? html`<span class="muted">${counted(count, noun)}${this.found?.hasMore ? ", more are not shown" : ""}</span>` : nothing}
        <span class="space"></span>
        ${count >= SEARCHED_FROM
          ? html`<input
              type="search"
              aria-label="Search in the names"
              placeholder="Search"
              @input=${(/** @type {any} */ event) => (this.search = event.target.value)}
            />`
          : nothing}
        <button @click=${this.load} aria-label="Load again" title="Load again (r)">${icon("refresh")}</button>
        <button class="primary" ?disabled=${!this.canWrite} title=${this.canWrite ? "" : "The account is read-only"} @click=${this.create}>
          ${icon("plus")} Create a ${noun}
        </button>
      </header>
      <div class="screen-body">${this.content()}</div>`;
  }

  content() {
    const {noun, icon: picture, example} = this.kind;
    if (this.error) return errorPanel(this.error, {retry: () => this.load()});
    if (!this.found) return waiting();
    if (!this.found.items.length) {
      return emptyState({
        icon: picture,
        title: `No ${this.plural} yet`,
        text: html`Create one here, or from a program:
          <pre class="example">${example}</pre>`,
        actions: this.canWrite ? html`<button class="primary" @click=${this.create}>Create a ${noun}</button>` : nothing,
      });
    }
    const wanted = this.search.toLowerCase();
    const shown = this.found.items.filter((each) => each.name.toLowerCase().includes(wanted));
    if (!shown.length) return emptyState({icon: "search", title: `No ${noun} has “${this.search}” in its name`});
    return html`<table class="list">
      <thead>
        <tr>
          <th>Name</th>
          ${this.kind.columns.map((each) => html`<th class=${each.className}>${each.title}</th>`)}
          <th class="actions"><span class="hidden">Actions</span></th>
        </tr>
      </thead>
      <tbody>${repeat(shown.slice(0, SHOWN_MAX), (each) => each.name, (each) => this.row(each))}</tbody>
    </table>
    ${shown.length > SHOWN_MAX
      ? html`<p class="muted">The first ${whole(SHOWN_MAX)} of ${counted(shown.length, noun)} are shown. Search for the others by name.</p>`
      : nothing}`;
  }

  /** @param {{name: string}} each */
  row(each) {
    const {kind} = this;
    return html`<tr>
      <td>
        <a class="row-link" href=${to(this.account.name, kind.screen, [each.name])}>${icon(kind.icon)} ${each.name}</a>
        ${kind.note?.(each) ?? nothing}
      </td>
      ${kind.columns.map((column) => html`<td class=${column.className}>${column.cell(each)}</td>`)}
      <td class="actions">
        ${this.canWrite
          ? html`<button class="plain" aria-label=${`${kind.verb} ${each.name}`} title=${kind.verb} @click=${() => this.removeOne(each.name)}>${icon("trash")}</button>`
          : nothing}
      </td>
    </tr>`;
  }
}

/** @param {string} noun */
function titled(noun) {
  return noun[0].toUpperCase() + noun.slice(1);
}

/** @param {Listed} kind */
function define(kind) {
  customElements.define(
    `${kind.noun}s-screen`,
    class extends NamedList {
      static kind = kind;
      static keys = /** @type {[string, string][]} */ ([
        ["/", "Search in the names"],
        ["n", `Create a ${kind.noun}`],
        ["r", "Load again"],
      ]);
    },
  );
}

define({
  noun: "table",
  screen: "t",
  icon: "table",
  verb: "Drop",
  removed: "dropped",
  contents: "all its entities",
  pattern: "[A-Za-z][A-Za-z0-9]{2,62}",
  hint: "3 to 63 letters and digits, the first a letter.",
  example: 'TableServiceClient.from_connection_string("…").create_table("Staff")',
  columns: [],
});

define({
  noun: "queue",
  screen: "q",
  icon: "queue",
  verb: "Delete",
  removed: "deleted",
  contents: "all its messages",
  ...LOWER_CASE,
  example: 'QueueServiceClient.from_connection_string("…").create_queue("work")',
  columns: [{title: "Messages, about", className: "number", cell: (each) => whole(each.messages)}],
  note: (each) => (each.name.endsWith(POISON) && each.messages > 0 ? html` <span class="chip warn">poison</span>` : nothing),
});

define({
  noun: "container",
  screen: "c",
  icon: "box",
  verb: "Delete",
  removed: "deleted",
  contents: "all its blobs and snapshots",
  ...LOWER_CASE,
  example: 'BlobServiceClient.from_connection_string("…").create_container("photos")',
  columns: [
    {
      title: "Access without credentials",
      className: "",
      cell: (each) => (each.public ? html`<span class="chip warn">${each.public}</span>` : html`<span class="muted">none</span>`),
    },
    {title: "Lease", className: "muted", cell: (each) => each.lease},
    {title: "Changed", className: "when", cell: (each) => moment(each.modified)},
  ],
});
