// @ts-check
import {html, svg} from "../vendor/lit.js";

const PATHS = /** @type {Record<string, import("../vendor/lit.js").TemplateResult>} */ ({
  table: svg`<path d="M2 3.5h12v9H2zM2 6.5h12M6 6.5v6"/>`,
  queue: svg`<path d="M2.5 3h11v2.5h-11zM2.5 7h11v2.5h-11zM5 11.5h6M8 11.5v2.5"/>`,
  box: svg`<path d="M2.5 5 8 2l5.5 3v6L8 14l-5.5-3zM2.5 5 8 8l5.5-3M8 8v6"/>`,
  heat: svg`<path d="M2.5 2.5h3v3h-3zM6.5 6.5h3v3h-3zM10.5 10.5h3v3h-3zM10.5 2.5h3v3h-3zM2.5 10.5h3v3h-3z"/>`,
  gauge: svg`<path d="M2 11a6 6 0 1 1 12 0M8 11l3-4M4 13.5h8"/>`,
  state: svg`<path d="M8 2c3 0 5 .9 5 2s-2 2-5 2-5-.9-5-2 2-2 5-2zM3 4v8c0 1.100 2 2 5 2s5-.9 5-2V4M3 8c0 1.100 2 2 5 2s5-.9 5-2"/>`,
  shards: svg`<path d="M2 3h5v4H2zM9 3h5v4H9zM2 9h5v4H2zM9 9h5v4H9z"/>`,
  fleet: svg`<path d="M2.5 2.5h11v3h-11zM2.5 6.5h11v3h-11zM2.5 10.500h11v3h-11zM5 4h.01M5 8h.01M5 12h.01"/>`,
  key: svg`<path d="M6 9.5a3.500 3.500 0 1 1 3.300-2.300L14 11.800V14h-2.500v-1.500H10V11L8.500 9.500zM5.500 5.500h.01"/>`,
  jobs: svg`<path d="M3 4h6M3 8h10M3 12h4M12 3v2M9.500 11v2"/>`,
  slow: svg`<path d="M8 4v4l2.500 1.500M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12z"/>`,
  sun: svg`<path d="M8 10.500a2.500 2.500 0 1 0 0-5 2.500 2.500 0 0 0 0 5zM8 1.500v1.500M8 13v1.500M1.500 8H3M13 8h1.500M3.500 3.500l1 1M11.500 11.500l1 1M12.500 3.500l-1 1M4.500 11.500l-1 1"/>`,
  moon: svg`<path d="M13 9.500A5.500 5.500 0 1 1 6.500 3a4.500 4.500 0 0 0 6.500 6.500z"/>`,
  contrast: svg`<path d="M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2z"/><path d="M8 2a6 6 0 0 1 0 12z" fill="currentColor"/>`,
  help: svg`<path d="M6 6a2 2 0 1 1 2.800 1.800c-.6.300-.8.700-.8 1.400M8 11.500h.01M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12z"/>`,
  lock: svg`<path d="M3.500 7h9v6.500h-9zM5.500 7V5a2.500 2.500 0 0 1 5 0v2"/>`,
  unlock: svg`<path d="M3.500 7h9v6.500h-9zM5.500 7V4.500a2.500 2.500 0 0 1 4.800-1"/>`,
  plus: svg`<path d="M8 3v10M3 8h10"/>`,
  minus: svg`<path d="M3 8h10"/>`,
  trash: svg`<path d="M3 4.500h10M6.500 4.500V3h3v1.500M4.500 4.500l.5 9h6l.5-9"/>`,
  refresh: svg`<path d="M13 8a5 5 0 1 1-1.600-3.700M13 2.500v3h-3"/>`,
  search: svg`<path d="M7 11.500a4.500 4.500 0 1 0 0-9 4.500 4.500 0 0 0 0 9zM10.300 10.300 14 14"/>`,
  copy: svg`<path d="M5.500 5.500h8v8h-8zM10.500 5.500v-3h-8v8h3"/>`,
  download: svg`<path d="M8 2.500v8M5 7.500l3 3 3-3M3 13.500h10"/>`,
  upload: svg`<path d="M8 10.500v-8M5 5.500l3-3 3 3M3 13.500h10"/>`,
  filter: svg`<path d="M2.5 3h11L9.500 8v5l-3-1.500V8z"/>`,
  right: svg`<path d="m6 3.500 4.500 4.500L6 12.500"/>`,
  down: svg`<path d="m3.500 6 4.500 4.500L12.500 6"/>`,
  close: svg`<path d="m4 4 8 8M12 4l-8 8"/>`,
  warn: svg`<path d="M8 2.500 14.500 13.500h-13zM8 6.500v3.500M8 11.800h.01"/>`,
  edit: svg`<path d="M3 13l.6-3L10.500 3l2.500 2.500-7 7zM9 4.500 11.500 7"/>`,
  play: svg`<path d="M5 3v10l8-5z"/>`,
  pause: svg`<path d="M5.500 3.500v9M10.500 3.500v9"/>`,
  stop: svg`<path d="M4 4h8v8H4z"/>`,
  count: svg`<path d="M5.500 2.500 4.500 13.500M11.500 2.500l-1 11M2.500 6h11.500M2 10h11.500"/>`,
  folder: svg`<path d="M2 4h4.500l1.500 2h6v7H2z"/>`,
  file: svg`<path d="M4 2h5l3 3v9H4zM9 2v3h3"/>`,
  braces: svg`<path d="M6 2.500c-2 0-2 1-2 2.500s0 2.500-1.500 3C4 8.500 4 9.500 4 11s0 2.500 2 2.500M10 2.500c2 0 2 1 2 2.500s0 2.500 1.500 3c-1.500.5-1.500 1.500-1.500 3s0 2.500-2 2.500"/>`,
});

/**
 * Draw an icon; the text beside it, or the label of its button, says what it means.
 * @param {string} name
 */
export function icon(name) {
  return html`<svg class="icon" viewBox="0 0 16 16" aria-hidden="true" focusable="false">${PATHS[name]}</svg>`;
}
