// @ts-check
/**
 * The pages of a query that were seen: where each begins, and the contents of the last ones used.
 *
 * A table has no numbers of rows: `starts[n]` is the continuation at which page n begins, learned
 * while scrolling. Pages that were dropped are fetched again by it. Nothing is read ahead of what
 * is shown, and an empty page is followed by at most `EMPTY_PAGES_MAX` others without asking.
 */

export const PAGES_HELD_MAX = 24;
const EMPTY_PAGES_MAX = 20;
const FIRST_PAGES = 3;
/** Entities of the first pages, which must come fast, and of those that follow while scrolling on. */
export const PAGE_ENTITIES = [200, 1000];
const FIXED = 4;
const KINDS_MAX = 40;

/**
 * @typedef {[string, string]} Typed letter of the type, value as text
 * @typedef {object} Row
 * @property {string} pk
 * @property {string} rk
 * @property {string} timestamp
 * @property {string} etag
 * @property {(name: string) => Typed | null} cell
 */

export class Pages extends EventTarget {
  /** @param {(start: [string, string] | null, top: number, signal: AbortSignal) => Promise<any>} read */
  constructor(read) {
    super();
    this.read = read;
    /** @type {([string, string] | null)[]} */
    this.starts = [null];
    /** @type {number[]} */
    this.offsets = [];
    /** @type {number[]} */
    this.counts = [];
    /** @type {Map<number, any>} */
    this.held = new Map();
    /** @type {string[]} */
    this.names = [];
    /** @type {Map<string, Set<string>>} */
    this.types = new Map();
    /** Rows by the value of EntityType, which partita.patterns writes. @type {Map<string, number>} */
    this.kinds = new Map();
    this.isComplete = false;
    this.isPaused = false;
    this.emptyPages = 0;
    /** @type {any} */
    this.error = null;
    /** The page that is being read, or -1. */
    this.reading = -1;
    this.requests = 0;
    this.returned = 0;
    this.bytes = 0;
    this.ms = 0;
    this.plan = "";
    /** Entities that the server read; null if it does not say. @type {number | null} */
    this.examined = 0;
    /** @type {AbortController | null} */
    this.running = null;
  }

  /** The number of rows that are known. */
  get known() {
    const last = this.offsets.length - 1;
    return last < 0 ? 0 : this.offsets[last] + this.counts[last];
  }

  /**
   * Find a row; null if its page is not held.
   * @param {number} index
   * @returns {Row | null}
   */
  row(index) {
    const number = this.pageOf(index);
    const page = this.held.get(number);
    const row = page?.rows[index - this.offsets[number]];
    if (!row) return null;
    this.held.delete(number);
    this.held.set(number, page);
    return {
      pk: row[0],
      rk: row[1],
      timestamp: row[2],
      etag: row[3],
      cell: (name) => {
        const at = page.positions.get(name);
        return at === undefined ? null : row[FIXED + at];
      },
    };
  }

  /** @param {number} index */
  pageOf(index) {
    let low = 0;
    let high = this.offsets.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.offsets[middle] <= index) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /**
   * Read what is missing for these rows: one page at a time.
   * @param {number} first
   * @param {number} last
   */
  ensure(first, last) {
    if (this.reading >= 0 || this.error) return;
    for (let index = Math.max(0, first); index < Math.min(last, this.known); index += 1) {
      const number = this.pageOf(index);
      if (!this.held.has(number)) {
        this.fetch(number);
        return;
      }
      index = this.offsets[number] + this.counts[number] - 1;
    }
    if (last >= this.known && !this.isComplete && !this.isPaused) this.fetch(this.offsets.length);
  }

  /** Read on after a pause or an error. */
  resume() {
    this.isPaused = false;
    this.emptyPages = 0;
    this.error = null;
    this.ensure(this.known, this.known);
  }

  stop() {
    this.running?.abort();
    this.isPaused = true;
    this.changed();
  }

  /** Forget this query. */
  close() {
    this.running?.abort();
    this.error = new Error("closed");
  }

  /** @param {number} number */
  async fetch(number) {
    this.reading = number;
    this.running = new AbortController();
    this.changed();
    try {
      this.add(number, await this.read(this.starts[number], PAGE_ENTITIES[Number(number >= FIRST_PAGES)], this.running.signal));
    } catch (error) {
      if (!this.running.signal.aborted) this.error = error;
    } finally {
      this.reading = -1;
      this.changed();
    }
  }

  /** @param {number} number @param {any} page */
  add(number, page) {
    this.requests += 1;
    this.bytes += page.bytes;
    this.ms += page.ms;
    this.plan = page.plan;
    this.returned += page.rows.length;
    this.examined = page.examined === null || this.examined === null ? null : this.examined + page.examined;
    page.positions = new Map(page.names.map((/** @type {string} */ name, /** @type {number} */ at) => [name, at]));
    this.learn(page);
    this.held.set(number, page);
    while (this.held.size > PAGES_HELD_MAX) {
      this.held.delete(/** @type {number} */ (this.held.keys().next().value));
    }
    if (number < this.offsets.length) return;
    this.countKinds(page);
    this.offsets.push(this.known);
    this.counts.push(page.rows.length);
    if (page.next) this.starts.push(page.next);
    this.isComplete = !page.next;
    this.emptyPages = page.rows.length ? 0 : this.emptyPages + 1;
    this.isPaused = this.emptyPages >= EMPTY_PAGES_MAX;
  }

  /** @param {any} page */
  learn(page) {
    for (const [at, name] of page.names.entries()) {
      if (!this.types.has(name)) {
        this.types.set(name, new Set());
        this.names.push(name);
      }
      const seen = /** @type {Set<string>} */ (this.types.get(name));
      for (const row of page.rows) if (row[FIXED + at]) seen.add(row[FIXED + at][0]);
    }
  }

  /** @param {any} page */
  countKinds(page) {
    const at = page.positions.get("EntityType");
    if (at === undefined) return;
    for (const row of page.rows) {
      const kind = row[FIXED + at]?.[1];
      if (kind !== undefined && (this.kinds.size < KINDS_MAX || this.kinds.has(kind))) {
        this.kinds.set(kind, (this.kinds.get(kind) ?? 0) + 1);
      }
    }
  }

  changed() {
    this.dispatchEvent(new Event("change"));
  }
}
