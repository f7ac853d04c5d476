// @ts-check
/**
 * The grid of entities: rows are recycled, only what is visible exists.
 *
 * A browser cannot scroll further than some 17 million pixels, so that above `HEIGHT_MAX` the
 * scroll bar is scaled and the wheel moves by rows. The focus stays on the grid; the active cell
 * is named by `aria-activedescendant`, so that it follows the entity and not the recycled element.
 */

import {noteOf} from "./patterns.js";
import {NUMBERS, TYPE_NAMES} from "./types.js";

export const ROW_HEIGHT = 26;
const HEIGHT_MAX = 8_000_000;
const SPARE_ROWS = 4;
const AHEAD_ROWS = 60;
const KEYS = ["PartitionKey", "RowKey", "Timestamp"];
const WIDTH_MIN = 60;
const WIDTH_MAX = 320;
const CHARACTER_WIDTH = 7.4;

/** @param {string} name @param {string} className @param {string} role */
function element(name, className, role) {
  const made = document.createElement(name);
  made.className = className;
  made.setAttribute("role", role);
  return made;
}

export class EntityGrid extends HTMLElement {
  constructor() {
    super();
    /** @type {import("./pages.js").Pages | null} */
    this.pages = null;
    /** @type {string[]} */
    this.columns = [];
    /** @type {Map<string, number>} */
    this.widths = new Map();
    this.top = 0;
    this.active = {row: 0, column: 0};
    /** Keys of selected entities: the row, by `partition\0row`. @type {Map<string, any>} */
    this.selected = new Map();
    /** How entities are marked, by `partition\0row`. @type {Map<string, string>} */
    this.marks = new Map();
    /** @type {{row: HTMLElement, cells: HTMLElement[], index: number}[]} */
    this.pool = [];
    this.isScheduled = false;
    this.change = () => this.schedule();
  }

  connectedCallback() {
    if (this.firstChild) return;
    this.classList.add("entity-grid");
    this.view = element("div", "grid-view", "grid");
    this.view.tabIndex = 0;
    this.view.setAttribute("aria-label", "Entities");
    this.view.setAttribute("aria-multiselectable", "true");
    this.head = element("div", "grid-row grid-head", "row");
    this.head.setAttribute("aria-rowindex", "1");
    const headGroup = element("div", "grid-head-group", "rowgroup");
    headGroup.append(this.head);
    this.body = element("div", "grid-body", "rowgroup");
    this.view.append(headGroup, this.body);
    this.append(this.view);
    this.view.addEventListener("scroll", () => this.onScroll(), {passive: true});
    this.view.addEventListener("wheel", (event) => this.onWheel(event), {passive: false});
    this.view.addEventListener("keydown", (event) => this.onKeyDown(event));
    this.view.addEventListener("focus", () => this.schedule());
    this.body.addEventListener("click", (event) => this.onClick(event));
    this.body.addEventListener("dblclick", () => this.open());
    this.sizes = new ResizeObserver(() => this.schedule());
    this.sizes.observe(this.view);
  }

  disconnectedCallback() {
    this.pages?.removeEventListener("change", this.change);
  }

  /** @param {import("./pages.js").Pages} pages */
  show(pages) {
    this.pages?.removeEventListener("change", this.change);
    this.pages = pages;
    pages.addEventListener("change", this.change);
    this.top = 0;
    this.active = {row: 0, column: 0};
    this.selected.clear();
    if (this.view) this.view.scrollTop = 0;
    this.schedule();
  }

  schedule() {
    if (this.isScheduled) return;
    this.isScheduled = true;
    requestAnimationFrame(() => {
      this.isScheduled = false;
      this.draw();
    });
  }

  // Geometry

  get hasTypes() {
    return this.columns.includes("EntityType");
  }

  get rows() {
    return this.pages?.known ?? 0;
  }

  get visibleRows() {
    const height = (this.view?.clientHeight ?? 0) - ROW_HEIGHT;
    return Math.max(1, height / ROW_HEIGHT);
  }

  get height() {
    return Math.min(this.rows * ROW_HEIGHT, HEIGHT_MAX);
  }

  get isScaled() {
    return this.rows * ROW_HEIGHT > HEIGHT_MAX;
  }

  /** The row at the top when the scroll bar is at its end. */
  get lastTop() {
    return Math.max(0, this.rows - Math.floor(this.visibleRows));
  }

  /** @param {number} top */
  scrollTopOf(top) {
    if (!this.isScaled) return top * ROW_HEIGHT;
    const room = this.height + ROW_HEIGHT - /** @type {HTMLElement} */ (this.view).clientHeight;
    return this.lastTop ? (top / this.lastTop) * room : 0;
  }

  onScroll() {
    const view = /** @type {HTMLElement} */ (this.view);
    if (Math.abs(view.scrollTop - this.scrollTopOf(this.top)) > 1) {
      if (!this.isScaled) this.top = view.scrollTop / ROW_HEIGHT;
      else {
        const room = this.height + ROW_HEIGHT - view.clientHeight;
        this.top = (view.scrollTop / room) * this.lastTop;
      }
    }
    this.schedule();
  }

  /** @param {WheelEvent} event */
  onWheel(event) {
    if (!this.isScaled || event.ctrlKey || !event.deltaY) return;
    event.preventDefault();
    const pixels = event.deltaMode ? event.deltaY * ROW_HEIGHT : event.deltaY;
    this.moveTop(this.top + pixels / ROW_HEIGHT);
  }

  /** @param {number} top */
  moveTop(top) {
    this.top = Math.min(Math.max(0, top), this.lastTop);
    /** @type {HTMLElement} */ (this.view).scrollTop = this.scrollTopOf(this.top);
    this.schedule();
  }

  // Drawing

  draw() {
    const {pages, view, body} = this;
    if (!pages || !view || !body || !this.isConnected) return;
    this.updateColumns();
    if (!this.columns.length) {
      pages.ensure(0, 1);
      return;
    }
    body.style.height = `${this.height}px`;
    view.setAttribute("aria-rowcount", pages.isComplete ? String(this.rows + 1) : "-1");
    view.setAttribute("aria-colcount", String(this.columns.length));
    this.top = Math.min(this.top, this.lastTop);
    const first = Math.max(0, Math.floor(this.top) - SPARE_ROWS);
    const last = Math.min(this.rows, Math.ceil(this.top + this.visibleRows) + SPARE_ROWS);
    const base = this.isScaled ? view.scrollTop : this.top * ROW_HEIGHT;
    this.growPool(last - first);
    const free = new Map(this.pool.map((each) => [each.index, each]));
    const wanted = [];
    for (let index = first; index < last; index += 1) {
      const same = free.get(index);
      if (same) free.delete(index);
      wanted.push({index, slot: same});
    }
    const spare = [...free.values()];
    for (const each of wanted) {
      const slot = each.slot ?? /** @type {any} */ (spare.pop());
      this.fill(slot, each.index, base);
    }
    for (const slot of spare) {
      slot.index = -1 - this.pool.indexOf(slot);
      slot.row.hidden = true;
    }
    pages.ensure(first, last + AHEAD_ROWS);
    this.showActive();
  }

  updateColumns() {
    const {pages} = this;
    if (!pages?.held.size) return;
    const names = [...KEYS, ...pages.names];
    if (names.length === this.columns.length && names.every((name, at) => name === this.columns[at])) {
      this.updateTypes();
      return;
    }
    this.columns = names;
    for (const name of names) if (!this.widths.has(name)) this.widths.set(name, this.widthOf(name));
    this.head?.replaceChildren(
      ...names.map((name, at) => {
        const cell = element("div", "grid-cell grid-name", "columnheader");
        cell.setAttribute("aria-colindex", String(at + 1));
        const label = document.createElement("span");
        label.className = "grid-label";
        label.textContent = name;
        const type = document.createElement("span");
        type.className = "grid-type";
        const grip = document.createElement("span");
        grip.className = "grid-grip";
        grip.addEventListener("pointerdown", (event) => this.resize(event, name));
        cell.append(label, type, grip);
        return cell;
      }),
    );
    for (const slot of this.pool) slot.row.remove();
    this.pool = [];
    this.layOut();
    this.updateTypes();
  }

  updateTypes() {
    for (const [at, cell] of [...(this.head?.children ?? [])].entries()) {
      const seen = this.pages?.types.get(this.columns[at]);
      const text = !seen || at < KEYS.length ? "" : [...seen].map((each) => TYPE_NAMES[each]).join(" | ");
      const type = /** @type {HTMLElement} */ (cell.children[1]);
      if (type.textContent !== text) {
        type.textContent = text;
        cell.classList.toggle("mixed", (seen?.size ?? 0) > 1);
        cell.classList.toggle("number", seen?.size === 1 && NUMBERS.has([...seen][0]));
        /** @type {HTMLElement} */ (cell).title = text.includes("|") ? `${this.columns[at]}: values of several types (${text})` : `${this.columns[at]} ${text}`;
      }
    }
  }

  /** @param {string} name */
  widthOf(name) {
    const types = [...(this.pages?.types.get(name) ?? [])].map((each) => TYPE_NAMES[each]).join(" | ");
    let longest = name.length + types.length + (types ? 2 : 2.5);
    for (const page of this.pages?.held.values() ?? []) {
      const at = page.positions.get(name);
      for (const row of page.rows.slice(0, 50)) {
        const text = name === "PartitionKey" ? row[0] : name === "RowKey" ? row[1] : name === "Timestamp" ? row[2] : at === undefined ? "" : (row[4 + at]?.[1] ?? "");
        longest = Math.max(longest, text.length);
      }
    }
    return Math.round(Math.min(WIDTH_MAX, Math.max(WIDTH_MIN, longest * CHARACTER_WIDTH + 20)));
  }

  layOut() {
    const widths = this.columns.map((name) => `${this.widths.get(name)}px`);
    this.style.setProperty("--columns", widths.join(" "));
    this.style.setProperty("--first", widths[0]);
    const total = this.columns.reduce((sum, name) => sum + (this.widths.get(name) ?? 0), 0);
    this.style.setProperty("--total", `${total}px`);
  }

  /** @param {PointerEvent} event @param {string} name */
  resize(event, name) {
    event.preventDefault();
    const start = event.clientX;
    const before = this.widths.get(name) ?? WIDTH_MIN;
    const grip = /** @type {HTMLElement} */ (event.target);
    grip.setPointerCapture(event.pointerId);
    const move = (/** @type {PointerEvent} */ moved) => {
      this.widths.set(name, Math.max(WIDTH_MIN, before + moved.clientX - start));
      this.layOut();
    };
    grip.addEventListener("pointermove", move);
    grip.addEventListener("pointerup", () => grip.removeEventListener("pointermove", move), {once: true});
  }

  /** @param {number} count */
  growPool(count) {
    while (this.pool.length < count) {
      const row = element("div", "grid-row", "row");
      const number = this.pool.length;
      const cells = this.columns.map((_, at) => {
        const cell = element("div", "grid-cell", "gridcell");
        cell.setAttribute("aria-colindex", String(at + 1));
        cell.id = `cell-${number}-${at}`;
        cell.append(document.createTextNode(""));
        return cell;
      });
      row.append(...cells);
      this.body?.append(row);
      this.pool.push({row, cells, index: -1 - number});
    }
  }

  /** @param {{row: HTMLElement, cells: HTMLElement[], index: number}} slot @param {number} index @param {number} base */
  fill(slot, index, base) {
    slot.index = index;
    slot.row.hidden = false;
    slot.row.style.transform = `translateY(${Math.round(base + (index - this.top) * ROW_HEIGHT)}px)`;
    slot.row.setAttribute("aria-rowindex", String(index + 2));
    const row = this.pages?.row(index) ?? null;
    const key = row ? keyOf(row) : "";
    const isSelected = row !== null && this.selected.has(key);
    slot.row.setAttribute("aria-selected", String(isSelected));
    const kept = row && this.hasTypes && noteOf(row.cell("EntityType")?.[1] ?? "") ? "kept" : "";
    const mark = (row && this.marks.get(key)) ?? kept;
    const name = `grid-row${isSelected ? " selected" : ""}${mark ? ` ${mark}` : ""}${index % 2 ? " odd" : ""}`;
    if (slot.row.className !== name) slot.row.className = name;
    for (const [at, cell] of slot.cells.entries()) this.fillCell(cell, row, at);
  }

  /** @param {HTMLElement} cell @param {import("./pages.js").Row | null} row @param {number} at */
  fillCell(cell, row, at) {
    let text = "";
    let kind = "";
    if (!row) kind = at ? "" : "late";
    else if (at === 0) text = row.pk;
    else if (at === 1) text = row.rk;
    else if (at === 2) {
      text = row.timestamp;
      kind = "t";
    } else {
      const typed = row.cell(this.columns[at]);
      kind = typed ? typed[0] : "none";
      text = typed ? typed[1] : "";
    }
    const node = /** @type {Text} */ (cell.firstChild);
    const shown = text.length > 300 ? text.slice(0, 300) : text;
    if (node.data !== shown) node.data = shown;
    const name = `grid-cell${at < 2 ? " key" : ""}${kind ? ` type-${kind}` : ""}`;
    if (cell.className !== name) cell.className = name;
  }

  showActive() {
    const {view} = this;
    if (!view) return;
    const slot = this.pool.find((each) => each.index === this.active.row);
    const cell = slot?.cells[this.active.column];
    this.querySelector(".grid-cell.active")?.classList.remove("active");
    this.querySelector(".grid-row.current")?.classList.remove("current");
    if (!cell || !slot) {
      view.removeAttribute("aria-activedescendant");
      return;
    }
    cell.classList.add("active");
    slot.row.classList.add("current");
    view.setAttribute("aria-activedescendant", cell.id);
  }

  // Input

  /** @param {MouseEvent} event */
  onClick(event) {
    const cell = /** @type {Element} */ (event.target).closest(".grid-cell");
    const slot = this.pool.find((each) => each.row === cell?.parentElement);
    if (!cell || !slot) return;
    const from = this.active.row;
    this.active = {row: slot.index, column: slot.cells.indexOf(/** @type {HTMLElement} */ (cell))};
    if (event.shiftKey) this.selectRange(from, slot.index);
    else if (event.ctrlKey || event.metaKey) this.toggle(slot.index);
    this.schedule();
  }

  /** @param {KeyboardEvent} event */
  onKeyDown(event) {
    const page = Math.max(1, Math.floor(this.visibleRows) - 1);
    const {row, column} = this.active;
    const moves = /** @type {Record<string, [number, number]>} */ ({
      ArrowDown: [row + 1, column],
      ArrowUp: [row - 1, column],
      ArrowRight: [row, column + 1],
      ArrowLeft: [row, column - 1],
      PageDown: [row + page, column],
      PageUp: [row - page, column],
      Home: event.ctrlKey ? [0, column] : [row, 0],
      End: event.ctrlKey ? [this.rows - 1, column] : [row, this.columns.length - 1],
    });
    const move = moves[event.key];
    if (move) {
      if (event.shiftKey && move[0] !== row) this.selectRange(row, move[0]);
      this.moveTo(...move);
    } else if (event.key === "Enter" && !event.ctrlKey) this.open();
    else if (event.key === " ") this.toggle(row);
    else if (event.key === "Escape" && this.selected.size) this.clearSelection();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** @param {number} row @param {number} column */
  moveTo(row, column) {
    this.active = {
      row: Math.min(Math.max(0, row), Math.max(0, this.rows - 1)),
      column: Math.min(Math.max(0, column), this.columns.length - 1),
    };
    if (this.active.row < this.top) this.moveTop(this.active.row);
    else if (this.active.row > this.top + this.visibleRows - 1) {
      this.moveTop(this.active.row - this.visibleRows + 1);
    }
    this.showColumn();
    this.schedule();
  }

  showColumn() {
    const view = /** @type {HTMLElement} */ (this.view);
    const {column} = this.active;
    if (column < 1) {
      view.scrollLeft = 0;
      return;
    }
    const width = (/** @type {number} */ at) => this.widths.get(this.columns[at]) ?? 0;
    let left = 0;
    for (let at = 0; at < column; at += 1) left += width(at);
    const fixed = width(0);
    if (left - fixed < view.scrollLeft) view.scrollLeft = left - fixed;
    else if (left + width(column) > view.scrollLeft + view.clientWidth) {
      view.scrollLeft = left + width(column) - view.clientWidth;
    }
  }

  /** @param {number} index */
  toggle(index) {
    const row = this.pages?.row(index);
    if (!row) return;
    if (!this.selected.delete(keyOf(row))) this.selected.set(keyOf(row), row);
    this.selectionChanged();
  }

  /** @param {number} from @param {number} to */
  selectRange(from, to) {
    for (let index = Math.min(from, to); index <= Math.max(from, to); index += 1) {
      const row = this.pages?.row(index);
      if (row) this.selected.set(keyOf(row), row);
    }
    this.selectionChanged();
  }

  clearSelection() {
    this.selected.clear();
    this.selectionChanged();
  }

  selectionChanged() {
    this.schedule();
    this.dispatchEvent(new Event("selection"));
  }

  open() {
    const row = this.pages?.row(this.active.row);
    if (row) this.dispatchEvent(new CustomEvent("open", {detail: row}));
  }

  /** The active cell: its row, column and value. */
  get activeCell() {
    const row = this.pages?.row(this.active.row);
    const name = this.columns[this.active.column];
    if (!row || !name) return null;
    const keys = /** @type {Record<string, string>} */ ({PartitionKey: row.pk, RowKey: row.rk});
    const typed = name in keys ? ["s", keys[name]] : name === "Timestamp" ? ["t", row.timestamp] : row.cell(name);
    return {row, name, typed};
  }
}

/** @param {{pk: string, rk: string}} row */
export function keyOf(row) {
  return `${row.pk}\0${row.rk}`;
}

customElements.define("entity-grid", EntityGrid);
