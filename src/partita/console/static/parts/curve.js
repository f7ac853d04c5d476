// @ts-check
import {html} from "../vendor/lit.js";
import "./language.js";
import uPlot from "../vendor/uplot.js";
import {clockTime} from "./format.js";
import {Part} from "./element.js";

const HEIGHT = 132;
const SYNC = "curves";
const BINARY = Array.from({length: 50}, (_, n) => 2 ** n);

/**
 * Return the colour that a custom property has now; canvases cannot use light-dark().
 * @param {string} name
 */
export function colourOf(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/**
 * Curves over time with a heading that shows their values: the last ones, or those at the pointer.
 *
 * @typedef {{label: string, colour: string, isFilled?: boolean}} Series
 */
class LiveCurve extends Part {
  static properties = {
    heading: {attribute: false},
    series: {attribute: false},
    values: {attribute: false},
    format: {attribute: false},
    steps: {attribute: false},
    at: {state: true},
  };

  constructor() {
    super();
    this.heading = "";
    /** @type {Series[]} */
    this.series = [];
    /** Times, then the values of each series. @type {(number | null)[][]} */
    this.values = [];
    this.format = (/** @type {number} */ value) => String(value);
    /** Marks at powers of ten, or of two for bytes. @type {"decimal" | "binary"} */
    this.steps = "decimal";
    /** The point under the pointer. @type {number | null} */
    this.at = null;
    /** @type {uPlot | null} */
    this.plot = null;
    this.drawnIn = "";
    this.resized = new ResizeObserver(() => this.fit());
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    this.resized.disconnect();
    this.plot?.destroy();
    this.plot = null;
  }

  connectedCallback() {
    super.connectedCallback();
    if (this.hasUpdated) this.requestUpdate();
    this.resized.observe(this);
  }

  fit() {
    const width = this.clientWidth - 2;
    if (this.plot && width > 0 && width !== this.plot.width) this.plot.setSize({width, height: HEIGHT});
  }

  render() {
    const last = (this.values[0]?.length ?? 0) - 1;
    const at = this.at !== null && this.at <= last ? this.at : last;
    const shown = this.series.map((each, n) => {
      const value = this.values[n + 1]?.[at];
      return {...each, text: value === null || value === undefined ? "–" : this.format(value)};
    });
    const time = this.at !== null && this.values[0]?.[at] ? clockTime(Number(this.values[0][at])) : "";
    return html`<figure class="curve">
      <figcaption>
        <span class="curve-title">${this.heading}</span>
        ${shown.map((each) => html`<span class="curve-value"><i class="swatch ${each.colour}"></i>${each.label} <b>${each.text}</b></span>`)}
        <span class="curve-time">${time}</span>
      </figcaption>
      <div class="curve-plot" role="img" aria-label=${`${this.heading}: ${shown.map((each) => `${each.label} ${each.text}`).join(", ")}`}></div>
    </figure>`;
  }

  updated() {
    const look = colourOf("--text") + this.series.map((each) => each.label).join();
    if (!this.plot || look !== this.drawnIn) this.make(look);
    else this.plot.setData(/** @type {uPlot.AlignedData} */ (this.values));
  }

  /** @param {string} look */
  make(look) {
    const target = /** @type {HTMLElement | null} */ (this.querySelector(".curve-plot"));
    if (!target || this.clientWidth < 40) return;
    this.plot?.destroy();
    this.drawnIn = look;
    const muted = colourOf("--muted");
    const line = colourOf("--grid-line");
    const axis = {stroke: muted, font: "11px system-ui, sans-serif", grid: {stroke: line, width: 1}, ticks: {show: false}};
    this.plot = new uPlot(
      {
        width: this.clientWidth - 2,
        height: HEIGHT,
        padding: [8, 28, 0, 0],
        legend: {show: false},
        cursor: {sync: {key: SYNC}, points: {size: 6}, y: false, drag: {x: false, y: false}},
        scales: {x: {time: true}, y: {range: (_plot, _low, high) => [0, high > 0 ? high * 1.1 : 1]}},
        axes: [
          {...axis, space: 80, size: 24, values: (_plot, marks) => marks.map((mark) => clockTime(mark).slice(0, marks.length > 1 && marks[1] - marks[0] < 60 ? 8 : 5)), grid: {show: false}},
          {...axis, space: 28, size: 58, ...(this.steps === "binary" ? {incrs: BINARY} : {}), values: (_plot, marks) => marks.map((mark) => this.format(mark))},
        ],
        series: [
          {},
          ...this.series.map((each) => {
            const colour = colourOf(`--${each.colour}`);
            return {
              stroke: colour,
              width: 1.5,
              points: {show: false},
              spanGaps: false,
              ...(each.isFilled ? {fill: colour.replace(/^rgb\((.*)\)$/, "rgb($1 / 0.12)").replaceAll(",", "")} : {}),
            };
          }),
        ],
        hooks: {setCursor: [(plot) => (this.at = plot.cursor.idx ?? null)]},
      },
      /** @type {uPlot.AlignedData} */ (this.values),
      target,
    );
  }
}

customElements.define("live-curve", LiveCurve);
