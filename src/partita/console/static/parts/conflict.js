// @ts-check
import {html, nothing} from "../vendor/lit.js";
import {openDialog} from "./dialogs.js";
import {TYPE_NAMES} from "./types.js";

/**
 * @typedef {[string, string]} Typed letter and text
 * @typedef {Map<string, Typed>} Properties
 * @typedef {object} Difference
 * @property {string} name
 * @property {Typed | undefined} base
 * @property {Typed | undefined} mine
 * @property {Typed | undefined} theirs
 * @property {"mine" | "theirs" | ""} choice empty: both changed it, the user decides
 */

/** @param {Typed | undefined} one @param {Typed | undefined} two */
function isSame(one, two) {
  return one?.[0] === two?.[0] && one?.[1] === two?.[1];
}

/**
 * Compare three versions of an entity; properties that all agree on are left out.
 * @param {Properties} base
 * @param {Properties} mine
 * @param {Properties} theirs
 * @returns {Difference[]}
 */
export function compare(base, mine, theirs) {
  const names = [...new Set([...base.keys(), ...theirs.keys(), ...mine.keys()])];
  return names
    .map((name) => ({name, base: base.get(name), mine: mine.get(name), theirs: theirs.get(name)}))
    .filter((each) => !isSame(each.mine, each.base) || !isSame(each.theirs, each.base))
    .map((each) => ({...each, choice: choiceOf(each)}));
}

/** @param {{base?: Typed, mine?: Typed, theirs?: Typed}} each @returns {"mine" | "theirs" | ""} */
function choiceOf(each) {
  if (isSame(each.mine, each.theirs) || isSame(each.mine, each.base)) return "theirs";
  return isSame(each.theirs, each.base) ? "mine" : "";
}

/**
 * Return the entity that the choices make, on top of theirs.
 * @param {Properties} theirs
 * @param {Difference[]} differences
 * @returns {Properties}
 */
export function merged(theirs, differences) {
  const result = new Map(theirs);
  for (const each of differences) {
    if (each.choice !== "mine") continue;
    if (each.mine) result.set(each.name, each.mine);
    else result.delete(each.name);
  }
  return result;
}

/**
 * Let the user decide property by property; null if he cancels.
 * @param {Properties} base
 * @param {Properties} mine
 * @param {Properties} theirs
 * @returns {Promise<Properties | null>}
 */
export function resolveConflict(base, mine, theirs) {
  const differences = compare(base, mine, theirs);
  const shown = (/** @type {Typed | undefined} */ typed) =>
    typed
      ? html`<span class="mono">${typed[1]}</span> <span class="muted">${TYPE_NAMES[typed[0]]}</span>`
      : html`<span class="muted">absent</span>`;
  return openDialog(
    "The entity was changed by another writer",
    ({close, update}) => {
      const open = differences.filter((each) => !each.choice).length;
      const choice = (/** @type {Difference} */ each, /** @type {"mine" | "theirs"} */ side) => html`
        <td class=${each.choice === side ? "picked" : nothing}>
          <label
            ><input
              type="radio"
              name=${`choice-${each.name}`}
              .checked=${each.choice === side}
              @change=${() => {
                each.choice = side;
                update();
              }}
            />
            <span class="hidden">${side} of ${each.name}:</span> ${shown(each[side])}</label
          >
        </td>
      `;
      return html`<div class="body">
          <p>
            Your version began with the values under <em>base</em>. Choose for each property which
            value to keep; a property that only one side changed is chosen already.
          </p>
          <table class="list conflict">
            <thead>
              <tr><th>Property</th><th>Base</th><th>Theirs (stored now)</th><th>Mine</th></tr>
            </thead>
            <tbody>
              ${differences.map(
                (each) => html`<tr class=${each.choice ? nothing : "undecided"}>
                  <th scope="row" class="mono">${each.name}</th>
                  <td>${shown(each.base)}</td>
                  ${choice(each, "theirs")} ${choice(each, "mine")}
                </tr>`,
              )}
            </tbody>
          </table>
          ${differences.length
            ? nothing
            : html`<p>No property differs: only the version of the entity is newer.</p>`}
        </div>
        <footer>
          <span class="muted">${open ? `${open} to decide` : "Everything is decided"}</span>
          <span class="space"></span>
          <button @click=${() => close()}>Cancel</button>
          <button class="primary" ?disabled=${open > 0} @click=${() => close(merged(theirs, differences))}>
            Save with the new etag
          </button>
        </footer>`;
    },
    {wide: true},
  );
}
