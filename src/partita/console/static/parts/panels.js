// @ts-check
import {html, nothing} from "../vendor/lit.js";
import {icon} from "./icons.js";

/**
 * Show an error with its code and what to do.
 * @param {any} error
 * @param {{retry?: () => void, title?: string}} [more]
 */
export function errorPanel(error, {retry, title} = {}) {
  const facts = Object.entries(error?.facts ?? {}).filter(
    ([name, value]) => value !== "" && value !== null && name !== "status",
  );
  return html`<section class="panel error-panel" role="alert">
    ${icon("warn")}
    <div>
      <h2>${title ?? error?.message ?? String(error)}</h2>
      ${title ? html`<p>${error?.message}</p>` : nothing}
      ${error?.hint ? html`<p class="hint">${error.hint}</p>` : nothing}
      <p class="facts">
        ${error?.code ? html`<code class="code">${error.code}</code>` : nothing}
        ${facts.map(([name, value]) => html`<span class="fact">${name}: <code>${value}</code></span>`)}
      </p>
      ${retry ? html`<button @click=${retry}>${icon("refresh")} Try again</button>` : nothing}
    </div>
  </section>`;
}

/**
 * Say that there is nothing, and what to do about it.
 * @param {{icon: string, title: string, text?: unknown, actions?: unknown}} what
 */
export function emptyState(what) {
  return html`<section class="empty">
    <div class="empty-icon">${icon(what.icon)}</div>
    <h2>${what.title}</h2>
    ${what.text ? html`<div class="empty-text">${what.text}</div>` : nothing}
    ${what.actions ? html`<div class="empty-actions">${what.actions}</div>` : nothing}
  </section>`;
}

/** @param {string} [text] */
export function waiting(text = "Loading…") {
  return html`<div class="waiting" role="status"><span class="spinner"></span>${text}</div>`;
}
