// @ts-check
/**
 * Give uPlot a language that `Intl` accepts: where the locale is POSIX or C.UTF-8, Chromium says
 * `en-US@posix`, with which `Intl.NumberFormat` throws. Import this before uPlot.
 */
try {
  new Intl.NumberFormat(navigator.language);
} catch {
  Object.defineProperty(navigator, "language", {value: "en-US"});
}
