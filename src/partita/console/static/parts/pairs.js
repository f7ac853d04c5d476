// @ts-check
import {html} from "../vendor/lit.js";
import {openDialog} from "./dialogs.js";

/**
 * Edit names and values, such as metadata, as lines of `name: value`.
 * @param {string} title
 * @param {Record<string, string>} pairs
 * @returns {Promise<Record<string, string> | null>}
 */
export function pairsDialog(title, pairs) {
  const lines = Object.entries(pairs).map(([name, value]) => `${name}: ${value}`);
  return openDialog(
    title,
    ({close}) => html`<form
      @submit=${(/** @type {SubmitEvent} */ event) => {
        event.preventDefault();
        const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
        const typed = String(form.get("lines")).split("\n").filter((line) => line.trim());
        const parts = typed.map((line) => {
          const at = line.indexOf(":");
          return at < 0 ? [line.trim(), ""] : [line.slice(0, at).trim(), line.slice(at + 1).trim()];
        });
        close(Object.fromEntries(parts));
      }}
    >
      <div class="body">
        <label class="field"><span>One <code>name: value</code> on a line</span><textarea name="lines" rows="6" autofocus .value=${lines.join("\n")}></textarea></label>
      </div>
      <footer>
        <button type="button" @click=${() => close()}>Cancel</button>
        <button class="primary">Save</button>
      </footer>
    </form>`,
  );
}
