// @ts-check
import {Part} from "./element.js";
import {toast, toastError} from "./toasts.js";

/**
 * What the shell shows: it sets `account` (its facts), `place` (from the address), `canWrite` and
 * `session` before the first rendering and after every change.
 */
export class Screen extends Part {
  static properties = {
    account: {attribute: false},
    place: {attribute: false},
    canWrite: {attribute: false},
    session: {attribute: false},
  };

  /** Keys of this screen for the help: `[key, what it does]`. */
  static keys = /** @type {[string, string][]} */ ([]);

  constructor() {
    super();
    /** @type {{name: string, is_development: boolean, endpoints: Record<string, string>, has_key: boolean}} */
    this.account = {name: "", is_development: false, endpoints: {}, has_key: false};
    /** @type {import("../router.js").Place} */
    this.place = {account: "", screen: "", parts: [], query: new URLSearchParams()};
    this.canWrite = false;
    /** @type {{version: string, has_operations: boolean, has_states: boolean, has_shards: boolean, has_fleet: boolean, read_only: boolean, types: Record<string, string>, accounts: any[]}} */
    this.session = {version: "", has_operations: false, has_states: false, has_shards: false, has_fleet: false, read_only: false, types: {}, accounts: []};
  }

  /** The path of the account in the API. */
  get api() {
    return `/a/${encodeURIComponent(this.account.name)}`;
  }

  /** Read what is shown. */
  async load() {}

  /**
   * Do something that changes what is shown, say how it ended, and read again.
   * @param {() => Promise<string | void>} work returns what to say
   */
  async change(work) {
    try {
      const said = await work();
      if (said) toast(said);
    } catch (error) {
      toastError(error);
    }
    await this.load();
  }

  /**
   * Handle a key that no field has taken; return whether it was used.
   * @param {KeyboardEvent} _event
   */
  onKey(_event) {
    return false;
  }
}
