// A run: its timeline, the chosen frame, and what is known of it.

/// Steps that the ranking shows: of a blame, and of suspicion.
const BLAME_ROWS_MAX = 12;
const SUSPECTS_MAX = 8;

class RunView {
  constructor(app, route) {
    Object.assign(this, { app, source: app.source, run: route.parts[1], waiting: 0, play: null });
    this.stop = new AbortController();
    this.panels = app.panels;
    this.timeline = new Timeline(this.source, this.run, (seq) => this.address(seq));
    this.frame = h("article", { class: "frame", tabindex: "-1", "aria-label": "frame" });
    this.inspector = h("aside", { class: "inspector", "aria-label": "inspector" });
    this.banner = h("div", { class: "banner hidden" });
    this.columns = h("div", { class: "run" }, this.timeline.element, this.frame, this.inspector);
    this.element = h("main", {}, this.banner, this.columns);
    this.newer = button("", () => this.takeNewer(), { class: "newer hidden" });
    this.drawPanels();
  }

  address(seq, extra = {}) {
    return routeHash(["run", this.run, seq ? String(seq) : null], { ...this.app.route.query, ...extra });
  }

  async open(route) {
    try {
      this.info = await withSkeleton(this.frame, this.source.run(this.run));
    } catch (problem) {
      return this.drawProblem(problem);
    }
    document.title = `${visibleText(this.run)} · annals`;
    this.loadFailure();
    const loading = this.timeline.load(this.stop.signal).catch((problem) => this.drawProblem(problem));
    let seq = Number(route.parts[2]);
    if (!seq) {
      await loading;
      seq = await this.firstFrame();
    }
    await this.update(route, seq);
    loading.then(() => this.timeline.show(this.seq));
    this.loadBadges();
    if (this.info.parent?.run && this.source.isLive) this.banner.after(forkStatus(this.source, this.run, this.stop.signal));
    if (this.info.status === "open" && this.source.isLive) this.followRun(loading);
  }

  get isBad() {
    return this.info.status === "failed" || this.info.status === "abandoned";
  }

  /// The frame to read first: the failed one, else the last answer of a model.
  async firstFrame() {
    if (this.isBad) {
      const failure = await this.source.failure(this.run).catch(() => null);
      if (failure?.seq) return failure.seq;
    }
    return this.timeline.frames.findLast((frame) => frame.kind === "llm")?.seq ?? this.timeline.frames.at(-1)?.seq ?? 0;
  }

  async update(route, first) {
    const seq = first ?? (Number(route.parts[2]) || await this.firstFrame());
    const raw = route.query.raw ?? "";
    if (seq === this.seq && raw === this.raw && route.query.state === this.stateOpen) return;
    Object.assign(this, { seq, raw, stateOpen: route.query.state });
    if (!seq) return this.drawEmpty();
    this.timeline.show(seq);
    await this.drawFrame();
  }

  async drawFrame() {
    const { seq, raw } = this;
    try {
      const view = await withSkeleton(this.frame, this.source.view(this.run, seq));
      if (seq !== this.seq) return;
      this.view = view;
      const earlier = view.before?.seq;
      const sentence = this.isBad && this.failure?.seq === seq ? this.sentence() : null;
      if (raw) {
        replace(this.frame, frameHead(view), this.rawTabs(raw), h("div", {}));
        await drawRaw(this.frame.lastChild, this.source, this.run, seq, raw);
      } else {
        drawFrame(this.frame, view, {
          sentence,
          more: this.source.isLive && view.before?.messages ? () => this.drawAll() : null,
          link: earlier && h("a", { href: this.address(earlier) }, `frame ${earlier}`),
        });
      }
      this.frame.append(this.newer);
      this.frame.scrollTop = 0;
      this.drawInspector(view);
      this.app.say(`frame ${seq}, ${view.component}`);
    } catch (problem) {
      if (seq === this.seq) replace(this.frame, h("p", { class: "why" }, `Frame ${seq}: ${problem.message}`));
    }
  }

  async drawAll() {
    const view = await this.source.view(this.run, this.seq, true);
    if (view.seq === this.seq) drawFrame(this.frame, view, {});
  }

  rawTabs(now) {
    return h("div", { class: "about", role: "group", "aria-label": "raw" },
      ["request", "response", "arrivals", "metadata"].map((side) => h("a", { href: this.address(this.seq, { raw: side }), "aria-current": side === now ? "true" : null }, h("span", { class: side === now ? "" : "dim" }, side), " ")),
      h("a", { href: this.address(this.seq, { raw: null }) }, "back to the messages (r)"));
  }

  async loadFailure() {
    this.failure = await this.source.failure(this.run).catch(() => null);
    // Without a noted reason, the answer of the failed call says it.
    if (this.isBad && this.failure?.seq && !this.failure.why) {
      const view = await this.source.view(this.run, this.failure.seq).catch(() => null);
      if (view?.status === "error") {
        const text = view.error ?? answerText(view);
        const line = text.split("\n").find((of) => of.trim()) ?? "";
        this.failure.why = `${view.name ?? view.component} answered: ${[...line].slice(0, 200).join("")}`;
      }
    }
    this.drawBanner();
  }

  /// Why the run failed, in one sentence.
  sentence() {
    const failure = this.failure;
    if (!failure) return null;
    const code = failure.status_code >= 400 ? `status ${failure.status_code}` : null;
    const exit = failure.exit_code != null ? `the program ended with ${failure.exit_code}${failure.signal ? ` by signal ${failure.signal}` : ""}` : null;
    const why = [failure.why ? visibleText(failure.why) : code, exit].filter(Boolean).join("; ");
    return why || null;
  }

  drawBanner() {
    const { info, failure } = this;
    const verdict = verdictOf(info.status, info.severity);
    const parent = info.parent;
    const sentence = this.sentence();
    replace(this.banner,
      h("div", { class: "about" },
        h("strong", {}, visibleText(info.name)), " ",
        h("span", { class: verdict }, `${SEVERITY_LETTERS[verdict] ?? ""} ${info.status}`),
        info.severity !== "normal" ? `, ${info.severity}` : "",
        h("span", { class: "dim" }, ` ${plural(info.frames, "frame")}, ${bytesText(info.bytes)}, began `),
        h("span", { class: "dim", title: timeText(info.started_ns) }, `${ageText(info.started_ns)} ago`),
        info.ended_ns ? h("span", { class: "dim" }, `, ${durationText(info.ended_ns - info.started_ns)}`) : h("span", { class: "dim" }, ", being recorded"),
        parent && parent.run ? [h("span", { class: "dim" }, ", fork of "), h("a", { href: routeHash(["run", parent.run, String(parent.at)]) }, `${visibleText(parent.run)}@${parent.at}`)] : null,
        parent && parent.run ? [" · ", h("a", { href: routeHash(["compare", parent.run, info.name]) }, "compare with it")] : null,
        this.source.isLive ? [" · ", h("a", { href: routeHash(["forks", info.name]) }, "forks")] : null),
      info.redacted && h("div", { class: "flagged" }, `Redacted by profile ${visibleText(info.profile ?? "")}: not what was recorded.`),
      this.isBad && failure?.seq && h("div", {},
        h("span", { class: "failed" }, sentence ? `Failed: ${sentence}` : "The run failed; its record names no reason."), " ",
        h("a", { href: this.address(failure.seq) }, `frame ${failure.seq}`), " ",
        this.suspect?.length ? [h("span", { class: "dim" }, " · most suspect: "), this.suspect.slice(0, 3).map((step, place) => [place ? ", " : "", h("a", { href: this.address(step.seq), title: `S${place + 1} in the timeline` }, `frame ${step.seq}`)])] : null));
    this.banner.classList.remove("hidden");
    if (failure?.seq === this.seq && this.view && !this.raw && sentence !== this.told) {
      this.told = sentence;
      this.drawFrame();
    }
  }

  async loadBadges() {
    const badges = new Map();
    const suspect = this.isBad ? await this.source.suspect(this.run).catch(() => []) : [];
    this.suspect = suspect;
    suspect.slice(0, 5).forEach((step, place) => {
      badges.set(step.seq, { text: `S${place + 1}`, title: `place ${place + 1} of the suspect steps, score ${step.score.toFixed(2)}` });
    });
    const blame = await this.source.blame(this.run).catch(() => null);
    this.blame = blame;
    for (const row of blame?.rows ?? []) {
      const { low, high } = row.interval ?? {};
      badges.set(row.step, { text: row.flip_rate.toFixed(2), title: `blame: ${row.flip_rate.toFixed(2)} of its forks no longer fail (${intervalLevel(row)}: ${low?.toFixed(2)} to ${high?.toFixed(2)})` });
    }
    if (badges.size) this.timeline.mark(badges);
    if (suspect.length || blame) {
      this.drawBanner();
      if (this.view) this.drawInspector(this.view);
    }
  }

  drawInspector(view) {
    const facts = (rows) => h("dl", {}, rows.filter(([, value]) => value != null && value !== "" && value !== false)
      .map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
    const hash = (of) => of?.blake3 && [h("span", { class: "mono", title: of.blake3 }, `${of.blake3.slice(0, 16)} `), copyButton(of.blake3, "copy", "hash")];
    const usage = view.usage;
    const side = (of, name) => of && [bytesText(of.bytes), of.decoded_from && ` decoded from ${of.decoded_from}`, " ",
      this.source.isLive && h("a", { href: this.address(view.seq, { raw: name }) }, "raw")];
    const step = this.suspect?.find((of) => of.seq === view.seq);
    const row = this.blame?.rows?.find((of) => of.step === view.seq);
    const headers = (list, title) => list?.length > 0 && h("details", {}, h("summary", {}, `${title} (${list.length})`),
      h("pre", {}, list.map(([name, value]) => `${visibleText(name)}: ${visibleText(value)}`).join("\n")));
    replace(this.inspector,
      h("section", {}, h("h2", {}, "Frame"), facts([
        ["status", view.status], ["kind", view.kind], ["api", view.api], ["model", view.model && visibleText(view.model)],
        ["began", h("span", { title: view.began_ns }, timeText(view.began_ns))], ["duration", durationText(view.duration_ns)],
        ["tokens", usage && `${countText(usage.input ?? 0)} in${usage.cached ? `, ${countText(usage.cached)} cached` : ""}, ${countText(usage.output ?? 0)} out${usage.reasoning ? `, ${countText(usage.reasoning)} reasoning` : ""}`],
        ["cost", dollarsText(view.dollars)],
        ["parent", view.parent ? h("a", { href: this.address(view.parent) }, `frame ${view.parent}`) : null],
        ["lane", view.lane || null],
        ["request", side(view.request, "request")], ["", hash(view.request)],
        ["response", side(view.response, "response")], ["", hash(view.response)],
        ["address", copyButton(() => location.href, "copy link")],
      ])),
      (view.http?.request_headers?.length || view.http?.response_headers?.length) ? h("section", {},
        headers(view.http.request_headers, "request headers"), headers(view.http.response_headers, "response headers")) : null,
      view.tools?.length > 0 && h("section", {}, h("details", {}, h("summary", {}, `${plural(view.tools.length, "tool")} offered`), view.tools.map((tool) => h("div", { class: "mono" }, visibleText(tool))))),
      step && h("section", {}, h("h2", {}, "Suspect ", h("span", { class: "dim" }, `score ${step.score.toFixed(2)}, place ${this.suspect.indexOf(step) + 1} of ${this.suspect.length}`)),
        h("p", { class: "dim" }, "A heuristic from the record alone."),
        step.signals.slice(0, 5).map((signal) => h("p", {}, `${signal.name}: ${visibleText(signal.why)}`))),
      row && h("section", {}, h("h2", {}, "Blame"), intervalChart(row),
        h("p", { class: "dim" }, `${row.flip_rate.toFixed(2)} of its perturbed forks no longer fail; ${intervalLevel(row)} interval`)),
      this.stateSection(view.seq),
      this.rankingSection(view.seq),
      this.forkSection(view),
      this.runSection(facts));
  }

  /// The steps by blame with their intervals, else by suspicion.
  rankingSection(seq) {
    const link = (at) => h("a", { href: this.address(at), "aria-current": at === seq ? "true" : null }, `frame ${at}`);
    const left = (count, shown) => count > shown && h("p", { class: "dim" }, `${plural(count - shown, "further step")} not shown`);
    if (this.blame?.rows?.length) {
      const { rows, state } = this.blame;
      const shown = rows.slice(0, BLAME_ROWS_MAX);
      const levels = [...new Set(shown.map(intervalLevel))].sort((one, other) => parseFloat(one) - parseFloat(other));
      return h("section", {}, h("h2", {}, `Blame, with ${levels.join(" and ")} intervals`),
        shown.map((row) => h("div", { class: "rank" }, link(row.step), intervalChart(row),
          row.stopped_early && h("span", { class: "dim note" }, `decided early (${intervalLevel(row)} interval)`))),
        left(rows.length, BLAME_ROWS_MAX),
        h("p", { class: "dim" }, `share of a step's perturbed forks that no longer fail; ${state}`));
    }
    if (!this.suspect?.length) return null;
    return h("section", {}, h("h2", {}, "Suspect steps"),
      this.suspect.slice(0, SUSPECTS_MAX).map((step) => h("div", { class: "rank" }, link(step.seq), h("span", { class: "dim" }, `${step.score.toFixed(2)} ${visibleText(step.signals[0]?.name ?? "")}`))),
      left(this.suspect.length, SUSPECTS_MAX));
  }

  /// What is known of the whole run; in a report also what its making verified.
  runSection(facts) {
    const { info } = this;
    const hash = (text) => text && [h("span", { class: "mono", title: text }, `${text.slice(0, 16)} `), copyButton(text, "copy", "hash")];
    const part = this.source.document?.runs.find((of) => of.run.name === this.run);
    const ledger = this.source.document?.ledger;
    return h("section", {}, h("h2", {}, "Run"), facts([
      ["number", info.uid], ["agent", info.agent && visibleText(info.agent)], ["model", info.model && visibleText(info.model)],
      ...Object.entries(info.tags ?? {}).map(([key, value]) => [visibleText(key), visibleText(value)]),
      ["fingerprint", hash(info.fingerprint)],
      ["verified", part && (part.verified.error ? h("span", { class: "failed" }, visibleText(part.verified.error)) : `${plural(part.verified.frames, "frame")}, ${bytesText(part.verified.bytes)}: all hashes and links are right`)],
      ["ledger", ledger && [`${plural(ledger.size ?? ledger.leaves ?? 0, "leaf").replace("leafs", "leaves")} `, hash(ledger.root)]],
      ["damage", part?.damage.length ? h("span", { class: "failed" }, part.damage.map(visibleText).join("; ")) : null],
    ]));
  }

  /// The state after the frame and what changed in it, read when it is opened.
  stateSection(seq) {
    const body = h("div", {}, button("show the state (s)", () => this.loadState(seq, body), { class: "plain" }));
    this.stateBody = body;
    if (this.stateOpen) this.loadState(seq, body);
    return h("section", {}, h("h2", {}, "State after this frame"), body);
  }

  async loadState(seq, body) {
    try {
      const [now, before] = await Promise.all([this.source.state(this.run, seq), seq > 1 ? this.source.state(this.run, seq - 1) : null]);
      if (!now) return replace(body, h("p", { class: "dim" }, "No state was stored up to here."));
      const parse = (state) => {
        const text = state?.state;
        try {
          return typeof text === "string" ? JSON.parse(text) : text;
        } catch {
          return text;
        }
      };
      const changes = before && before.seq === now.seq ? [] : jsonChanges(parse(before) ?? {}, parse(now));
      const line = (value) => (value === undefined ? "" : JSON.stringify(value));
      replace(body,
        h("p", { class: "dim" }, now.seq === seq ? "stored after this frame" : `stored after frame ${now.seq}`),
        changes.length ? h("pre", { "aria-label": "what changed" }, changes.slice(0, 100).map((change) => [
          h("div", { class: "dim" }, change.path),
          change.before !== undefined && h("div", { class: "removed" }, `- ${line(change.before)}`),
          change.after !== undefined && h("div", { class: "added" }, `+ ${line(change.after)}`)])) : h("p", { class: "dim" }, "nothing changed in this step"),
        h("details", {}, h("summary", {}, "whole state"), h("pre", {}, prettyJson(typeof now.state === "string" ? now.state : JSON.stringify(now.state)))));
    } catch (problem) {
      replace(body, h("p", { class: "failed" }, problem.message));
    }
  }

  /// The command that continues the program from here.
  forkSection(view) {
    const at = shellWord(`${this.run}@${view.seq}`);
    const rows = [["from here", `annals fork ${at}`]];
    if (view.kind === "llm") {
      rows.push(["other answer", `annals fork ${at} --edit`], ["other model", `annals fork ${at} --model NAME`],
        ["parameter", `annals fork ${at} --set '$.temperature=0'`]);
    }
    const id = (view.messages ?? []).flatMap((message) => message.parts).find((part) => part.type === "tool_result")?.id;
    if (id) rows.push(["tool result", `annals fork ${at} --tool-result ${shellWord(id)}=FILE`]);
    const form = h("div", {});
    if (this.source.isLive) this.source.startedForks().then(({ command }) => command && replace(form, forkForm(this.source, this.run, view, command)), () => {});
    return h("section", { class: "fork" }, h("h2", {}, "Fork from here"), form,
      h("p", { class: "dim" }, "Runs the recorded program, or another one after --, from this frame into a new run:"),
      rows.map(([name, command]) => h("div", { class: "command" }, h("span", { class: "dim" }, name), h("code", {}, command), copyButton(command, "copy", `command for ${name}`))));
  }

  drawPanels() {
    this.columns.classList.toggle("no-left", !this.panels.left);
    this.columns.classList.toggle("no-right", !this.panels.right);
  }

  drawEmpty() {
    replace(this.frame, h("div", { class: "notice" }, h("h1", {}, "No frames yet"),
      h("p", { class: "dim" }, this.info.status === "open" ? "The run is being recorded; its frames appear here." : "The run ended without a frame.")));
    replace(this.inspector);
  }

  drawProblem(problem) {
    if (problem.status === 401) return;
    const gone = problem.status === 410;
    replace(this.element, h("div", { class: "notice", role: "alert" },
      h("h1", {}, gone ? "Gone" : problem.status === 404 ? "No such run" : "The run cannot be read"),
      h("p", {}, visibleText(problem.message)),
      h("p", {}, h("a", { href: "#/runs" }, "all runs"))));
  }

  /// Frames of a run that is being recorded: counted, and shown when the reader asks.
  followRun(loading) {
    const path = HttpSource.path(this.run, `/events?from=${this.info.frames + 1}`);
    loading.then(() => this.source.follow(path, async (name, data) => {
      if (name === "frame" && this.timeline.index(data.seq) >= 0) {
        // It was there already, while its answer was still arriving.
        await this.timeline.refresh(data.seq);
        if (data.seq === this.seq) this.drawFrame();
      } else if (name === "frame" && !this.timeline.frames.length) {
        // Nothing is shown yet, so nothing moves under the reader.
        this.taking ??= this.takeNewer().finally(() => { this.taking = null; });
      } else if (name === "frame") {
        this.waiting = Math.max(this.waiting, data.seq - this.timeline.frames.length);
        this.newer.textContent = `${plural(this.waiting, "new frame")}`;
        this.newer.classList.toggle("hidden", this.waiting <= 0);
      } else if (name === "end") {
        this.info = { ...this.info, ...data };
        await this.loadFailure();
        this.loadBadges();
      }
    }, this.stop.signal, (live) => this.app.live(live)));
  }

  async takeNewer() {
    this.waiting = 0;
    this.newer.classList.add("hidden");
    this.info = await this.source.run(this.run);
    await this.timeline.grow(this.stop.signal);
    this.drawBanner();
    const last = this.timeline.frames.at(-1);
    if (last) location.hash = this.address(last.seq);
  }

  step(by) {
    const at = this.timeline.index(this.seq);
    const next = this.timeline.frames[Math.max(0, Math.min(this.timeline.frames.length - 1, at + by))];
    if (next && next.seq !== this.seq) location.hash = this.address(next.seq);
  }

  /// Steps with the recorded times, at most two seconds each.
  togglePlay() {
    if (this.play) {
      clearTimeout(this.play);
      this.play = null;
      this.app.say("stopped");
      return;
    }
    const next = () => {
      const at = this.timeline.index(this.seq);
      const [now, after] = [this.timeline.frames[at], this.timeline.frames[at + 1]];
      if (!after) {
        this.play = null;
        return;
      }
      const wait = Math.min(2000, Math.max(100, millis(after.began_ns) - millis(now.began_ns)));
      this.play = setTimeout(() => {
        this.step(1);
        next();
      }, wait);
    };
    this.app.say("playing");
    next();
  }

  get keys() {
    return {
      j: ["frame down", () => this.step(1)], ArrowDown: ["", () => this.step(1)], ArrowRight: ["", () => this.step(1)],
      k: ["frame up", () => this.step(-1)], ArrowUp: ["", () => this.step(-1)], ArrowLeft: ["", () => this.step(-1)],
      G: ["last frame", () => { location.hash = this.address(this.timeline.frames.at(-1)?.seq ?? this.seq); }],
      r: ["raw bytes, and back", () => { if (this.source.isLive) location.hash = this.address(this.seq, { raw: this.raw ? null : "request" }); }],
      m: ["all messages", () => this.frame.querySelector("[data-key=m]")?.click()],
      s: ["state after the frame", () => { this.openRight(); this.loadState(this.seq, this.stateBody); this.stateBody.scrollIntoView({ block: "nearest" }); }],
      d: ["what changed in the state", () => { this.openRight(); this.loadState(this.seq, this.stateBody); this.stateBody.scrollIntoView({ block: "nearest" }); }],
      x: ["fork from here", () => { this.openRight(); this.inspector.querySelector(".fork")?.scrollIntoView({ block: "nearest" }); this.inspector.querySelector(".fork select, .fork button")?.focus(); }],
      b: ["most suspect step", () => { const first = this.blame?.rows?.[0]?.step ?? this.suspect?.[0]?.seq; if (first) location.hash = this.address(first); }],
      c: ["compare with its parent", () => { if (this.info?.parent?.run) location.hash = routeHash(["compare", this.info.parent.run, this.run]); }],
      p: ["play, and stop", () => this.togglePlay()], " ": ["", () => this.togglePlay()],
      "[": ["timeline open or closed", () => { this.panels.left = !this.panels.left; this.drawPanels(); }],
      "]": ["inspector open or closed", () => { this.panels.right = !this.panels.right; this.drawPanels(); }],
    };
  }

  openRight() {
    this.panels.right = true;
    this.drawPanels();
  }

  jump(seq) {
    if (this.timeline.index(seq) >= 0) location.hash = this.address(seq);
    else this.app.say(`there is no frame ${seq}`);
  }

  close() {
    this.stop.abort();
    clearTimeout(this.play);
  }
}

/// The level of a step's interval. A step that was decided early keeps the wider one.
function intervalLevel(row) {
  return row.stopped_early ? "97.5%" : "95%";
}

/// A rate as a dot and its interval as a line.
function intervalChart(row) {
  const { low, high } = row.interval ?? { low: row.flip_rate, high: row.flip_rate };
  const x = (rate) => 5 + rate * 160;
  return svg("svg", { width: 216, height: 20, role: "img", "aria-label": `${row.flip_rate.toFixed(2)}, ${intervalLevel(row)} interval ${low.toFixed(2)} to ${high.toFixed(2)}` },
    svg("line", { class: "edge", x1: x(0), x2: x(0), y1: 4, y2: 16 }), svg("line", { class: "edge", x1: x(1), x2: x(1), y1: 4, y2: 16 }),
    svg("line", { class: "interval", x1: x(low), x2: x(high), y1: 10, y2: 10 }),
    svg("circle", { class: "dot", cx: x(row.flip_rate), cy: 10, r: 4 }),
    svg("text", { x: 180, y: 14 }, row.flip_rate.toFixed(2)));
}
