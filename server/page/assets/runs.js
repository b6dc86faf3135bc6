// The runs of a namespace: a table that the daemon filters and pages.

const PAGE_ROWS = 200;
const RUN_ROW = 29;
/// Rows above and below the visible ones.
const OVERSCAN = 5;
/// New rows of one frame; the next one draws more.
const ROWS_AT_ONCE = 8;
/// A text that is no longer than this is never cut by its column.
const SHORT_TEXT = 6;
const FILTERS = [
  ["status", ["", "open", "ok", "failed", "abandoned"]], ["severity", ["", "debug", "normal", "flagged", "escalated"]],
  ["agent", null], ["model", null], ["tag", null],
];

const NO_TAGS = Object.freeze({});

/// What the table shows of a run. Of 100,000 whole answers, the browser's collector of garbage takes too long.
function shownRun({ fingerprint, bytes, ...run }) {
  const { usage } = run;
  const isUsed = usage && (usage.input != null || usage.output != null || usage.dollars != null || usage.unpriced || usage.models?.length > 0);
  return { ...run, tags: Object.keys(run.tags).length > 0 ? run.tags : NO_TAGS, usage: isUsed ? usage : null };
}

class RunsView {
  constructor(app, route) {
    Object.assign(this, { app, source: app.source, runs: [], drawn: new Map(), cursor: null, busy: false, at: -1, ticked: new Set(), fresh: 0 });
    this.stop = new AbortController();
    this.filter = route.query;
    this.count = h("span", { class: "dim", role: "status" });
    this.compare = button("compare (c)", () => this.openCompare(), { disabled: true });
    this.newer = button("", () => this.reload(), { class: "hidden" });
    this.top = h("tr", { class: "spacer", "aria-hidden": "true" });
    this.bottom = h("tr", { class: "spacer", "aria-hidden": "true" });
    // The roles are said, because the style sheet lays rows out as grids. It has the widths of the columns, too.
    this.body = h("tbody", { role: "rowgroup" }, this.top, this.bottom);
    const column = (name, kind = null) => h("th", { class: kind, scope: "col", role: "columnheader" }, name);
    this.table = h("table", { class: "grid", role: "table" }, h("thead", { role: "rowgroup" }, h("tr", { role: "row" },
      column(h("span", { class: "visually-hidden" }, "compare")), column("run"), column("status"), column("agent"), column("model"),
      column("frames", "number"), column("tokens", "number"), column("cost", "number"), column("duration", "number"), column("age", "number"),
      column("fork of"), column("tags"))), this.body);
    this.scroll = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "runs" }, this.table);
    this.scroll.addEventListener("scroll", () => this.ask(), { passive: true });
    this.resized = new ResizeObserver(() => this.ask());
    this.resized.observe(this.scroll);
    this.element = h("main", {}, this.filters(), this.scroll);
  }

  filters() {
    const set = (name, value) => { location.hash = routeHash(["runs"], { ...this.filter, [name]: value || null }); };
    this.inputs = FILTERS.map(([name, values]) => {
      const properties = { name, on: { change: (event) => set(name, event.target.value.trim()) } };
      const input = values
        ? h("select", properties, values.map((value) => h("option", { value, selected: (this.filter[name] ?? "") === value }, value || "any")))
        : h("input", { ...properties, value: this.filter[name] ?? "", placeholder: name === "tag" ? "key=value" : "", autocomplete: "off", spellcheck: "false" });
      return h("label", {}, name, input);
    });
    const begun = h("select", { name: "hours", on: { change: (event) => set("hours", event.target.value) } },
      [["", "any time"], ["1", "last hour"], ["24", "last 24 h"], ["168", "last 7 days"]].map(([value, text]) => h("option", { value, selected: (this.filter.hours ?? "") === value }, text)));
    // Not a filter: an answer by meaning has its own order.
    this.about = h("input", { name: "about", placeholder: "a question", title: "finds runs by the meaning of their questions (m)", autocomplete: "off", on: { change: () => { location.hash = routeHash(["search"], { by: "meaning", q: this.about.value.trim() || null }); } } });
    return h("form", { class: "filters", role: "search", "aria-label": "filters", on: { submit: (event) => event.preventDefault() } },
      this.inputs, h("label", {}, "began", begun), h("label", {}, "about", this.about),
      Object.keys(this.filter).length > 0 && h("a", { href: "#/runs" }, "drop all filters"),
      h("span", { class: "grow" }), this.newer, this.count, this.compare);
  }

  query() {
    const { hours, ...filter } = this.filter;
    const known = Object.fromEntries(FILTERS.map(([name]) => [name, filter[name]]));
    // Whole minutes, so that the pages of one table agree on it.
    this.since ??= hours ? `${BigInt(Math.floor(Date.now() / 60e3) * 60e3 - Number(hours) * 3600e3) * 1000000n}` : null;
    return { ...known, since: this.since, order: "newest", count: PAGE_ROWS, with: "usage" };
  }

  async open() {
    document.title = "runs · annals";
    try {
      await withSkeleton(this.body, this.more());
    } catch (problem) {
      return this.drawProblem(problem);
    }
    performance.mark("annals-first-rows");
    if (this.runs.length === 0) this.drawNone();
    else this.drawCount();
    this.follow();
    this.source.get("/v1/store/stats").then((stats) => {
      this.all = stats.runs;
      this.drawCount();
    }, () => {});
  }

  async update(route) {
    // Another filter is another table.
    if (JSON.stringify(route.query) !== JSON.stringify(this.filter)) this.app.reopen();
  }

  /// The next page. A page may be empty before the end: then the one after it is read.
  async more() {
    if (this.busy || this.cursor === "0") return;
    this.busy = true;
    try {
      const before = this.runs.length;
      while (this.runs.length === before && this.cursor !== "0") {
        const page = await this.source.get("/v1/runs", { ...this.query(), from: this.cursor }, { signal: this.stop.signal });
        this.runs.push(...page.runs.map(shownRun));
        this.cursor = page.cursor;
      }
    } finally {
      this.busy = false;
    }
    this.shown = null;
    this.draw();
    this.drawCount();
  }

  ask() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      this.draw();
    });
  }

  /// The visible rows; the spacers keep the place of the others.
  draw() {
    const height = this.scroll.clientHeight || 600;
    const from = Math.max(0, Math.floor(this.scroll.scrollTop / RUN_ROW) - OVERSCAN);
    let to = Math.min(this.runs.length, from + Math.ceil(height / RUN_ROW) + 2 * OVERSCAN);
    const shown = `${from} ${to} ${this.at}`;
    if (shown === this.shown) return;
    this.shown = shown;
    // Rows that stay in view stay in the table: to make all of them anew takes longer than a frame.
    const kept = new Map();
    let made = 0;
    for (let index = from; index < to; index += 1) {
      const run = this.runs[index];
      const state = `${index === this.at} ${this.ticked.has(run.name)}`;
      const drawn = this.drawn.get(index);
      const isSame = drawn?.run === run && drawn.state === state;
      if (!isSame && made === ROWS_AT_ONCE) {
        to = index;
        this.shown = null;
        this.ask();
        break;
      }
      made += isSame ? 0 : 1;
      kept.set(index, isSame ? drawn : { run, state, row: this.row(index) });
    }
    // A skeleton stood in their place.
    if (this.top.parentNode !== this.body) this.body.replaceChildren(this.top, this.bottom);
    for (const [index, { row }] of this.drawn) if (kept.get(index)?.row !== row) row.remove();
    this.drawn = kept;
    this.top.style.height = `${from * RUN_ROW}px`;
    this.bottom.style.height = `${(this.runs.length - to) * RUN_ROW}px`;
    // Each row after the one before it; rows that are in place are not touched.
    let before = this.top;
    for (const { row } of kept.values()) {
      if (before.nextSibling !== row) before.after(row);
      before = row;
    }
    if (this.cursor !== "0" && to > this.runs.length - 40) this.more().catch((problem) => this.app.say(problem.message));
  }

  row(index) {
    const run = this.runs[index];
    const verdict = verdictOf(run.status, run.severity);
    const usage = run.usage;
    const tokens = usage && (usage.input != null || usage.output != null) ? (usage.input ?? 0) + (usage.output ?? 0) : null;
    const models = run.model || (usage?.models ?? []).join(", ");
    const tags = Object.entries(run.tags).map(([key, value]) => `${key}=${value}`).join(" ");
    const status = `${run.status}${run.severity !== "normal" && run.severity !== "debug" ? ` ${run.severity}` : ""}${run.pinned ? " pinned" : ""}`;
    const marks = [["pinned", run.pinned], ["flagged", run.flagged]].filter(([, why]) => why).map(([mark, why]) => `${mark}: ${visibleText(why)}`).join("; ");
    const tick = h("input", { type: "checkbox", "aria-label": `compare ${visibleText(run.name)}`, on: { change: () => this.tick(run.name, tick.checked) } });
    tick.checked = this.ticked.has(run.name);
    const cell = (text, title, kind = null) => {
      const shown = visibleText(text);
      return h("td", { role: "cell", class: kind, title: title ?? (shown.length > SHORT_TEXT ? shown : null) }, shown);
    };
    return h("tr", { role: "row", class: index === this.at ? "selected" : null },
      h("td", { role: "cell" }, tick),
      h("td", { role: "cell", title: visibleText(run.name) }, h("a", { href: routeHash(["run", run.name]), class: "mono", "data-index": index }, visibleText(run.name))),
      h("td", { role: "cell", title: marks || status }, h("span", { class: verdict }, verdict && verdict !== "ok" ? `${SEVERITY_LETTERS[verdict]} ` : "", status)),
      cell(run.agent), cell(models),
      cell(countText(run.frames), null, "number"),
      cell(countText(tokens), usage ? `${countText(usage.input ?? 0)} in, ${countText(usage.output ?? 0)} out` : "", "number"),
      cell(usage?.dollars != null ? dollarsText(usage.dollars) + (usage.unpriced ? "+" : "") : usage?.unpriced ? "unknown" : "", usage?.unpriced ? "the price or the tokens of a call are unknown" : null, "number"),
      cell(run.ended_ns ? durationText(run.ended_ns - run.started_ns) : "running", null, "number"),
      cell(ageText(run.started_ns), timeText(run.started_ns), "number"),
      cell(run.parent ? `${run.parent.run ?? "?"}@${run.parent.at}` : ""), cell(tags));
  }

  drawCount() {
    const isFiltered = Object.keys(this.filter).length > 0;
    const more = this.cursor !== "0" ? (this.all != null && !isFiltered ? ` of ${countText(this.all)}` : " and more below") : "";
    this.count.textContent = `${plural(this.runs.length, "run")}${more}`;
  }

  drawNone() {
    const names = Object.keys(this.filter);
    if (names.length > 0) {
      replace(this.scroll, h("div", { class: "notice" }, h("h1", {}, "No run matches"),
        h("p", {}, "Drop a filter: ", names.map((name) => [h("a", { href: routeHash(["runs"], { ...this.filter, [name]: null }) }, `${name} ${visibleText(this.filter[name])}`), " "]))));
    } else {
      replace(this.scroll, h("div", { class: "notice" }, h("h1", {}, "This store has no runs"),
        h("p", {}, "Record a program, or import transcripts:"),
        h("pre", {}, "annals record -- python agent.py\nannals import --format chat runs.json")));
    }
    this.count.textContent = "0 runs";
  }

  drawProblem(problem) {
    if (problem.status === 401) return;
    replace(this.element, h("div", { class: "notice", role: "alert" }, h("h1", {}, "The runs cannot be listed"), h("p", {}, visibleText(problem.message))));
  }

  /// Runs that begin, change and vanish. New ones are counted, so that rows do not move under the reader.
  follow() {
    this.source.follow("/v1/events", (name, data) => {
      if (name === "run") {
        const at = this.runs.findIndex((run) => run.uid === data.uid);
        if (at >= 0) {
          this.runs[at] = { ...this.runs[at], ...data };
          this.shown = null;
          this.ask();
        } else if (data.uid > (this.runs[0]?.uid ?? 0)) {
          this.fresh += 1;
          this.newer.textContent = plural(this.fresh, "new run");
          this.newer.classList.remove("hidden");
        }
      } else if (name === "gone") {
        this.runs = this.runs.filter((run) => run.name !== data.name);
        this.shown = null;
        this.ask();
        this.drawCount();
      }
    }, this.stop.signal, (live) => this.app.live(live));
  }

  reload() {
    this.app.reopen();
  }

  tick(name, isTicked) {
    if (isTicked) this.ticked.add(name);
    else this.ticked.delete(name);
    this.compare.disabled = this.ticked.size !== 2;
    this.compare.textContent = this.ticked.size === 1 ? "compare: tick one more" : "compare (c)";
  }

  openCompare() {
    const [a, b] = this.runs.filter((run) => this.ticked.has(run.name)).toReversed();
    if (b && this.ticked.size === 2) location.hash = routeHash(["compare", a.name, b.name]);
  }

  move(by) {
    this.at = Math.max(0, Math.min(this.runs.length - 1, this.at + by));
    const top = this.at * RUN_ROW;
    const height = this.scroll.clientHeight - RUN_ROW;
    if (top < this.scroll.scrollTop) this.scroll.scrollTop = top;
    if (top + RUN_ROW > this.scroll.scrollTop + height) this.scroll.scrollTop = top + RUN_ROW - height;
    this.draw();
    this.body.querySelector(`[data-index="${this.at}"]`)?.focus({ preventScroll: true });
  }

  get keys() {
    return {
      j: ["run down", () => this.move(1)], ArrowDown: ["", () => this.move(1)],
      k: ["run up", () => this.move(-1)], ArrowUp: ["", () => this.move(-1)],
      Enter: ["open the run", () => { if (this.runs[this.at]) location.hash = routeHash(["run", this.runs[this.at].name]); }],
      s: ["tick the run for comparison", () => { const run = this.runs[this.at]; if (run) { this.tick(run.name, !this.ticked.has(run.name)); this.shown = null; this.draw(); this.move(0); } }],
      c: ["compare the two ticked runs", () => this.openCompare()],
      m: ["search by meaning", () => this.about.focus()],
      f: ["filter", () => this.element.querySelector("[name=status]").focus()],
    };
  }

  close() {
    this.stop.abort();
    this.resized.disconnect();
  }
}
