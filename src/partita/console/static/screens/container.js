// @ts-check
import {download, encode, get, post} from "../api.js";
import {confirmDialog, openDialog} from "../parts/dialogs.js";
import {bytes, moment} from "../parts/format.js";
import {icon} from "../parts/icons.js";
import {pairsDialog} from "../parts/pairs.js";
import {emptyState, errorPanel, waiting} from "../parts/panels.js";
import {Screen} from "../parts/screen.js";
import {toastError} from "../parts/toasts.js";
import {FileUpload} from "../parts/upload.js";
import {go, to} from "../router.js";
import {html, nothing, ref, repeat} from "../vendor/lit.js";

const TIERS = ["Hot", "Cool", "Cold", "Archive"];

/** One container: browse by prefix, upload, download, and everything about a blob. */
class ContainerScreen extends Screen {
  static properties = {
    ...Screen.properties,
    page: {state: true},
    blob: {state: true},
    shown: {state: true},
    error: {state: true},
    uploads: {state: true},
  };
  static keys = /** @type {[string, string][]} */ ([
    ["u", "Upload files"],
    ["r", "Load again"],
  ]);

  constructor() {
    super();
    /** @type {any} */
    this.page = null;
    /** @type {any} */
    this.blob = null;
    /** The preview of the chosen blob.
     * @type {any} */
    this.shown = null;
    /** @type {any} */
    this.error = null;
    /** @type {FileUpload[]} */
    this.uploads = [];
  }

  get name() {
    return this.place.parts[0] ?? "";
  }

  get path() {
    return `${this.api}/containers/${encode(this.name)}`;
  }

  get prefix() {
    return this.place.query.get("prefix") ?? "";
  }

  get marker() {
    return this.place.query.get("marker") ?? undefined;
  }

  get chosen() {
    return this.place.query.get("blob");
  }

  /** @param {Map<string, any>} changed */
  willUpdate(changed) {
    if (!changed.has("place")) return;
    const before = changed.get("place");
    const was = before && [before.parts[0], before.query.get("prefix"), before.query.get("marker")].join("\n");
    const is = [this.name, this.place.query.get("prefix"), this.place.query.get("marker")].join("\n");
    if (was !== is) {
      this.page = null;
      this.loadPage();
    }
    if (!before || before.query.get("blob") !== this.chosen || before.parts[0] !== this.name) this.loadBlob();
  }

  async load() {
    await Promise.all([this.loadPage(), this.loadBlob()]);
  }

  async loadPage() {
    try {
      this.error = null;
      this.page = await get(`${this.path}/blobs`, {prefix: this.prefix, marker: this.marker});
    } catch (error) {
      this.error = error;
    }
  }

  async loadBlob() {
    const name = this.chosen;
    this.blob = null;
    this.shown = null;
    if (!name) return;
    try {
      const found = await get(`${this.path}/blob`, {name});
      if (name === this.chosen) this.blob = found;
    } catch (error) {
      toastError(error);
      go(this.at({blob: undefined}), {replace: true});
    }
  }

  /**
   * Return the address of this screen with some of its query replaced.
   * @param {Record<string, string | undefined>} query
   */
  at(query) {
    const present = Object.fromEntries(this.place.query);
    return to(this.account.name, "c", [this.name], {...present, ...query});
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    if (event.key === "u" && this.canWrite) this.choose();
    else if (event.key === "r") this.load();
    else return false;
    return true;
  }

  // Uploads

  choose() {
    /** @type {HTMLInputElement | null} */ (this.querySelector("input[type=file]"))?.click();
  }

  /** @param {File[]} files */
  async upload(files) {
    const runs = files.map((file) => new FileUpload(this.path, this.prefix + file.name, file, () => this.requestUpdate()));
    this.uploads = [...this.uploads, ...runs];
    for (const each of runs) await this.runUpload(each);
    await this.loadPage();
  }

  /** @param {FileUpload} upload */
  async runUpload(upload) {
    await upload.run();
    if (upload.error?.status !== 409) return;
    const isSure = await confirmDialog({
      title: "Replace the blob",
      text: html`<p>The container already has a blob <strong>${upload.name}</strong>.</p>`,
      action: "Replace",
      danger: true,
    });
    if (!isSure) return;
    const again = new FileUpload(this.path, upload.name, upload.file, () => this.requestUpdate());
    this.uploads = this.uploads.map((each) => (each === upload ? again : each));
    await again.run({replaces: true});
  }

  uploadList() {
    if (!this.uploads.length) return nothing;
    return html`<section class="uploads" aria-label="Uploads">
      ${this.uploads.map((each) => html`<div class="upload">
        <span class="mono">${each.name}</span>
        <progress max=${each.file.size || 1} .value=${each.state === "done" ? each.file.size || 1 : each.sent} aria-label=${`Upload of ${each.name}`}></progress>
        <span class="chip ${each.state === "stopped" ? "cancelled" : each.state}">${each.state}</span>
        <span class="muted">${bytes(each.sent)} of ${bytes(each.file.size)}</span>
        ${each.error ? html`<span class="bad-text">${each.error.message}</span>` : nothing}
        <span class="space"></span>
        ${each.state === "running" ? html`<button class="small" @click=${() => each.pause()}>Pause</button>` : nothing}
        ${each.state === "paused" ? html`<button class="small" @click=${() => each.resume()}>Continue</button>` : nothing}
        ${each.state === "running" || each.state === "paused"
          ? html`<button class="small" @click=${() => each.stop()}>Stop</button>`
          : html`<button class="small" @click=${() => (this.uploads = this.uploads.filter((other) => other !== each))}>Dismiss</button>`}
      </div>`)}
    </section>`;
  }

  // The chosen blob

  /** @param {string} [snapshot] */
  async save(snapshot) {
    try {
      download((await post(`${this.path}/download`, {name: this.blob.name, snapshot: snapshot ?? null})).ticket);
    } catch (error) {
      toastError(error);
    }
  }

  async preview() {
    try {
      this.shown = await get(`${this.path}/preview`, {name: this.blob.name});
    } catch (error) {
      toastError(error);
    }
  }

  async deleteBlob() {
    const {name, etag, snapshots} = this.blob;
    const isSure = await confirmDialog({
      title: "Delete the blob",
      text: html`<p>This deletes <strong>${name}</strong>${snapshots.length ? ` and its ${snapshots.length} snapshots` : ""}. It cannot be undone.</p>`,
      action: "Delete",
      danger: true,
    });
    if (!isSure) return;
    await this.change(async () => {
      await post(`${this.path}/delete`, {name, etag});
      go(this.at({blob: undefined}), {replace: true});
      return `${name} was deleted.`;
    });
  }

  /** @param {"metadata" | "tags"} what */
  async editPairs(what) {
    const values = await pairsDialog(what === "tags" ? "Tags" : "Metadata", this.blob[what]);
    if (!values) return;
    await this.change(async () => {
      await post(`${this.path}/${what}`, {name: this.blob.name, values});
      return `The ${what} were saved.`;
    });
  }

  /** @param {"acquire" | "break"} action */
  async lease(action) {
    await this.change(async () => {
      const found = await post(`${this.path}/lease`, {name: this.blob.name, action});
      if (!found.lease) return "The lease was broken.";
      await openDialog(
        "The lease",
        ({close}) => html`<div class="body"><p>A program that changes this blob must name the lease:</p><pre class="example">${found.lease}</pre></div>
          <footer><button class="primary" @click=${() => close()}>Close</button></footer>`,
      );
    });
  }

  render() {
    const why = this.canWrite ? "" : "The account is read-only";
    return html`<header class="screen-header">
        <h1>${this.crumbs()}</h1>
        <span class="space"></span>
        <input
          type="file"
          multiple
          hidden
          aria-label="Files to upload"
          @change=${(/** @type {any} */ event) => {
            const files = [...event.target.files];
            event.target.value = "";
            this.upload(files);
          }}
        />
        <button @click=${this.load} aria-label="Load again" title="Load again">${icon("refresh")}</button>
        <button class="primary" ?disabled=${!this.canWrite} title=${why} @click=${this.choose}>${icon("upload")} Upload</button>
      </header>
      ${this.uploadList()}
      <div class="split">
        <div class="split-main"><div class="screen-body">${this.content()}</div></div>
        ${this.chosen ? this.details() : nothing}
      </div>`;
  }

  crumbs() {
    const parts = this.prefix.split("/").slice(0, -1);
    return html`<a class="crumb" href=${to(this.account.name, "containers")}>Containers</a> <span class="crumb">/</span>
      <a href=${to(this.account.name, "c", [this.name])}>${this.name}</a>
      ${parts.map((part, at) => html` <span class="crumb">/</span> <a href=${to(this.account.name, "c", [this.name], {prefix: `${parts.slice(0, at + 1).join("/")}/`})}>${part || "(empty)"}</a>`)}`;
  }

  content() {
    if (this.error) return errorPanel(this.error, {retry: () => this.load()});
    if (!this.page) return waiting();
    const {prefixes, blobs, next} = this.page;
    if (!prefixes.length && !blobs.length && !this.marker) {
      return emptyState({
        icon: "box",
        title: this.prefix ? "No blob has this prefix" : "The container is empty",
        text: this.canWrite ? "Upload files with the button above." : "",
      });
    }
    return html`<table class="list">
        <thead>
          <tr><th>Name</th><th class="number">Size</th><th>Type</th><th>Tier</th><th>Changed</th></tr>
        </thead>
        <tbody>
          ${repeat(prefixes, (each) => each, (/** @type {string} */ each) => html`<tr>
            <td colspan="5"><a class="row-link" href=${to(this.account.name, "c", [this.name], {prefix: each})}>${icon("folder")} ${each.slice(this.prefix.length)}</a></td>
          </tr>`)}
          ${repeat(blobs, (each) => each.name, (each) => this.row(each))}
        </tbody>
      </table>
      <div class="pager">
        ${this.marker ? html`<button @click=${() => history.back()}>Page before</button>` : nothing}
        ${next ? html`<button @click=${() => go(this.at({marker: next, blob: undefined}))}>Next page</button>` : nothing}
      </div>`;
  }

  /** @param {any} blob */
  row(blob) {
    return html`<tr class=${blob.name === this.chosen ? "chosen" : ""}>
      <td>
        <a class="row-link" href=${this.at({blob: blob.name})}>${icon("file")} ${blob.name.slice(this.prefix.length) || "(empty)"}</a>
        ${blob.is_leased ? html` <span class="chip warn">leased</span>` : nothing}
      </td>
      <td class="number">${bytes(blob.size)}</td>
      <td class="muted">${blob.content_type ?? ""}</td>
      <td class="muted">${blob.tier ?? blob.type ?? ""}</td>
      <td class="when">${moment(blob.modified)}</td>
    </tr>`;
  }

  details() {
    const blob = this.blob;
    return html`<aside class="details" aria-label="The blob">
      <div class="editor">
        <header>
          <h2 class="mono">${this.chosen}</h2>
          <button class="plain" aria-label="Close" @click=${() => go(this.at({blob: undefined}))}>${icon("close")}</button>
        </header>
        <div class="editor-body">${blob ? this.facts(blob) : waiting()}</div>
        ${blob
          ? html`<footer>
              <button class="primary" @click=${() => this.save()}>${icon("download")} Download</button>
              <button @click=${this.preview}>Preview</button>
              <span class="space"></span>
              <button class="danger" ?disabled=${!this.canWrite} @click=${this.deleteBlob}>${icon("trash")} Delete</button>
            </footer>`
          : nothing}
      </div>
    </aside>`;
  }

  /** @param {any} blob */
  facts(blob) {
    return html`${this.shown ? this.previewOf(this.shown) : nothing}
      <dl class="versions">
        <dt>Size</dt><dd>${bytes(blob.size)}</dd>
        <dt>Kind</dt><dd>${blob.type}</dd>
        <dt>Content type</dt><dd>${blob.content_type ?? "none"}</dd>
        <dt>MD5</dt><dd class="mono">${blob.md5 ?? "none"}</dd>
        <dt>Created</dt><dd>${moment(blob.created)}</dd>
        <dt>Changed</dt><dd>${moment(blob.modified)}</dd>
        <dt>ETag</dt><dd class="mono">${blob.etag}</dd>
        <dt>Lease</dt><dd>${blob.lease.state}${blob.lease.duration ? `, ${blob.lease.duration}` : ""}</dd>
      </dl>
      ${this.pairs("Metadata", "metadata", blob.metadata)} ${this.pairs("Tags", "tags", blob.tags)}
      <section class="fact-section">
        <h3>Snapshots</h3>
        ${blob.snapshots.length ? nothing : html`<p class="muted">none</p>`}
        ${blob.snapshots.map((/** @type {string} */ each) => html`<p><span class="mono">${each}</span>
          <button class="small" aria-label=${`Download the snapshot ${each}`} @click=${() => this.save(each)}>${icon("download")}</button></p>`)}
      </section>
      ${this.canWrite
        ? html`<section class="fact-actions">
            <button @click=${() => this.change(async () => void (await post(`${this.path}/snapshot`, {name: blob.name})))}>Take a snapshot</button>
            ${blob.lease.state === "leased"
              ? html`<button @click=${() => this.lease("break")}>Break the lease</button>`
              : html`<button @click=${() => this.lease("acquire")}>Acquire a lease</button>`}
            <label class="tier">Tier
              <select
                @change=${(/** @type {any} */ event) =>
                  this.change(async () => void (await post(`${this.path}/tier`, {name: blob.name, tier: event.target.value})))}
              >
                ${TIERS.map((each) => html`<option ?selected=${each === blob.tier}>${each}</option>`)}
              </select>
            </label>
          </section>`
        : nothing}`;
  }

  /**
   * @param {string} title
   * @param {"metadata" | "tags"} what
   * @param {Record<string, string>} values
   */
  pairs(title, what, values) {
    const names = Object.keys(values);
    return html`<section class="fact-section">
      <h3>
        ${title}
        ${this.canWrite ? html`<button class="small" aria-label=${`Change the ${what}`} @click=${() => this.editPairs(what)}>${icon("edit")}</button>` : nothing}
      </h3>
      ${names.length ? names.map((name) => html`<span class="chip">${name}: ${values[name]}</span> `) : html`<p class="muted">none</p>`}
    </section>`;
  }

  /** @param {any} shown */
  previewOf(shown) {
    if (shown.kind === "text") {
      return html`<pre class="raw preview" tabindex="0">${shown.text}</pre>
        ${shown.is_cut ? html`<p class="muted">Only the beginning is shown.</p>` : nothing}`;
    }
    if (shown.kind === "image") {
      return html`<img class="preview" alt="Preview" ${ref((element) => element && showImage(element, shown))} />`;
    }
    return html`<p class="muted">${shown.why}</p>`;
  }
}

/**
 * Show bytes as an image of the type that the server found; a `blob:` address has no other rights.
 * @param {Element} element
 * @param {{type: string, data: string}} shown
 */
function showImage(element, shown) {
  const image = /** @type {HTMLImageElement} */ (element);
  if (image.src) return;
  const data = Uint8Array.from(atob(shown.data), (each) => each.charCodeAt(0));
  const address = URL.createObjectURL(new Blob([data], {type: shown.type}));
  image.onload = image.onerror = () => URL.revokeObjectURL(address);
  image.src = address;
}

customElements.define("container-screen", ContainerScreen);
