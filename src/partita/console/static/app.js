// @ts-check
/** The shell: account bar, navigation, the current screen, help, theme. */

import * as api from "./api.js";
import {confirmDialog, openDialog, textDialog} from "./parts/dialogs.js";
import {Part} from "./parts/element.js";
import {icon} from "./parts/icons.js";
import {emptyState, errorPanel, waiting} from "./parts/panels.js";
import {Screen} from "./parts/screen.js";
import {toast, toastError} from "./parts/toasts.js";
import {followLinks, go, here, moves, to} from "./router.js";
import {NAVIGATION, SCREENS} from "./screens/list.js";
import {html, nothing} from "./vendor/lit.js";

const THEME = "partita.theme";
const THEMES = /** @type {const} */ (["system", "light", "dark"]);
const THEME_ICONS = {system: "contrast", light: "sun", dark: "moon"};
const START = "tables";
/** Stands for the account in a console that shows only a state, shard maps or a fleet. */
const NO_ACCOUNT = {name: "-", is_development: false, endpoints: {}, has_key: false};

class ConsoleApp extends Part {
  static properties = {
    session: {state: true},
    error: {state: true},
    screenError: {state: true},
    place: {state: true},
    theme: {state: true},
  };

  constructor() {
    super();
    /** @type {any} */
    this.session = null;
    /** @type {any} */
    this.error = null;
    /** Why the screen cannot be shown: the others can. @type {any} */
    this.screenError = null;
    this.place = here();
    this.theme = /** @type {"system" | "light" | "dark"} */ (
      localStorage.getItem(THEME) ?? "system"
    );
    /** @type {Screen | null} */
    this.screen = null;
    this.showTheme();
  }

  connectedCallback() {
    super.connectedCallback();
    api.takeToken();
    followLinks();
    moves.addEventListener("move", () => this.move());
    api.changes.addEventListener("token", () => this.start());
    api.changes.addEventListener("locks", () => this.showScreen());
    addEventListener("hashchange", () => api.takeToken());
    document.addEventListener("keydown", (event) => this.onKey(event));
    this.start();
  }

  async start() {
    if (!api.hasToken()) {
      this.session = null;
      this.screen = null;
      return;
    }
    try {
      this.session = await api.get("/session");
      this.error = null;
      this.move();
    } catch (error) {
      this.error = error;
    }
  }

  get account() {
    const accounts = this.session?.accounts ?? [];
    const name = this.place.account;
    if (this.session && !accounts.length) return NO_ACCOUNT;
    return name ? accounts.find((/** @type {any} */ each) => each.name === name) : accounts[0];
  }

  /** The screen that is shown first. */
  get startScreen() {
    if (this.session.accounts.length) return START;
    if (this.session.has_states) return "state";
    return this.session.has_shards ? "shards" : "fleet";
  }

  get canWrite() {
    if (this.session.read_only) return false;
    return this.account.is_development || api.isUnlocked(this.account.name);
  }

  move() {
    this.place = here();
    if (!this.session) return;
    const first = this.session.accounts[0] ?? NO_ACCOUNT;
    if (!this.place.screen || !this.place.account) {
      const {screen, parts, query} = this.place;
      const address = to(this.place.account || first.name, screen || this.startScreen, parts);
      go(address + (query.size ? `?${query}` : ""), {replace: true});
      return;
    }
    this.showScreen();
  }

  /** Create the element of the screen, or hand the new address to the present one. */
  async showScreen() {
    this.screenError = null;
    const kind = SCREENS.find((each) => each.path === this.place.screen);
    if (!this.session || !kind || !this.account) {
      this.screen = null;
      this.requestUpdate();
      return;
    }
    if (this.screen?.localName !== kind.tag || this.screen.account !== this.account) {
      /** @type {unknown} */
      let error = null;
      await kind.load().catch((found) => (error = found));
      if (SCREENS.find((each) => each.path === this.place.screen) !== kind) return;
      if (error) {
        this.screen = null;
        this.screenError = error;
        return;
      }
      this.screen = /** @type {Screen} */ (document.createElement(kind.tag));
    }
    Object.assign(this.screen, {
      account: this.account,
      place: this.place,
      canWrite: this.canWrite,
      session: this.session,
    });
    this.requestUpdate();
  }

  // Theme

  showTheme() {
    const root = document.documentElement;
    if (this.theme === "system") delete root.dataset.theme;
    else root.dataset.theme = this.theme;
  }

  nextTheme() {
    this.theme = THEMES[(THEMES.indexOf(this.theme) + 1) % THEMES.length];
    localStorage.setItem(THEME, this.theme);
    this.showTheme();
  }

  // Keys

  /** @param {KeyboardEvent} event */
  onKey(event) {
    const target = /** @type {HTMLElement} */ (event.target);
    const isTyping = target.matches?.("input, textarea, select, [contenteditable]");
    const isOpen = document.querySelector("dialog[open]");
    if (event.defaultPrevented || isOpen || event.metaKey) return;
    if (isTyping && !(event.ctrlKey && event.key === "Enter")) return;
    if (event.key === "?") this.help();
    else if (!this.screen?.onKey(event)) return;
    event.preventDefault();
  }

  help() {
    const own = /** @type {typeof Screen | undefined} */ (this.screen?.constructor)?.keys ?? [];
    const row = (/** @type {[string, string]} */ [key, text]) =>
      html`<tr><td><kbd>${key}</kbd></td><td>${text}</td></tr>`;
    openDialog(
      "Keys",
      ({close}) => html`<div class="body">
          <table class="keys">
            <tbody>
              ${own.map(row)} ${row(["?", "Show the keys"])} ${row(["Esc", "Close a dialog"])}
            </tbody>
          </table>
        </div>
        <footer><button class="primary" autofocus @click=${() => close()}>Close</button></footer>`,
    );
  }

  // Locks

  async toggleLock() {
    const {name} = this.account;
    try {
      if (api.isUnlocked(name)) {
        await api.lock(name);
        toast(`${name} is read-only again.`);
        return;
      }
      const isSure = await confirmDialog({
        title: "Unlock the account",
        text: html`<p>
            Until you lock it or close this tab, this page can change and delete what is in
            <strong>${name}</strong>.
          </p>
          <p class="muted">${Object.values(this.account.endpoints)[0]}</p>`,
        action: "Unlock",
        danger: true,
        typed: name,
      });
      if (isSure) {
        await api.unlock(name, name);
        toast(`${name} can be changed from this tab.`);
      }
    } catch (error) {
      toastError(error);
    }
  }

  // Rendering

  render() {
    if (!api.hasToken()) return this.gate();
    if (this.error) {
      return html`<main class="gate">
        ${errorPanel(this.error, {retry: () => this.start()})}
      </main>`;
    }
    if (!this.session) return html`<main class="gate">${waiting()}</main>`;
    return html`<a class="skip" href="#main" @click=${this.skip}>Skip to the content</a>
      ${this.bar()}
      <div class="shell">
        ${this.navigation()}
        <main id="main" tabindex="-1">${this.content()}</main>
      </div>
      <toast-list></toast-list>`;
  }

  /** @param {Event} event */
  skip(event) {
    event.preventDefault();
    event.stopPropagation();
    document.getElementById("main")?.focus();
  }

  gate() {
    return html`<main class="gate">
        ${emptyState({
          icon: "key",
          title: "This tab has no token",
          text: html`<p>
              Open the address that <code>partita serve --console</code> or
              <code>partita console</code> printed: it ends with the token. The token is also in the
              file <code>console.token</code> in the data folder.
            </p>`,
          actions: html`<button class="primary" @click=${this.askToken}>Enter the token</button>`,
        })}
      </main>
      <toast-list></toast-list>`;
  }

  async askToken() {
    const text = await textDialog({title: "Token", label: "Token or address", action: "Open"});
    const token = /([A-Za-z0-9_-]{43,})\s*$/.exec(text ?? "")?.[1];
    if (token) api.setToken(token);
    else if (text) toast("This text does not end with a token.", "error");
  }

  bar() {
    const {session, account} = this;
    const isLocked = !account || !this.canWrite;
    const kind = account?.is_development ? "development" : isLocked ? "locked" : "unlocked";
    if (!session.accounts.length) return this.barWithoutAccount();
    return html`<header class="bar ${kind}">
      <a class="brand" href="/"><img src="/static/icon.svg" alt="" width="20" height="20" />Partita</a>
      <span class="separator"></span>
      ${session.accounts.length > 1 && account
        ? html`<select aria-label="Account" @change=${this.choose}>
            ${session.accounts.map(
              (/** @type {any} */ each) =>
                html`<option ?selected=${each === account}>${each.name}</option>`,
            )}
          </select>`
        : html`<strong class="account-name">${account?.name ?? this.place.account}</strong>`}
      ${account
        ? html`<span class="endpoint">${hostOf(account)}</span>
            <span class="mode">
              ${account.is_development ? "development account" : nothing}
              ${session.read_only
                ? html`${icon("lock")} read-only`
                : account.is_development
                  ? nothing
                  : isLocked
                    ? html`${icon("lock")} read-only
                        <button @click=${this.toggleLock}>Unlock…</button>`
                    : html`${icon("unlock")} can be changed
                        <button @click=${this.toggleLock}>Lock</button>`}
            </span>`
        : nothing}
      <span class="space"></span>
      ${this.barButtons()}
    </header>`;
  }

  barWithoutAccount() {
    return html`<header class="bar development">
      <a class="brand" href="/"><img src="/static/icon.svg" alt="" width="20" height="20" />Partita</a>
      <span class="separator"></span>
      <span class="muted">no account</span>
      <span class="space"></span>
      ${this.barButtons()}
    </header>`;
  }

  barButtons() {
    return html`<button class="plain" @click=${this.nextTheme} aria-label=${`Theme: ${this.theme}`} title=${`Theme: ${this.theme}`}>
        ${icon(THEME_ICONS[this.theme])}
      </button>
      <button class="plain" @click=${this.help} aria-label="Keys" title="Keys (?)">${icon("help")}</button>`;
  }

  /** @param {Event} event */
  choose(event) {
    const name = /** @type {HTMLSelectElement} */ (event.target).value;
    const entry = NAVIGATION.flatMap((group) => group.entries).find((each) =>
      each.screens.includes(this.place.screen),
    );
    go(to(name, entry?.path ?? START));
  }

  navigation() {
    const {accounts} = this.session;
    const name = this.account?.name ?? accounts[0].name;
    return html`<nav aria-label="Screens">
      ${NAVIGATION.filter((group) => accounts.length || !group.needsAccount).map(
        (group) => html`<h2>${group.title}</h2>
          <ul>
            ${group.entries.map((entry) => {
              const isHere = entry.screens.includes(this.place.screen);
              return html`<li>
                <a href=${to(name, entry.path)} aria-current=${isHere ? "page" : nothing}>
                  ${icon(entry.icon)} ${entry.title}
                </a>
              </li>`;
            })}
          </ul>`,
      )}
      <div class="version">Partita ${this.session.version}</div>
    </nav>`;
  }

  content() {
    if (!this.account) {
      return emptyState({
        icon: "search",
        title: `The console has no account ${this.place.account}`,
        text: html`It shows
        ${this.session.accounts.map((/** @type {any} */ each) => html`<a href=${to(each.name, START)}>${each.name}</a> `)}`,
      });
    }
    if (!SCREENS.some((each) => each.path === this.place.screen)) {
      return emptyState({
        icon: "search",
        title: "The screen does not exist",
        text: html`Check the address, or continue with
          <a href=${to(this.account.name, START)}>the tables</a>.`,
      });
    }
    if (this.screenError) {
      // A module that failed is not loaded again before the page is.
      return errorPanel(this.screenError, {retry: () => location.reload()});
    }
    return this.screen ?? waiting();
  }
}

/** @param {{endpoints: Record<string, string>}} account */
function hostOf(account) {
  const address = account.endpoints.tables ?? Object.values(account.endpoints)[0];
  return address ? new URL(address).host : "";
}

customElements.define("console-app", ConsoleApp);
