import { randomUUID } from "node:crypto";

import { duration } from "./errors.js";
import { type Call, type ClientOptions, Http } from "./http.js";

/** Text (a string), bytes, or any other JSON value. It is received as the same. */
export type Body = unknown;
/** Settings, as docs/reference/stream-settings.md and group-settings.md list them. */
export type Settings = Record<string, unknown>;

/** A message to publish. Without an `id` it is given one, so that a repeated publish is stored once. */
export interface Message {
  body?: Body;
  id?: string;
  type?: string;
  key?: string;
  headers?: Record<string, string>;
  schema?: number;
  priority?: number;
  /** Seconds. */
  delay?: number;
  deliverAt?: Date;
  /** Seconds. */
  ttl?: number;
}

/** The place of a message that is stored and synced. */
export interface Published {
  seq: number;
  id?: string;
  /** The server has had a message with this id; `seq` is the place of that one. */
  duplicate: boolean;
}

/** A message that was read from a stream. */
export interface Stored {
  seq: number;
  publishedAt: Date;
  body: Body;
  id?: string;
  type?: string;
  key?: string;
  headers: Record<string, string>;
  schema?: number;
  priority: number;
}

/** A message that this client holds a lease on, until the deadline or until it settles it. */
export interface Received extends Stored {
  lease: string;
  attempt: number;
  deadline: Date;
}

/** A dead letter: a message that is set aside in its group, with the reason. */
export interface Parked {
  seq: number;
  message: Stored;
  attempts: number;
  reason?: string;
  parkedAt: Date;
}

export interface ReceiveOptions {
  /** How many messages at most; 1 by default. */
  max?: number;
  /** For how many seconds to wait for the first one. */
  wait?: number;
  /** The length of the leases in seconds; by default the group's `message_timeout`. */
  timeout?: number;
  consumer?: string;
  /** Ends the wait. A receive that is aborted leases nothing. */
  signal?: AbortSignal;
}

export interface NackOptions {
  action?: "auto" | "retry" | "park" | "skip" | "return" | { move: string };
  /** Seconds. */
  delay?: number;
  reason?: string;
  /** For how many seconds the whole group delivers nothing. */
  rest?: number;
}

/** Which parked messages are meant. */
export type Selection = { seqs: number[] } | { filter: Record<string, string> } | { all: true };

/** What became of a lease: `acked`, `retrying`, `parked`, `skipped`, `returned`, `extended`, `not_yours` and others. */
export type Outcome = string;

type Fields = Record<string, unknown>;
type Leases = Received | string | ReadonlyArray<Received | string>;

/**
 * Publishes, receives, settles and administers.
 *
 * `server` is a host, a host and port, or a URL; by default the variable `FOREBAY_SERVER`, or this machine.
 */
export class Client {
  /** @internal */
  readonly http: Http;

  constructor(server?: string, options: ClientOptions = {}) {
    this.http = new Http(server, options);
  }

  /** Closes the connections. */
  close(): void {
    this.http.close();
  }

  /** Stores one message. Resolves when it is synced. The server creates a stream that does not exist. */
  async publish(stream: string, body: Body, message: Omit<Message, "body"> = {}): Promise<Published> {
    const [stored] = await this.publishBatch(stream, [{ ...message, body }]);
    return stored as Published;
  }

  /** Stores messages of one stream, all or none of them; with `expectLastSeq` only if the stream ends there. */
  async publishBatch(stream: string, messages: Message[], expectLastSeq?: number): Promise<Published[]> {
    const body: Fields = { messages: messages.map(toSend) };
    if (expectLastSeq !== undefined) body.expect_last_seq = expectLastSeq;
    // After a lost reply the end of the stream has moved, so a repeated expectation would be refused.
    const call = { ...post(["streams", stream, "messages"], body), isSafe: expectLastSeq === undefined };
    return (await this.http.call<{ results: Published[] }>(call)).results;
  }

  /** Every message of a stream from a position to its present end, without a group. */
  async *read(stream: string, options: { fromSeq?: number; key?: string; type?: string } = {}): AsyncGenerator<Stored> {
    let from: unknown = options.fromSeq ?? 1;
    while (from !== null) {
      const query = { from, limit: 1000, key: options.key, type: options.type };
      const page = await this.http.call<{ messages: Fields[]; next: unknown }>(
        get(["streams", stream, "messages"], query),
      );
      yield* page.messages.map(stored);
      from = page.next;
    }
  }

  createStream(stream: string, settings: Settings = {}): Promise<Fields> {
    return this.http.call({ method: "PUT", path: path(["streams", stream]), body: settings, isSafe: true });
  }

  changeStream(stream: string, settings: Settings): Promise<Fields> {
    return this.http.call({ method: "PATCH", path: path(["streams", stream]), body: settings, isSafe: true });
  }

  /** Settings and statistics of a stream. */
  stream(stream: string): Promise<Fields> {
    return this.http.call(get(["streams", stream]));
  }

  /** Deletes a stream with its groups; with `force` also if they have consumers. */
  async deleteStream(stream: string, options: { force?: boolean } = {}): Promise<void> {
    const query = { force: options.force ? "true" : undefined };
    await this.http.call({ method: "DELETE", path: path(["streams", stream], query), isSafe: false });
  }

  /** Creates a group, and its stream if that does not exist. */
  createGroup(stream: string, group: string, settings: Settings = {}): Promise<Fields> {
    return this.http.call({ method: "PUT", path: ofGroup(stream, group), body: settings, isSafe: true });
  }

  changeGroup(stream: string, group: string, settings: Settings): Promise<Fields> {
    return this.http.call({ method: "PATCH", path: ofGroup(stream, group), body: settings, isSafe: true });
  }

  /** Settings and statistics of a group. */
  group(stream: string, group: string): Promise<Fields> {
    return this.http.call({ method: "GET", path: ofGroup(stream, group), isSafe: true });
  }

  async deleteGroup(stream: string, group: string): Promise<void> {
    await this.http.call({ method: "DELETE", path: ofGroup(stream, group), isSafe: false });
  }

  async pause(stream: string, group: string): Promise<void> {
    await this.http.call({ method: "POST", path: ofGroup(stream, group, "pause"), isSafe: true });
  }

  async resume(stream: string, group: string): Promise<void> {
    await this.http.call({ method: "POST", path: ofGroup(stream, group, "resume"), isSafe: true });
  }

  /** Leases messages. */
  async receive(stream: string, group: string, options: ReceiveOptions = {}): Promise<Received[]> {
    const reply = await this.http.call<{ messages: Fields[] }>(receiveCall(stream, group, options));
    return reply.messages.map(received);
  }

  /** Settles messages as processed. */
  async ack(stream: string, group: string, leases: Leases): Promise<Outcome[]> {
    return outcomes(await this.http.call(settleCall(stream, group, "ack", { leases: names(leases) })));
  }

  /** Settles messages as not processed. */
  async nack(stream: string, group: string, leases: Leases, options: NackOptions = {}): Promise<Outcome[]> {
    const body: Fields = { leases: names(leases), action: options.action ?? "auto" };
    if (options.delay !== undefined) body.delay = duration(options.delay);
    if (options.reason !== undefined) body.reason = options.reason;
    if (options.rest !== undefined) body.rest = duration(options.rest);
    return outcomes(await this.http.call(settleCall(stream, group, "nack", body)));
  }

  /** Gives leases a new deadline, so many seconds from now. */
  async extend(stream: string, group: string, leases: Leases, by: number): Promise<Outcome[]> {
    const body = { leases: names(leases), by: duration(by) };
    return outcomes(await this.http.call(settleCall(stream, group, "extend", body)));
  }

  /** Every parked message (dead letter) of a group. */
  async *parked(stream: string, group: string, options: { reason?: string } = {}): AsyncGenerator<Parked> {
    let after: unknown;
    while (after !== null) {
      const query = { reason: options.reason, after, limit: 1000 };
      const page = await this.http.call<{ parked: Fields[]; next: unknown }>({
        method: "GET",
        path: ofGroup(stream, group, "parked") + asQuery(query),
        isSafe: true,
      });
      yield* page.parked.map(parkedOf);
      after = page.next;
    }
  }

  /** Offers parked messages again. Resolves with how many are selected; the work goes on as a job of the server. */
  replay(stream: string, group: string, selection: Selection): Promise<number> {
    return this.triage(stream, group, "replay", selection);
  }

  /** Deletes parked messages. Resolves with how many are selected. */
  discard(stream: string, group: string, selection: Selection): Promise<number> {
    return this.triage(stream, group, "discard", selection);
  }

  private async triage(stream: string, group: string, verb: string, selection: Selection): Promise<number> {
    const call: Call = { method: "POST", path: ofGroup(stream, group, "parked", verb), body: selection, isSafe: false };
    return (await this.http.call<{ matched: number }>(call)).matched;
  }
}

/** @internal */
export function receiveCall(stream: string, group: string, options: ReceiveOptions): Call {
  const body: Fields = { max: options.max ?? 1, wait: duration(options.wait ?? 0) };
  if (options.timeout !== undefined) body.timeout = duration(options.timeout);
  if (options.consumer !== undefined) body.consumer = options.consumer;
  const wait = options.wait ?? 0;
  // Messages of a reply that does not arrive go back to the group.
  return { ...post([], body), path: ofGroup(stream, group, "receive"), wait, signal: options.signal };
}

/** @internal */
export function settleCall(stream: string, group: string, verb: "ack" | "nack" | "extend", body: Fields): Call {
  return { ...post([], body), path: ofGroup(stream, group, verb) };
}

/** @internal */
export function outcomes(reply: unknown): Outcome[] {
  return (reply as { results: { outcome: Outcome }[] }).results.map((one) => one.outcome);
}

/** @internal */
export function received(fields: Fields): Received {
  const { lease, attempt, deadline } = fields as { lease: string; attempt: number; deadline: string };
  return { ...stored(fields), lease, attempt, deadline: new Date(deadline) };
}

function stored(fields: Fields): Stored {
  const given = fields as { seq: number; published_at: string; headers?: Record<string, string>; priority?: number };
  const message: Fields = {
    seq: given.seq,
    publishedAt: new Date(given.published_at),
    body: bodyOf(fields),
    headers: given.headers ?? {},
    priority: given.priority ?? 0,
  };
  for (const name of ["id", "type", "key", "schema"]) {
    if (fields[name] !== undefined && fields[name] !== null) message[name] = fields[name];
  }
  return message as unknown as Stored;
}

function parkedOf(fields: Fields): Parked {
  const { seq, message, attempts, reason, parked_at } = fields as {
    seq: number;
    message: Fields;
    attempts: number;
    reason?: string | null;
    parked_at: string;
  };
  const parked: Parked = { seq, message: stored(message), attempts, parkedAt: new Date(parked_at) };
  return reason === undefined || reason === null ? parked : { ...parked, reason };
}

function bodyOf(fields: Fields): Body {
  if (typeof fields.body_base64 === "string") return Buffer.from(fields.body_base64, "base64");
  return typeof fields.body_text === "string" ? fields.body_text : (fields.body ?? null);
}

function toSend(message: Message): Fields {
  const fields: Fields = { id: message.id ?? randomUUID() };
  if (message.body instanceof Uint8Array) fields.body_base64 = Buffer.from(message.body).toString("base64");
  else if (typeof message.body === "string") fields.body_text = message.body;
  else fields.body = message.body ?? null;
  for (const name of ["type", "key", "headers", "schema", "priority"] as const) {
    if (message[name] !== undefined) fields[name] = message[name];
  }
  if (message.delay !== undefined) fields.delay = duration(message.delay);
  if (message.deliverAt !== undefined) fields.deliver_at = message.deliverAt.toISOString();
  if (message.ttl !== undefined) fields.ttl = duration(message.ttl);
  return fields;
}

function names(leases: Leases): string[] {
  const many = typeof leases === "string" || "lease" in leases ? [leases] : leases;
  return many.map((one) => (typeof one === "string" ? one : one.lease));
}

function get(parts: string[], query: Fields = {}): Call {
  return { method: "GET", path: path(parts, query), isSafe: true };
}

function post(parts: string[], body: unknown): Call {
  return { method: "POST", path: path(parts), body, isSafe: true };
}

function path(parts: string[], query: Fields = {}): string {
  return `/${parts.map(encodeURIComponent).join("/")}${asQuery(query)}`;
}

function ofGroup(stream: string, group: string, ...rest: string[]): string {
  return path(["subscriptions", stream, group, ...rest]);
}

function asQuery(query: Fields): string {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
  const text = given.map(([name, value]) => `${name}=${encodeURIComponent(String(value))}`).join("&");
  return text ? `?${text}` : "";
}
