/** A small client for the memory routes of a Ricordo server. It needs `fetch`, and nothing else. */

import type { components, paths } from "./schema.js";

type Schemas = components["schemas"];
type Query<Route extends keyof paths> = paths[Route] extends {
  get: { parameters: { query?: infer Parameters } };
}
  ? Parameters
  : never;

export type Block = Schemas["UserBlockResponse"];
export type BlockWrite =
  paths["/users/{user_id}/blocks/{label}"]["put"]["requestBody"]["content"]["application/json"];
export type BlockChange = Schemas["UserBlockUpdate"];
export type Version = Schemas["VersionResponse"];
export type Proposal = Schemas["ProposalResponse"];
export type ProposedEdit = Schemas["ProposalRequest"];
export type Outcome = Schemas["OutcomeResponse"];
export type Fact = Schemas["FactResponse"];
export type NewFact = Schemas["FactRequest"];
export type FactChange = Schemas["FactChangeRequest"];
export type Answer = Schemas["AskResponse"];
export type Profile = Schemas["ProfileResponse"];
export type NewMemories = Schemas["AddRequest"];
export type AddedMemories = Schemas["AddResponse"];
export type MemorySearch = Schemas["MemorySearchRequest"];
export type FoundMemories = Schemas["MemorySearchResponse"];
export type { components, paths } from "./schema.js";

export interface RicordoOptions {
  /** The address of the server; by default http://127.0.0.1:8283. */
  url?: string;
  /** A key of the server. */
  key?: string;
  /** The function that sends requests, in place of the global `fetch`. */
  fetch?: typeof fetch;
}

interface RequestOptions {
  query?: Record<string, unknown>;
  body?: unknown;
  headers?: Record<string, string>;
}

/** A refusal of the server. `message` says why, and what to do. */
export class RicordoError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
    this.name = "RicordoError";
  }
}

export class Ricordo {
  readonly #url: string;
  readonly #key: string | undefined;
  readonly #fetch: typeof fetch;

  constructor(options: RicordoOptions = {}) {
    this.#url = (options.url ?? "http://127.0.0.1:8283").replace(/\/+$/, "");
    this.#key = options.key;
    this.#fetch = options.fetch ?? fetch;
  }

  /** Return the memory of a user, by name or id. */
  user(user: string): UserMemory {
    return new UserMemory(this, user);
  }

  /** Send a request to any route, and return the JSON of the answer. Throws RicordoError. */
  async request<T>(method: string, path: string, options: RequestOptions = {}): Promise<T> {
    const url = new URL(this.#url + path);
    for (const [name, value] of Object.entries(options.query ?? {})) {
      if (value !== undefined && value !== null) url.searchParams.set(name, String(value));
    }
    const headers: Record<string, string> = { ...options.headers };
    if (this.#key !== undefined) headers["authorization"] = `Bearer ${this.#key}`;
    const init: RequestInit = { method, headers };
    if (options.body !== undefined) {
      headers["content-type"] = "application/json";
      init.body = JSON.stringify(options.body);
    }
    const response = await this.#fetch(url, init);
    const text = await response.text();
    if (!response.ok) throw new RicordoError(response.status, reasonOf(text, response));
    return JSON.parse(text) as T;
  }
}

/** The memory of one user. */
export class UserMemory {
  readonly #server: Ricordo;
  readonly #path: string;

  constructor(server: Ricordo, user: string) {
    this.#server = server;
    this.#path = `/users/${encodeURIComponent(user)}`;
  }

  /** List the user's blocks. */
  blocks(query?: Query<"/users/{user_id}/blocks">): Promise<Block[]> {
    return this.#send("GET", "/blocks", { query });
  }

  block(label: string): Promise<Block> {
    return this.#send("GET", blockPath(label));
  }

  /**
   * Write a whole block. With the block's `version`, a newer version is not overwritten. The answer
   * is a proposal if a new block has to wait for the user's approval.
   */
  writeBlock(
    label: string,
    block: BlockWrite,
    version?: string | null,
  ): Promise<Block | Proposal> {
    return this.#send("PUT", blockPath(label), { body: block, headers: ifMatch(version) });
  }

  /** Change a block's policy, description or other settings. */
  changeBlock(label: string, change: BlockChange): Promise<Block> {
    return this.#send("PATCH", blockPath(label), { body: change });
  }

  async deleteBlock(label: string): Promise<void> {
    await this.#send("DELETE", blockPath(label));
  }

  history(label: string, query?: { limit?: number; before?: string }): Promise<Version[]> {
    return this.#send("GET", `${blockPath(label)}/history`, { query });
  }

  /**
   * Make an earlier version of the block the newest one. The answer is a proposal if a deleted
   * block has to wait for the user's approval.
   */
  restore(label: string, sha: string): Promise<Block | Proposal> {
    return this.#send("POST", `${blockPath(label)}/restore`, { body: { sha } });
  }

  /** Propose an edit that the user decides about. */
  propose(label: string, edit: ProposedEdit): Promise<Proposal> {
    return this.#send("POST", `${blockPath(label)}/propose`, { body: edit });
  }

  proposals(query?: Query<"/users/{user_id}/diffs">): Promise<Proposal[]> {
    return this.#send("GET", "/diffs", { query });
  }

  approve(ids: string[]): Promise<Outcome[]> {
    return this.#send("POST", "/diffs/approve", { body: { ids } });
  }

  reject(ids: string[], reason?: string): Promise<Outcome[]> {
    return this.#send("POST", "/diffs/reject", { body: { ids, reason } });
  }

  facts(query?: Query<"/v1/users/{user_id}/facts">): Promise<Fact[]> {
    return this.#send("GET", "/facts", { query }, "/v1");
  }

  addFact(fact: NewFact): Promise<Fact> {
    return this.#send("POST", "/facts", { body: fact }, "/v1");
  }

  changeFact(id: string, change: FactChange): Promise<Fact> {
    return this.#send("PATCH", factPath(id), { body: change }, "/v1");
  }

  async deleteFact(id: string): Promise<void> {
    await this.#send("DELETE", factPath(id), {}, "/v1");
  }

  approveFact(id: string): Promise<Fact> {
    return this.#send("POST", `${factPath(id)}/approve`, {}, "/v1");
  }

  rejectFact(id: string): Promise<Fact> {
    return this.#send("POST", `${factPath(id)}/reject`, {}, "/v1");
  }

  /** Answer a question from the user's memory. `model` is the handle of a model. */
  ask(question: string, model?: string): Promise<Answer> {
    return this.#send("POST", "/ask", { body: { question, model } });
  }

  /** Store messages, and with `infer` also the facts that they state about the user. */
  addMemories(memories: NewMemories): Promise<AddedMemories> {
    return this.#send("POST", "/memories", { body: memories });
  }

  searchMemories(search: MemorySearch): Promise<FoundMemories> {
    return this.#send("POST", "/memories/search", { body: search });
  }

  /** Return the known facts about the user as one text for a prompt. */
  profile(query?: Query<"/v1/users/{user_id}/profile">): Promise<Profile> {
    return this.#send("GET", "/profile", { query }, "/v1");
  }

  #send<T>(method: string, path: string, options: RequestOptions = {}, prefix = ""): Promise<T> {
    return this.#server.request<T>(method, `${prefix}${this.#path}${path}`, options);
  }
}

function blockPath(label: string): string {
  return `/blocks/${label.split("/").map(encodeURIComponent).join("/")}`;
}

function factPath(id: string): string {
  return `/facts/${encodeURIComponent(id)}`;
}

function ifMatch(version: string | null | undefined): Record<string, string> {
  return version ? { "if-match": `"${version}"` } : {};
}

function reasonOf(text: string, response: Response): string {
  try {
    const { detail } = JSON.parse(text) as { detail?: unknown };
    if (detail !== undefined) return typeof detail === "string" ? detail : JSON.stringify(detail);
  } catch {
    // A proxy may answer with something other than JSON.
  }
  return `${response.status} ${response.statusText}`;
}
