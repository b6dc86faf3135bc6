// Where the data comes from: the daemon's public HTTP API, or the document inside a report.

/// A problem that the daemon or the report named.
class Problem extends Error {
  constructor(status, code, detail) {
    super(detail);
    Object.assign(this, { status, code });
  }
}

/// The HTTP API. The session is a cookie that scripts cannot read and a key that only this origin can read;
/// the daemon needs both. A pasted token stays in this object.
class HttpSource {
  constructor() {
    this.token = null;
    this.views = new Map();
  }

  get isLive() {
    return true;
  }

  static key() {
    try {
      return localStorage.getItem("annals-key");
    } catch {
      return null;
    }
  }

  /// Whether another process holds the store, so that this page cannot change it.
  get readsOnly() {
    try {
      return localStorage.getItem("annals-reads-only") === "yes";
    } catch {
      return false;
    }
  }

  headers() {
    const headers = {};
    if (this.token) headers.authorization = `Bearer ${this.token}`;
    else if (HttpSource.key()) headers["annals-page"] = HttpSource.key();
    return headers;
  }

  async ask(path, options = {}) {
    const response = await fetch(path, {
      ...options, headers: { ...this.headers(), ...options.headers }, credentials: "same-origin", cache: "no-store",
    });
    if (response.ok) return response;
    const problem = await response.json().catch(() => ({}));
    if (response.status === 401) this.unauthorized?.(problem.detail ?? "");
    throw new Problem(response.status, problem.code ?? "", problem.detail ?? `status ${response.status}`);
  }

  async get(path, query = {}, options) {
    const asked = new URLSearchParams(Object.entries(query).filter(([, value]) => value != null && value !== ""));
    const response = await this.ask(asked.size ? `${path}?${asked}` : path, options);
    return response.json();
  }

  async post(path, body) {
    const headers = { "content-type": "application/json" };
    const response = await this.ask(path, { method: "POST", headers, body: JSON.stringify(body) });
    return response.status === 204 ? null : response.json();
  }

  /// Trades the code of a one-time link for a session.
  async login(code) {
    const { key, reads_only: readsOnly } = await this.post("/login", { code });
    localStorage.setItem("annals-key", key);
    localStorage.setItem("annals-reads-only", readsOnly ? "yes" : "");
  }

  static path(run, rest = "") {
    return `/v1/runs/${encodeURIComponent(run)}${rest}`;
  }

  runs(query) { return this.get("/v1/runs", query); }
  run(run) { return this.get(HttpSource.path(run)); }
  timeline(run, from, limit) { return this.get(HttpSource.path(run, "/timeline"), { from, limit }); }
  failure(run) { return this.get(HttpSource.path(run, "/failure")); }
  suspect(run) { return this.get(HttpSource.path(run, "/suspect")); }
  blame(run) { return this.get(HttpSource.path(run, "/blame")); }
  diff(run, other) { return this.get(HttpSource.path(run, "/diff"), { with: other }); }
  search(text, by, signal) { return this.get("/v1/search", { q: text, by, count: 100 }, { signal }); }
  forks(run) { return this.get(HttpSource.path(run, "/forks")); }
  startFork(asked) { return this.post("/v1/forks", asked); }
  stopFork(run) { return this.ask(`/v1/forks/${encodeURIComponent(run)}`, { method: "DELETE" }); }

  /// The command that forks run, and the forks that this daemon has started. Refused to a reader who may not start one.
  startedForks() { return this.get("/v1/forks"); }

  /// A whole body that is text.
  async bodyText(run, seq, side) {
    const { bytes } = await this.body(run, seq, side);
    try {
      return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    } catch {
      throw new Problem(0, "", `the ${side} is not text`);
    }
  }

  /// A frame as a person reads it. Kept, because frames that have ended never change.
  async view(run, seq, all = false) {
    const key = JSON.stringify([run, seq, all]);
    if (this.views.has(key)) return this.views.get(key);
    const view = await this.get(HttpSource.path(run, `/frames/${seq}/view`), all ? { all: true } : {});
    if (view.status !== "open") {
      this.views.set(key, view);
      if (this.views.size > 64) this.views.delete(this.views.keys().next().value);
    }
    return view;
  }

  /// The state after a frame; null if none was stored.
  async state(run, seq) {
    try {
      return await this.get(HttpSource.path(run, "/state"), { at: seq });
    } catch (problem) {
      if (problem.status === 404) return null;
      throw problem;
    }
  }

  /// The first bytes of a body, and its whole length.
  async body(run, seq, side, most) {
    const headers = most ? { range: `bytes=0-${most - 1}` } : {};
    let response;
    try {
      response = await this.ask(HttpSource.path(run, `/frames/${seq}/${side}`), { headers });
    } catch (problem) {
      if (problem.status === 416) return { bytes: new Uint8Array(), length: 0 };
      throw problem;
    }
    const bytes = new Uint8Array(await response.arrayBuffer());
    const range = response.headers.get("content-range")?.split("/")[1];
    return { bytes, length: range ? Number(range) : bytes.length, redacted: response.headers.get("annals-redacted") };
  }

  metadata(run, seq) { return this.get(HttpSource.path(run, `/frames/${seq}`)).then((frame) => frame.metadata); }

  /// Calls `event(name, data)` for server-sent events until `signal` aborts, and connects again after a break.
  async follow(path, event, signal, state) {
    let last = null;
    while (!signal.aborted) {
      try {
        const headers = { accept: "text/event-stream", ...(last ? { "last-event-id": last } : {}) };
        const response = await this.ask(path, { headers, signal });
        state(true);
        const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
        let text = "";
        for (;;) {
          const { value, done } = await reader.read();
          if (done) break;
          text += value;
          const events = text.split("\n\n");
          text = events.pop();
          for (const block of events) {
            const field = (name) => block.split("\n").find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
            if (field("id")) last = field("id");
            const name = field("event");
            if (name && field("data")) event(name, JSON.parse(field("data")));
            if (name === "end") return;
          }
        }
      } catch (problem) {
        if (signal.aborted) return;
        if ([401, 403, 404, 410].includes(problem.status)) {
          state(false);
          return;
        }
      }
      state(false);
      await new Promise((resolve) => { setTimeout(resolve, 2000); });
    }
  }
}

/// The data inside a report: the same answers, by run.
class ReportSource {
  constructor(document) {
    this.document = document;
  }

  get isLive() {
    return false;
  }

  part(run, name) {
    const part = this.document.runs.find((of) => of.run.name === run);
    if (!part) return Promise.reject(new Problem(404, "NOTFOUND", `this report does not hold the run ${run}`));
    if (part[name] == null) return Promise.reject(new Problem(404, "NOTFOUND", "this report does not hold it"));
    return Promise.resolve(part[name]);
  }

  run(run) { return this.part(run, "run"); }
  timeline(run, from) { return from > 1 ? Promise.resolve({ frames: [], next: null }) : this.part(run, "timeline"); }
  failure(run) { return this.part(run, "failure"); }
  suspect(run) { return this.part(run, "suspect"); }
  blame(run) { return this.part(run, "blame"); }
  diff() { return this.document.diff ? Promise.resolve(this.document.diff) : Promise.reject(new Problem(404, "", "")); }
  async state(run, seq) {
    const states = await this.part(run, "states").catch(() => []);
    return states.filter((state) => state.seq <= seq).at(-1) ?? null;
  }

  async view(run, seq) {
    const views = await this.part(run, "views");
    if (!views[seq]) throw new Problem(404, "NOTFOUND", "this report does not hold the frame");
    return views[seq];
  }
}
