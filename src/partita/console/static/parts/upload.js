// @ts-check
import {post, request} from "../api.js";

const BLOCK_BYTES = 8 * 1024 * 1024;

/** An upload that the user has stopped. */
export class UploadStopped extends Error {}

/**
 * One file on its way: its blocks are sent one after the other, each with its SHA-256.
 *
 * A stopped or failed upload leaves no blob: the blocks become one only at the end.
 */
export class FileUpload {
  /**
   * @param {string} path of the container in the API
   * @param {string} name of the blob
   * @param {File} file
   * @param {() => void} changed called after every block
   */
  constructor(path, name, file, changed) {
    this.path = path;
    this.name = name;
    this.file = file;
    this.changed = changed;
    this.sent = 0;
    /** @type {"running" | "paused" | "stopped" | "done" | "failed"} */
    this.state = "running";
    /** @type {any} */
    this.error = null;
    this.id = Array.from(crypto.getRandomValues(new Uint8Array(8)), hex).join("");
    /** @type {(() => void) | null} */
    this.wake = null;
    this.stopping = new AbortController();
  }

  /** Send everything; with `replaces`, an existing blob of this name is replaced. */
  async run({replaces = false} = {}) {
    try {
      const blocks = await this.sendBlocks();
      await post(`${this.path}/commit`, {
        name: this.name,
        upload: this.id,
        blocks,
        content_type: this.file.type || "application/octet-stream",
        replaces,
      });
      this.set("done");
    } catch (error) {
      if (this.stopping.signal.aborted) this.set("stopped");
      else {
        this.error = error;
        this.set("failed");
      }
    }
  }

  async sendBlocks() {
    let number = 0;
    for (let at = this.sent; at < this.file.size; at += BLOCK_BYTES) {
      if (this.state === "paused") await new Promise((resolve) => (this.wake = () => resolve(undefined)));
      if (this.stopping.signal.aborted) throw new UploadStopped();
      const block = this.file.slice(at, at + BLOCK_BYTES);
      const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", await block.arrayBuffer()));
      number += 1;
      await request("POST", `${this.path}/block`, {
        query: {name: this.name, upload: this.id, number, sha256: Array.from(hash, hex).join("")},
        bytes: block,
        signal: this.stopping.signal,
      });
      this.sent = Math.min(at + BLOCK_BYTES, this.file.size);
      this.changed();
    }
    return number;
  }

  pause() {
    if (this.state === "running") this.set("paused");
  }

  resume() {
    if (this.state !== "paused") return;
    this.set("running");
    this.wake?.();
  }

  stop() {
    this.stopping.abort();
    this.wake?.();
  }

  /** @param {FileUpload["state"]} state */
  set(state) {
    this.state = state;
    this.changed();
  }
}

/** @param {number} byte */
function hex(byte) {
  return byte.toString(16).padStart(2, "0");
}
