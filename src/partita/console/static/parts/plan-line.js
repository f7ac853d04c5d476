// @ts-check
import {html, nothing} from "../vendor/lit.js";
import {costText, estimate, keepPrices, priceText, readPrices} from "./cost.js";
import {openDialog} from "./dialogs.js";
import {Part} from "./element.js";
import {counted} from "./format.js";

const KIND_CHIPS = /** @type {Record<string, string>} */ ({
  point: "good",
  range: "good",
  partition: "good",
  nothing: "good",
  "multi-partition": "warn",
  table: "info",
});

/**
 * The plan of a filter before it runs: what is read, what it costs, what would cost less.
 * Event: `prices`, after the user has changed them.
 */
class PlanLine extends Part {
  static properties = {
    plan: {attribute: false},
    from: {attribute: false},
    known: {attribute: false},
  };

  constructor() {
    super();
    /** @type {any} */
    this.plan = null;
    /** The key that the grid begins with, as text. */
    this.from = "";
    /** @type {{entities: number | null, entityBytes: number}} */
    this.known = {entities: null, entityBytes: 0};
  }

  render() {
    const {plan} = this;
    if (!plan) return html`<div class="plan muted">…</div>`;
    if (plan.error) {
      return html`<div class="plan" role="status"><span class="chip bad">not valid</span><span class="bad-text">${plan.error}</span> <span class="muted">${plan.hint}</span></div>`;
    }
    return html`<div class="plan" role="status">
      <span class="chip ${plan.is_scan ? "bad" : KIND_CHIPS[plan.kind]}">${plan.is_scan ? `${plan.kind} scan` : plan.kind}</span>
      ${this.from ? html`<span class="chip">from <span class="mono">${this.from}</span></span>` : nothing}
      <span>${plan.kind === "table" && !plan.residual ? "Reads in key order, page by page." : plan.span}</span>
      ${plan.residual ? html`<span>Checks for each entity: <span class="mono residual">${plan.residual}</span></span>` : nothing}
      ${this.cost(plan)}
      ${plan.advice.length
        ? html`<details class="advice"><summary>${counted(plan.advice.length, "way")} to read less</summary>
            <div class="panel">${plan.advice.map((/** @type {any} */ each) => this.advice(each))}</div>
          </details>`
        : nothing}
    </div>`;
  }

  /** @param {any} plan */
  cost(plan) {
    const cost = estimate(plan, this.known);
    if (!cost) return nothing;
    const prices = readPrices();
    return html`<span class="cost muted">Cost: ${costText(cost)}${prices ? html`, <span class="nowrap">${cost.isLeast ? "at least " : ""}${priceText(cost, prices)} per million runs</span>` : nothing}
      <button class="plain small" @click=${this.askPrices} title="Prices of requests and transfer">${prices ? "Prices…" : "Set prices…"}</button></span>`;
  }

  /** @param {{title: string, text: string, kind: string}} each */
  advice(each) {
    const cost = each.kind ? estimate({kind: each.kind}, {entities: null, entityBytes: 0}) : null;
    return html`<p>
      <strong>${each.title}.</strong> ${each.text}
      ${cost ? html`<br /><span class="chip ${KIND_CHIPS[each.kind]}">${each.kind}</span> <span class="muted">${costText(cost)}</span>` : nothing}
    </p>`;
  }

  async askPrices() {
    const present = readPrices();
    const found = await openDialog("Prices", ({close}) => html`<form
      @submit=${(/** @type {SubmitEvent} */ event) => {
        event.preventDefault();
        const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
        const [requests, gib] = [form.get("requests"), form.get("gib")].map((text) => Number(text || 0));
        close({requests, gib, currency: String(form.get("currency") ?? "").trim()});
      }}
    >
      <div class="body">
        <p class="muted">Prices differ by region, redundancy and year: copy those of your account. This browser keeps them.</p>
        <label class="field"><span>10,000 requests of tables</span><input name="requests" type="number" min="0" step="any" required autofocus .value=${String(present?.requests ?? "")} /></label>
        <label class="field"><span>1 GiB that leaves the data centre (0 inside of it)</span><input name="gib" type="number" min="0" step="any" .value=${String(present?.gib ?? 0)} /></label>
        <label class="field"><span>Currency</span><input name="currency" maxlength="8" autocomplete="off" .value=${present?.currency ?? "USD"} /></label>
      </div>
      <footer>
        ${present ? html`<button type="button" @click=${() => close({requests: -1, gib: 0, currency: ""})}>Forget</button>` : nothing}
        <button type="button" @click=${() => close()}>Cancel</button>
        <button class="primary">Save</button>
      </footer>
    </form>`);
    if (!found) return;
    keepPrices(found.requests < 0 ? null : found);
    this.requestUpdate();
    this.dispatchEvent(new CustomEvent("prices"));
  }
}

customElements.define("plan-line", PlanLine);
