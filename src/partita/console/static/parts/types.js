// @ts-check

/** The letters of the eight types, as the API sends them. */
export const TYPE_NAMES = /** @type {Record<string, string>} */ ({
  s: "String",
  i: "Int32",
  l: "Int64",
  d: "Double",
  b: "Boolean",
  t: "DateTime",
  g: "Guid",
  x: "Binary",
});

/** Types whose values are aligned to the right. */
export const NUMBERS = new Set(["i", "l", "d"]);

/**
 * Write a value as a constant of a filter.
 * @param {string} letter
 * @param {string} value
 */
export function literal(letter, value) {
  switch (letter) {
    case "l":
      return `${value}L`;
    case "t":
      return `datetime'${value}'`;
    case "g":
      return `guid'${value}'`;
    case "x":
      return `X'${hexOf(value)}'`;
    case "s":
      return `'${value.replaceAll("'", "''")}'`;
    case "d": // without a point it would be an Int32, which no Double equals
      return /^[+-]?\d+$/.test(value) ? `${value}.0` : value;
    default:
      return value;
  }
}

/** @param {string} base64 */
export function hexOf(base64) {
  try {
    return [...atob(base64)].map((c) => c.charCodeAt(0).toString(16).padStart(2, "0")).join("");
  } catch {
    return "";
  }
}

/** What a constant of a type looks like, for completion. */
export const EXAMPLES = /** @type {Record<string, string>} */ ({
  s: "'text'",
  i: "42",
  l: "42L",
  d: "3.5",
  b: "true",
  t: "datetime'2026-01-31T12:00:00Z'",
  g: "guid'00000000-0000-0000-0000-000000000000'",
  x: "X'00ff'",
});

/**
 * Say what is wrong with the text of a value; empty if nothing is.
 * @param {string} letter
 * @param {string} value
 */
export function problemOf(letter, value) {
  const text = value.trim();
  switch (letter) {
    case "i": {
      if (!/^[+-]?\d+$/.test(text)) return "A whole number is required.";
      const number = BigInt(text);
      return number < -(2n ** 31n) || number >= 2n ** 31n ? "Too large for Int32: use Int64." : "";
    }
    case "l": {
      if (!/^[+-]?\d+$/.test(text)) return "A whole number is required.";
      const number = BigInt(text);
      return number < -(2n ** 63n) || number >= 2n ** 63n ? "Too large for Int64." : "";
    }
    case "d":
      return /^([+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|NaN|-?Infinity)$/i.test(text)
        ? ""
        : "A number, NaN, Infinity or -Infinity is required.";
    case "b":
      return /^(true|false)$/i.test(text) ? "" : "true or false is required.";
    case "t":
      return /^\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,7})?)?(Z|[+-]\d\d:\d\d)?)?$/i.test(text)
        ? ""
        : "A time such as 2026-01-31T12:00:00Z is required.";
    case "g":
      return /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(text)
        ? ""
        : "A GUID such as 00000000-0000-0000-0000-000000000000 is required.";
    case "x":
      return /^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/.test(text)
        ? ""
        : "Base64 is required.";
    default:
      return "";
  }
}
