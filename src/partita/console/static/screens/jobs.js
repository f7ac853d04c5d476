// @ts-check
import {download, get, post} from "../api.js";
import {clockTime, duration, whole} from "../parts/format.js";
import {icon} from "../parts/icons.js";
import {emptyState, errorPanel, waiting} from "../parts/panels.js";
import {Screen} from "../parts/screen.js";
import {toastError} from "../parts/toasts.js";
import {html, nothing, repeat} from "../vendor/lit.js";

const POLL_MS = 1000;

/** The jobs of this console: progress, results, cancelling. */
class JobsScreen extends Screen {
  static properties = {...Screen.properties, jobs: {state: true}, error: {state: true}};

  constructor() {
    super();
    /** @type {any[] | null} */
    this.jobs = null;
    this.error = null;
    /** @type {number | undefined} */
    this.timer = undefined;
  }

  connectedCallback() {
    super.connectedCallback();
    this.poll();
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    clearTimeout(this.timer);
  }

  async poll() {
    try {
      this.jobs = (await get("/jobs")).jobs;
      this.error = null;
    } catch (error) {
      this.error = /** @type {any} */ (error);
    }
    if (this.isConnected) this.timer = setTimeout(() => this.poll(), POLL_MS);
  }

  /** @param {string} id */
  async cancel(id) {
    try {
      await post(`/jobs/${id}/cancel`, {});
    } catch (error) {
      toastError(error);
    }
  }

  /** @param {string} id */
  async save(id) {
    try {
      download((await post(`/jobs/${id}/download`, {})).ticket);
    } catch (error) {
      toastError(error);
    }
  }

  render() {
    return html`<header class="screen-header"><h1>Jobs</h1></header>
      <div class="screen-body">${this.content()}</div>`;
  }

  content() {
    if (this.error) return errorPanel(this.error);
    if (!this.jobs) return waiting();
    if (!this.jobs.length) {
      return emptyState({
        icon: "jobs",
        title: "No jobs yet",
        text: "Counting, deleting by a filter, import and export run as jobs and appear here.",
      });
    }
    return html`<table class="list">
      <thead>
        <tr><th>Job</th><th>State</th><th class="number">Done</th><th class="number">Time</th><th>Started</th><th><span class="hidden">Actions</span></th></tr>
      </thead>
      <tbody>
        ${repeat(this.jobs, (job) => job.id, (job) => this.row(job))}
      </tbody>
    </table>`;
  }

  /** @param {any} job */
  row(job) {
    const counts = Object.entries(job.counts).map(([name, count]) => `${whole(count)} ${name}`);
    return html`<tr>
      <td>
        ${job.title}
        ${job.note ? html`<div class="muted">${job.note}</div>` : nothing}
        ${job.error
          ? html`<div class="bad-text">${job.error.message} <code>${job.error.code}</code></div>`
          : nothing}
      </td>
      <td><span class="chip ${job.state}">${job.state}</span></td>
      <td class="number">${counts.join(", ")}</td>
      <td class="number">${duration(job.seconds)}</td>
      <td>${clockTime(job.started)}</td>
      <td class="actions">
        ${job.state === "running"
          ? html`<button @click=${() => this.cancel(job.id)}>${icon("stop")} Cancel</button>`
          : nothing}
        ${job.result.file
          ? html`<button @click=${() => this.save(job.id)}>${icon("download")} ${job.result.is_reject ? "Rejected rows" : "Download"}</button>`
          : nothing}
      </td>
    </tr>`;
  }
}

customElements.define("jobs-screen", JobsScreen);
