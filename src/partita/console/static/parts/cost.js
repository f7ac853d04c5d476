// @ts-check
/**
 * What a query costs: requests and bytes, before it runs and afterwards, and their price. Pure.
 *
 * Prices differ by region and year, so none are built in: the user enters them. The formula is
 * that of `partita.patterns.Prices`.
 */

import {counted, whole} from "./format.js";

/** Entities of one answer, at most. */
const ANSWER_ENTITIES = 1000;
const GIB = 1024 ** 3;
const PRICES = "partita.prices";

/**
 * @typedef {object} Prices
 * @property {number} requests of 10,000 requests
 * @property {number} gib of one GiB that leaves the data centre
 * @property {string} currency
 *
 * @typedef {object} Cost
 * @property {number} requests
 * @property {number} bytes
 * @property {boolean} isLeast whether it can be more
 * @property {string} per what each request returns, where the number of entities is not known
 */

/**
 * Estimate a plan before it runs; null for a filter that is not valid.
 * @param {{kind: string, residual?: string, error?: string} | null} plan
 * @param {{entities: number | null, entityBytes: number}} known the table, as far as it was read
 * @returns {Cost | null}
 */
export function estimate(plan, known) {
  if (!plan || plan.error || !plan.kind) return null;
  if (plan.kind === "nothing") return {requests: 1, bytes: 0, isLeast: false, per: ""};
  if (plan.kind === "point") return {requests: 1, bytes: known.entityBytes, isLeast: false, per: ""};
  if (plan.kind === "table" && known.entities !== null) {
    const requests = Math.max(1, Math.ceil(known.entities / ANSWER_ENTITIES));
    // A service examines every entity; what it returns is not known before.
    const bytes = plan.residual ? 0 : known.entities * known.entityBytes;
    return {requests, bytes, isLeast: Boolean(plan.residual), per: ""};
  }
  return {requests: 1, bytes: 0, isLeast: true, per: plan.residual ? "entities examined" : "entities"};
}

/** @param {Cost} cost */
export function costText(cost) {
  if (cost.per) return `1 request for up to ${whole(ANSWER_ENTITIES)} ${cost.per}`;
  return `${cost.isLeast ? "at least " : ""}${counted(cost.requests, "request")}`;
}

/**
 * Return the price of running a query a million times.
 * @param {{requests: number, bytes: number}} cost of one run
 * @param {Prices} prices
 */
export function pricePerMillion(cost, prices) {
  return ((cost.requests / 10_000) * prices.requests + (cost.bytes / GIB) * prices.gib) * 1_000_000;
}

/**
 * @param {{requests: number, bytes: number}} cost
 * @param {Prices} prices
 */
export function priceText(cost, prices) {
  const price = pricePerMillion(cost, prices).toLocaleString("en", {maximumSignificantDigits: 4});
  return `${price} ${prices.currency}`.trim();
}

/** @returns {Prices | null} */
export function readPrices() {
  try {
    const found = JSON.parse(localStorage.getItem(PRICES) ?? "null");
    return typeof found?.requests === "number" && typeof found.gib === "number" ? found : null;
  } catch {
    return null;
  }
}

/** @param {Prices | null} prices */
export function keepPrices(prices) {
  if (prices) localStorage.setItem(PRICES, JSON.stringify(prices));
  else localStorage.removeItem(PRICES);
}
