// Search: where something was said, and which runs were asked something alike.

const SEARCHES = {
  words: {
    placeholder: "what was said, for example: upstream timed out",
    about: "Finds messages, answers, arguments and results of tools. Frames that hold the text as it stands come first.",
  },
  meaning: {
    placeholder: "a question, for example: why was the loan rejected?",
    about: "Finds runs by the questions of their users: the agents' memories of all tenants are recalled, and each run that is found is listed once.",
  },
};
/// Runs that a search by meaning cannot find: they have no entry in memory.
const NOT_REMEMBERED = "Not searched: runs without an entry in memory. A run has none while it is recorded, if it was abandoned, or if it has no question or no answer. Replays and runs with --no-memory have none. Forks, imports and runs that the cache answered have one with --remember only. Runs that are written by FRAME.ADD alone have none. Entries of another embedder are not compared.";

class SearchView {
  constructor(app, route) {
    const { q, by } = route.query;
    Object.assign(this, { app, source: app.source, asked: q ?? "", by: by === "meaning" ? by : "words", at: -1, hits: [] });
    this.stop = new AbortController();
    this.box = h("input", { type: "search", name: "q", value: this.asked, "aria-label": this.by === "meaning" ? "question" : "text to find", placeholder: SEARCHES[this.by].placeholder, autocomplete: "off", spellcheck: "false", on: { input: () => this.address() } });
    this.ways = Object.keys(SEARCHES).map((name) => h("a", { "aria-current": name === this.by ? "true" : null }, name));
    const form = h("form", { role: "search", "aria-label": "search in runs", on: { submit: (event) => { event.preventDefault(); location.hash = this.hash(this.by); } } }, this.box, h("button", {}, "search"), h("nav", { class: "ways", "aria-label": "search by" }, "by", this.ways));
    this.address();
    this.count = h("p", { class: "dim", role: "status" });
    this.list = h("ol", { class: "hits" });
    this.gaps = h("div", { class: "flagged" });
    const limits = this.by === "meaning" && h("p", { class: "dim limits" }, NOT_REMEMBERED);
    this.element = h("main", {}, h("div", { class: "plain-view", tabindex: "0", role: "region", "aria-label": "search" }, form, this.count, this.gaps, this.list, limits));
  }

  /// The address of a search for the text in the box.
  hash(by) {
    return routeHash(["search"], { by: by === "words" ? null : by, q: this.box.value.trim() || null });
  }

  address() {
    for (const link of this.ways) link.setAttribute("href", this.hash(link.textContent));
  }

  async open() {
    document.title = "search · annals";
    if (!this.asked) {
      this.count.textContent = SEARCHES[this.by].about;
      return this.box.focus();
    }
    await this.ask();
  }

  /// Asks until every frame is in the index: the first search of a store reads all of them.
  async ask() {
    for (;;) {
      let answer;
      try {
        answer = await withSkeleton(this.list, this.source.search(this.asked, this.by, this.stop.signal));
      } catch (problem) {
        if (this.stop.signal.aborted || problem.status === 401) return;
        return replace(this.list, h("li", { class: "why", role: "alert" }, visibleText(problem.message)));
      }
      if (this.stop.signal.aborted) return;
      this.hits = answer.hits;
      if (this.by === "meaning") return this.drawRuns(answer);
      this.drawFrames(answer);
      if (answer.is_whole) return;
    }
  }

  /// Runs with a question that is near to the one that was asked.
  drawRuns({ hits, embedder, not_compared: others }) {
    const found = hits.length === 0 ? "No question of a run is near to this." : hits.length === 100 ? "The best 100 runs." : `${plural(hits.length, "run")}.`;
    const built = "the built-in embedder: it compares words and their stems. ANNALS_EMBEDDINGS_URL names an embedder that compares meanings.";
    this.count.textContent = `${found} Compared by ${visibleText(embedder)}${embedder === "annals-words-1" ? `, ${built}` : "."}${others.length ? ` Not compared: memory of ${others.map(visibleText).join(", ")}.` : ""}`;
    const place = (run, seq, isGone, text, properties) => (isGone ? h("span", { class: "mono", tabindex: "-1", ...properties }, text) : h("a", { href: routeHash(["run", run, String(seq)]), class: "mono", ...properties }, text));
    const fact = (text, title) => h("span", { class: "dim", title }, text);
    const said = (label, ...content) => [h("dt", {}, label), h("dd", { class: "mono", dir: "auto" }, content)];
    replace(this.list, hits.map((hit, index) => h("li", {},
      h("div", {},
        place(hit.run, hit.seq, hit.gone, `${visibleText(hit.run)}@${hit.seq}`, { "data-index": index }),
        hit.status === "failed" && h("span", { class: "failed" }, "F failed"),
        hit.gone && h("span", { title: "The run was dropped or replaced. Its memory outlives it." }, "gone: only its memory is left"),
        hit.what_if && fact("what-if", "a fork, or a run with a call that the cache answered"),
        fact(`score ${hit.score.toFixed(2)}`, "how near the question is, by the embedder"),
        fact(`of ${visibleText(hit.identity)}`, "whose memory: tenant, principal, conversation"),
        hit.ended_ms != null && fact(`${ageText(hit.ended_ms * 1e6)} ago`, timeText(hit.ended_ms * 1e6))),
      h("dl", {}, said("question", hit.question), said("answer", hit.answer),
        hit.others.map((other) => said("also", place(hit.run, other.seq, hit.gone, `@${other.seq}`), " ", h("bdi", {}, other.question.replace(/\s+/g, " ")), " ", fact(other.score.toFixed(2), "score")))))));
  }

  drawFrames({ hits, is_whole: isWhole, gaps }) {
    const most = hits.length === 100 ? "the best 100 frames" : plural(hits.length, "frame");
    this.count.textContent = `${hits.length ? most : isWhole ? "No frame says this. Frequent words alone find nothing." : "No frame so far"}${isWhole ? "" : "; older frames are searched, the newest are not in the index yet"}`;
    replace(this.gaps, gaps.map((gap) => h("p", {}, `${visibleText(gap.run)}: ${[gap.unread && `${plural(gap.unread, "damaged frame")} not searched`, gap.cut && `texts over 1 MiB searched only at their beginning in ${plural(gap.cut, "frame")}`].filter(Boolean).join(", ")}`)));
    replace(this.list, hits.map((hit, index) => h("li", { class: index === this.at ? "selected" : "" },
      h("div", {}, h("a", { href: routeHash(["run", hit.run, String(hit.seq)]), class: "mono", "data-index": index }, `${visibleText(hit.run)}@${hit.seq}`), " ",
        h("span", {}, visibleText(hit.name ?? hit.component)), " ",
        hit.status !== "ok" && h("span", { class: hit.status === "error" ? "failed" : "dim" }, hit.status), " ",
        h("span", { class: "dim", title: timeText(hit.began_ns) }, `${ageText(hit.began_ns)} ago`),
        h("span", { class: "dim", title: "the share of the question that the frame holds" }, hit.text?.is_exact ? "as it stands" : `similar, ${hit.score.toFixed(2)}`)),
      hit.text
        ? h("p", { class: "mono" }, visibleText(hit.text.before), h("mark", {}, visibleText(hit.text.found)), visibleText(hit.text.after))
        : h("p", { class: "dim" }, "similar words only"))));
  }

  update(route) {
    const { q = "", by = "words" } = route.query;
    if (q !== this.asked || by !== this.by) this.app.reopen();
  }

  move(by) {
    this.at = Math.max(0, Math.min(this.hits.length - 1, this.at + by));
    [...this.list.children].forEach((row, index) => row.classList.toggle("selected", index === this.at));
    this.list.querySelector(`[data-index="${this.at}"]`)?.focus();
  }

  get keys() {
    return {
      j: ["hit down", () => this.move(1)], ArrowDown: ["", () => this.move(1)],
      k: ["hit up", () => this.move(-1)], ArrowUp: ["", () => this.move(-1)],
      m: [this.by === "meaning" ? "search by words" : "search by meaning", () => { location.hash = this.hash(this.by === "meaning" ? "words" : "meaning"); }],
      Enter: ["open the frame", () => this.list.querySelector(`[data-index="${this.at}"]`)?.click()],
      f: ["text to find", () => this.box.focus()],
    };
  }

  close() {
    this.stop.abort();
  }
}
