// Each rule of agentfootprint 9.62.0's MemoryStore, asked of docs/clients/annals-memory-store.ts and a daemon. Prints how many held; ends with 1 at the first
// that does not. Run by memory_store.py.

import { AnnalsError, AnnalsMemoryStore } from "./annals-memory-store.js";
import type { MemoryEntry, MemoryIdentity, MemoryStore } from "./annals-memory-store.js";

declare const process: { env: Record<string, string | undefined>; exit(code: number): never };
declare const console: { log(text: string): void };

const url = process.env["ANNALS_HTTP"] ?? "";
const token = process.env["ANNALS_TOKEN"] ?? "";
const store = new AnnalsMemoryStore({ url, token });
let held = 0;

function same(got: unknown, wanted: unknown, rule: string): void {
  const [a, b] = [JSON.stringify(got), JSON.stringify(wanted)];
  if (a !== b) {
    console.log(`FAILED: ${rule}\n  wanted ${b}\n  got    ${a}`);
    process.exit(1);
  }
  held += 1;
}

async function refused(what: Promise<unknown>, rule: string): Promise<Error> {
  try {
    await what;
  } catch (error) {
    held += 1;
    return error as Error;
  }
  console.log(`FAILED: ${rule}: it was not refused`);
  return process.exit(1);
}

function entry<T>(id: string, value: T, more: Partial<MemoryEntry<T>> = {}): MemoryEntry<T> {
  const now = 1_800_000_000_000;
  return { id, value, version: 1, createdAt: now, updatedAt: now, lastAccessedAt: now, accessCount: 0, ...more };
}

let number = 0;
/** One that nobody had before. */
function fresh(more: Partial<MemoryIdentity> = {}): MemoryIdentity {
  number += 1;
  return { tenant: "t", conversationId: `c${number}`, ...more };
}

/** What a caller written for agentfootprint 9.62.0 relies on, apart from the client's own declarations: a checked copy would follow a mistake. */
interface Agentfootprint {
  get<T>(
    identity: { readonly tenant?: string; readonly principal?: string; readonly conversationId: string },
    id: string,
  ): Promise<MemoryEntry<T> | null>;
  search<T>(
    identity: { readonly tenant?: string; readonly principal?: string; readonly conversationId: string },
    vector: readonly number[],
    options?: { readonly k?: number; readonly minScore?: number },
  ): Promise<readonly { readonly entry: MemoryEntry<T>; readonly score: number }[]>;
}
const as_agentfootprint: Agentfootprint = store;
const as_store: MemoryStore = store;
type Parts = Readonly<Record<keyof MemoryIdentity, string>>;
/** Only `conversationId` is required. */
const no_tenant: MemoryIdentity = { conversationId: "c" };
// @ts-expect-error The conversation is required.
const no_conversation: MemoryIdentity = { tenant: "t" };
// @ts-expect-error A part is no null.
const null_tenant: MemoryIdentity = { tenant: null, conversationId: "c" };
const every_part: Parts = { tenant: "t", principal: "p", conversationId: "c" };
void [as_agentfootprint, as_store, no_tenant, no_conversation, null_tenant, every_part];

const ids = (entries: readonly MemoryEntry[]) => entries.map((one) => one.id);

async function kept(): Promise<void> {
  const who = fresh();
  same(await store.get(who, "none"), null, "get of what is missing is null");
  // Whatever it is: depth, key order, numbers, what is not ASCII.
  const value = { z: [1, { deep: [[[{ creditScore: 580, threshold: 6e2 }]]] }], a: "caf\u00e9 \u2192 \ud83d\ude00", n: null };
  const full = entry("../a b?&/%#\u00e9", value, {
    metadata: { run: "r" },
    tier: "hot",
    decayPolicy: { halfLifeMs: 1000, accessBoost: 1.1 },
    source: { turn: 3, identity: { tenant: "t", conversationId: "" } },
    embedding: [0.25, -1],
    embeddingModel: "e",
  });
  await store.put(who, full);
  const { accessCount, lastAccessedAt, ...rest } = (await store.get(who, full.id))!;
  const { accessCount: _count, lastAccessedAt: before, ...wanted } = full;
  same(rest, wanted, "an entry comes back as it was put, its source's identity verbatim");
  same([accessCount, lastAccessedAt > 0 && lastAccessedAt !== before], [1, true], "get counts the look, and the copy says so");
  same((await store.get(who, full.id))?.accessCount, 2, "and the next one, too");
  await store.putMany(who, []);
  same(ids((await store.list(who)).entries), [full.id], "putMany of nothing is nothing");
  await store.putMany(who, [entry("x", 1), entry("y", 1), entry("x", 2)]);
  same((await store.get(who, "x"))?.value, 2, "of two with one id the last is kept");
  await store.put(who, entry("over", 1, { ttl: Date.now() - 1 }));
  await store.put(who, entry("zero", 1, { ttl: 0 }));
  await store.put(who, entry("later", 1, { ttl: Date.now() + 3_600_000 }));
  same(
    [await store.get(who, "over"), await store.get(who, "zero"), (await store.get(who, "later"))?.value],
    [null, null, 1],
    "what is expired is not there, a ttl of 0 included",
  );
  same(ids((await store.list(who)).entries).includes("over"), false, "nor listed");
}

async function versions(): Promise<void> {
  const who = fresh();
  const with_ = (version: number) => entry("k", { version: 3 }, { version });
  same(await store.putIfVersion(who, with_(1), 2), { applied: false }, "nothing is there: no current version");
  same(await store.putIfVersion(who, with_(1), 0), { applied: true }, "0: it must not be there");
  same(await store.putIfVersion(who, with_(9), 0), { applied: false, currentVersion: 1 }, "and now it is");
  same(await store.putIfVersion(who, with_(2), 1), { applied: true }, "the version that is there");
  same(
    await store.putIfVersion(who, with_(7), 3),
    { applied: false, currentVersion: 2 },
    "it is the entry's version, not one that the value speaks of",
  );
  await store.put(who, entry("old", 1, { version: 5, ttl: 1 }));
  same(await store.putIfVersion(who, entry("old", 2), 5), { applied: false }, "what is expired counts as absent");
  same(await store.putIfVersion(who, entry("old", 2), 0), { applied: true }, "and can be made anew");
  const all = await Promise.all(Array.from({ length: 16 }, (_, n) => store.putIfVersion(who, entry("k", n, { version: 3 }), 2)));
  same(all.filter((one) => one.applied).length, 1, "of sixteen at once one is applied");
}

async function listed(): Promise<void> {
  const who = fresh();
  const tiers = ["hot", "warm", "cold"] as const;
  await store.putMany(
    who,
    Array.from({ length: 105 }, (_, n) => entry(`n${n}`, n, { updatedAt: n + 1, ...(n % 2 ? { tier: tiers[n % 3]! } : {}) })),
  );
  const first = await store.list(who);
  same([first.entries.length, first.cursor, first.entries[0]?.id], [100, "100", "n104"], "100 of them, the newest first");
  const last = await store.list(who, { cursor: first.cursor! });
  same([ids(last.entries), "cursor" in last], [["n4", "n3", "n2", "n1", "n0"], false], "the rest, and no cursor");
  for (const cursor of ["x", "", "-1", "1e3", "99999999999999999999"]) {
    same((await store.list(who, { cursor, limit: 1 })).entries[0]?.id, "n104", `a cursor that is none begins anew: ${cursor}`);
  }
  same((await store.list(who, { limit: 5000 })).entries.length, 105, "a limit of over 1000 is 1000");
  same(await store.list(who, { limit: 0 }), { entries: [] }, "a limit of 0 gives no entry");
  same(
    (await store.list(who, { tiers: ["hot", "cold"] })).entries.every((one) => one.tier === "hot" || one.tier === "cold"),
    true,
    "only of these tiers",
  );
  same((await store.list(fresh())).entries, [], "another conversation has none");
}

async function said(): Promise<void> {
  const who = fresh();
  await store.put(who, entry("k", 1));
  same(await store.getFeedback(who, "k"), null, "nothing was said");
  for (const usefulness of [0.5, 7, -2, Number.NaN, Number.POSITIVE_INFINITY]) {
    await store.feedback(who, "k", usefulness);
  }
  same(await store.getFeedback(who, "k"), { average: 0.5 / 3, count: 3 }, "clamped to [-1, 1], what is not finite ignored");
  same(await store.seen(who, "a b/\u00e9"), false, "a signature that was not recorded");
  await store.recordSignature(who, "a b/\u00e9");
  await store.recordSignature(who, "a b/\u00e9");
  same(await store.seen(who, "a b/\u00e9"), true, "and one that was");
  await store.delete(who, "k");
  await store.delete(who, "k");
  same(
    [await store.get(who, "k"), await store.getFeedback(who, "k"), await store.seen(who, "a b/\u00e9")],
    [null, null, true],
    "delete drops feedback and keeps signatures; of what is missing it is nothing",
  );
  await store.put(who, entry("m", 1));
  await store.feedback(who, "m", 1);
  const beside = { ...who, conversationId: `${who.conversationId}-2` };
  await store.put(beside, entry("m", 2));
  await store.forget(who);
  same(
    [(await store.list(who)).entries, await store.getFeedback(who, "m"), await store.seen(who, "a b/\u00e9")],
    [[], null, false],
    "forget ends entries, feedback and signatures",
  );
  same((await store.get(beside, "m"))?.value, 2, "and nothing of a conversation whose name begins so");
}

async function found(): Promise<void> {
  const who = fresh();
  await store.putMany(who, [
    entry("b", 1, { embedding: [1, 0], embeddingModel: "e", tier: "hot" }),
    entry("a", 1, { embedding: [2, 0], embeddingModel: "e", tier: "cold" }),
    entry("half", 1, { embedding: [1, 1], embeddingModel: "e" }),
    entry("away", 1, { embedding: [-1, 0], embeddingModel: "e" }),
    entry("untagged", 1, { embedding: [1, 0.1] }),
    entry("long", 1, { embedding: [1, 0, 0] }),
    entry("none", 1),
    entry("over", 1, { embedding: [1, 0], ttl: 1 }),
  ]);
  const search = async (options?: Parameters<NonNullable<MemoryStore["search"]>>[2]) =>
    (await store.search(who, [3, 0], options)).map(({ entry, score }) => `${entry.id} ${score.toFixed(3)}`);
  same(
    await search(),
    ["a 1.000", "b 1.000", "untagged 0.995", "half 0.707", "away -1.000"],
    "by score, ties by id; without a vector, of another length or expired: not found",
  );
  same(await search({ k: 1 }), ["a 1.000"], "k");
  same(await search({ k: 0 }), [], "a k of 0");
  const exact = (await store.search(who, [3, 0])).find((hit) => hit.entry.id === "half");
  same(exact?.score, 3 / (3 * Math.sqrt(2)), "a score is a double");
  same(await search({ minScore: 3 / (3 * Math.sqrt(2)) + 1e-12 }), ["a 1.000", "b 1.000", "untagged 0.995"], "and so is the least");
  same(await search({ minScore: 1 }), ["a 1.000", "b 1.000"], "a score that equals the least passes");
  same(await search({ minScore: 0.5, tiers: ["hot"] }), ["b 1.000"], "tiers");
  same(await search({ minScore: 0.9, embedderId: "e" }), ["a 1.000", "b 1.000", "untagged 0.995"], "untagged entries pass");
  same(await search({ minScore: 0.999, embedderId: "other" }), [], "entries of another embedder do not");
  const tagged = fresh();
  await store.put(tagged, entry("a", 1, { embedding: [1, 0], embeddingModel: "e" }));
  same(await store.search(tagged, [1, 0], { embedderId: "f" }), [], "another embedder finds nothing");
  const strict = new AnnalsMemoryStore({ url, token, strictEmbedder: true });
  const mismatch = await refused(strict.search(tagged, [1, 0], { embedderId: "f" }), "strict: a mismatch");
  same([mismatch.message.includes('"e"'), mismatch.message.includes('"f"')], [true, true], "it names both embedders");
  same(await store.search(who, [0, 0]), [], "a vector without a direction finds nothing");
  same(await store.search(fresh(), [1, 0]), [], "another conversation finds nothing");
  same([store.supportsVectorSearch, store.ranksBy], [true, "vector"], "it says that it searches vectors");
}

/** Monday's run answers on Friday, in another conversation of the same tenant and in no other tenant. */
async function across(): Promise<void> {
  const monday = { tenant: "lending", conversationId: "app-42" };
  await store.put(monday, entry("snap-1", { finalContent: "REJECTED" }, { embedding: [1, 0.5] }));
  const wide = new AnnalsMemoryStore({ url, token, acrossConversations: true });
  const friday = async (of: AnnalsMemoryStore, tenant: string) =>
    (await of.search<{ finalContent: string }>({ tenant, conversationId: "app-42-followup" }, [1, 0.5], { k: 1, minScore: 0.7 })).map(
      (hit) => hit.entry.value.finalContent,
    );
  same(await friday(store, "lending"), [], "of one's own conversation unless asked");
  same(await friday(wide, "lending"), ["REJECTED"], "across conversations of the tenant");
  for (const tenant of ["lendin", "lending2", "lending/_", "%", "_", "", "\u0130"]) {
    same(await friday(wide, tenant), [], `never of another tenant: ${tenant}`);
  }
}

async function identities(): Promise<void> {
  const parts = [undefined, "_", "%5F", "/", "a/b", "a", "%"];
  const all = parts.flatMap((tenant) =>
    parts.map((conversationId) => ({ ...(tenant === undefined ? {} : { tenant }), principal: "who", conversationId: conversationId ?? "" })),
  );
  for (const [n, who] of all.entries()) {
    await store.put(who, entry("k", n));
  }
  const got = await Promise.all(all.map(async (who) => (await store.get<number>(who, "k"))?.value));
  same(got, all.map((_, n) => n), "no two identities share a memory");
  await store.put({ conversationId: "" }, entry("k", "empty"));
  const nulls = { tenant: null, conversationId: null } as unknown as MemoryIdentity;
  same((await store.get(nulls, "k"))?.value, "empty", "missing and empty are one, and null from a caller without types");
  for (const bad of [7, {}, ["secret"], true]) {
    const error = await refused(store.get({ tenant: bad as unknown as string, conversationId: "c" }, "k"), "a part that is no string");
    same([error instanceof TypeError, error.message.includes("secret")], [true, false], "a TypeError that does not repeat it");
  }
}

async function refusals(): Promise<void> {
  const who = fresh();
  const error = await refused(store.put(who, entry("k", 1, { embedding: [1e39] })), "a vector that is none");
  same(error instanceof AnnalsError && error.status, 400, "with its status");
  const stranger = new AnnalsMemoryStore({ url, token: "wrong" });
  const login = await refused(stranger.get(who, "k"), "a wrong token");
  same([login instanceof AnnalsError && login.status, login.message.includes("wrong")], [401, false], "401");
}

async function main(): Promise<void> {
  for (const rules of [kept, versions, listed, said, found, across, identities, refusals]) {
    await rules();
  }
  console.log(`${held} checks of agentfootprint's MemoryStore hold`);
}

main().catch((error: unknown) => {
  console.log(`FAILED: ${String(error instanceof Error ? error.stack : error)}`);
  process.exit(1);
});
