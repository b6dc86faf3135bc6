"use strict";
// How values are written: sizes, times, names. Pure functions.

function bytesText(bytes) {
  if (bytes == null) return "";
  if (bytes < 1000) return `${bytes} B`;
  for (const [unit, size] of [["KB", 1e3], ["MB", 1e6], ["GB", 1e9], ["TB", 1e12]]) {
    if (bytes < size * 999.95 || unit === "TB") return `${(bytes / size).toFixed(1)} ${unit}`;
  }
}

function durationText(ns) {
  if (ns == null) return "";
  const ms = Number(ns) / 1e6;
  if (ms < 1) return ms === 0 ? "0 ms" : `${Math.round(ms * 1000)} µs`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60e3) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 3600e3) return `${Math.floor(ms / 60e3)} min ${Math.round(ms / 1000) % 60} s`;
  return `${Math.floor(ms / 3600e3)} h ${Math.round(ms / 60e3) % 60} min`;
}

/// Milliseconds since 1970 of nanoseconds, a number or a text of digits.
function millis(ns) {
  return typeof ns === "string" ? Number(ns.slice(0, -6) || 0) : ns / 1e6;
}

function ageText(ns, now = Date.now()) {
  const seconds = Math.max(0, (now - millis(ns)) / 1000);
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
  }
  return `${Math.floor(seconds)} s`;
}

function timeText(ns) {
  const at = new Date(millis(ns));
  return Number.isNaN(at.getTime()) ? String(ns) : at.toISOString().replace("T", " ").replace("Z", " UTC");
}

/// Made once: a number's own `toLocaleString` makes a format each time.
const COUNTS = new Intl.NumberFormat("en-US");

function countText(number) {
  return number == null ? "" : COUNTS.format(number);
}

function dollarsText(dollars) {
  if (dollars == null) return "";
  if (dollars > 0 && dollars < 0.0001) return "under $0.0001";
  return `$${dollars < 0.01 && dollars > 0 ? dollars.toFixed(4) : dollars.toFixed(2)}`;
}

function plural(count, noun) {
  return `${countText(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/// The letter beside the colour of a severity.
const SEVERITY_LETTERS = { failed: "F", error: "F", flagged: "!", escalated: "E", aborted: "A" };

/// The class and letter that say how a frame or run came out.
function verdictOf(status, severity) {
  if (status === "failed" || status === "error" || status === "abandoned") return "failed";
  if (severity === "escalated" || severity === "flagged" || severity === "failed") return severity;
  if (status === "aborted") return "flagged";
  return status === "ok" ? "ok" : "";
}

/// Text with control, bidirectional and invisible characters replaced by a visible name, so that they cannot
/// reorder or hide what stands beside them. For names and labels; contents keep their characters.
function visibleText(text) {
  return String(text).replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/gu,
    (c) => `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`);
}

/// Whether a text has characters that change the direction of what follows.
function hasDirectionMarks(text) {
  return /[\u202a-\u202e\u2066-\u2069]/u.test(text);
}

/// JSON with indents. Only the white space between tokens changes: numbers, strings and repeated members stay as
/// they were recorded. Texts that are no JSON stay as they are.
function prettyJson(text) {
  if (text.length > 2_000_000 || !/^\s*[[{]/.test(text)) return text;
  try {
    JSON.parse(text);
  } catch {
    return text;
  }
  const out = [];
  let depth = 0;
  const line = () => `\n${"  ".repeat(depth)}`;
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/gs)) {
    const last = out.at(-1);
    if (token === "}" || token === "]") {
      depth -= 1;
      out.push(last === "{" || last === "[" ? token : line() + token);
    } else {
      if (last === "{" || last === "[" || last === ",") out.push(line());
      out.push(token);
      if (token === "{" || token === "[") depth += 1;
      if (token === ":") out.push(" ");
    }
  }
  return out.join("");
}

/// A word of a shell command. Characters that a screen hides or reorders are written as escapes of bash and zsh, so
/// that what is copied is what is seen.
function shellWord(text) {
  if (visibleText(text) !== text) return `$'${visibleText(text.replaceAll("\\", "\\\\").replaceAll("'", "\\'"))}'`;
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

function hexText(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const row = [...bytes.subarray(at, at + 16)];
    const hex = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    const text = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${hex}  ${text}`);
  }
  return lines.join("\n");
}

/// What changed between two values of JSON: rows of path, before, after.
function jsonChanges(before, after, path = "$", rows = []) {
  if (rows.length >= 500) return rows;
  if (JSON.stringify(before) === JSON.stringify(after)) return rows;
  const isTree = (value) => value !== null && typeof value === "object";
  if (isTree(before) && isTree(after) && Array.isArray(before) === Array.isArray(after)) {
    for (const key of new Set([...Object.keys(before), ...Object.keys(after)])) {
      const at = Array.isArray(after) ? `${path}[${key}]` : `${path}.${key}`;
      jsonChanges(before[key], after[key], at, rows);
    }
    return rows;
  }
  rows.push({ path, before, after });
  return rows;
}
