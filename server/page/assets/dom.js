// Elements, long lists, copying. Recorded text becomes text nodes only: nothing here parses HTML.

/// An element. `properties`: `class`, `on` (listeners), `text`, `style` (object); others are attributes.
function h(tag, properties, ...children) {
  return build(document.createElement(tag), properties, children);
}

/// An element of SVG.
function svg(tag, properties, ...children) {
  return build(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}

function build(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value == null || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (name === "style") {
      for (const [key, to] of Object.entries(value)) element.style.setProperty(key, to);
    } else if (name === "text") {
      element.textContent = value;
    } else {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(3)) {
    if (child == null || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

/// A button that says what it does.
function button(text, act, properties = {}) {
  return h("button", { type: "button", ...properties, on: { click: act } }, text);
}

/// A button that copies a text and says so in its place.
function copyButton(text, label = "copy", what = "") {
  const copy = button(label, async () => {
    try {
      await navigator.clipboard.writeText(typeof text === "function" ? text() : text);
      copy.textContent = "copied";
    } catch {
      copy.textContent = "not allowed: select the text";
    }
    setTimeout(() => { copy.textContent = label; }, 1500);
  }, { class: "plain", "aria-label": what ? `${label} ${what}` : label });
  return copy;
}

/// A list of rows of one height, of which only the visible ones are in the document.
class LongList {
  /// `row(index)` makes the element of a row. `list` stands in the scrolled element `scroll`.
  constructor(scroll, list, rowHeight, row) {
    Object.assign(this, { scroll, list, rowHeight, row, count: 0, shown: new Map(), asked: false });
    scroll.addEventListener("scroll", () => this.ask(), { passive: true });
    this.watch = new ResizeObserver(() => this.ask());
    this.watch.observe(scroll);
  }

  /// At most one drawing for each frame of the screen.
  ask() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      this.draw();
    });
  }

  reset(count) {
    this.count = count;
    this.shown.clear();
    this.list.replaceChildren();
    this.list.style.height = `${count * this.rowHeight}px`;
    this.draw();
  }

  draw() {
    const height = this.scroll.clientHeight || 600;
    const from = Math.max(0, Math.floor(this.scroll.scrollTop / this.rowHeight) - 10);
    const to = Math.min(this.count, Math.ceil((this.scroll.scrollTop + height) / this.rowHeight) + 10);
    for (const [index, element] of this.shown) {
      if (index < from || index >= to) {
        element.remove();
        this.shown.delete(index);
      }
    }
    for (let index = from; index < to; index += 1) {
      if (this.shown.has(index)) continue;
      const element = this.row(index);
      element.style.top = `${index * this.rowHeight}px`;
      this.shown.set(index, element);
      this.list.append(element);
    }
    this.drawn?.(from, to);
  }

  /// Makes these rows anew if they are in the document.
  redraw(...indexes) {
    for (const index of indexes) {
      this.shown.get(index)?.remove();
      this.shown.delete(index);
    }
    this.draw();
  }

  reveal(index) {
    const top = index * this.rowHeight;
    const height = this.scroll.clientHeight || 600;
    if (top < this.scroll.scrollTop || top + this.rowHeight > this.scroll.scrollTop + height) {
      this.scroll.scrollTop = Math.max(0, top - height / 2);
    }
    this.draw();
  }
}

/// A long text in blocks, of which a browser lays out only those near the window: one block of 10 MB takes it half a
/// minute. Together the blocks are the text; a block may end within a line.
function inBlocks(text) {
  const size = 64_000;
  if (text.length <= 4 * size) return text;
  return Array.from({ length: Math.ceil(text.length / size) }, (_, at) => h("span", { class: "block" }, text.slice(at * size, (at + 1) * size)));
}

/// A text block of which at first only `most` characters are in the document.
function longText(text, properties, most = 200_000) {
  if (text.length <= most) return h("div", { ...properties, dir: "auto" }, text);
  const block = h("div", { ...properties, dir: "auto" }, text.slice(0, most));
  const more = button(`show all (${bytesText(text.length)})`, () => {
    replace(block, inBlocks(text));
    more.remove();
  });
  return [block, more];
}

/// Shows `loading` only if `promise` takes longer than 300 ms.
async function withSkeleton(element, promise, rows = 6) {
  const timer = setTimeout(() => {
    replace(element, h("div", { role: "status", "aria-label": "loading" },
      Array.from({ length: rows }, () => h("div", { class: "skeleton" }))));
  }, 300);
  try {
    return await promise;
  } finally {
    clearTimeout(timer);
  }
}
