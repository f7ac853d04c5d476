// @ts-check
import {LitElement} from "../vendor/lit.js";

/** An element whose content is in the page itself, so that one style sheet is enough. */
export class Part extends LitElement {
  createRenderRoot() {
    return this;
  }
}
