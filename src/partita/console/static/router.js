// @ts-check
/**
 * The address is the state: every screen reads what it shows from it, and changes it by `go`.
 *
 * `/a/<account>/<screen>/<part>…?name=value`. Keys of entities are in the query, because browsers
 * rewrite paths with the parts `.` and `..`.
 */

/**
 * @typedef {object} Place
 * @property {string} account empty: the first one
 * @property {string} screen
 * @property {string[]} parts
 * @property {URLSearchParams} query
 */

export const moves = new EventTarget();

/** @returns {Place} */
export function here() {
  const parts = location.pathname.split("/").slice(1).map(decodeURIComponent);
  const isScoped = parts[0] === "a";
  const [account, screen, ...rest] = isScoped ? parts.slice(1) : ["", ...parts];
  return {
    account: account ?? "",
    screen: screen || "",
    parts: rest,
    query: new URLSearchParams(location.search),
  };
}

/**
 * Return the address of a screen.
 * @param {string} account
 * @param {string} screen
 * @param {string[]} [parts]
 * @param {Record<string, string | undefined>} [query] undefined members are left out
 */
export function to(account, screen, parts = [], query = {}) {
  const path = ["a", account, screen, ...parts].map(encodeURIComponent).join("/");
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  const text = new URLSearchParams(/** @type {[string, string][]} */ (given)).toString();
  return `/${path}${text ? `?${text}` : ""}`;
}

/**
 * Show another address.
 * @param {string} address
 * @param {{replace?: boolean}} [how]
 */
export function go(address, {replace = false} = {}) {
  if (replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  moves.dispatchEvent(new Event("move"));
}

/** Handle links to our own pages without loading the page again. */
export function followLinks() {
  addEventListener("popstate", () => moves.dispatchEvent(new Event("move")));
  document.addEventListener("click", (event) => {
    const link = /** @type {Element} */ (event.target).closest?.("a[href]");
    const isPlain = event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey;
    if (!(link instanceof HTMLAnchorElement) || !isPlain || link.target) return;
    if (link.origin !== location.origin || link.hasAttribute("download")) return;
    if (link.pathname.startsWith("/api/") || link.pathname.startsWith("/static/")) return;
    event.preventDefault();
    go(link.pathname + link.search);
  });
}
