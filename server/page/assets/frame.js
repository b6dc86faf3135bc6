// One frame as a person reads it: what is new first, what was there before in one line.

/// The bytes of a raw body that are read at first.
const RAW_BYTES = 200_000;

/// Draws a view of a frame (`GET /v1/runs/RUN/frames/N/view`) into `into`. `more()` asks for all messages.
function drawFrame(into, view, { more, link, sentence, answer, same } = {}) {
  replace(into,
    frameHead(view),
    sentence && h("p", { class: "why", role: "note" }, sentence),
    view.why && view.why !== sentence && h("p", { class: "why" }, visibleText(view.why)),
    view.damage && h("p", { class: "why" }, h("strong", {}, "Damaged: "), visibleText(view.damage), ". What could be read stands below."),
    frameMessages(view, more, link, same),
    answer ?? frameAnswer(view));
}

function frameHead(view) {
  const verdict = verdictOf(view.status, view.severity);
  const http = view.http;
  const facts = [
    view.model ?? (view.name !== view.component ? view.name : null),
    durationText(view.duration_ns),
    dollarsText(view.dollars),
    http && `${http.method} ${http.target}${http.status ? ` → ${http.status}` : ""}`,
  ].filter(Boolean);
  return h("div", { class: "frame-head" },
    h("h1", {}, `Frame ${view.seq}`), " ",
    h("span", {}, visibleText(view.component)),
    facts.map((fact) => h("span", { class: "dim" }, visibleText(fact))),
    verdict && verdict !== "ok" && h("span", { class: verdict }, `${SEVERITY_LETTERS[verdict] ?? ""} ${view.status === "ok" ? view.severity : view.status}`),
    (view.labels ?? []).map((label) => h("span", { class: "label" }, visibleText(label))));
}

function frameMessages(view, more, link, same) {
  const before = view.before ?? { messages: 0, bytes: 0 };
  const isConversation = view.kind === "llm";
  const parts = [];
  if (before.messages > 0) {
    const text = `${plural(before.messages, "message")} as before, ${bytesText(before.bytes)}`;
    parts.push(more
      ? button(`+ ${text}: show`, more, { class: "collapsed", "data-key": "m" })
      : h("p", { class: "collapsed" }, text, link ? [": see ", link] : null));
  }
  if (view.removed > 0) parts.push(h("p", { class: "removed" }, `− ${plural(view.removed, "message")} of the request before ${view.removed === 1 ? "is" : "are"} not in this one`));
  if (view.changes?.length > 0) {
    parts.push(h("details", {}, h("summary", {}, `${plural(view.changes.length, "change")} of parameters and tools since frame ${before.seq ?? "?"}`), view.changes.map((change) => h("div", { class: "mono" }, visibleText(change)))));
  }
  if (isConversation && before.messages > 0 && view.messages.length > 0) {
    parts.push(h("h2", { class: "dim" }, `${view.messages.length} new`));
  }
  parts.push(same?.size ? withoutSame(view.messages ?? [], same) : drawMessages(view.messages ?? []));
  return parts;
}

/// Messages without those that both runs have, which stand in one line for each stretch.
function withoutSame(messages, same) {
  const parts = [];
  for (let at = 0; at < messages.length;) {
    let end = at;
    while (end < messages.length && same.has(end) === same.has(at)) end += 1;
    const stretch = messages.slice(at, end);
    if (same.has(at)) {
      const line = button(`+ ${plural(stretch.length, "message")} the same in both: show`, () => line.replaceWith(h("div", {}, drawMessages(stretch))), { class: "collapsed" });
      parts.push(line);
    } else {
      parts.push(drawMessages(stretch));
    }
    at = end;
  }
  return parts;
}

function frameAnswer(view) {
  const answer = view.answer ?? [];
  if (answer.length === 0 && !view.error) {
    return h("div", { class: "rule dim" }, view.status === "open" ? "The answer is still arriving." : "No answer was recorded.");
  }
  return [
    h("div", { class: "rule" }, h("h2", {}, view.status === "aborted" ? "Answer, until it broke off" : view.kind === "tool" ? "Result" : "Answer")),
    drawMessages(answer),
    view.status === "aborted" && h("p", { class: "failed" }, "The stream broke off here."),
    view.error && h("p", { class: "why" }, visibleText(view.error)),
  ];
}

/// Messages in order. A tool call stands beside its result if both are among them.
function drawMessages(messages) {
  const results = new Map();
  const calls = new Set();
  for (const { parts } of messages) {
    for (const part of parts) {
      if (part.type === "tool_call" && part.id) calls.add(part.id);
      if (part.type === "tool_result" && part.id) results.set(part.id, part);
    }
  }
  return messages.map((message) => {
    const parts = message.parts.filter((part) => !(part.type === "tool_result" && calls.has(part.id)));
    if (parts.length === 0 && message.parts.length > 0) return null;
    return h("div", { class: "message" },
      h("div", { class: "role", title: message.at ?? "" }, visibleText(message.role)),
      h("div", {}, parts.map((part) => drawPart(part, results))));
  });
}

function drawPart(part, results) {
  const about = (...children) => h("div", { class: "about" }, ...children);
  const cut = part.cut ? h("span", { class: "label flagged" }, `cut: the whole text has ${bytesText(part.bytes)}; r shows the recorded bytes`) : null;
  const marks = part.text && hasDirectionMarks(part.text) ? h("span", { class: "label flagged" }, "has characters that change the direction of text") : null;
  switch (part.type) {
    case "text":
      return [(cut || marks) && about(cut, marks), longText(part.text, { class: "part mono" })];
    case "thinking":
      return [about("thinking", cut, marks), longText(part.text, { class: "part mono thinking" })];
    case "tool_call": {
      const result = part.id && results.get(part.id);
      return h("div", { class: result ? "pair" : "pair single" },
        h("div", {},
          about(h("span", {}, "call "), h("strong", {}, visibleText(part.name ?? "?")), h("span", {}, visibleText(part.id ?? "")), cut),
          longText(prettyJson(part.arguments ?? ""), { class: "part mono" })),
        result && h("div", {}, drawResult(result)));
    }
    case "tool_result":
      return h("div", { class: "pair single" }, h("div", {}, drawResult(part)));
    case "image":
      return drawImage(part);
    case "binary":
      return [about(`binary, ${bytesText(part.bytes)}`), h("pre", { class: "body" }, hexText(hexBytes(part.hex ?? "")))];
    default:
      return [about("other"), longText(prettyJson(part.json ?? ""), { class: "part mono" })];
  }
}

function drawResult(part) {
  return [
    h("div", { class: "about" }, h("span", {}, "result "), part.name && h("strong", {}, visibleText(part.name)),
      part.error && h("span", { class: "failed" }, "F error"),
      h("span", {}, bytesText(part.bytes)),
      part.cut && h("span", { class: "flagged" }, "cut")),
    longText(prettyJson(part.text ?? ""), { class: "part mono" }),
  ];
}

/// Types of pictures that a browser draws and that run nothing: no SVG.
const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/webp"];

function drawImage(part) {
  const about = h("div", { class: "about" }, `image ${visibleText(part.media_type ?? "")}, ${bytesText(part.bytes)}`);
  if (part.base64 && PICTURES.includes(part.media_type)) {
    return [about, h("img", { alt: "image of the message", src: `data:${part.media_type};base64,${part.base64}` })];
  }
  const why = part.url ? `at ${visibleText(part.url)}: this page loads nothing from other servers` : "not shown: r has its bytes";
  return [about, h("div", { class: "dim" }, why)];
}

function hexBytes(hex) {
  return Uint8Array.from(hex.match(/../g) ?? [], (pair) => Number.parseInt(pair, 16));
}

/// The recorded bytes of a frame's side.
async function drawRaw(into, source, run, seq, side, whole = false) {
  if (side === "metadata") {
    const metadata = await source.metadata(run, seq);
    const text = typeof metadata === "string" ? metadata : JSON.stringify(metadata);
    replace(into, h("div", { class: "about dim" }, `metadata, ${bytesText(text.length)} `, copyButton(text, "copy", "metadata")), h("pre", { class: "body" }, prettyJson(text)));
    return;
  }
  if (side === "arrivals") return drawArrivals(into, source, run, seq);
  const { bytes, length, redacted } = await source.body(run, seq, side, whole ? 0 : RAW_BYTES);
  let text = null;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(trimmed(bytes, length));
  } catch {
    // Shown as bytes.
  }
  const shown = text ?? hexText(bytes.subarray(0, whole ? 1 << 20 : 4096));
  const rest = text === null ? Math.min(bytes.length, whole ? 1 << 20 : 4096) : bytes.length;
  replace(into,
    h("div", { class: "about dim" }, `${side}, ${bytesText(length)}${text === null ? ", not UTF-8: as bytes" : ""} `,
      redacted && h("span", { class: "flagged" }, `redacted by profile ${redacted} `), copyButton(shown, "copy", side)),
    h("pre", { class: "body" }, inBlocks(shown)),
    rest < length && [h("p", { class: "dim" }, `the first ${bytesText(rest)} of ${bytesText(length)}`),
      !whole && button("show all", () => drawRaw(into, source, run, seq, side, true))]);
}

/// The most parts of an answer that are listed.
const PARTS_MAX = 1000;

/// The parts of an answer as they came: when, how long, and what.
async function drawArrivals(into, source, run, seq) {
  const recorded = await source.metadata(run, seq);
  const metadata = typeof recorded === "string" ? JSON.parse(recorded || "{}") : recorded;
  const { part_bytes: sizes = [], part_ms: times = [] } = metadata?.volatile ?? {};
  if (!sizes.length) return replace(into, h("p", { class: "dim" }, "No parts with their times were recorded for this frame."));
  const { bytes, length } = await source.body(run, seq, "response", RAW_BYTES);
  // Redacted and edited answers have other bytes than those that came.
  const total = sizes.reduce((sum, size) => sum + size, 0);
  const decoder = new TextDecoder("utf-8", { fatal: true });
  let isText = total === length;
  let from = 0;
  const rows = sizes.slice(0, PARTS_MAX).map((size, place) => {
    const part = bytes.subarray(from, from + size);
    from += size;
    let text = null;
    try {
      text = isText && part.length === size ? decoder.decode(part, { stream: true }) : null;
    } catch {
      isText = false;
    }
    return h("tr", {}, h("td", { class: "number" }, `${countText(times[place] ?? 0)} ms`), h("td", { class: "number" }, bytesText(size)), h("td", { class: "mono wrap" }, text === null ? "" : visibleText(text)));
  });
  const note = total !== length ? "The stored answer has other bytes than those that came: only times and sizes are shown."
    : !isText ? "The answer is not UTF-8 text: response shows its bytes." : null;
  replace(into,
    h("div", { class: "about dim" }, `${plural(sizes.length, "part")}, ${bytesText(total)}, times since the request`),
    note && h("p", { class: "dim" }, note),
    h("table", { class: "arrivals" }, h("thead", {}, h("tr", {}, h("th", { class: "number" }, "time"), h("th", { class: "number" }, "bytes"), h("th", {}, "part"))), h("tbody", {}, rows)),
    sizes.length > PARTS_MAX && h("p", { class: "dim" }, `the first ${countText(PARTS_MAX)} of ${countText(sizes.length)}`));
}

/// Without the part of a character that a range cut off.
function trimmed(bytes, length) {
  if (bytes.length === length) return bytes;
  let end = bytes.length;
  while (end > 0 && bytes.length - end < 4 && (bytes[end - 1] & 0xc0) === 0x80) end -= 1;
  return bytes.subarray(0, Math.max(0, end - 1));
}
