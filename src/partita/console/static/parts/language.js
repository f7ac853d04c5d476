// @ts-check
/**
 * A language that `Intl` accepts; imported before uPlot, which formats numbers for
 * `navigator.language` as soon as it is loaded. A browser that is started without a locale
 * (no LANG) reports "en-US@posix", and without this module no screen would open.
 */
try {
  new Intl.NumberFormat(navigator.language);
} catch {
  Object.defineProperty(navigator, "language", {value: "en-US", configurable: true});
}
