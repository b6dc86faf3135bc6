// The frames of a run in time: bars to scale, one beside the other where calls overlap.

const ROW = 24;

/// The timeline of one run. `select(seq)` is called for a chosen frame.
class Timeline {
  constructor(source, run, address) {
    Object.assign(this, { source, run, address, frames: [], current: 0, badges: new Map(), bars: [] });
    this.list = h("ol", { "aria-label": "frames" });
    this.scroll = h("div", { class: "scroll" }, this.list);
    this.select = h("select", { "aria-label": "frame", on: { change: () => { location.hash = address(Number(this.select.value)); } } });
    this.count = h("span", {});
    this.element = h("nav", { class: "timeline", "aria-label": "timeline" },
      h("div", { class: "head" }, h("h2", {}, "Timeline"), this.count), this.select, this.scroll);
    this.rows = new LongList(this.scroll, this.list, ROW, (index) => this.row(index));
  }

  /// Reads all frames, a page at a time; the first page is drawn at once.
  async load(signal) {
    for (let from = 1; from;) {
      const page = await this.source.timeline(this.run, from, 2000);
      if (signal?.aborted) return;
      this.frames.push(...page.frames);
      this.draw();
      from = page.next;
    }
  }

  /// Frames that ended since. The list stays where its reader is.
  async grow(signal) {
    const page = await this.source.timeline(this.run, this.frames.length + 1, 2000);
    if (signal?.aborted || page.frames.length === 0) return 0;
    this.frames.push(...page.frames);
    this.draw();
    return page.frames.length;
  }

  /// Reads one frame again.
  async refresh(seq) {
    const { frames: [frame] } = await this.source.timeline(this.run, seq, 1);
    const at = this.index(seq);
    if (!frame || at < 0) return;
    this.frames[at] = frame;
    this.measure();
    this.rows.redraw(at);
  }

  draw() {
    this.measure();
    this.count.textContent = plural(this.frames.length, "frame");
    const top = this.scroll.scrollTop;
    this.rows.reset(this.frames.length);
    this.scroll.scrollTop = top;
    if (this.select.options.length !== this.frames.length && this.frames.length <= 2000) {
      replace(this.select, this.frames.map((frame) => h("option", { value: frame.seq }, `${frame.seq} ${visibleText(this.name(frame))}`)));
    }
    this.select.value = String(this.current);
  }

  /// Where each bar begins and how long it is, in parts of the whole. Without recorded times: one step each.
  measure() {
    const began = this.frames.map((frame) => millis(frame.began_ns));
    const ended = this.frames.map((frame, at) => began[at] + Number(frame.duration_ns ?? 0) / 1e6);
    const first = began.reduce((a, b) => Math.min(a, b), Infinity);
    const span = ended.reduce((a, b) => Math.max(a, b), -Infinity) - first;
    this.isTimed = this.frames.some((frame) => frame.duration_ns > 0) && span > 0;
    const count = this.frames.length;
    this.bars = this.frames.map((_, at) => (this.isTimed
      ? [(began[at] - first) / span, Math.max(0, ended[at] - began[at]) / span]
      : [at / count, 1 / count]));
  }

  name(frame) {
    return frame.kind === "tool" && frame.name ? frame.name : frame.component;
  }

  row(index) {
    const frame = this.frames[index];
    const verdict = verdictOf(frame.status, frame.severity);
    const [from, length] = this.bars[index];
    const time = frame.duration_ns == null ? "" : durationText(frame.duration_ns);
    const badge = this.badges.get(frame.seq);
    const lane = frame.lane ? `lane ${frame.lane}` : "";
    return h("li", {},
      h("a", { href: this.address(frame.seq), "aria-current": frame.seq === this.current ? "true" : null,
        title: [`frame ${frame.seq}`, visibleText(this.name(frame)), time, lane, frame.damage && `damaged: ${visibleText(frame.damage)}`, badge?.title].filter(Boolean).join(", ") },
      h("span", { class: "seq" }, frame.seq),
      h("span", { class: "name", style: frame.lane ? { "padding-left": `${Math.min(frame.lane, 4) * 8}px` } : {} }, visibleText(this.name(frame))),
      h("span", { class: "bar" }, h("i", { class: verdict === "ok" ? "" : verdict, style: { left: `${from * 98}%`, width: `${length * 98}%` } })),
      h("span", { class: `badge ${verdict === "ok" ? "dim" : verdict}` }, verdict && verdict !== "ok" ? `${SEVERITY_LETTERS[verdict]} ` : "", badge ? badge.text : "")));
  }

  index(seq) {
    return this.frames.findIndex((frame) => frame.seq === seq);
  }

  show(seq) {
    const before = this.index(this.current);
    this.current = seq;
    const at = this.index(seq);
    this.rows.redraw(...[before, at].filter((index) => index >= 0));
    if (at >= 0) this.rows.reveal(at);
    this.select.value = String(seq);
  }

  mark(badges) {
    this.badges = badges;
    this.rows.redraw(...this.rows.shown.keys());
  }
}
