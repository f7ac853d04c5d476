// @ts-check
/**
 * Stored axes → rows of keys × times: merged here, so that zooming asks the server nothing.
 *
 * A column has at most 256 ranges of keys, and those of two columns differ. Keys are ordered by
 * code points, as the server orders them.
 *
 * @typedef {[string, string, number[]]} Bucket first key, last key, counts
 * @typedef {{start: number, seconds: number, is_open: boolean, axis: Bucket[]}} Column
 * @typedef {{first: string, last: string}} Row
 * @typedef {{rows: Row[], slots: number, since: number, step: number, cells: Float64Array, peak: number}} Picture
 */

export const READS = 0;
export const SCANNED = 1;
export const WRITES = 2;
export const BYTES_OUT = 3;
export const BYTES_IN = 4;

export const KINDS = /** @type {Record<string, {title: string, unit: string, counters: number[]}>} */ ({
  all: {title: "All", unit: "entities/s", counters: [READS, WRITES]},
  reads: {title: "Reads", unit: "reads/s", counters: [READS]},
  writes: {title: "Writes", unit: "writes/s", counters: [WRITES]},
  bytes: {title: "Bytes", unit: "bytes/s", counters: [BYTES_OUT, BYTES_IN]},
});

/** Order by code points: UTF-16 puts U+E000 … U+FFFF after the characters that take two units. */
export function compareKeys(/** @type {string} */ one, /** @type {string} */ other) {
  const length = Math.min(one.length, other.length);
  for (let n = 0; n < length; n += 1) {
    let a = one.charCodeAt(n);
    let b = other.charCodeAt(n);
    if (a === b) continue;
    if (a >= 0xd800 && b >= 0xd800) {
      a = a >= 0xe000 ? a - 0x800 : a + 0x2000;
      b = b >= 0xe000 ? b - 0x800 : b + 0x2000;
    }
    return a - b;
  }
  return one.length - other.length;
}

/** @param {string} key */
export function partitionOf(key) {
  return key.slice(0, key.indexOf("\0"));
}

/** @param {string} key */
export function rowKeyOf(key) {
  return key.slice(key.indexOf("\0") + 1);
}

/** @param {number[]} counts @param {string} kind */
export function amount(counts, kind) {
  return KINDS[kind].counters.reduce((sum, counter) => sum + counts[counter], 0);
}

/**
 * Return all known keys in order: the ends of ranges.
 * @param {Column[]} columns
 */
export function keysOf(columns) {
  const known = new Set();
  for (const column of columns) {
    for (const [first, last] of column.axis) {
      known.add(first);
      known.add(last);
    }
  }
  return /** @type {string[]} */ ([...known]).sort(compareKeys);
}

/**
 * Return the place of the first key that is not before the given one.
 * @param {string[]} keys
 * @param {string} key
 */
export function placeOf(keys, key) {
  let low = 0;
  let high = keys.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (compareKeys(keys[middle], key) < 0) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** @type {WeakMap<string[], Map<string, number>>} */
const known = new WeakMap();

/** @param {string[]} keys */
function placesOf(keys) {
  let found = known.get(keys);
  if (!found) known.set(keys, (found = new Map(keys.map((key, n) => [key, n]))));
  return found;
}

/**
 * Return a picture of a part of the keys and of the time.
 * @param {Column[]} columns
 * @param {{keys: string[], from: number, to: number, since: number, until: number, kind: string, rowsMax: number, slotsMax: number}} view
 *   `from` and `to` are places in `keys`, both inside
 * @returns {Picture}
 */
export function draw(columns, view) {
  const {keys, from, to, since, until, kind} = view;
  const shown = columns.filter((each) => each.start < until && each.start + each.seconds > since);
  const minutes = Math.max(1, Math.ceil((until - since) / 60));
  const step = Math.ceil(minutes / view.slotsMax) * 60;
  const slots = Math.max(1, Math.ceil((until - since) / step));
  const places = placesOf(keys);
  const rowOf = new Int32Array(to - from + 1);
  const rows = rowsOf(shown, places, view, rowOf);
  const cells = new Float64Array(rows.length * slots);
  let peak = 0;
  for (const column of shown) {
    const rates = ratesOf(column, places, view, rowOf, rows.length);
    const begin = column.start - since;
    const end = begin + column.seconds;
    const firstSlot = Math.max(0, Math.floor(begin / step));
    const lastSlot = Math.min(slots, Math.ceil(end / step));
    for (let slot = firstSlot; slot < lastSlot; slot += 1) {
      const part = (Math.min(end, (slot + 1) * step) - Math.max(begin, slot * step)) / step;
      for (let row = 0; row < rows.length; row += 1) {
        if (!rates[row]) continue;
        const found = (cells[slot * rows.length + row] += rates[row] * part);
        if (found > peak) peak = found;
      }
    }
  }
  return {rows, slots, since, step, cells, peak};
}

/**
 * Cut the keys into rows: where the load is, but a partition gets rows by the root of its load.
 * @param {Column[]} columns
 * @param {Map<string, number>} places
 * @param {{keys: string[], from: number, to: number, rowsMax: number}} view
 * @param {Int32Array} rowOf set to the row of each key
 * @returns {Row[]}
 */
function rowsOf(columns, places, {keys, from, to, rowsMax}, rowOf) {
  const loads = new Float64Array(to - from + 2);
  for (const column of columns) {
    for (const [first, last, counts] of column.axis) {
      const start = /** @type {number} */ (places.get(first));
      const end = /** @type {number} */ (places.get(last));
      if (end < from || start > to) continue;
      const each = (counts[READS] + counts[WRITES]) / (end - start + 1);
      loads[Math.max(0, start - from)] += each;
      loads[Math.min(to, end) - from + 1] -= each;
    }
  }
  for (let n = 1; n < loads.length; n += 1) loads[n] += loads[n - 1];
  /** @type {{start: number, end: number, weight: number}[]} */
  const groups = [];
  let name = null;
  for (let n = 0; n <= to - from; n += 1) {
    const own = partitionOf(keys[from + n]);
    if (own !== name) groups.push({start: n, end: n, weight: 0});
    name = own;
    const group = groups[groups.length - 1];
    group.end = n;
    group.weight += Math.max(0, loads[n]);
  }
  for (const group of groups) group.weight = Math.sqrt(group.weight);
  const whole = groups.reduce((sum, each) => sum + each.weight, 0) || 1;
  /** @type {[number, number][]} */
  let cuts = [];
  for (const group of groups) {
    const size = group.end - group.start + 1;
    const count = Math.min(size, Math.max(1, Math.round((rowsMax * group.weight) / whole)));
    const each = Math.ceil(size / count);
    for (let start = group.start; start <= group.end; start += each) {
      cuts.push([start, Math.min(group.end, start + each - 1)]);
    }
  }
  const joined = Math.ceil(cuts.length / rowsMax) || 1;
  if (joined > 1) {
    /** @type {[number, number][]} */
    const fewer = [];
    for (let n = 0; n < cuts.length; n += joined) {
      fewer.push([cuts[n][0], cuts[Math.min(n + joined, cuts.length) - 1][1]]);
    }
    cuts = fewer;
  }
  cuts.forEach(([start, end], row) => rowOf.fill(row, start, end + 1));
  return cuts.map(([start, end]) => ({first: keys[from + start], last: keys[from + end]}));
}

/**
 * Return the rate per second of each row in one column.
 * @param {Column} column
 * @param {Map<string, number>} places
 * @param {{from: number, to: number, kind: string}} view
 * @param {Int32Array} rowOf
 * @param {number} count
 */
function ratesOf(column, places, {from, to, kind}, rowOf, count) {
  const rates = new Float64Array(count);
  const spread = (/** @type {number} */ found, /** @type {number} */ start, /** @type {number} */ end) => {
    if (!found || end < from || start > to) return;
    const inside = Math.min(end, to) - Math.max(start, from) + 1;
    const first = rowOf[Math.max(start, from) - from];
    const last = rowOf[Math.min(end, to) - from];
    const each = (found * inside) / (end - start + 1) / (last - first + 1) / column.seconds;
    for (let row = first; row <= last; row += 1) rates[row] += each;
  };
  column.axis.forEach(([first, last, counts], n) => {
    const start = /** @type {number} */ (places.get(first));
    const end = /** @type {number} */ (places.get(last));
    let found = amount(counts, kind);
    const after = column.axis[n + 1];
    if (after && counts[SCANNED] && after[2][SCANNED]) {
      // A query read the keys between two buckets, too, though no other request did.
      const byQuery = (found * counts[SCANNED]) / (counts[READS] + counts[WRITES] || 1);
      spread(byQuery, start, Math.max(end, /** @type {number} */ (places.get(after[0])) - 1));
      found -= byQuery;
    }
    spread(found, start, end);
  });
  return rates;
}

/**
 * Return how much load of each kind a range of keys had in a time.
 * @param {Column[]} columns
 * @param {{keys: string[], from: number, to: number, since: number, until: number}} view
 */
export function countsIn(columns, view) {
  const places = placesOf(view.keys);
  const rowOf = new Int32Array(view.to - view.from + 1);
  const found = {reads: 0, writes: 0, bytes: 0};
  for (const column of columns) {
    const end = column.start + column.seconds;
    const seconds = Math.min(end, view.until) - Math.max(column.start, view.since);
    if (seconds <= 0) continue;
    for (const kind of /** @type {const} */ (["reads", "writes", "bytes"])) {
      found[kind] += ratesOf(column, places, {...view, kind}, rowOf, 1)[0] * seconds;
    }
  }
  return found;
}

/**
 * Return the partitions with the most load; a range of several counts as one.
 * @param {Column[]} columns
 * @param {{since: number, until: number, kind: string, count: number}} wanted
 */
export function hottest(columns, {since, until, kind, count}) {
  /** @type {Map<string, {first: string, last: string, counts: number[]}>} */
  const found = new Map();
  let seconds = 0;
  for (const column of columns) {
    if (column.start >= until || column.start + column.seconds <= since) continue;
    seconds += column.seconds;
    for (const [first, last, counts] of column.axis) {
      const one = partitionOf(first);
      const name = one === partitionOf(last) ? one : `${first}\0${last}`;
      const range = found.get(name);
      if (!range) {
        found.set(name, {first, last, counts: [...counts]});
        continue;
      }
      if (compareKeys(first, range.first) < 0) range.first = first;
      if (compareKeys(last, range.last) > 0) range.last = last;
      counts.forEach((each, n) => (range.counts[n] += each));
    }
  }
  const ranges = [...found.values()];
  const whole = ranges.reduce((sum, each) => sum + amount(each.counts, kind), 0);
  return ranges
    .map((each) => ({...each, load: amount(each.counts, kind)}))
    .filter((each) => each.load > 0)
    .sort((one, other) => other.load - one.load)
    .slice(0, count)
    .map((each) => ({...each, rate: each.load / Math.max(1, seconds), share: each.load / whole}));
}

/** The colours from little to much, as `partita heat` draws them; black is nothing. */
const STOPS = [[12, 8, 38], [59, 15, 112], [140, 41, 129], [222, 73, 104], [254, 159, 109], [252, 253, 191]];
/** The scale ends at the peak and begins at a thousandth of it. */
export const DECADES = 3;
export const SHADES = Array.from({length: 256}, (_, n) => {
  const place = (n / 255) * (STOPS.length - 1);
  const start = Math.min(Math.floor(place), STOPS.length - 2);
  return STOPS[start].map((low, each) => Math.round(low + (STOPS[start + 1][each] - low) * (place - start)));
});

/** @param {number} rate @param {number} peak @returns {number[]} */
export function shade(rate, peak) {
  if (rate <= 0 || peak <= 0) return [0, 0, 0];
  const level = Math.max(0.02, Math.min(1, 1 + Math.log10(rate / peak) / DECADES));
  return SHADES[Math.round(level * 255)];
}

/**
 * Return the filter of a range of keys.
 * @param {Row} row
 */
export function filterOf({first, last}) {
  const quoted = (/** @type {string} */ text) => `'${text.replaceAll("'", "''")}'`;
  const [one, other] = [partitionOf(first), partitionOf(last)];
  if (one !== other) return `PartitionKey ge ${quoted(one)} and PartitionKey le ${quoted(other)}`;
  const [low, high] = [rowKeyOf(first), rowKeyOf(last)];
  const rows = low === high ? `RowKey eq ${quoted(low)}` : `RowKey ge ${quoted(low)} and RowKey le ${quoted(high)}`;
  return `PartitionKey eq ${quoted(one)} and ${rows}`;
}
