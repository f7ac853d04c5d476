// @ts-check
import {html, nothing, render} from "../vendor/lit.js";
import {icon} from "./icons.js";

/**
 * Open a dialog and return what it was closed with; null if it was dismissed.
 *
 * `content` is called again after `update()`; it gets the functions `close(value)` and `update()`.
 * @template T
 * @param {string} title
 * @param {(controls: {close: (value?: T | null) => void, update: () => void}) => unknown} content
 * @param {{wide?: boolean}} [how]
 * @returns {Promise<T | null>}
 */
export function openDialog(title, content, {wide = false} = {}) {
  const dialog = document.createElement("dialog");
  dialog.className = wide ? "wide" : "";
  dialog.setAttribute("aria-label", title);
  document.body.append(dialog);
  /** @type {T | null} */
  let result = null;
  const before = /** @type {HTMLElement | null} */ (document.activeElement);
  const close = (/** @type {T | null} */ value = null) => {
    result = value;
    dialog.close();
  };
  const update = () =>
    render(
      html`<header>
          <h2>${title}</h2>
          <button class="plain" aria-label="Close" @click=${() => close()}>${icon("close")}</button>
        </header>
        ${content({close, update})}`,
      dialog,
    );
  update();
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      before?.focus?.();
      resolve(result);
    });
  });
}

/**
 * Ask before something is done; with `typed`, only after that text was typed.
 * @param {{title: string, text: unknown, action: string, danger?: boolean, typed?: string}} ask
 * @returns {Promise<boolean>}
 */
export async function confirmDialog(ask) {
  let typed = "";
  const answer = await openDialog(ask.title, ({close, update}) => {
    const isReady = !ask.typed || typed === ask.typed;
    return html`<form
      @submit=${(/** @type {Event} */ event) => {
        event.preventDefault();
        if (isReady) close(true);
      }}
    >
      <div class="body">
        ${ask.text}
        ${ask.typed
          ? html`<label class="field"
              ><span>Type <code>${ask.typed}</code> to confirm</span>
              <input
                autocomplete="off"
                spellcheck="false"
                autofocus
                @input=${(/** @type {InputEvent} */ event) => {
                  typed = /** @type {HTMLInputElement} */ (event.target).value;
                  update();
                }}
            /></label>`
          : nothing}
      </div>
      <footer>
        <button type="button" @click=${() => close()}>Cancel</button>
        <button class=${ask.danger ? "danger" : "primary"} ?disabled=${!isReady}>${ask.action}</button>
      </footer>
    </form>`;
  });
  return answer === true;
}

/**
 * Ask for one line of text.
 * @param {{title: string, label: string, action: string, value?: string, hint?: unknown,
 *   pattern?: string}} ask
 * @returns {Promise<string | null>}
 */
export function textDialog(ask) {
  return openDialog(
    ask.title,
    ({close}) => html`<form
      @submit=${(/** @type {SubmitEvent} */ event) => {
        event.preventDefault();
        const form = /** @type {HTMLFormElement} */ (event.target);
        close(/** @type {HTMLInputElement} */ (form.elements.namedItem("text")).value);
      }}
    >
      <div class="body">
        <label class="field"
          ><span>${ask.label}</span
          ><input
            name="text"
            .value=${ask.value ?? ""}
            pattern=${ask.pattern ?? ".*"}
            autocomplete="off"
            spellcheck="false"
            autofocus
        /></label>
        ${ask.hint ? html`<p class="muted">${ask.hint}</p>` : nothing}
      </div>
      <footer>
        <button type="button" @click=${() => close()}>Cancel</button>
        <button class="primary">${ask.action}</button>
      </footer>
    </form>`,
  );
}
