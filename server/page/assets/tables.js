// Memory, decisions, lessons and the store: tables where there is data.

/// A view of sections that are read one by one; a section that fails says so and the others stay.
class SectionsView {
  constructor(app, title, sections) {
    Object.assign(this, { app, source: app.source, title, sections });
    this.box = h("div", { class: "plain-view", tabindex: "0", role: "region", "aria-label": title });
    this.element = h("main", {}, this.box);
  }

  async open(route) {
    document.title = `${this.title} · annals`;
    for (const [heading, fill] of this.sections) {
      const section = h("section", {}, h("h2", {}, heading));
      const body = h("div", {});
      section.append(body);
      this.box.append(section);
      withSkeleton(body, fill(this.source, route)).then(
        (content) => replace(body, content),
        (problem) => replace(body, h("p", { class: problem.status === 403 ? "dim" : "why" }, visibleText(problem.message))));
    }
  }

  update() {}
  get keys() { return {}; }
  close() {}
}

/// A table of rows; a column is a name, a function of the row, and its kind: `true` for a number, "short" for what stays in
/// one line.
function plainTable(columns, rows, none) {
  if (rows.length === 0) return h("p", { class: "dim" }, none);
  const kindClass = (kind) => (kind === true ? "number" : kind ?? "wrap");
  return h("table", {}, h("thead", {}, h("tr", {}, columns.map(([name, , kind]) => h("th", { scope: "col", class: kindClass(kind) }, name)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, columns.map(([, value, kind]) => {
      const cell = value(row);
      return h("td", { class: kindClass(kind) }, cell instanceof Node ? cell : visibleText(cell ?? ""));
    })))));
}

/// A daemon that only reads the store cannot make the place of what was never recorded, and does not find it.
function ifMade(asked, none) {
  return asked.catch((problem) => {
    if (problem.status === 404) return none;
    throw problem;
  });
}

class MemoryView extends SectionsView {
  constructor(app, route) {
    const asked = route.query.q ?? "";
    // What one tenant remembers is never found for another.
    const tenant = h("input", { name: "tenant", value: route.query.tenant ?? "", "aria-label": "tenant", placeholder: "tenant, if there are some", size: "24" });
    const box = h("input", { type: "search", name: "q", value: asked, "aria-label": "question", placeholder: "a question, for example: may a basic economy ticket be cancelled?" });
    const form = h("form", { role: "search", on: { submit: (event) => { event.preventDefault(); location.hash = routeHash(["memory"], { q: box.value.trim() || null, tenant: tenant.value.trim() || null }); } } }, box, tenant, h("button", {}, "recall"));
    super(app, "memory", [
      ["Recall", async (source) => [form, asked && await recalled(source, asked, route.query.tenant)]],
      ["Definitions", async (source) => {
        const { definitions } = await ifMade(source.get("/v1/memory/definitions"), { definitions: [] });
        return plainTable([["id", (row) => row.id], ["description", (row) => row.description], ["strategy", (row) => JSON.stringify(row.strategy ?? {})], ["projection", (row) => JSON.stringify(row.projection ?? "")]], definitions, "No definition of a memory is stored.");
      }],
    ]);
    this.question = box;
  }

  update({ query }) {
    const asked = this.asked ?? query;
    if (query.q !== asked.q || query.tenant !== asked.tenant) this.app.reopen();
  }
  get keys() { return { f: ["question", () => this.question.focus()] }; }

  open(route) {
    this.asked = route.query;
    return super.open(route);
  }
}

async function recalled(source, question, tenant) {
  const found = await ifMade(source.post("/v1/memory/search", { question, across: true, k: 20, min_score: 0, budget: 1000, ...(tenant && { tenant }) }), { hits: [] });
  const text = (row) => row.entry.value?.query ?? row.entry.value?.content ?? row.entry.value;
  const short = (value) => (typeof value === "string" ? value : JSON.stringify(value) ?? "").slice(0, 400);
  return [plainTable([["score", (row) => row.score.toFixed(3), true], ["id", (row) => row.id, "short"], ["identity", (row) => row.identity, "short"], ["decided", (row) => row.decided_at?.slice(0, 16).replace("T", " "), "short"], ["entry", (row) => short(text(row))], ["answer", (row) => short(row.entry.value?.finalContent ?? "")]], found.hits, "Nothing that is stored is near to the question."),
    found.text && h("details", { open: true }, h("summary", {}, `what a prompt would get (about ${countText(Math.ceil(found.text.length / 4))} tokens)`), h("pre", { class: "body" }, found.text))];
}

/// Calls of decisions by JSON-RPC. The daemon notes calls as inputs of the caller's next decision, except those of
/// the page's sessions. With a token they get a scope of their own, which no decision takes.
async function decisionCall(source, method, params) {
  const answer = await source.post("/v1/cstp", { jsonrpc: "2.0", id: 1, method, params: { ...params, agentId: "annals-page" } });
  if (answer.error) throw new Problem(answer.error.data?.code === "NOTFOUND" ? 404 : 200, "", answer.error.message);
  return answer.result;
}

class DecisionsView extends SectionsView {
  constructor(app, route) {
    const { id } = route.query;
    super(app, "decisions", id
      ? [[`Decision ${visibleText(id)}`, async (source) => drawDecision(await decisionCall(source, "cstp.getDecision", { id }))]]
      : [["Decisions", async (source) => {
        const { decisions, total } = await ifMade(decisionCall(source, "cstp.queryDecisions", { limit: 200 }), { decisions: [], total: 0 });
        return [total > decisions.length && h("p", { class: "dim" }, `the newest ${decisions.length} of ${countText(total)}`),
          plainTable([["when", (row) => row.created_at?.slice(0, 19).replace("T", " ")], ["decision", (row) => h("a", { href: routeHash(["decisions"], { id: row.id }) }, visibleText(row.decision ?? row.title ?? row.id))],
            ["category", (row) => row.category], ["stakes", (row) => row.stakes], ["confidence", (row) => row.confidence?.toFixed(2), true], ["quality", (row) => row.quality_score?.toFixed(2), true],
            ["status", (row) => row.outcome ?? row.status], ["by", (row) => row.recorded_by]], decisions, "No decision is recorded: `annals decide` records one.")];
      }]]);
    this.id = id;
  }

  update(route) { if (route.query.id !== this.id) this.app.reopen(); }
}

/// A decision with its deliberation: inputs at the left, steps at the right, a line for each use.
function drawDecision(decision) {
  const { inputs = [], steps = [] } = decision.deliberation ?? {};
  const facts = [["confidence", decision.confidence], ["category", decision.category], ["stakes", decision.stakes], ["status", decision.outcome ?? decision.status], ["context", decision.context],
    ["when", decision.created_at], ["by", decision.recorded_by], ["reasons", (decision.reasons ?? []).map((reason) => `${reason.type}: ${reason.text}`).join("; ")]];
  return [h("p", {}, h("strong", {}, visibleText(decision.decision ?? ""))),
    h("dl", {}, facts.filter(([, value]) => value != null && value !== "").map(([name, value]) => [h("dt", {}, name), h("dd", {}, visibleText(value))])),
    decision.run && h("p", {}, h("a", { href: routeHash(["run", decision.run, decision.frame ? String(decision.frame) : null]) }, `run ${visibleText(decision.run)}`)),
    h("h2", {}, "Deliberation"), inputs.length + steps.length === 0 ? h("p", { class: "dim" }, "None was recorded.") : deliberationGraph(inputs, steps)];
}

function deliberationGraph(inputs, steps) {
  const short = (text, most) => visibleText([...text].length > most ? `${[...text].slice(0, most - 1).join("")}…` : text);
  const [row, right] = [28, 440];
  const y = (at) => 18 + at * row;
  const places = new Map(inputs.map((input, at) => [input.id, at]));
  const height = y(Math.max(inputs.length, steps.length)) + 4;
  return h("div", { class: "graph" }, svg("svg", { width: 1080, height, role: "img", "aria-label": `${plural(inputs.length, "input")}, ${plural(steps.length, "step")}` },
    steps.flatMap((step, at) => (step.inputs_used ?? []).filter((id) => places.has(id)).map((id) => svg("path", { class: "edge", d: `M${right - 60},${y(places.get(id))} C${right - 30},${y(places.get(id))} ${right - 40},${y(at)} ${right - 8},${y(at)}` }))),
    inputs.map((input, at) => svg("text", { x: 0, y: y(at) + 4 }, svg("title", {}, visibleText(input.text)), short(input.text, 52))),
    steps.map((step, at) => [
      svg("circle", { class: `dot ${(step.inputs_used ?? []).length > 1 ? "flagged" : ""}`, cx: right, cy: y(at), r: 4 }),
      svg("text", { x: right + 12, y: y(at) + 4 }, svg("title", {}, visibleText(step.thought)), `${step.step}. ${short(step.thought, 80)}${(step.inputs_used ?? []).length > 1 ? `  (${step.inputs_used.length} inputs converge)` : ""}`)])));
}

class LessonsView extends SectionsView {
  constructor(app) {
    super(app, "lessons", [
      ["Failures by category", async (source) => {
        const counts = Object.entries(await ifMade(source.get("/v1/diagnostics/distribution"), {}));
        const most = Math.max(1, ...counts.map(([, count]) => count));
        if (counts.every(([, count]) => count === 0)) return h("p", { class: "dim" }, "No failed session is recorded: `annals diagnose` records how one ended.");
        return plainTable([["category", ([name]) => name], ["sessions", ([, count]) => countText(count), true], ["share", ([, count]) => count > 0 ? h("span", { class: "meter", style: { width: `${(count / most) * 200}px` } }) : ""]], counts, "");
      }],
      ["Misleading observations", async (source) => {
        const { observations } = await ifMade(source.get("/v1/diagnostics/misleading"), { observations: [] });
        const rows = await Promise.all(observations.slice(0, 50).map(async (observation) => ({
          observation, ...(await source.get("/v1/diagnostics/weight", { observation })), ...(await source.get("/v1/diagnostics/history", { observation })) })));
        return [observations.length > rows.length && h("p", { class: "dim" }, `the first ${rows.length} of ${countText(observations.length)}`),
          plainTable([["observation", (row) => row.observation], ["weight", (row) => row.weight.toFixed(2), true], ["sessions", (row) => countText(row.changes.length), true],
          ["weight over time", (row) => weightChart(row.changes)]], rows, "None: at least three failed sessions and no accepted one were given such an observation.")];
      }],
      ["Doubled rates, the latest first", async (source) => {
        const { events, isAll } = await latestEvents(source);
        return [!isAll && h("p", { class: "why" }, "The audit log is longer than this page reads: these are not the latest. `annals lessons --weight-history OBSERVATION` prints the changes of one."), plainTable([["when", (row) => timeText(row.recordedAt * 1e6)], ["observation", (row) => row.observationId], ["session", (row) => row.sessionId],
          ["before", (row) => row.metadata.previousWeight.toFixed(2), true], ["after", (row) => row.metadata.newWeight.toFixed(2), true]], events, "None: a misleading observation of a failed session loses weight at twice the rate.")];
      }],
    ]);
  }
}

/// The last 100 events of the audit log, which is read from its beginning, and whether that was all of it.
async function latestEvents(source) {
  const [page, pages] = [1000, 50];
  let latest = [];
  for (let from = 0; from < page * pages; from += page) {
    const { events } = await ifMade(source.get("/v1/diagnostics/audit", { from, count: page }), { events: [] });
    latest = [...latest, ...events].slice(-100);
    if (events.length < page) return { events: latest.reverse(), isAll: true };
  }
  return { events: latest.reverse(), isAll: false };
}

/// The weights that an observation has had, from 0 at the bottom to 1, a step for each session.
function weightChart(changes) {
  if (changes.length === 0) return "";
  const [width, height, edge] = [160, 28, 3];
  const weights = [changes[0].previousWeight, ...changes.map((change) => change.newWeight)];
  const x = (at) => (at / weights.length) * width;
  const y = (weight) => edge + (1 - weight) * (height - 2 * edge);
  const line = weights.map((weight, at) => `${at ? `L${x(at).toFixed(1)},${y(weight).toFixed(1)} ` : `M0,${y(weight).toFixed(1)}`}L${x(at + 1).toFixed(1)},${y(weight).toFixed(1)}`).join("");
  const told = weights.map((weight) => weight.toFixed(2)).join(", ");
  return svg("svg", { width, height, role: "img", "aria-label": `weights: ${told}` }, svg("title", {}, told),
    [0, 1].map((weight) => svg("line", { class: "guide", x1: 0, x2: width, y1: y(weight), y2: y(weight) })), svg("path", { class: "series disk", d: line }));
}

/// What the store's bytes are for, in words.
const BYTE_KINDS = [
  ["piece_bytes", "bodies of frames and values"], ["recipe_bytes", "how bodies are put together"], ["frame_record_bytes", "records of frames"],
  ["run_record_bytes", "records of runs"], ["kv_record_bytes", "keys and values"], ["chain_bytes", "chain of batches"], ["log_file_bytes", "other bytes of log files"],
  ["table_bytes", "index tables"], ["vector_bytes", "vectors"], ["manifest_bytes", "manifest"], ["other_bytes", "other"],
];

/// Recorded bytes and bytes on disk over time: a measure a day, and now at the right end.
function sizeChart(sizes, stats) {
  const points = [...sizes.map((of) => [Number(of.at_ns) / 1e6, of.raw_bytes, of.disk_bytes]), [Date.now(), stats.raw_bytes, stats.disk_bytes]];
  const [first, last] = [points[0][0], points.at(-1)[0]];
  if (last - first < 3600e3) return h("p", { class: "dim" }, "The size over time is shown from the second day on: a daemon measures the store once a day.");
  const [left, right, top, bottom, width] = [72, 120, 8, 24, 760];
  const height = 160;
  const most = Math.max(1, ...points.flatMap(([, raw, disk]) => [raw, disk]));
  const x = (at) => left + ((at - first) / (last - first)) * (width - left - right);
  const y = (bytes) => height - bottom - (bytes / most) * (height - top - bottom);
  const line = (column, kind) => svg("path", { class: `series ${kind}`, d: points.map((point, at) => `${at ? "L" : "M"}${x(point[0]).toFixed(1)},${y(point[column]).toFixed(1)}`).join("") });
  const day = (at) => new Date(at).toISOString().slice(0, 10);
  const label = (column, text) => svg("text", { x: x(last) + 8, y: y(points.at(-1)[column]) + 4 }, text);
  const isNear = Math.abs(y(stats.raw_bytes) - y(stats.disk_bytes)) < 14;
  return h("div", { class: "graph size" }, svg("svg", { width, height, role: "img", "aria-label": `size from ${day(first)} to ${day(last)}: ${bytesText(stats.raw_bytes)} recorded, ${bytesText(stats.disk_bytes)} on disk now` },
    [0, 0.5, 1].map((share) => [svg("line", { class: "guide", x1: left, x2: width - right, y1: y(most * share), y2: y(most * share) }), svg("text", { class: "axis", x: left - 8, y: y(most * share) + 4 }, share ? bytesText(most * share) : "0")]),
    svg("text", { x: left, y: height - 4 }, day(first)), svg("text", { class: "axis", x: width - right, y: height - 4 }, day(last)),
    line(1, "raw"), line(2, "disk"), isNear ? label(1, "recorded, on disk") : [label(1, "recorded"), label(2, "on disk")]));
}

class StoreView extends SectionsView {
  constructor(app) {
    super(app, "store", [
      ["Size", async (source) => {
        const stats = await source.get("/v1/store/stats");
        const kinds = BYTE_KINDS.map(([name, text]) => [text, stats[name] ?? 0]).filter(([, bytes]) => bytes > 0).sort((a, b) => b[1] - a[1]);
        const most = Math.max(1, ...kinds.map(([, bytes]) => bytes));
        return [h("p", {}, `${plural(stats.runs, "run")}, ${plural(stats.frames, "frame")}: ${bytesText(stats.raw_bytes)} recorded, ${bytesText(stats.disk_bytes)} on disk`, stats.disk_bytes > 0 && stats.raw_bytes > stats.disk_bytes ? `, ${(stats.raw_bytes / stats.disk_bytes).toFixed(1)} times smaller` : ""),
          plainTable([["bytes for", ([name]) => name], ["size", ([, bytes]) => bytesText(bytes), true], ["share", ([, bytes]) => h("span", { class: "meter", style: { width: `${(bytes / most) * 240}px` } })]], kinds, ""),
          sizeChart((await source.get("/v1/store/sizes").catch(() => ({ sizes: [] }))).sizes, stats),
          h("p", { class: "dim" }, "ledger root ", h("span", { class: "mono" }, stats.ledger_root ?? ""), ` of ${plural(stats.ledger_leaves ?? 0, "leaf").replace("leafs", "leaves")} `, stats.ledger_root && copyButton(stats.ledger_root, "copy", "ledger root"))];
      }],
      ["Retention, next 7 days", (source) => {
        // Asked on request only: the store records each plan that was made.
        const body = h("div", {}, h("p", { class: "dim" }, "What the built-in policy would drop by then. A daemon drops only with --retain."), button("show the plan", async () => {
          try {
            replace(body, await retentionPlan(source));
          } catch (problem) {
            replace(body, h("p", { class: "why", role: "alert" }, visibleText(problem.message)));
          }
        }));
        return body;
      }],
      ["Verification", async (source) => {
        const body = h("div", {}, h("p", { class: "dim" }, "Reads every file and every run, and checks all hashes and links."), button("verify now", async () => {
          replace(body, h("p", { role: "status" }, "verifying…"));
          const began = performance.now();
          try {
            const report = await source.post("/v1/store/verify", {});
            replace(body, h("p", { role: "status" }, `done in ${((performance.now() - began) / 1000).toFixed(1)} s`), h("pre", { class: "body" }, JSON.stringify(report, null, 2)));
          } catch (problem) {
            replace(body, h("p", { class: "why", role: "alert" }, visibleText(problem.message)));
          }
        }));
        return body;
      }],
      ["Slow commands", async (source) => {
        const rows = await source.get("/v1/slowlog");
        return plainTable([["when", (row) => timeText((row[1] ?? 0) * 1e9)], ["took", (row) => durationText((row[2] ?? 0) * 1000), true], ["command", (row) => (row[3] ?? []).join(" ")]], rows, "None was slow.");
      }],
    ]);
  }
}

/// What the built-in policy would drop within 7 days.
async function retentionPlan(source) {
  const at = `${BigInt(Date.now() + 7 * 86400e3) * 1000000n}`;
  const response = await source.ask("/v1/store/retain", { method: "POST", headers: { "content-type": "application/json" }, body: `{"dry_run":true,"at_ns":${at}}` });
  const plan = await response.json();
  const kept = [plan.pinned?.runs && plural(plan.pinned.runs, "pinned run"), plan.open && plural(plan.open, "open run"), plan.unmatched?.runs && `${plural(plan.unmatched.runs, "run")} that no rule matches`].filter(Boolean);
  return [plainTable([["rule", (row) => row.rule], ["keeps runs", (row) => row.keep], ["kept", (row) => plural(row.kept.runs, "run"), true],
    ["dropped", (row) => plural(row.dropped.runs, "run"), true], ["frames of them", (row) => countText(row.dropped.frames), true], ["recorded bytes of them", (row) => bytesText(row.dropped.bytes), true]], plan.rules ?? [], "The policy has no rules."),
    kept.length > 0 && h("p", { class: "dim" }, `Left alone: ${kept.join(", ")}.`)];
}
