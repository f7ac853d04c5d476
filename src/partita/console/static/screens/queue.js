// @ts-check
import {encode, get, post} from "../api.js";
import {confirmDialog, openDialog} from "../parts/dialogs.js";
import {followJob} from "../parts/follow.js";
import {counted, moment, whole} from "../parts/format.js";
import {icon} from "../parts/icons.js";
import {shownText, toBase64} from "../parts/message-text.js";
import {pairsDialog} from "../parts/pairs.js";
import {emptyState, errorPanel, waiting} from "../parts/panels.js";
import {Screen} from "../parts/screen.js";
import {to} from "../router.js";
import {html, nothing, repeat} from "../vendor/lit.js";

const TICK_MS = 500;
const CLAIM_SECONDS = 60;

/**
 * @typedef {object} Message
 * @property {string} id
 * @property {string} text
 * @property {string} inserted
 * @property {string} expires
 * @property {number} dequeued
 * @property {string} receipt only of a claimed message
 * @property {string} visible_at
 */

/** One queue: peek, put, claim, change, delete, move, clear. A peek claims nothing. */
class QueueScreen extends Screen {
  static properties = {
    ...Screen.properties,
    queue: {state: true},
    claimed: {state: true},
    error: {state: true},
    search: {state: true},
    view: {state: true},
    job: {state: true},
  };
  static keys = /** @type {[string, string][]} */ ([
    ["/", "Search in what was peeked"],
    ["r", "Peek again"],
    ["n", "Put a message"],
  ]);

  constructor() {
    super();
    /** @type {any} */
    this.queue = null;
    /** @type {Message[]} */
    this.claimed = [];
    /** @type {any} */
    this.error = null;
    this.search = "";
    /** @type {"stored" | "text"} */
    this.view = "text";
    /** @type {any} */
    this.job = null;
    /** @type {number | undefined} */
    this.timer = undefined;
  }

  get name() {
    return this.place.parts[0] ?? "";
  }

  get path() {
    return `${this.api}/queues/${encode(this.name)}`;
  }

  /** @param {Map<string, any>} changed */
  willUpdate(changed) {
    const before = changed.get("place");
    if (changed.has("place") && before?.parts?.[0] !== this.name) {
      this.queue = null;
      this.claimed = [];
      this.load();
    }
  }

  connectedCallback() {
    super.connectedCallback();
    this.timer = setInterval(() => this.tick(), TICK_MS);
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    clearInterval(this.timer);
  }

  /** Forget claims that have ended: their receipts are no longer valid. */
  tick() {
    if (!this.claimed.length) return;
    const left = this.claimed.filter((each) => secondsLeft(each) > 0);
    if (left.length < this.claimed.length) {
      this.claimed = left;
      this.load();
    }
    this.requestUpdate();
  }

  async load() {
    try {
      this.error = null;
      this.queue = await get(this.path);
    } catch (error) {
      this.error = error;
    }
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    if (event.key === "/") /** @type {HTMLElement | null} */ (this.querySelector("input[type=search]"))?.focus();
    else if (event.key === "r") this.load();
    else if (event.key === "n" && this.canWrite) this.put();
    else return false;
    return true;
  }

  async put() {
    const answer = await messageDialog({title: `Put a message into ${this.name}`, action: "Put", text: ""});
    if (!answer) return;
    await this.change(async () => {
      await post(`${this.path}/messages`, answer);
      return "The message was put.";
    });
  }

  async claim() {
    await this.change(async () => {
      const found = await post(`${this.path}/claim`, {count: 1, seconds: CLAIM_SECONDS});
      this.claimed = [...this.claimed, ...found.claimed];
      return found.claimed.length ? "" : "No message is visible now.";
    });
  }

  /** @param {Message} message */
  async edit(message) {
    const answer = await messageDialog({
      title: "Change the message",
      action: "Save and release",
      text: message.text,
      isChange: true,
    });
    if (!answer) return;
    await this.change(async () => {
      await post(`${this.path}/update`, {id: message.id, receipt: message.receipt, text: answer.text, seconds: 0});
      this.forget(message);
      return "The message was changed and is visible again.";
    });
  }

  /** @param {Message} message */
  async release(message) {
    await this.change(async () => {
      await post(`${this.path}/update`, {id: message.id, receipt: message.receipt, seconds: 0});
      this.forget(message);
    });
  }

  /** @param {Message} message */
  async deleteMessage(message) {
    await this.change(async () => {
      await post(`${this.path}/delete`, {id: message.id, receipt: message.receipt});
      this.forget(message);
      return "The message was deleted.";
    });
  }

  /** @param {Message} message */
  forget(message) {
    this.claimed = this.claimed.filter((each) => each.id !== message.id);
  }

  async clear() {
    const isSure = await confirmDialog({
      title: "Delete all messages",
      text: html`<p>This deletes all messages of <strong>${this.name}</strong>, also those that a worker has claimed. It cannot be undone.</p>`,
      action: "Delete all",
      danger: true,
      typed: this.name,
    });
    if (!isSure) return;
    await this.change(async () => {
      await post(`${this.path}/clear`, {confirm: this.name});
      this.claimed = [];
      return "All messages were deleted.";
    });
  }

  async move() {
    const answer = await moveDialog(this.name, this.queue?.poison_of ?? "");
    if (!answer) return;
    await this.change(async () => {
      this.job = await post(`${this.path}/move`, answer);
      const ended = await followJob(this.job.id, (job) => (this.job = job));
      this.job = null;
      if (ended.error) throw Object.assign(new Error(ended.error.message), ended.error);
      return `${counted(ended.counts.messages ?? 0, "message")} moved to ${answer.to}.`;
    });
  }

  async editMetadata() {
    const answer = await pairsDialog("Metadata", this.queue?.metadata ?? {});
    if (!answer) return;
    await this.change(async () => {
      await post(`${this.path}/metadata`, {metadata: answer});
      return "The metadata were saved.";
    });
  }

  render() {
    const why = this.canWrite ? "" : "The account is read-only";
    return html`<header class="screen-header">
        <h1><a class="crumb" href=${to(this.account.name, "queues")}>Queues</a> <span class="crumb">/</span> ${this.name}</h1>
        <span class="space"></span>
        <button @click=${this.load} aria-label="Peek again" title="Peek again">${icon("refresh")}</button>
        <button ?disabled=${!this.canWrite} title=${why} @click=${this.editMetadata}>${icon("edit")} Metadata</button>
        <button class="danger" ?disabled=${!this.canWrite} title=${why} @click=${this.clear}>${icon("trash")} Clear</button>
        <button ?disabled=${!this.canWrite || this.job} title=${why} @click=${this.move}>${icon("right")} ${this.queue?.poison_of ? "Requeue" : "Move"}</button>
        <button ?disabled=${!this.canWrite} title=${why || `Take the next message for ${CLAIM_SECONDS} s`} @click=${this.claim}>${icon("lock")} Claim</button>
        <button class="primary" ?disabled=${!this.canWrite} title=${why} @click=${this.put}>${icon("plus")} Put a message</button>
      </header>
      ${this.queue ? this.facts() : nothing}
      <div class="screen-body">${this.content()}</div>`;
  }

  facts() {
    const {messages, hidden, metadata, peeked} = this.queue;
    const names = Object.keys(metadata);
    return html`<div class="queue-facts">
      <span>About <strong>${whole(messages)}</strong> ${messages === 1 ? "message" : "messages"}</span>
      ${hidden
        ? html`<span class="chip warn">${whole(hidden)} hidden: claimed or delayed</span>`
        : nothing}
      ${hidden === null ? html`<span class="muted">the first ${peeked.length} are shown</span>` : nothing}
      ${names.map((name) => html`<span class="chip">${name}: ${metadata[name]}</span>`)}
      ${this.job ? html`<span class="chip running">moving, ${whole(this.job.counts.messages ?? 0)} done</span>` : nothing}
      <span class="space"></span>
      <input
        type="search"
        aria-label="Search in what was peeked"
        placeholder="Search"
        @input=${(/** @type {any} */ event) => (this.search = event.target.value)}
      />
      <button aria-pressed=${this.view === "text"} @click=${() => (this.view = "text")}>Readable</button>
      <button aria-pressed=${this.view === "stored"} @click=${() => (this.view = "stored")}>As stored</button>
    </div>`;
  }

  content() {
    if (this.error) return errorPanel(this.error, {retry: () => this.load()});
    if (!this.queue) return waiting();
    const wanted = this.search.toLowerCase();
    const found = this.queue.peeked.filter((/** @type {Message} */ each) =>
      [each.text, shownText(each.text, "text").text].some((text) => text.toLowerCase().includes(wanted)),
    );
    return html`${this.claimed.length ? this.claims() : nothing}
      ${found.length ? this.messages(found) : this.nothingVisible(wanted)}`;
  }

  /** @param {string} wanted */
  nothingVisible(wanted) {
    if (wanted) return emptyState({icon: "search", title: `No peeked message contains “${this.search}”`});
    const hidden = this.queue.hidden;
    return emptyState({
      icon: "queue",
      title: hidden ? `${counted(hidden, "message")} hidden, none visible` : "The queue is empty",
      text: hidden
        ? "Workers have claimed them, or they were put with a delay. They appear when their time ends."
        : html`Put a message here, or from a program:
            <pre class="example">QueueClient.from_connection_string("…", "${this.name}").send_message("hello")</pre>`,
    });
  }

  claims() {
    return html`<h2 class="section">Claimed by this tab</h2>
      <table class="list">
        <thead>
          <tr><th>Message</th><th class="number">Claim ends in</th><th class="actions"><span class="hidden">Actions</span></th></tr>
        </thead>
        <tbody>
          ${repeat(this.claimed, (each) => each.id, (each) => html`<tr>
            <td>${this.text(each)}</td>
            <td class="number">${Math.max(0, Math.ceil(secondsLeft(each)))} s</td>
            <td class="actions">
              <button @click=${() => this.edit(each)}>${icon("edit")} Change</button>
              <button @click=${() => this.release(each)}>${icon("unlock")} Release</button>
              <button class="danger" @click=${() => this.deleteMessage(each)}>${icon("trash")} Delete</button>
            </td>
          </tr>`)}
        </tbody>
      </table>
      <h2 class="section">Visible</h2>`;
  }

  /** @param {Message[]} found */
  messages(found) {
    return html`<table class="list messages">
      <thead>
        <tr><th>Message</th><th>Put</th><th>Expires</th><th class="number">Claimed</th></tr>
      </thead>
      <tbody>
        ${repeat(found, (each) => each.id, (each) => html`<tr>
          <td>${this.text(each)}</td>
          <td class="when">${moment(each.inserted)}</td>
          <td class="when">${moment(each.expires)}</td>
          <td class="number">${each.dequeued ? `${whole(each.dequeued)} ×` : "never"}</td>
        </tr>`)}
      </tbody>
    </table>`;
  }

  /** @param {Message} message */
  text(message) {
    const {text, kind} = shownText(message.text, this.view);
    return html`<pre class="message">${text}</pre>
      <span class="muted mono">${message.id}</span> ${kind ? html`<span class="chip info">${kind}</span>` : nothing}`;
  }
}

/** @param {Message} message */
function secondsLeft(message) {
  return (Date.parse(message.visible_at) - Date.now()) / 1000;
}

/**
 * Ask for a message.
 * @param {{title: string, action: string, text: string, isChange?: boolean}} ask
 * @returns {Promise<{text: string, delay_seconds?: number, ttl_seconds?: number} | null>}
 */
function messageDialog(ask) {
  return openDialog(
    ask.title,
    ({close}) => html`<form
      @submit=${(/** @type {SubmitEvent} */ event) => {
        event.preventDefault();
        const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
        const typed = String(form.get("text"));
        const text = form.get("encoded") ? toBase64(typed) : typed;
        const ttl = String(form.get("ttl") ?? "");
        const sent = {text, delay_seconds: Number(form.get("delay") ?? 0), ...(ttl ? {ttl_seconds: Number(ttl)} : {})};
        close(ask.isChange ? {text} : sent);
      }}
    >
      <div class="body">
        <label class="field"><span>Text</span><textarea name="text" rows="8" autofocus .value=${ask.text}></textarea></label>
        <label class="check"><input type="checkbox" name="encoded" /> Encode as Base64, which many SDKs expect</label>
        ${ask.isChange
          ? nothing
          : html`<div class="key-fields">
              <label class="field"><span>Visible after, seconds</span><input name="delay" type="number" min="0" max="604800" value="0" /></label>
              <label class="field"><span>Expires after, seconds (−1: never)</span><input name="ttl" type="number" min="-1" placeholder="604800" /></label>
            </div>`}
      </div>
      <footer>
        <button type="button" @click=${() => close()}>Cancel</button>
        <button class="primary">${ask.action}</button>
      </footer>
    </form>`,
  );
}

/**
 * Ask where messages are moved to, and how many.
 * @param {string} name
 * @param {string} proposed
 * @returns {Promise<{to: string, count: number | null} | null>}
 */
function moveDialog(name, proposed) {
  return openDialog(
    proposed ? "Requeue messages" : "Move messages",
    ({close}) => html`<form
      @submit=${(/** @type {SubmitEvent} */ event) => {
        event.preventDefault();
        const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
        const count = String(form.get("count") ?? "");
        close({to: String(form.get("to")), count: count ? Number(count) : null});
      }}
    >
      <div class="body">
        <p>Visible messages of <strong>${name}</strong> are put into another queue, then deleted here. If the console stops in between, one message may be in both.</p>
        <label class="field"><span>To the queue</span><input name="to" required .value=${proposed} autocomplete="off" autofocus /></label>
        <label class="field"><span>How many</span><input name="count" type="number" min="1" placeholder="all that are visible" /></label>
      </div>
      <footer>
        <button type="button" @click=${() => close()}>Cancel</button>
        <button class="primary">${proposed ? "Requeue" : "Move"}</button>
      </footer>
    </form>`,
  );
}

customElements.define("queue-screen", QueueScreen);
