// @ts-check
import {post} from "../api.js";
import {icon} from "../parts/icons.js";
import {emptyState, errorPanel} from "../parts/panels.js";
import {Screen} from "../parts/screen.js";
import {toast} from "../parts/toasts.js";
import {html, nothing} from "../vendor/lit.js";

/** The kinds of signatures: what they are for, and the permissions that they can have. */
const KINDS = /** @type {const} */ ({
  table: {
    title: "Table",
    permissions: {r: "Read", a: "Add", u: "Update", d: "Delete"},
  },
  queue: {
    title: "Queue",
    permissions: {r: "Peek", a: "Add", u: "Update", p: "Receive"},
  },
  container: {
    title: "Container",
    permissions: {r: "Read", a: "Append", c: "Create", w: "Write", d: "Delete", l: "List", t: "Tags"},
  },
  account: {
    title: "Account",
    permissions: {r: "Read", w: "Write", d: "Delete", l: "List", a: "Add", c: "Create", u: "Update", p: "Process"},
  },
});
const EXPIRIES = [["1h", "1 hour"], ["12h", "12 hours"], ["1d", "1 day"], ["7d", "7 days"], ["30d", "30 days"]];
const SERVICES = {t: "Tables", q: "Queues", b: "Blobs"};
const RESOURCES = {s: "The service", c: "Tables, queues, containers", o: "Entities, messages, blobs"};

/** Make a shared access signature. It is signed by the server of the console; the key stays there. */
class SasScreen extends Screen {
  static properties = {
    ...Screen.properties,
    kind: {state: true},
    made: {state: true},
    error: {state: true},
  };

  constructor() {
    super();
    /** @type {keyof typeof KINDS} */
    this.kind = "table";
    /** @type {any} */
    this.made = null;
    /** @type {any} */
    this.error = null;
  }

  /** @param {Map<string, any>} changed */
  willUpdate(changed) {
    const kind = this.place.query.get("kind");
    if (changed.has("place") && kind && kind in KINDS) this.kind = /** @type {any} */ (kind);
  }

  /** @param {SubmitEvent} event */
  async make(event) {
    event.preventDefault();
    const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
    const text = (/** @type {string} */ name) => String(form.get(name) ?? "").trim();
    const letters = (/** @type {string} */ name) => form.getAll(name).join("");
    const shared = {
      permissions: letters("permissions"),
      expires: text("until") ? `${text("until")}:00Z` : text("expires"),
      ip: text("ip"),
      https_only: form.has("https"),
    };
    const terms =
      this.kind === "account"
        ? {...shared, services: letters("services"), resource_types: letters("resources")}
        : {...shared, [this.kind]: text("name"), policy: text("policy"), ...this.range(text)};
    try {
      this.error = null;
      this.made = await post(`${this.api}/sas`, terms);
    } catch (error) {
      this.made = null;
      this.error = error;
    }
  }

  /** @param {(name: string) => string} text */
  range(text) {
    if (this.kind !== "table") return {};
    return {
      from_partition: text("from_partition"),
      from_row: text("from_row"),
      to_partition: text("to_partition"),
      to_row: text("to_row"),
    };
  }

  /** @param {string} value */
  async copy(value) {
    await navigator.clipboard.writeText(value);
    toast("Copied.");
  }

  render() {
    return html`<header class="screen-header"><h1>Shared access signatures</h1></header>
      <div class="screen-body">${this.content()}</div>`;
  }

  content() {
    if (!this.account.has_key) {
      return emptyState({
        icon: "key",
        title: "This account was opened with a signature",
        text: "Only the key of the account can sign another one. Connect with a connection string that has it.",
      });
    }
    return html`<div class="sas">
      <form class="panel sas-form" @submit=${this.make} @input=${() => (this.made = null)}>
        <div class="kinds" role="group" aria-label="What the signature is for">
          ${Object.entries(KINDS).map(([kind, {title}]) => html`<button
            type="button"
            aria-pressed=${kind === this.kind}
            @click=${() => {
              this.kind = /** @type {any} */ (kind);
              this.made = null;
              this.error = null;
            }}
          >${title}</button>`)}
        </div>
        ${this.kind === "account" ? this.accountFields() : this.nameField()}
        ${this.choices("permissions", "Permissions", KINDS[this.kind].permissions, "r")}
        ${this.kind === "table" ? this.rangeFields() : nothing}
        <div class="key-fields">
          <label class="field"><span>Valid for</span>
            <select name="expires">${EXPIRIES.map(([value, title]) => html`<option value=${value}>${title}</option>`)}</select>
          </label>
          <label class="field"><span>or until (UTC)</span><input name="until" type="datetime-local" /></label>
          <label class="field"><span>Only from the address or range</span><input name="ip" placeholder="any address" autocomplete="off" /></label>
          ${this.kind === "account" ? nothing : html`<label class="field"><span>Permissions and times of the stored policy</span><input name="policy" placeholder="none" autocomplete="off" /></label>`}
        </div>
        <label class="check"><input type="checkbox" name="https" /> Only over https</label>
        <p class="muted">It is valid from five minutes before now, because the clock of the service may be behind. Every holder has these permissions until it expires. To revoke it, replace the key of the account or change the policy.</p>
        <footer><button class="primary" ?disabled=${!this.canWrite} title=${this.canWrite ? "" : "The account is read-only"}>${icon("key")} Make the signature</button></footer>
      </form>
      ${this.error ? errorPanel(this.error) : nothing} ${this.made ? this.result() : nothing}
    </div>`;
  }

  nameField() {
    const title = KINDS[this.kind].title;
    return html`<label class="field"><span>${title}</span><input name="name" required autocomplete="off" spellcheck="false" .value=${this.place.query.get("name") ?? ""} /></label>`;
  }

  accountFields() {
    return html`${this.choices("services", "Services", SERVICES, "t")} ${this.choices("resources", "For", RESOURCES, "co")}`;
  }

  rangeFields() {
    return html`<fieldset class="terms">
      <legend>Only these keys; empty: all</legend>
      <div class="key-fields">
        <label class="field"><span>From partition key</span><input name="from_partition" autocomplete="off" /></label>
        <label class="field"><span>From row key</span><input name="from_row" autocomplete="off" /></label>
        <label class="field"><span>To partition key</span><input name="to_partition" autocomplete="off" /></label>
        <label class="field"><span>To row key</span><input name="to_row" autocomplete="off" /></label>
      </div>
    </fieldset>`;
  }

  /**
   * @param {string} name
   * @param {string} title
   * @param {Record<string, string>} known by letter
   * @param {string} chosen
   */
  choices(name, title, known, chosen) {
    return html`<fieldset class="terms">
      <legend>${title}</legend>
      <div class="letters">
        ${Object.entries(known).map(([letter, what]) => html`<label class="check">
          <input type="checkbox" name=${name} value=${letter} ?checked=${chosen.includes(letter)} /> ${what}
        </label>`)}
      </div>
    </fieldset>`;
  }

  result() {
    const made = this.made;
    return html`<section class="panel sas-result" aria-label="The signature">
      <p class="grants">${made.grants}</p>
      ${[["URL", made.url], ["Connection string", made.connection_string], ["Token", made.token]].map(
        ([title, value]) => html`<div class="sas-line">
          <span class="muted">${title}</span>
          <code>${value}</code>
          <button aria-label=${`Copy: ${title}`} title="Copy" @click=${() => this.copy(value)}>${icon("copy")}</button>
        </div>`,
      )}
    </section>`;
  }
}

customElements.define("sas-screen", SasScreen);
