// Forks that the daemon runs, if it was started with --allow-fork.

/// The form that starts a fork at a frame. `command` is what the fork runs.
function forkForm(source, run, view, command) {
  const problem = h("p", { class: "failed hidden", role: "alert" });
  const fields = h("div", { class: "fields" });
  const start = h("button", { type: "submit" }, "run the fork");
  const changes = forkChanges(source, run, view);
  const choice = h("select", { "aria-label": "what the fork changes", on: { change: () => draw() } },
    changes.map(({ name }, place) => h("option", { value: place }, name)));
  let read = () => ({});
  const draw = async () => {
    const change = changes[choice.value];
    const inputs = change.inputs ?? [];
    replace(fields, inputs);
    read = () => change.read(...inputs);
    await change.fill?.(...inputs).catch((error) => tell(error.message));
  };
  const tell = (text) => {
    problem.textContent = visibleText(text);
    problem.classList.toggle("hidden", !text);
  };
  draw();
  return h("form", { class: "fork-form", on: { submit: async (event) => {
    event.preventDefault();
    tell("");
    start.disabled = true;
    start.textContent = "starting…";
    try {
      const made = await source.startFork({ run, at: view.seq, ...read() });
      location.hash = routeHash(["run", made.run]);
    } catch (error) {
      tell(error.message);
    }
    start.disabled = false;
    start.textContent = "run the fork";
  } } },
  h("p", { class: "dim" }, "Run it here: ", h("code", {}, visibleText(command.map(shellWord).join(" ")))),
  h("div", { class: "choice" }, choice, start), fields, problem);
}

/// What a fork at this frame can change: a name, inputs, what the request of the daemon's API gets from them.
function forkChanges(source, run, view) {
  const text = (label, value = "") => {
    const area = h("textarea", { rows: 6, "aria-label": label, spellcheck: "false" });
    area.value = value;
    return area;
  };
  const line = (label, value) => {
    const input = h("input", { type: "text", "aria-label": label, placeholder: label });
    input.value = value;
    return input;
  };
  const changes = [{ name: "nothing changed", read: () => ({}) }];
  if (view.kind === "llm") {
    changes.push({
      name: "another answer",
      inputs: [text("the answer")],
      fill: async (area) => {
        if (!area.value) area.value = await source.bodyText(run, view.seq, "response");
      },
      read: (area) => ({ answer: area.value }),
    }, {
      name: "another model",
      inputs: [line("the model", view.model ?? "")],
      read: (input) => ({ model: input.value }),
    }, {
      name: "another parameter",
      inputs: [line("its place", "$.temperature"), line("its value", "0")],
      read: (place, value) => ({ set: { [place.value]: jsonOrText(value.value) } }),
    });
  }
  for (const part of (view.messages ?? []).flatMap((message) => message.parts)) {
    if (part.type !== "tool_result" || !part.id) continue;
    changes.push({
      name: `another result of ${visibleText(part.id)}`,
      // The frame's view cuts long texts: a part of a result would be a wrong one.
      inputs: [text("the result", part.cut ? "" : part.text ?? "")],
      read: (area) => ({ tool_results: { [part.id]: area.value } }),
    });
  }
  return changes;
}

function jsonOrText(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/// How a fork that this daemon has started is doing, followed until it ends. Empty for other runs.
function forkStatus(source, run, signal) {
  const element = h("div", { class: "fork-status" });
  const problem = h("span", { class: "failed", role: "alert" });
  let isShown = false;
  const draw = (fork) => {
    const open = element.querySelector("details")?.open;
    const isFailed = !fork.running && fork.code !== 0;
    const state = fork.running ? "the fork runs" : fork.code === null ? "the fork's process was ended" : `the fork ended with ${fork.code}`;
    const stop = async () => {
      await source.stopFork(run).then(() => { problem.textContent = ""; }, (error) => { problem.textContent = ` it cannot be stopped: ${visibleText(error.message)}`; });
    };
    replace(element, h("span", { class: isFailed ? "failed" : "dim" }, `${state} `), fork.running && button("stop it", stop, { class: "plain" }), problem,
      fork.output && h("details", { open: open ?? isFailed }, h("summary", {}, "what it printed"), h("pre", {}, fork.output.split("\n").map(visibleText).join("\n"))));
    isShown = true;
  };
  const look = async () => {
    let goesOn = isShown;
    try {
      const fork = (await source.startedForks()).forks.find((of) => of.run === run);
      if (signal.aborted) return;
      if (fork) draw(fork);
      goesOn = fork?.running;
      if (isShown) problem.textContent = fork ? problem.textContent : " the daemon no longer knows it";
    } catch (error) {
      // A reader without the rights gets nothing; a daemon that does not answer is asked again.
      if (isShown) problem.textContent = ` ${visibleText(error.message)}`;
    }
    if (goesOn && !signal.aborted) setTimeout(look, 1000);
  };
  look();
  return element;
}
