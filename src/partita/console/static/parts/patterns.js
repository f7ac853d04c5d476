// @ts-check
/** Rows that partita.patterns maintains beside entities: what the value of EntityType says. Pure. */

const HIDDEN = /** @type {Record<string, string>} */ ({
  "~outbox": "outbox: work that workers have not done yet",
  "~index": "states of indexes",
});

/**
 * Say what rows of a type are; empty for entities of the application.
 * @param {string} type
 */
export function noteOf(type) {
  if (type in HIDDEN) return HIDDEN[type];
  if (type.startsWith("~")) return "rows of partita.patterns";
  const [owner, index] = type.split("@");
  if (index !== undefined) return `index rows: ${index} of ${owner}`;
  return /~\d*$/.test(type) ? "further rows of wide entities" : "";
}

/** @param {Map<string, number>} kinds */
export function hasPatterns(kinds) {
  return [...kinds.keys()].some(noteOf);
}

/**
 * Find the entity that an index row refers to.
 * @param {string} partition of the index row
 * @param {Map<string, [string, string]>} properties
 */
export function memberOf(partition, properties) {
  const row = properties.get("_Row")?.[1];
  if (row === undefined) return null;
  const type = (properties.get("EntityType")?.[1] ?? "").split("@")[0];
  return {type, pk: properties.get("_Partition")?.[1] ?? partition, rk: row};
}

/**
 * Join the pieces of an outbox entry and print them; empty if it is not one.
 * @param {Map<string, [string, string]>} properties
 */
export function entryOf(properties) {
  if (properties.get("EntityType")?.[1] !== "~outbox") return "";
  let text = "";
  for (let at = 0; properties.has(`Entry${at}`); at += 1) text += properties.get(`Entry${at}`)?.[1];
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
