// @ts-check
/** What can follow at a place of a `$filter`: names, operators, constants, connectives. Pure. */

import {EXAMPLES, TYPE_NAMES, literal} from "./types.js";

export const OPERATORS = /** @type {[string, string][]} */ ([
  ["eq", "equal"],
  ["ne", "not equal"],
  ["gt", "greater"],
  ["ge", "greater or equal"],
  ["lt", "less"],
  ["le", "less or equal"],
]);
const COMPARISONS = new Set(OPERATORS.map(([name]) => name));
const TOKEN = /\s*(?:((?:datetime|guid|binary|X)?'(?:[^']|'')*(?:'|$))|([A-Za-z_]\w*)|([-+]?[\d.]\S*)|([()]))/y;

/**
 * @typedef {object} Completion
 * @property {string} text what is inserted
 * @property {string} note
 * @typedef {object} Known
 * @property {string[]} names
 * @property {(name: string) => string[]} types letters that were seen
 * @property {(name: string) => [string, string][]} values that were seen
 */

/**
 * @param {string} text up to the caret
 * @param {Known} known
 * @returns {{from: number, items: Completion[]}} `from`: where the inserted text begins
 */
export function complete(text, known) {
  const {expected, name, from} = expectation(text);
  const typed = text.slice(from).toLowerCase();
  const items = candidates(expected, name, known).filter(
    (each) => each.text.toLowerCase().startsWith(typed) && each.text.toLowerCase() !== typed,
  );
  return {from, items: items.slice(0, 12)};
}

/**
 * @param {string} text
 * @returns {{expected: "name" | "operator" | "constant" | "connective", name: string, from: number}}
 */
function expectation(text) {
  /** @type {"name" | "operator" | "constant" | "connective"} */
  let expected = "name";
  let name = "";
  let at = 0;
  TOKEN.lastIndex = 0;
  for (;;) {
    const found = TOKEN.exec(text);
    if (!found) break;
    const word = found[0].trimStart();
    const from = TOKEN.lastIndex - word.length;
    const isLast = TOKEN.lastIndex === text.length;
    // The word before the caret is still being typed.
    if (isLast && (found[2] || found[3] || (found[1] && !isClosed(word)))) return {expected, name, from};
    at = TOKEN.lastIndex;
    if (word === "(") expected = "name";
    else if (word === ")") expected = "connective";
    else if (["and", "or", "not"].includes(word)) expected = "name";
    else if (COMPARISONS.has(word)) expected = "constant";
    else if (expected === "name" && found[2]) {
      name = word;
      expected = "operator";
    } else expected = "connective";
  }
  const rest = text.slice(at);
  return {expected, name, from: text.length - rest.trimStart().length};
}

/** @param {string} word */
function isClosed(word) {
  return ((word.match(/'/g) ?? []).length) % 2 === 0;
}

/**
 * @param {string} expected
 * @param {string} name
 * @param {Known} known
 * @returns {Completion[]}
 */
function candidates(expected, name, known) {
  switch (expected) {
    case "name":
      return ["PartitionKey", "RowKey", ...known.names, "Timestamp"]
        .map((each) => ({text: each, note: known.types(each).map((type) => TYPE_NAMES[type]).join(" | ")}))
        .concat([{text: "not", note: "the opposite"}]);
    case "operator":
      return OPERATORS.map(([text, note]) => ({text, note}));
    case "constant": {
      const letters = known.types(name);
      const values = known.values(name).map(([letter, value]) => ({
        text: literal(letter, value),
        note: `seen, ${TYPE_NAMES[letter]}`,
      }));
      const forms = (letters.length ? letters : Object.keys(EXAMPLES)).flatMap((letter) =>
        letter === "b"
          ? [{text: "true", note: "Boolean"}, {text: "false", note: "Boolean"}]
          : [{text: EXAMPLES[letter], note: `form of ${TYPE_NAMES[letter]}`}],
      );
      const seen = new Set(values.map((each) => each.text));
      return [...values, ...forms.filter((each) => !seen.has(each.text))];
    }
    default:
      return [{text: "and", note: "both"}, {text: "or", note: "one of them"}];
  }
}
