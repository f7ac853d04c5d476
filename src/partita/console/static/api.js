// @ts-check
/**
 * Requests to the API of the console.
 *
 * The token comes in the fragment of the first address, which browsers do not send, and moves to
 * the storage of this tab. It travels in a header only: cookies would reach every port of the host.
 */

const TOKEN = "partita.token";
const UNLOCK = "partita.unlock.";

/** An error of the API: what failed, its code, and what to do. */
export class ApiError extends Error {
  /**
   * @param {number} status
   * @param {{code: string, message: string, hint: string, facts: Record<string, unknown>}} error
   */
  constructor(status, error) {
    super(error.message);
    this.status = status;
    this.code = error.code;
    this.hint = error.hint;
    this.facts = error.facts ?? {};
  }
}

/** Tells the shell that the token or the locks have changed. */
export const changes = new EventTarget();

/** Move the token from the fragment into the storage of this tab. */
export function takeToken() {
  const found = /^#token=([A-Za-z0-9_-]+)$/.exec(location.hash);
  if (!found) return;
  setToken(found[1]);
  history.replaceState(null, "", location.pathname + location.search);
}

/** @param {string} token */
export function setToken(token) {
  sessionStorage.setItem(TOKEN, token);
  changes.dispatchEvent(new Event("token"));
}

export function hasToken() {
  return sessionStorage.getItem(TOKEN) !== null;
}

/** @param {string} account */
export function isUnlocked(account) {
  return sessionStorage.getItem(UNLOCK + account) !== null;
}

/**
 * Make an account writable for this tab.
 * @param {string} account
 * @param {string} name the name that the user typed
 */
export async function unlock(account, name) {
  const answer = await post(`/a/${encode(account)}/unlock`, {name});
  sessionStorage.setItem(UNLOCK + account, answer.unlock);
  changes.dispatchEvent(new Event("locks"));
}

/** @param {string} account */
export async function lock(account) {
  try {
    await post(`/a/${encode(account)}/lock`, {});
  } finally {
    sessionStorage.removeItem(UNLOCK + account);
    changes.dispatchEvent(new Event("locks"));
  }
}

/** @param {string} text one part of a path */
export function encode(text) {
  return encodeURIComponent(text);
}

/**
 * @param {string} path below /api/v1
 * @param {Record<string, unknown>} [query] undefined members are left out
 */
export function address(path, query) {
  const given = Object.entries(query ?? {}).filter(([, value]) => value !== undefined);
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `/api/v1${path}${text ? `?${text}` : ""}`;
}

/**
 * @param {string} path
 * @returns {Record<string, string>}
 */
export function headersFor(path) {
  const account = /^\/a\/([^/]+)/.exec(path)?.[1];
  const secret = account && sessionStorage.getItem(UNLOCK + decodeURIComponent(account));
  return {
    authorization: `Bearer ${sessionStorage.getItem(TOKEN) ?? ""}`,
    ...(secret ? {"x-partita-unlock": secret} : {}),
  };
}

/**
 * Send a request and return the JSON of its answer; an error is an ApiError.
 * @param {string} method
 * @param {string} path below /api/v1
 * @param {{query?: Record<string, unknown>, body?: unknown, bytes?: Blob, signal?: AbortSignal}} [more]
 * @returns {Promise<any>}
 */
export async function request(method, path, more = {}) {
  const isWrite = method !== "GET";
  /** @type {RequestInit} */
  const options = {method, headers: headersFor(path), signal: more.signal ?? null};
  if (isWrite) {
    const type = more.bytes ? "application/octet-stream" : "application/json";
    options.headers = {...options.headers, "content-type": type};
    options.body = more.bytes ?? JSON.stringify(more.body ?? {});
  }
  let answer;
  try {
    answer = await fetch(address(path, more.query), options);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, {
      code: "ConsoleUnreachable",
      message: "The console does not answer.",
      hint: "Check that the process that serves it is running.",
      facts: {},
    });
  }
  const value = await answer.json().catch(() => null);
  if (answer.ok) return value;
  const found = value?.error ?? {
    code: `Status${answer.status}`,
    message: "The answer of the console is not readable.",
    hint: "",
    facts: {},
  };
  if (answer.status === 401) {
    sessionStorage.removeItem(TOKEN);
    changes.dispatchEvent(new Event("token"));
  }
  throw new ApiError(answer.status, found);
}

/**
 * @param {string} path
 * @param {Record<string, unknown>} [query]
 * @param {AbortSignal} [signal]
 */
export function get(path, query, signal) {
  return request("GET", path, {query, signal});
}

/**
 * @param {string} path
 * @param {unknown} body
 * @param {AbortSignal} [signal]
 */
export function post(path, body, signal) {
  return request("POST", path, {body, signal});
}

/**
 * Let the browser save the bytes of a ticket.
 * @param {string} ticket
 */
export function download(ticket) {
  const link = document.createElement("a");
  link.href = `/api/v1/downloads/${encode(ticket)}`;
  link.download = "";
  link.click();
}
