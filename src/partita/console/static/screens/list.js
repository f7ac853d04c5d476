// @ts-check
/**
 * The screens: one line each. `path` is the first part of an address after the account; `nav` is
 * the entry of the navigation that it belongs to.
 *
 * @typedef {object} ScreenKind
 * @property {string} path
 * @property {string} tag the custom element
 * @property {() => Promise<unknown>} load
 */

/** @type {ScreenKind[]} */
export const SCREENS = [
  {path: "tables", tag: "tables-screen", load: () => import("./named-lists.js")},
  {path: "t", tag: "table-screen", load: () => import("./table.js")},
  {path: "e", tag: "table-screen", load: () => import("./table.js")},
  {path: "p", tag: "patterns-screen", load: () => import("./patterns.js")},
  {path: "queues", tag: "queues-screen", load: () => import("./named-lists.js")},
  {path: "q", tag: "queue-screen", load: () => import("./queue.js")},
  {path: "containers", tag: "containers-screen", load: () => import("./named-lists.js")},
  {path: "c", tag: "container-screen", load: () => import("./container.js")},
  {path: "sas", tag: "sas-screen", load: () => import("./sas.js")},
  {path: "overview", tag: "overview-screen", load: () => import("./overview.js")},
  {path: "heat", tag: "heat-screen", load: () => import("./heat.js")},
  {path: "state", tag: "state-screen", load: () => import("./state.js")},
  {path: "shards", tag: "shards-screen", load: () => import("./shards.js")},
  {path: "fleet", tag: "fleet-screen", load: () => import("./fleet.js")},
  {path: "jobs", tag: "jobs-screen", load: () => import("./jobs.js")},
];

/** The entries of the navigation: `screens` are the paths that mark it as current. */
export const NAVIGATION = [
  {
    title: "Data",
    needsAccount: true,
    entries: [
      {path: "tables", title: "Tables", icon: "table", screens: ["tables", "t", "e", "p"]},
      {path: "queues", title: "Queues", icon: "queue", screens: ["queues", "q"]},
      {path: "containers", title: "Containers", icon: "box", screens: ["containers", "c"]},
      {path: "sas", title: "Signatures", icon: "key", screens: ["sas"]},
    ],
  },
  {
    title: "Operations",
    needsAccount: true,
    entries: [
      {path: "overview", title: "Overview", icon: "gauge", screens: ["overview"]},
      {path: "heat", title: "Heat", icon: "heat", screens: ["heat"]},
      {path: "jobs", title: "Jobs", icon: "jobs", screens: ["jobs"]},
    ],
  },
  {
    title: "State and shards",
    needsAccount: false,
    entries: [
      {path: "state", title: "Reliable state", icon: "state", screens: ["state"]},
      {path: "shards", title: "Shard maps", icon: "shards", screens: ["shards"]},
      {path: "fleet", title: "Fleet", icon: "fleet", screens: ["fleet"]},
    ],
  },
];
