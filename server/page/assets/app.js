// The frame of the page: addresses, views, keys, theme, login.

const VIEWS = {
  runs: RunsView, run: RunView, compare: CompareView, forks: ForksView, search: SearchView, memory: MemoryView, decisions: DecisionsView, lessons: LessonsView, store: StoreView,
};

/// The address of a view: everything that it shows follows from it.
function routeHash(parts, query = {}) {
  const path = parts.filter((part) => part != null).map(encodeURIComponent).join("/");
  const asked = new URLSearchParams(Object.entries(query).filter(([, value]) => value != null && value !== ""));
  return `#/${path}${asked.size ? `?${asked}` : ""}`;
}

function parseRoute(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  const decode = (part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  };
  const parts = path.split("/").filter(Boolean).map(decode);
  return { parts, query: Object.fromEntries(new URLSearchParams(query ?? "")) };
}

class App {
  constructor(source, home) {
    Object.assign(this, { source, home, view: null, panels: { left: true, right: window.innerWidth > 1000 }, typed: "" });
    this.said = h("div", { class: "visually-hidden", role: "status", "aria-live": "polite" });
    this.liveMark = h("span", { class: "live dim" });
    this.readsMark = h("span", { class: "dim" });
    const links = source.isLive ? ["runs", "search", "memory", "decisions", "lessons", "store"] : [];
    this.nav = h("nav", { "aria-label": "views" }, links.map((name) => h("a", { href: `#/${name}` }, name)));
    this.search = h("input", { type: "search", placeholder: "a run, RUN@7 or a text (/)", "aria-label": "run or text", autocomplete: "off", spellcheck: "false" });
    const jump = h("form", { role: "search", "aria-label": "open a run, or search", on: { submit: (event) => { event.preventDefault(); this.openNamed(this.search.value.trim()); } } }, this.search);
    this.header = h("header", { class: "top" }, h("a", { href: home, class: "home" }, "annals"), this.nav, h("span", { class: "grow" }), source.isLive ? jump : null,
      this.readsMark, this.liveMark, button("theme", () => this.toggleTheme(), { class: "plain", title: "t" }), button("?", () => this.showKeys(), { class: "plain", "aria-label": "keys" }));
    document.body.replaceChildren(this.header, this.said);
    this.restoreTheme();
    source.unauthorized = (detail) => this.drawLogin(detail);
    window.addEventListener("hashchange", () => this.go());
    document.addEventListener("keydown", (event) => this.key(event));
  }

  async start() {
    const route = parseRoute(location.hash);
    if (route.parts[0] === "login") await this.login(route);
    else await this.go();
  }

  async login(route) {
    // The code leaves the address bar and the history before it is used.
    history.replaceState(null, "", route.query.to ? `#${route.query.to}` : this.home);
    try {
      await this.source.login(route.parts[1]);
    } catch (problem) {
      return this.drawNotice("This link is no longer valid", [h("p", {}, visibleText(problem.message)),
        h("p", {}, "A link is valid once, for 10 minutes. `annals open --web` makes a new one."), this.tokenForm()]);
    }
    await this.go();
  }

  async go() {
    let route = parseRoute(location.hash);
    if (route.parts[0] === "login") return this.login(route);
    if (!VIEWS[route.parts[0]]) route = parseRoute(this.home);
    const isSame = this.view && this.route && this.route.parts[0] === route.parts[0] && this.route.parts[1] === route.parts[1] && (route.parts[0] === "run" || this.route.parts[2] === route.parts[2]);
    this.route = route;
    if (isSame) return this.view.update(route);
    await this.openView();
  }

  async openView() {
    this.view?.close();
    this.liveMark.textContent = "";
    this.readsMark.textContent = this.source.readsOnly ? "read only" : "";
    this.readsMark.title = this.source.readsOnly ? "Another process holds the store. What it adds is shown; pins and compaction are refused here." : "";
    const view = new VIEWS[this.route.parts[0]](this, this.route);
    this.view = view;
    for (const link of this.nav.children) {
      if (link.getAttribute("href") === `#/${this.route.parts[0]}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    view.element.prepend(h("h1", { class: "visually-hidden" }, this.route.parts.slice(0, 2).map(visibleText).join(" ")));
    document.body.replaceChildren(this.header, view.element, this.said);
    try {
      await view.open(this.route);
    } catch (problem) {
      if (this.view !== view || problem.status === 401) return;
      this.drawNotice("This view cannot be shown", [h("p", {}, visibleText(problem.message ?? problem))]);
    }
  }

  reopen() {
    return this.openView();
  }

  /// Opens a run of this name, or a frame of it; without such a run, searches the text in all frames.
  async openNamed(name) {
    if (!name) return;
    const [run, seq] = name.match(/^(.*)@(\d+)$/)?.slice(1) ?? [name];
    const isRun = await this.source.run(run).then(() => true, (problem) => problem.status !== 404 && problem.status !== 400);
    location.hash = isRun ? routeHash(["run", run, seq]) : routeHash(["search"], { q: name });
  }

  drawNotice(title, content) {
    document.body.replaceChildren(this.header, h("main", {}, h("div", { class: "notice", role: "alert" }, h("h1", {}, title), content)), this.said);
  }

  /// Asks for a login, once: a view may have several answers on their way.
  drawLogin(detail) {
    if (!this.view) return;
    this.view.close();
    this.view = null;
    this.drawNotice("This page needs a session", [
      h("p", {}, "Open the link that `annals serve` printed, or make a new one:"), h("pre", {}, "annals open --web"),
      h("p", { class: "dim" }, visibleText(detail)), this.tokenForm()]);
  }

  /// A token stays in memory: it is gone with the tab.
  tokenForm() {
    const token = h("input", { type: "password", "aria-label": "token", autocomplete: "off", placeholder: "or paste a token" });
    return h("form", { on: { submit: (event) => { event.preventDefault(); this.source.token = token.value.trim(); this.openView(); } } }, token, h("button", {}, "use it"));
  }

  live(isLive) {
    this.liveMark.textContent = isLive ? "live" : "not connected";
  }

  /// Says something to a screen reader.
  say(text) {
    this.said.textContent = text;
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const isTyping = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName) && event.target.type !== "checkbox";
    if (event.key === "Escape" && isTyping) return event.target.blur();
    if (isTyping || document.querySelector("dialog[open]")) return;
    // Keys that a focused control takes itself.
    if ([" ", "Enter"].includes(event.key) && event.target.closest?.("a, button, summary, input")) return;
    if (this.typed && /^[0-9]$/.test(event.key)) {
      this.typed += event.key;
      this.say(this.typed);
      event.preventDefault();
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.jump(), 700);
      return;
    }
    if (this.typed && event.key === "Enter") {
      event.preventDefault();
      return this.jump();
    }
    this.typed = "";
    const own = { g: () => { this.typed = "g"; }, "/": () => this.search.focus(), "?": () => this.showKeys(), t: () => this.toggleTheme() };
    const act = this.view?.keys[event.key]?.[1] ?? own[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  jump() {
    clearTimeout(this.typing);
    const number = Number(this.typed.slice(1));
    this.typed = "";
    if (number) this.view?.jump?.(number);
  }

  showKeys() {
    const keys = Object.entries(this.view?.keys ?? {}).filter(([, [text]]) => text);
    const rows = [...keys.map(([key, [text]]) => [key, text]), ...(this.view?.jump ? [["g 7", "frame 7"]] : []), ["/", "open a run by name, or search a text"], ["t", "light, dark"], ["?", "keys"]];
    const dialog = h("dialog", { "aria-label": "keys" }, h("h1", {}, "Keys"), h("dl", {}, rows.map(([key, text]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)])),
      h("form", { method: "dialog" }, h("button", {}, "close")));
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  }

  restoreTheme() {
    try {
      const theme = localStorage.getItem("annals-theme");
      if (theme) document.documentElement.dataset.theme = theme;
    } catch {
      // A report that is opened from disk may have no storage.
    }
  }

  toggleTheme() {
    const isDark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    const theme = isDark ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    try {
      localStorage.setItem("annals-theme", theme);
    } catch {
      // As above.
    }
  }
}

function begin() {
  const data = document.getElementById("annals-report");
  const source = data ? new ReportSource(JSON.parse(data.textContent)) : new HttpSource();
  const runs = data ? source.document.runs.map((of) => of.run.name) : [];
  const home = !data ? "#/runs" : runs.length === 2 ? routeHash(["compare", ...runs]) : routeHash(["run", runs[0]]);
  const app = new App(source, home);
  if (data) app.header.querySelector(".grow").before(h("span", { class: "dim" }, reportFacts(source.document)));
  app.start();
}

/// Who made a report, of what.
function reportFacts(document) {
  return `report of ${document.runs.map((of) => visibleText(of.run.name)).join(" and ")}, made ${timeText(document.made_ns)}${document.profile ? `, redacted by profile ${visibleText(document.profile)}` : ""}`;
}

if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
else begin();
