// @ts-check
import {post} from "../api.js";
import {html, nothing} from "../vendor/lit.js";
import {openDialog} from "./dialogs.js";
import {bytes, counted} from "./format.js";
import {errorPanel, waiting} from "./panels.js";

const STATES = /** @type {Record<string, string>} */ ({planned: "", done: "good", failed: "bad", skipped: "warn"});

/**
 * Show the groups that staged changes make, apply them, and show what became of each.
 * @param {string} path of the table in the API
 * @param {any[]} changes
 * @returns {Promise<{done: number[]} | null>} the positions of the changes that were applied
 */
export async function reviewGroups(path, changes) {
  /** @type {any[] | null} */
  let groups = null;
  /** @type {any} */
  let error = null;
  let isBusy = false;
  let isApplied = false;
  const done = () => ({done: (groups ?? []).filter((each) => each.state === "done").flatMap((each) => each.indices)});
  const result = await openDialog(
    "Staged changes",
    ({close, update}) => {
      const send = async (/** @type {boolean} */ preview) => {
        isBusy = true;
        error = null;
        update();
        try {
          groups = (await post(`${path}/groups`, {changes, preview})).groups;
          isApplied = !preview;
        } catch (refused) {
          error = refused;
        }
        isBusy = false;
        update();
      };
      if (!groups && !error && !isBusy) {
        isBusy = true;
        queueMicrotask(() => send(true));
      }
      const hasFailed = groups?.some((each) => each.state === "failed");
      return html`<div class="body">
          ${error ? errorPanel(error) : nothing} ${!groups && !error ? waiting("Planning…") : nothing}
          ${groups
            ? html`<p class="muted">${counted(changes.length, "change")} in ${counted(groups.length, "group")}. Each group is applied whole or not at all; groups are applied in this order, and the first failure stops them.</p>
                ${groups.map((group, at) => groupPanel(group, at, changes))}`
            : nothing}
        </div>
        <footer>
          ${hasFailed ? html`<span class="bad-text">A group was refused; the staged changes that are left stay staged.</span>` : nothing}
          <span class="space"></span>
          <button @click=${() => close(isApplied ? done() : null)}>${isApplied ? "Close" : "Cancel"}</button>
          ${isApplied ? nothing : html`<button class="primary" ?disabled=${isBusy || !groups} @click=${() => send(false)}>Apply</button>`}
        </footer>`;
    },
    {wide: true},
  );
  return result ?? (isApplied ? done() : null);
}

/** @param {any} group @param {number} at @param {any[]} changes */
function groupPanel(group, at, changes) {
  return html`<section class="panel group">
    <header>
      <strong>Group ${at + 1}</strong> <span class="mono">${group.partition_key}</span>
      <span class="muted">${counted(group.indices.length, "operation")}, ${bytes(group.bytes)}</span>
      <span class="space"></span>
      <span class="chip ${STATES[group.state]}">${group.state}</span>
    </header>
    ${group.error ? html`<p class="bad-text">${group.error.message} <code>${group.error.code}</code> ${group.error.hint}</p>` : nothing}
    <ol>
      ${group.indices.map(
        (/** @type {number} */ index) => html`<li class=${index === group.failed_index ? "failed" : nothing}>
          <span class="chip">${changes[index].kind}</span> <span class="mono">${changes[index].row_key}</span>
          ${index === group.failed_index ? html`<span class="bad-text">this one was refused</span>` : nothing}
        </li>`,
      )}
    </ol>
  </section>`;
}
