// @ts-check

const WHOLE = new Intl.NumberFormat("en-US");

/** @param {number} value */
export function whole(value) {
  return WHOLE.format(value);
}

/** @param {number} count @param {string} one @param {string} [many] */
export function counted(count, one, many = `${one}s`) {
  return `${whole(count)} ${count === 1 ? one : many}`;
}

/** @param {number} value */
export function bytes(value) {
  if (value < 1024) return `${value} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let size = value / 1024;
  let at = 0;
  while (size >= 1024 && at < units.length - 1) {
    size /= 1024;
    at += 1;
  }
  return `${size >= 100 ? size.toFixed(0) : size.toFixed(1)} ${units[at]}`;
}

/** @param {number} seconds */
export function duration(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** @param {number} seconds since 1970 */
export function clockTime(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB");
}

/** @param {string} text a time in ISO 8601 */
export function moment(text) {
  const at = new Date(text);
  if (at.getUTCFullYear() >= 9999) return "never";
  return `${at.toISOString().slice(0, 10)} ${at.toISOString().slice(11, 19)}`;
}
