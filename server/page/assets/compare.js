// Two runs side by side, and the tree of forks.

class CompareView {
  constructor(app, route) {
    Object.assign(this, { app, source: app.source, a: route.parts[1], b: route.parts[2], at: -1, pairs: [] });
    this.list = h("ol", { "aria-label": "pairs of frames" });
    this.pairsBox = h("div", { class: "pairs", tabindex: "0", role: "region", "aria-label": "pairs" }, this.list);
    this.sides = [h("article", { "aria-label": "first run", tabindex: "0" }), h("article", { "aria-label": "second run", tabindex: "0" })];
    this.banner = h("div", { class: "banner" });
    this.element = h("main", {}, this.banner, h("div", { class: "compare" }, this.pairsBox, h("div", {}, this.sides[0]), h("div", {}, this.sides[1])));
    this.rows = new LongList(this.pairsBox, this.list, ROW, (index) => this.row(index));
  }

  async open(route) {
    document.title = "compare · annals";
    try {
      this.diff = await withSkeleton(this.pairsBox.firstChild, this.source.diff(this.a, this.b));
    } catch (problem) {
      replace(this.element, h("div", { class: "notice", role: "alert" }, h("h1", {}, "The runs cannot be compared"), h("p", {}, visibleText(problem.message)), h("p", {}, h("a", { href: "#/runs" }, "all runs"))));
      return;
    }
    this.pairs = this.diff.pairs;
    const changed = this.pairs.filter((pair) => pair.kind !== "same").length;
    const first = this.pairs.findIndex((pair) => pair.kind !== "same" && !pair.says_same);
    this.first = first >= 0 ? first : this.pairs.findIndex((pair) => pair.kind !== "same");
    replace(this.banner,
      h("a", { href: routeHash(["run", this.a]) }, h("strong", {}, visibleText(this.a))), " and ", h("a", { href: routeHash(["run", this.b]) }, h("strong", {}, visibleText(this.b))),
      h("span", { class: "dim" }, changed === 0 ? ": no difference" : `: ${changed} of ${plural(this.pairs.length, "pair")} differ`), " ",
      this.first >= 0 && button("first difference", () => this.go(this.first), { class: "plain" }));
    this.rows.reset(this.pairs.length);
    this.update(route);
  }

  update(route) {
    const at = Number(route.query.at ?? (this.first >= 0 ? this.first : 0));
    if (at === this.at || !this.pairs[at]) return;
    const before = this.at;
    this.at = at;
    this.rows.redraw(...[before, at].filter((index) => index >= 0));
    this.rows.reveal(at);
    this.drawPair(this.pairs[at]);
  }

  go(at) {
    if (this.pairs[at]) location.hash = routeHash(["compare", this.a, this.b], { at: String(at) });
  }

  row(index) {
    const pair = this.pairs[index];
    const word = { same: "same", changed: [pair.input && "request", pair.output && "answer"].filter(Boolean).join(" and ") + (pair.says_same ? ": other form" : pair.input && pair.output ? " differ" : " differs"), dropped: "only in the first", added: "only in the second" }[pair.kind];
    const kind = { same: "dim", changed: pair.says_same ? "dim" : "flagged", dropped: "failed", added: "ok" }[pair.kind];
    return h("li", {}, h("a", { href: routeHash(["compare", this.a, this.b], { at: String(index) }), "aria-current": index === this.at ? "true" : null },
      h("span", { class: "number" }, pair.a ?? ""), h("span", { class: "number" }, pair.b ?? ""), h("span", { class: kind }, word)));
  }

  async drawPair(pair) {
    const shown = this.at;
    const views = await Promise.all([[this.a, pair.a], [this.b, pair.b]].map(([run, seq]) => (seq ? this.source.view(run, seq).catch((problem) => problem) : null)));
    if (shown !== this.at) return;
    const texts = views.map((view) => (view && !(view instanceof Error) ? answerText(view) : null));
    const lists = views.map((view) => view?.messages?.map((message) => JSON.stringify([message.role, message.parts])) ?? []);
    const same = new Set(lists[0].flatMap((text, at) => (text === lists[1][at] ? [at] : [])));
    views.forEach((view, side) => {
      const into = this.sides[side];
      if (!view) replace(into, h("p", { class: "dim" }, "No such frame in this run."));
      else if (view instanceof Error) replace(into, h("p", { class: "why" }, view.message));
      else {
        let answer;
        if (pair.kind === "changed" && texts[0] !== null && texts[1] !== null && texts[0] !== texts[1]) {
          const lines = changedLines(texts[0], texts[1])[side];
          answer = [h("div", { class: "rule" }, h("h2", {}, "Answer"), h("span", { class: "dim" }, "changed lines are marked")),
            h("div", { class: "mono" }, lines.map(([line, isChanged]) => h("div", { class: `part ${isChanged ? (side ? "added" : "removed") : ""}`, dir: "auto" }, line || " ")))];
        }
        drawFrame(into, view, { answer, same });
      }
      into.parentElement.scrollTop = 0;
    });
    this.app.say(`pair ${shown + 1}, ${pair.kind}`);
  }

  /// From difference to difference.
  next(by) {
    for (let at = this.at + by; at >= 0 && at < this.pairs.length; at += by) {
      if (this.pairs[at].kind !== "same") return this.go(at);
    }
    this.app.say("no further difference");
  }

  get keys() {
    return {
      j: ["pair down", () => this.go(this.at + 1)], ArrowDown: ["", () => this.go(this.at + 1)],
      k: ["pair up", () => this.go(this.at - 1)], ArrowUp: ["", () => this.go(this.at - 1)],
      n: ["next difference", () => this.next(1)], N: ["difference before", () => this.next(-1)],
    };
  }

  close() {}
}

/// The text of a frame's answer, to compare.
function answerText(view) {
  return (view.answer ?? []).flatMap((message) => message.parts).map((part) => part.text ?? (part.arguments ? `${part.name}(${prettyJson(part.arguments)})` : "")).join("\n");
}

/// Both texts as lines, each with whether it differs: the common beginning and end do not.
function changedLines(a, b) {
  const sides = [a.split("\n"), b.split("\n")];
  const least = Math.min(sides[0].length, sides[1].length);
  let head = 0;
  while (head < least && sides[0][head] === sides[1][head]) head += 1;
  let tail = 0;
  while (tail < least - head && sides[0].at(-1 - tail) === sides[1].at(-1 - tail)) tail += 1;
  return sides.map((lines) => lines.map((line, at) => [line, at >= head && at < lines.length - tail]));
}

/// The most runs that the daemon returns of a tree of forks.
const FORKS_MAX = 1000;

/// The forks of a run and of its origin: one row a run, the shared part drawn once.
class ForksView {
  constructor(app, route) {
    Object.assign(this, { app, source: app.source, run: route.parts[1] });
    this.box = h("div", { class: "plain-view", tabindex: "0", role: "region", "aria-label": "forks" });
    this.element = h("main", {}, this.box);
  }

  async open() {
    document.title = `forks of ${visibleText(this.run)} · annals`;
    const { box } = this;
    try {
      const { runs } = await withSkeleton(box, this.source.forks(this.run));
      replace(box, h("section", {}, h("h1", {}, "Forks of ", h("a", { href: routeHash(["run", runs[0].name]) }, visibleText(runs[0].name))),
        h("p", { class: "dim" }, runs.length === 1 ? "There are none. On a frame of the run, x shows the commands that make one." : `${runs.length >= FORKS_MAX ? "The first " : ""}${plural(runs.length - 1, "fork")}${runs.length >= FORKS_MAX ? "; there may be more" : ""}; a line begins at the frame where its run begins to differ.`),
        forkTree(runs, this.run)));
    } catch (problem) {
      replace(box, h("p", { class: "why" }, visibleText(problem.message)));
    }
  }

  update() {}
  get keys() { return {}; }
  close() {}
}

function forkTree(runs, current) {
  const most = Math.max(1, ...runs.map((run) => run.frames));
  const wide = 560;
  const x = (frame) => 12 + (frame / most) * wide;
  const places = new Map(runs.map((run, row) => [run.uid, row]));
  const y = (row) => 20 + row * 28;
  return svg("svg", { width: wide + 460, height: y(runs.length) + 12, role: "group", "aria-label": `tree of ${plural(runs.length, "run")}` },
    svg("text", { x: x(0), y: y(runs.length) + 4 }, "frame 0"), svg("text", { x: x(most) - 12, y: y(runs.length) + 4 }, String(most)),
    runs.map((_, row) => svg("line", { class: "guide", x1: x(0), x2: wide + 28, y1: y(row), y2: y(row) })),
    runs.map((run, row) => {
      const parent = run.parent && places.get(run.parent.uid);
      const from = run.parent ? run.parent.shared : 0;
      const verdict = verdictOf(run.status, run.severity);
      return [
        parent != null && svg("path", { class: "edge", d: `M${x(from)},${y(parent)} V${y(row)}` }),
        svg("path", { class: "edge", d: `M${x(from)},${y(row)} H${x(Math.max(run.frames, from))}` }),
        svg("circle", { class: `dot ${verdict}`, cx: x(run.frames), cy: y(row), r: 4 }),
        svg("a", { href: routeHash(["run", run.name]) },
          svg("text", { x: wide + 36, y: y(row) + 4, style: run.name === current ? { "font-weight": "600" } : {} }, `${verdict && verdict !== "ok" ? `${SEVERITY_LETTERS[verdict]} ` : ""}${visibleText(run.name)}  ${run.status}, ${plural(run.frames, "frame")}`)),
        run.parent?.run && svg("a", { href: routeHash(["compare", run.parent.run, run.name]), "aria-label": `compare ${visibleText(run.name)} with ${visibleText(run.parent.run)}` },
          svg("text", { x: wide + 390, y: y(row) + 4 }, "compare")),
      ];
    }));
}
