// @ts-check
import {to} from "../router.js";
import {html, nothing} from "../vendor/lit.js";
import {clockTime, whole} from "./format.js";

/**
 * A table of slow requests: what was asked, how it was read, and what would help.
 * @param {any[]} slow
 * @param {string} account the account whose tables can be opened
 */
export function slowTable(slow, account) {
  const hasAccounts = new Set(slow.map((each) => each.account)).size > 1;
  return html`<table class="list dense slow">
    <thead>
      <tr>
        <th>Time</th><th class="number">Took</th><th>Request</th><th>Filter and plan</th>
        <th class="number">Examined</th><th class="number">Returned</th><th class="number">Commit</th><th class="number">Wait</th>
      </tr>
    </thead>
    <tbody>
      ${slow.map(
        (each) => html`<tr>
          <td class="when" title=${each.request_id}>${clockTime(each.at)}</td>
          <td class="number"><b>${milliseconds(each.ms)}</b></td>
          <td>
            ${each.operation} ${target(each, account)}
            ${each.status >= 400 ? html`<span class="chip bad">${each.status} ${each.code}</span>` : nothing}
            ${hasAccounts ? html`<span class="muted">${each.account}</span>` : nothing}
          </td>
          <td class="explained">
            ${each.filter ? html`<code>${each.filter}</code>` : nothing}
            ${each.plan ? html`<div class="muted">${each.plan}</div>` : nothing}
            ${each.advice ? html`<div class="advised">${each.advice}</div>` : nothing}
          </td>
          <td class="number">${each.examined === null ? "" : (each.is_examined_exact === false ? "≥ " : "") + whole(each.examined)}</td>
          <td class="number">${each.returned === null ? "" : whole(each.returned)}</td>
          <td class="number">${each.commit_ms ? milliseconds(each.commit_ms) : ""}</td>
          <td class="number">${each.queue_ms ? milliseconds(each.queue_ms) : ""}</td>
        </tr>`,
      )}
    </tbody>
  </table>`;
}

/** @param {any} each @param {string} account */
function target(each, account) {
  if (!each.object) return nothing;
  if (each.account !== account) return html`<b>${each.object}</b>`;
  const name = each.object.split("/")[0];
  const address =
    each.service === "tables" && /^[A-Za-z][A-Za-z0-9]{2,62}$/.test(each.object)
      ? to(account, "t", [each.object], {filter: each.filter || undefined})
      : each.service === "queues"
        ? to(account, "q", [name])
        : "";
  return address ? html`<a href=${address}>${each.object}</a>` : html`<b>${each.object}</b>`;
}

/** @param {number} value */
function milliseconds(value) {
  return `${value >= 100 ? whole(Math.round(value)) : value.toFixed(value >= 10 ? 0 : 1)} ms`;
}
