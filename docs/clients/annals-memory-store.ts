/**
 * agentfootprint's `MemoryStore` (as of 9.62.0) over an annals daemon's HTTP interface (`annals serve --http`): an agent's causal memory in the store that
 * also has its recorded runs. Needs nothing but a global `fetch`; copy the file.
 *
 *     const store = new AnnalsMemoryStore({ url: "http://127.0.0.1:7421", token: process.env.ANNALS_TOKEN });
 *     const causal = defineMemory({ type: MEMORY_TYPES.CAUSAL, store, ... });
 *
 * One rule of agentfootprint's own stores is another here: `get` writes beside an entry how often it was looked at, and not into it, so a search or a
 * listing does not tell of looks. With `acrossConversations` a search finds what the tenant's other conversations remember, which agentfootprint's
 * stores never do.
 */

/** Whose memory it is. A missing part and an empty one are the same. */
export interface MemoryIdentity {
  readonly tenant?: string;
  readonly principal?: string;
  readonly conversationId: string;
}

/** An entry. Times are milliseconds since 1970; `ttl` is the time at which it ends. */
export interface MemoryEntry<T = unknown> {
  readonly id: string;
  readonly value: T;
  readonly metadata?: Readonly<Record<string, unknown>>;
  readonly version: number;
  readonly createdAt: number;
  readonly updatedAt: number;
  readonly lastAccessedAt: number;
  readonly accessCount: number;
  readonly ttl?: number;
  readonly decayPolicy?: { readonly halfLifeMs: number; readonly accessBoost: number };
  readonly tier?: MemoryTier;
  readonly source?: {
    readonly turn?: number;
    readonly runtimeStageId?: string;
    readonly messageId?: string;
    readonly identity?: MemoryIdentity;
  };
  readonly embedding?: readonly number[];
  readonly embeddingModel?: string;
}

export type MemoryTier = "hot" | "warm" | "cold";

export interface PutIfVersionResult {
  readonly applied: boolean;
  /** The version that is there, where it was not applied and there is one. */
  readonly currentVersion?: number;
}

export interface ListOptions {
  readonly cursor?: string;
  /** 100 where it is not given, 1000 at most; 0 gives no entry. */
  readonly limit?: number;
  readonly tiers?: readonly MemoryTier[];
}

export interface ListResult<T = unknown> {
  readonly entries: readonly MemoryEntry<T>[];
  /** Where to go on, if there are more. */
  readonly cursor?: string;
}

export interface SearchOptions {
  /** 10 where it is not given; 0 finds nothing. */
  readonly k?: number;
  readonly tiers?: readonly MemoryTier[];
  /** The least score; equal passes. Where it is not given, any. */
  readonly minScore?: number;
  readonly embedderId?: string;
  /** What was asked; nothing goes by it here. */
  readonly text?: string;
}

export interface ScoredEntry<T = unknown> {
  readonly entry: MemoryEntry<T>;
  /** Cosine of both vectors, computed in doubles. */
  readonly score: number;
}

export interface MemoryStore {
  readonly supportsVectorSearch?: boolean;
  readonly ranksBy?: "vector" | "server-text";
  get<T = unknown>(identity: MemoryIdentity, id: string): Promise<MemoryEntry<T> | null>;
  put<T = unknown>(identity: MemoryIdentity, entry: MemoryEntry<T>): Promise<void>;
  putMany<T = unknown>(identity: MemoryIdentity, entries: readonly MemoryEntry<T>[]): Promise<void>;
  putIfVersion<T = unknown>(
    identity: MemoryIdentity,
    entry: MemoryEntry<T>,
    expectedVersion: number,
  ): Promise<PutIfVersionResult>;
  list<T = unknown>(identity: MemoryIdentity, options?: ListOptions): Promise<ListResult<T>>;
  delete(identity: MemoryIdentity, id: string): Promise<void>;
  seen(identity: MemoryIdentity, signature: string): Promise<boolean>;
  recordSignature(identity: MemoryIdentity, signature: string): Promise<void>;
  feedback(identity: MemoryIdentity, id: string, usefulness: number): Promise<void>;
  getFeedback(identity: MemoryIdentity, id: string): Promise<{ average: number; count: number } | null>;
  forget(identity: MemoryIdentity): Promise<void>;
  search?<T = unknown>(
    identity: MemoryIdentity,
    vector: readonly number[],
    options?: SearchOptions,
  ): Promise<readonly ScoredEntry<T>[]>;
}

export interface AnnalsOptions {
  /** Where the daemon listens for HTTP: `http://127.0.0.1:7421`. */
  readonly url: string;
  /** What `annals token add` gave, with the rights `read` and `record`. */
  readonly token?: string;
  /** Searches look at all conversations and principals of the tenant, and never at another tenant. */
  readonly acrossConversations?: boolean;
  /** A search by another embedder than the one that all of its entries are of is an error that names both; else it finds nothing. */
  readonly strictEmbedder?: boolean;
}

/** What the daemon said against a request. */
export class AnnalsError extends Error {
  constructor(
    readonly status: number,
    /** `ERR`, `NOTFOUND`, `NOPERM`, `NOAUTH`, `UNAVAILABLE`, ... */
    readonly code: string,
    detail: string,
  ) {
    super(`annals: ${detail}`);
    this.name = "AnnalsError";
  }
}

interface Answer {
  readonly status: number;
  text(): Promise<string>;
}

declare function fetch(
  url: string,
  request: { method: string; headers: Record<string, string>; body?: string },
): Promise<Answer>;

/** Entries of a listing, and how many. */
const LIST_MAX = 1000;
/** The most by which a score of single precision differs from the exact one. */
const SCORE_ERROR = 1e-5;
/** Entries that a search gives. */
const FOUND_MAX = 1000;

export class AnnalsMemoryStore implements MemoryStore {
  readonly supportsVectorSearch = true;
  readonly ranksBy = "vector";

  private readonly base: string;

  constructor(private readonly options: AnnalsOptions) {
    this.base = `${options.url.replace(/\/+$/, "")}/v1/memory`;
  }

  async get<T = unknown>(identity: MemoryIdentity, id: string): Promise<MemoryEntry<T> | null> {
    return await this.read<MemoryEntry<T>>("entry", identity, { id });
  }

  async put<T = unknown>(identity: MemoryIdentity, entry: MemoryEntry<T>): Promise<void> {
    await this.putMany(identity, [entry]);
  }

  async putMany<T = unknown>(identity: MemoryIdentity, entries: readonly MemoryEntry<T>[]): Promise<void> {
    const whose = named(identity);
    if (entries.length > 0) {
      await this.send("entries", { ...whose, entries });
    }
  }

  async putIfVersion<T = unknown>(
    identity: MemoryIdentity,
    entry: MemoryEntry<T>,
    expectedVersion: number,
  ): Promise<PutIfVersionResult> {
    const body = { ...named(identity), entry, version: expectedVersion };
    const { applied, version } = await this.send<{ applied: boolean; version: number | null }>("putif", body);
    return applied || version === null ? { applied } : { applied, currentVersion: version };
  }

  async list<T = unknown>(identity: MemoryIdentity, options: ListOptions = {}): Promise<ListResult<T>> {
    if (isNone(options.limit)) {
      named(identity);
      return { entries: [] };
    }
    const query: Record<string, string> = {};
    // A cursor that is none is the beginning.
    if (options.cursor !== undefined && /^\d{1,15}$/.test(options.cursor)) {
      query["cursor"] = options.cursor;
    }
    if (options.limit !== undefined) {
      query["limit"] = String(bounded(options.limit, LIST_MAX));
    }
    if (options.tiers !== undefined && options.tiers.length > 0) {
      query["tiers"] = options.tiers.join(",");
    }
    const page = await this.read<{ entries: MemoryEntry<T>[]; cursor: string }>("entries", identity, query);
    const { entries, cursor } = page ?? { entries: [], cursor: "0" };
    return cursor === "0" ? { entries } : { entries, cursor };
  }

  async delete(identity: MemoryIdentity, id: string): Promise<void> {
    await this.ask("DELETE", `entry?${query({ ...named(identity), id })}`);
  }

  async seen(identity: MemoryIdentity, signature: string): Promise<boolean> {
    return (await this.read<{ seen: boolean }>("seen", identity, { signature }))?.seen ?? false;
  }

  async recordSignature(identity: MemoryIdentity, signature: string): Promise<void> {
    await this.send("seen", { ...named(identity), signature });
  }

  async feedback(identity: MemoryIdentity, id: string, usefulness: number): Promise<void> {
    const whose = named(identity);
    if (Number.isFinite(usefulness)) {
      await this.send("feedback", { ...whose, id, usefulness });
    }
  }

  async getFeedback(identity: MemoryIdentity, id: string): Promise<{ average: number; count: number } | null> {
    return await this.read<{ average: number; count: number }>("feedback", identity, { id });
  }

  async forget(identity: MemoryIdentity): Promise<void> {
    await this.send("forget", named(identity));
  }

  async search<T = unknown>(
    identity: MemoryIdentity,
    vector: readonly number[],
    options: SearchOptions = {},
  ): Promise<readonly ScoredEntry<T>[]> {
    const whose = named(identity);
    // A vector without a direction is near to nothing.
    if (vector.length === 0 || vector.every((number) => number === 0) || isNone(options.k)) {
      return [];
    }
    const minScore = options.minScore ?? -1;
    const body = {
      ...whose,
      vector,
      k: bounded(options.k ?? 10, FOUND_MAX),
      // The daemon compares scores of single precision. The exact ones are compared below.
      min_score: Math.max(minScore - SCORE_ERROR, -1),
      tiers: options.tiers ?? [],
      across: this.options.acrossConversations ?? false,
      ...(options.embedderId === undefined ? {} : { embedder: options.embedderId }),
    };
    try {
      const found = await this.send<{ hits: { entry: MemoryEntry<T>; score: number }[] }>("search", body);
      const hits = found.hits.map(({ entry, score }) => ({ entry, score: cosine(vector, entry.embedding) ?? score }));
      hits.sort((a, b) => b.score - a.score || (a.entry.id < b.entry.id ? -1 : 1));
      return hits.filter((hit) => hit.score >= minScore);
    } catch (error) {
      if (!this.options.strictEmbedder && isMismatch(error)) {
        return [];
      }
      throw error;
    }
  }

  /** What stands at a place; null where there is nothing. */
  private async read<R>(place: string, identity: MemoryIdentity, more: Record<string, string>): Promise<R | null> {
    const text = await this.ask("GET", `${place}?${query({ ...named(identity), ...more })}`);
    return text === null ? null : (JSON.parse(text) as R | null);
  }

  private async send<R>(place: string, body: unknown): Promise<R> {
    const text = await this.ask("POST", place, JSON.stringify(body));
    return (text ? JSON.parse(text) : undefined) as R;
  }

  /** The body of what is answered; null for 404. */
  private async ask(method: string, place: string, body?: string): Promise<string | null> {
    const headers: Record<string, string> = {};
    if (body !== undefined) {
      headers["content-type"] = "application/json";
    }
    if (this.options.token !== undefined) {
      headers["authorization"] = `Bearer ${this.options.token}`;
    }
    const answer = await fetch(`${this.base}/${place}`, { method, headers, ...(body === undefined ? {} : { body }) });
    const text = await answer.text();
    if (answer.status === 404 && method === "GET") {
      return null;
    }
    if (answer.status < 200 || answer.status > 299) {
      throw problem(answer.status, text);
    }
    return text;
  }
}

/** Whose memory it is, as the daemon has it. What is no text is refused without being repeated. */
function named(identity: MemoryIdentity): Record<string, string> {
  const parts: Record<string, string> = {};
  for (const [name, part] of [
    ["tenant", identity.tenant],
    ["principal", identity.principal],
    ["conversation", identity.conversationId],
  ] as const) {
    if (part === undefined || part === null || part === "") {
      continue;
    }
    if (typeof part !== "string") {
      throw new TypeError(`the ${name} of a memory's identity is no string`);
    }
    parts[name] = part;
  }
  return parts;
}

function query(parts: Record<string, string>): string {
  return Object.entries(parts)
    .map(([name, value]) => `${name}=${encodeURIComponent(value)}`)
    .join("&");
}

function bounded(count: number, most: number): number {
  return Number.isFinite(count) ? Math.min(Math.max(Math.trunc(count), 1), most) : most;
}

/** Whether a caller asks for no entry at all. */
function isNone(count: number | undefined): boolean {
  return count !== undefined && count < 1;
}

/** The cosine of two vectors; undefined if they cannot be compared. */
function cosine(a: readonly number[], b: readonly number[] | undefined): number | undefined {
  if (b === undefined || a.length !== b.length) {
    return undefined;
  }
  let [dot, squareA, squareB] = [0, 0, 0];
  a.forEach((x, at) => {
    const y = b[at] ?? 0;
    dot += x * y;
    squareA += x * x;
    squareB += y * y;
  });
  const score = dot / (Math.sqrt(squareA) * Math.sqrt(squareB));
  return Number.isFinite(score) ? score : undefined;
}

function problem(status: number, text: string): AnnalsError {
  try {
    const { code, detail } = JSON.parse(text) as { code?: unknown; detail?: unknown };
    if (typeof code === "string" && typeof detail === "string") {
      return new AnnalsError(status, code, detail);
    }
  } catch {
    // It is none of the daemon's own: told as it is.
  }
  return new AnnalsError(status, "ERR", text.slice(0, 200) || `HTTP ${status}`);
}

function isMismatch(error: unknown): boolean {
  return error instanceof AnnalsError && error.status === 400 && error.message.includes("is of the embedder");
}
