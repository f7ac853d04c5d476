// @ts-check
import {html, repeat} from "../vendor/lit.js";
import {Part} from "./element.js";
import {icon} from "./icons.js";

const SHOWN_MS = 5000;
const shown = /** @type {{id: number, text: string, kind: string, hint: string}[]} */ ([]);
const news = new EventTarget();
let last = 0;

/**
 * Show a short message for a few seconds; errors stay until they are closed.
 * @param {string} text
 * @param {"ok" | "error"} [kind]
 * @param {string} [hint]
 */
export function toast(text, kind = "ok", hint = "") {
  const id = ++last;
  shown.push({id, text, kind, hint});
  if (shown.length > 4) shown.shift();
  if (kind === "ok") setTimeout(() => dismiss(id), SHOWN_MS);
  news.dispatchEvent(new Event("news"));
}

/** @param {any} error */
export function toastError(error) {
  toast(error?.code ? `${error.message} (${error.code})` : String(error), "error", error?.hint);
}

/** @param {number} id */
function dismiss(id) {
  const at = shown.findIndex((each) => each.id === id);
  if (at >= 0) shown.splice(at, 1);
  news.dispatchEvent(new Event("news"));
}

class ToastList extends Part {
  constructor() {
    super();
    news.addEventListener("news", () => this.requestUpdate());
  }

  render() {
    return html`<div class="toasts" role="status" aria-live="polite">
      ${repeat(
        shown,
        (each) => each.id,
        (each) => html`<div class="toast ${each.kind}">
          <div>
            ${each.text}${each.hint ? html`<div class="hint">${each.hint}</div>` : ""}
          </div>
          <button class="plain" aria-label="Close the message" @click=${() => dismiss(each.id)}>
            ${icon("close")}
          </button>
        </div>`,
      )}
    </div>`;
  }
}

customElements.define("toast-list", ToastList);
