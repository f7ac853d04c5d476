// @ts-check
/**
 * Rates and quantiles from totals: the endpoint counts since its start, the page subtracts.
 *
 * The history is kept while the page is open, also when another screen is shown.
 */

import {get} from "../api.js";

export const KEPT_SECONDS = 1800;
/** Quantiles are those of this time: one second of a quiet server has too few requests. */
export const QUANTILE_SECONDS = 10;
const POLL_MS = 1000;
const SERVICES = ["tables", "queues", "blobs"];

/** @typedef {{bounds: number[], counts: number[], sum: number}} Histogram */

/**
 * Return the value below which a share of the observations is; null without any.
 * @param {number[]} bounds
 * @param {number[]} counts one more than bounds
 * @param {number} share
 */
export function quantile(bounds, counts, share) {
  const total = counts.reduce((sum, each) => sum + each, 0);
  if (total <= 0) return null;
  let left = total * share;
  for (let n = 0; n < counts.length; n += 1) {
    if (left <= counts[n] && counts[n] > 0) {
      const low = n ? bounds[n - 1] : 0;
      if (n >= bounds.length) return bounds[bounds.length - 1];
      return low + ((bounds[n] - low) * left) / counts[n];
    }
    left -= counts[n];
  }
  return bounds[bounds.length - 1];
}

/**
 * Return the observations between two answers.
 * @param {Histogram | undefined} after
 * @param {Histogram | undefined} before
 */
export function between(after, before) {
  const counts = (after?.counts ?? []).map((each, n) => each - (before?.counts[n] ?? 0));
  return {bounds: after?.bounds ?? [], counts, sum: (after?.sum ?? 0) - (before?.sum ?? 0)};
}

/** @param {Histogram[]} several */
function together(several) {
  const bounds = several[0]?.bounds ?? [];
  const counts = (several[0]?.counts ?? []).map((_, n) =>
    several.reduce((sum, each) => sum + each.counts[n], 0),
  );
  return {bounds, counts, sum: several.reduce((sum, each) => sum + each.sum, 0)};
}

/** The answers of the operations endpoint, once a second while a screen listens. */
class Readings extends EventTarget {
  constructor() {
    super();
    /** The oldest first. @type {any[]} */
    this.answers = [];
    /** One row for each answer but the first. @type {any[]} */
    this.points = [];
    /** @type {any} */
    this.error = null;
    this.listeners = 0;
    /** @type {number | undefined} */
    this.timer = undefined;
  }

  start() {
    this.listeners += 1;
    if (this.listeners === 1) this.poll();
  }

  stop() {
    this.listeners -= 1;
    if (!this.listeners) clearTimeout(this.timer);
  }

  async poll() {
    try {
      this.add(await get("/operations/now"));
      this.error = null;
    } catch (error) {
      this.error = error;
    }
    this.dispatchEvent(new Event("reading"));
    clearTimeout(this.timer);
    if (this.listeners) this.timer = setTimeout(() => this.poll(), POLL_MS);
  }

  /** @param {any} answer */
  add(answer) {
    const before = this.answers.at(-1);
    if (before && answer.uptime_seconds < before.uptime_seconds) {
      this.answers = []; // the server was started again: its totals begin at 0
    }
    this.answers.push(answer);
    const base = this.answers.findLast((each) => each.at <= answer.at - QUANTILE_SECONDS) ?? this.answers[0];
    if (this.answers.length > 1) this.points.push(pointOf(answer, this.answers.at(-2), base));
    while (this.answers.length > 2 && this.answers[1].at < answer.at - QUANTILE_SECONDS - 5) this.answers.shift();
    while (this.points.length && this.points[0].at < answer.at - KEPT_SECONDS) this.points.shift();
  }

  get now() {
    return this.answers.at(-1) ?? null;
  }
}

/**
 * @param {any} now
 * @param {any} before the answer before it
 * @param {any} base the answer since which quantiles are taken
 */
function pointOf(now, before, base) {
  const seconds = Math.max(0.001, now.at - before.at);
  const rate = (/** @type {any} */ from) =>
    Object.fromEntries(
      SERVICES.map((name) => [
        name,
        now.services[name] ? (from(now.services[name]) - from(before.services[name])) / seconds : null,
      ]),
    );
  const spans = Object.keys(now.services).map((name) =>
    between(now.services[name].latency, base.services[name]?.latency),
  );
  const latency = together(spans);
  const commit = between(now.store.commit_seconds, base.store.commit_seconds);
  const queue = between(now.store.queue_seconds, base.store.queue_seconds);
  const share = (/** @type {Histogram} */ each, /** @type {number} */ part) => quantile(each.bounds, each.counts, part);
  return {
    at: now.at,
    requests: rate((/** @type {any} */ each) => each.requests_total),
    errors: rate((/** @type {any} */ each) => each.errors_total),
    p50: share(latency, 0.5),
    p99: share(latency, 0.99),
    commit50: share(commit, 0.5),
    commit99: share(commit, 0.99),
    queue99: share(queue, 0.99),
    store: now.store.store_bytes,
    wal: now.store.wal_bytes,
    connections: Object.fromEntries(SERVICES.map((name) => [name, now.services[name]?.connections ?? null])),
    loop: now.loop.lag_seconds,
  };
}

/**
 * Return the operations with their rates and quantiles of the last seconds, the busiest first.
 * @param {any[]} answers
 */
export function operationsOf(answers) {
  const now = answers.at(-1);
  const base = answers.findLast((each) => each.at <= now.at - QUANTILE_SECONDS) ?? answers[0];
  const seconds = Math.max(1, now.at - base.at);
  const found = [];
  for (const [service, facts] of Object.entries(now.services)) {
    for (const [name, each] of Object.entries(/** @type {any} */ (facts).operations)) {
      const before = base.services[service]?.operations[name];
      const recent = between(each.latency, before?.latency);
      const chosen = recent.counts.some((count) => count > 0) ? recent : each.latency;
      found.push({
        service,
        name,
        rate: (each.requests_total - (before?.requests_total ?? 0)) / seconds,
        total: each.requests_total,
        errors: each.errors_total,
        p50: quantile(chosen.bounds, chosen.counts, 0.5),
        p99: quantile(chosen.bounds, chosen.counts, 0.99),
      });
    }
  }
  return found.sort((one, other) => other.rate - one.rate || other.total - one.total);
}

export const readings = new Readings();
