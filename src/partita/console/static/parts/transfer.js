// @ts-check
/** Import and export of a table: dialogs that start jobs and follow them. */

import {download, post, request} from "../api.js";
import {html, nothing} from "../vendor/lit.js";
import {openDialog} from "./dialogs.js";
import {followJob} from "./follow.js";
import {bytes, counted, duration, whole} from "./format.js";
import {icon} from "./icons.js";
import {errorPanel} from "./panels.js";
import {toastError} from "./toasts.js";
import {TYPE_NAMES} from "./types.js";

const FORMATS = [
  ["jsonl", "JSON lines: one entity per line, lossless"],
  ["jsonl.gz", "JSON lines, compressed"],
  ["csv", "CSV with a column for each type"],
  ["csv.gz", "CSV, compressed"],
  ["parquet", "Parquet (needs the extra parquet)"],
];
const MODES = [
  ["replace", "Replace it"],
  ["merge", "Merge into it"],
  ["skip", "Keep it, skip the row"],
  ["fail", "Reject the row"],
];

/** @param {any} job */
async function save(job) {
  try {
    download((await post(`/jobs/${job.id}/download`, {})).ticket);
  } catch (error) {
    toastError(error);
  }
}

/** @param {any} job */
export function jobLine(job) {
  const counts = Object.entries(job.counts)
    .filter(([name, count]) => count || name === "entities")
    .map(([name, count]) => (name === "bytes" ? bytes(count) : `${whole(count)} ${name}`));
  return html`<div class="job-line" role="status">
    <span class="chip ${job.state}">${job.state}</span>
    <span>${counts.join(", ") || "starting"}</span>
    <span class="muted">${duration(job.seconds)}</span>
    ${job.state === "running" ? html`<button class="small" @click=${() => post(`/jobs/${job.id}/cancel`, {}).catch(toastError)}>Cancel</button>` : nothing}
    ${job.result.file
      ? html`<button class="small" @click=${() => save(job)}>${icon("download")} ${job.result.is_reject ? "Rejected rows" : "Download"}</button>`
      : nothing}
    ${job.note ? html`<span class="muted">${job.note}</span>` : nothing}
  </div>`;
}

/**
 * @param {string} path of the table in the API
 * @param {string} table
 * @param {string} filter
 */
export function exportDialog(path, table, filter) {
  /** @type {any} */
  let job = null;
  /** @type {any} */
  let error = null;
  return openDialog(`Export ${table}`, ({close, update}) => html`<form
    @submit=${async (/** @type {SubmitEvent} */ event) => {
      event.preventDefault();
      const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
      error = null;
      try {
        job = await post(`${path}/export`, {format: form.get("format"), filter});
        update();
        const ended = await followJob(job.id, (now) => {
          job = now;
          update();
        });
        if (ended.state === "done") await save(ended);
        if (ended.error) error = {...ended.error, facts: {}};
      } catch (refused) {
        error = refused;
      }
      update();
    }}
  >
    <div class="body">
      ${error ? errorPanel(error) : nothing}
      <p class="muted">${filter ? html`The entities that fulfil <span class="mono">${filter}</span>` : "All entities of the table"}. The file is made on the server and then downloaded.</p>
      <fieldset class="formats"><legend>Format</legend>
        ${FORMATS.map(([value, text], at) => html`<label><input type="radio" name="format" value=${value} ?checked=${!at} /> <span class="mono">.${value}</span> <span class="muted">${text}</span></label>`)}
      </fieldset>
      ${job ? jobLine(job) : nothing}
    </div>
    <footer>
      <button type="button" @click=${() => close()}>Close</button>
      <button class="primary" ?disabled=${job?.state === "running"}>${icon("download")} Export</button>
    </footer>
  </form>`);
}

/**
 * @param {string} path of the table in the API
 * @param {string} table
 * @returns {Promise<boolean | null>} whether entities were written
 */
export function importDialog(path, table) {
  /** @type {any} */
  let kept = null;
  /** @type {any} */
  let job = null;
  /** @type {any} */
  let error = null;
  let isBusy = false;
  let hasWritten = false;
  /** The columns of the two keys. */
  let keys = {partition_key: "", row_key: ""};
  return openDialog(
    `Import into ${table}`,
    ({close, update}) => {
      const choose = async (/** @type {Event} */ event) => {
        const file = /** @type {HTMLInputElement} */ (event.target).files?.[0];
        if (!file) return;
        kept = job = error = null;
        isBusy = true;
        update();
        try {
          kept = await request("POST", `${path}/uploads`, {query: {name: file.name}, bytes: file});
          keys = {partition_key: columnOf(kept.columns, "PartitionKey"), row_key: columnOf(kept.columns, "RowKey")};
        } catch (refused) {
          error = refused;
        }
        isBusy = false;
        update();
      };
      const start = async (/** @type {HTMLFormElement} */ form, /** @type {boolean} */ isDry) => {
        const given = new FormData(form);
        const typed = kept.columns.filter((/** @type {any} */ each) => given.has(`type-${each.name}`));
        const types = Object.fromEntries(typed.map((/** @type {any} */ each) => [each.name, given.get(`type-${each.name}`)]));
        const named = kept.columns.length ? keys : {};
        error = null;
        isBusy = true;
        update();
        try {
          job = await post(`${path}/import`, {upload: kept.upload, mode: given.get("mode"), types, is_dry: isDry, ...named});
          const ended = await followJob(job.id, (now) => {
            job = now;
            update();
          });
          if (ended.error) error = {...ended.error, facts: {}};
          if (ended.kind === "import") hasWritten = true;
        } catch (refused) {
          error = refused;
        }
        isBusy = false;
        update();
      };
      const keyField = (/** @type {"partition_key" | "row_key"} */ key, /** @type {string} */ label) => html`<label class="field"><span>${label} is the column</span>
        <select
          required
          @change=${(/** @type {any} */ event) => {
            keys = {...keys, [key]: event.target.value};
            update();
          }}
        >
          <option value="" ?selected=${!keys[key]}>choose a column</option>
          ${kept.columns.map((/** @type {any} */ each) => html`<option ?selected=${each.name === keys[key]}>${each.name}</option>`)}
        </select></label>`;
      return html`<form
        @submit=${(/** @type {SubmitEvent} */ event) => {
          event.preventDefault();
          start(/** @type {HTMLFormElement} */ (event.target), event.submitter?.getAttribute("value") === "check");
        }}
      >
        <div class="body">
          ${error ? errorPanel(error) : nothing}
          <label class="field"><span>File: JSON lines, CSV or Parquet; .gz and .zst are decompressed</span>
            <input type="file" accept=".jsonl,.ndjson,.json,.csv,.parquet,.gz,.zst" @change=${choose} /></label>
          ${kept?.columns.length
            ? html`<p>Nothing is written yet. Choose the columns of the two keys, and check the types: those that the file does not name were guessed from all its rows.</p>
                <div class="key-fields">${keyField("partition_key", "PartitionKey")}${keyField("row_key", "RowKey")}</div>
                <div class="columns" tabindex="0" role="region" aria-label="Columns of the file">
                  <table class="list compact"><thead><tr><th>Column</th><th>First values</th><th>Becomes</th></tr></thead><tbody>
                    ${kept.columns.map((/** @type {any} */ each) => html`<tr>
                      <td class="mono">${each.name}</td><td class="mono muted first-values">${each.first.join(", ")}</td><td>${becomes(each, keys)}</td>
                    </tr>`)}
                  </tbody></table>
                </div>`
            : kept
              ? html`<p class="muted">Each line is an entity with its PartitionKey, its RowKey and the types of its values.</p>`
              : nothing}
          <label class="field"><span>If an entity exists already</span>
            <select name="mode">${MODES.map(([value, text]) => html`<option value=${value}>${text}</option>`)}</select></label>
          ${kept ? html`<p class="muted">${bytes(kept.bytes)} uploaded as ${kept.format}.</p>` : nothing}
          ${job ? jobLine(job) : nothing}
          ${job?.state === "done" ? html`<p class="good-text">${job.kind === "check" ? `${counted(job.counts.entities ?? 0, "row")} can be imported.` : `${counted(job.counts.entities ?? 0, "entity", "entities")} written.`}</p>` : nothing}
        </div>
        <footer>
          <button type="button" @click=${() => close(hasWritten)}>Close</button>
          <button value="check" ?disabled=${!kept || isBusy}>Check only</button>
          <button class="primary" value="import" ?disabled=${!kept || isBusy}>${icon("upload")} Import</button>
        </footer>
      </form>`;
    },
    {wide: true},
  );
}

/**
 * Return the column that is named as a key, in any case; empty if there is none.
 * @param {{name: string}[]} columns
 * @param {string} key
 */
function columnOf(columns, key) {
  return columns.find((each) => each.name.toLowerCase().replaceAll("_", "") === key.toLowerCase())?.name ?? "";
}

/**
 * What a column becomes: a key, a property of a type, or nothing.
 * @param {{name: string, kind: string | null}} column
 * @param {{partition_key: string, row_key: string}} keys
 */
function becomes(column, keys) {
  const marks = [column.name === keys.partition_key ? "PartitionKey" : "", column.name === keys.row_key ? "RowKey" : ""].filter(Boolean);
  if (marks.length) return marks.map((mark) => html`<span class="chip info">${mark}</span> `);
  if (column.name === "Timestamp") return html`<span class="muted">not imported</span>`;
  if (column.kind === null) return html`<span class="muted">as the file says</span>`;
  return html`<select name=${`type-${column.name}`} aria-label=${`Type of ${column.name}`}>
    ${Object.values(TYPE_NAMES).map((name) => html`<option value=${`Edm.${name}`} ?selected=${column.kind === `Edm.${name}`}>${name}</option>`)}
  </select>`;
}
