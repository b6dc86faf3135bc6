// Search in the texts of frames: where something was said.

class SearchView {
  constructor(app, route) {
    Object.assign(this, { app, source: app.source, asked: route.query.q ?? "", at: -1, hits: [] });
    this.stop = new AbortController();
    this.box = h("input", { type: "search", name: "q", value: this.asked, "aria-label": "text to find", placeholder: "what was said, for example: upstream timed out", autocomplete: "off", spellcheck: "false" });
    const form = h("form", { role: "search", "aria-label": "search in frames", on: { submit: (event) => { event.preventDefault(); location.hash = routeHash(["search"], { q: this.box.value.trim() || null }); } } }, this.box, h("button", {}, "search"));
    this.count = h("p", { class: "dim", role: "status" });
    this.list = h("ol", { class: "hits" });
    this.gaps = h("div", { class: "flagged" });
    this.element = h("main", {}, h("div", { class: "plain-view", tabindex: "0", role: "region", "aria-label": "search" }, form, this.count, this.gaps, this.list));
  }

  async open() {
    document.title = "search · annals";
    if (!this.asked) {
      this.count.textContent = "Finds messages, answers, arguments and results of tools. Frames that hold the text as it stands come first.";
      return this.box.focus();
    }
    await this.ask();
  }

  /// Asks until every frame is in the index: the first search of a store reads all of them.
  async ask() {
    for (;;) {
      let answer;
      try {
        answer = await withSkeleton(this.list, this.source.search(this.asked, this.stop.signal));
      } catch (problem) {
        if (this.stop.signal.aborted || problem.status === 401) return;
        return replace(this.list, h("li", { class: "why", role: "alert" }, visibleText(problem.message)));
      }
      if (this.stop.signal.aborted) return;
      this.draw(answer);
      if (answer.is_whole) return;
    }
  }

  draw({ hits, is_whole: isWhole, gaps }) {
    this.hits = hits;
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
    if ((route.query.q ?? "") !== this.asked) this.app.reopen();
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
      Enter: ["open the frame", () => this.list.querySelector(`[data-index="${this.at}"]`)?.click()],
      f: ["text to find", () => this.box.focus()],
    };
  }

  close() {
    this.stop.abort();
  }
}
