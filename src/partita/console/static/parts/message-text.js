// @ts-check
/** The three ways to read a message: as it is stored, decoded from Base64, or as JSON. */

const BASE64 = /^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/;

/**
 * Decode a text that is Base64 of UTF-8; null if it is not.
 * @param {string} text
 */
export function fromBase64(text) {
  if (!text || !BASE64.test(text)) return null;
  try {
    const bytes = Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
    return new TextDecoder("utf-8", {fatal: true}).decode(bytes);
  } catch {
    return null;
  }
}

/** @param {string} text */
export function toBase64(text) {
  return btoa(Array.from(new TextEncoder().encode(text), (byte) => String.fromCharCode(byte)).join(""));
}

const TOKEN = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g;

/**
 * Return a text as indented JSON; null if it is not an object or array.
 *
 * Its tokens stay as they are: a number with many digits would not survive a conversion.
 * @param {string} text
 */
export function asJson(text) {
  if (!/^\s*[[{]/.test(text)) return null;
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  let depth = 0;
  let shown = "";
  let before = "";
  const line = () => `\n${"  ".repeat(depth)}`;
  for (const token of text.match(TOKEN) ?? []) {
    const isEnd = token === "}" || token === "]";
    const wasStart = before === "{" || before === "[";
    if (isEnd) depth -= 1;
    if ((isEnd && !wasStart) || (wasStart && !isEnd) || before === ",") shown += line();
    shown += token === ":" ? ": " : token;
    if (token === "{" || token === "[") depth += 1;
    before = token;
  }
  return shown;
}

/**
 * Return a text as the chosen view shows it.
 * @param {string} text
 * @param {"stored" | "text"} view `text`: decoded and indented where that is possible
 */
export function shownText(text, view) {
  if (view === "stored") return {text, kind: ""};
  const decoded = fromBase64(text);
  const readable = decoded ?? text;
  const json = asJson(readable);
  const kinds = [decoded === null ? "" : "Base64", json === null ? "" : "JSON"].filter(Boolean);
  return {text: json ?? readable, kind: kinds.join(", ")};
}
