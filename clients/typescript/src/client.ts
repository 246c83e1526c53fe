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
  key?: string | Uint8Array;
  headers?: Record<string, string | Uint8Array>;
  schema?: number;
  priority?: number;
  /** Seconds. */
  delay?: number;
  deliverAt?: Date;
  /** Seconds. */
  ttl?: number;
  /** The media type of the body, if it does not follow from its JavaScript type, as in `image/png` for bytes. */
  contentType?: string;
}

/** The place of a message that is stored and synced. */
export interface Published {
  seq: number;
  id?: string;
  /** The server has had a message with this id; `seq` is the place of that one. */
  duplicate: boolean;
  /** The place in the log of the whole server. */
  logPosition?: number;
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
  expiresAt?: Date;
  /** The media type of the body, if it does not follow from its JavaScript type. */
  contentType?: string;
  /** A key that is not UTF-8, in place of `key`. */
  keyBytes?: Buffer;
  /** Headers whose values are not UTF-8. They are not in `headers`. */
  headersBytes: Record<string, Buffer>;
}

/** A message that this client holds a lease on, until the deadline or until it settles it. */
export interface Received extends Stored {
  lease: string;
  /** The number of this delivery, 1 for the first. */
  attempt: number;
  /** The message was delivered before in this group, also if that did not count as an attempt. */
  redelivered: boolean;
  deadline: Date;
}

/** A dead letter: a message that is set aside in its group, with the reason. */
export interface Parked {
  seq: number;
  /** Not there if the server cannot read the message because its data folder is damaged. */
  message?: Stored;
  attempts: number;
  reason?: string;
  parkedAt: Date;
  /** The consumer that had the message last. */
  consumer?: string;
  /** The last failures, the oldest first. */
  history: Failure[];
}

/** Why one delivery of a message did not end well. */
export interface Failure {
  at: Date;
  attempt: number;
  reason: string;
  consumer?: string;
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
    return (await this.http.call<{ results: Fields[] }>(call)).results.map(published);
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

  /** Settings and statistics of every stream. */
  streams(): AsyncGenerator<Fields> {
    return this.pages(["streams"], "streams");
  }

  /** Deletes the messages of a stream, with `parked` its dead letters too. Resolves with how many. */
  async purge(stream: string, options: { parked?: boolean } = {}): Promise<number> {
    const body = { parked: options.parked ?? false };
    const call: Call = { method: "POST", path: path(["streams", stream, "purge"]), body, isSafe: false };
    return (await this.http.call<{ purged: number }>(call)).purged;
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

  /** Settings and statistics of the groups of a stream, or of all streams. */
  groups(stream?: string): AsyncGenerator<Fields> {
    return this.pages(stream === undefined ? ["subscriptions"] : ["subscriptions", stream], "subscriptions");
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

  /** Moves the progress of a group to the beginning or the end of its stream, to a position, or to a time. */
  reset(stream: string, group: string, to: "beginning" | "end" | number | Date): Promise<Fields> {
    const place = typeof to === "number" ? { seq: to } : to instanceof Date ? { time: to.toISOString() } : to;
    return this.http.call({ method: "POST", path: ofGroup(stream, group, "reset"), body: { to: place }, isSafe: false });
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
    const parts = ["subscriptions", stream, group, "parked"];
    for await (const one of this.pages(parts, "parked", { reason: options.reason })) yield parkedOf(one);
  }

  /** How many messages are parked for each reason. */
  async parkedReasons(stream: string, group: string): Promise<Record<string, number>> {
    const call: Call = { method: "GET", path: ofGroup(stream, group, "parked", "reasons"), isSafe: true };
    const { reasons } = await this.http.call<{ reasons: { reason: string; count: number }[] }>(call);
    return Object.fromEntries(reasons.map((one) => [one.reason, one.count]));
  }

  /** Offers parked messages again. Resolves with how many are selected; the work goes on as a job of the server. */
  replay(stream: string, group: string, selection: Selection): Promise<number> {
    return this.triage(stream, group, "replay", selection);
  }

  /** Deletes parked messages. Resolves with how many are selected. */
  discard(stream: string, group: string, selection: Selection): Promise<number> {
    return this.triage(stream, group, "discard", selection);
  }

  /** Every item of a list, a page at a time. */
  private async *pages(parts: string[], field: string, query: Fields = {}): AsyncGenerator<Fields> {
    let after: unknown;
    while (after !== null) {
      const page = await this.http.call<Fields>(get(parts, { ...query, after, limit: 1000 }));
      yield* page[field] as Fields[];
      after = page.next;
    }
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
  const redelivered = fields.redelivered === true;
  return { ...stored(fields), lease, attempt, redelivered, deadline: new Date(deadline) };
}

function published(fields: Fields): Published {
  const { seq, id, duplicate, log_position } = fields as {
    seq: number;
    id?: string | null;
    duplicate: boolean;
    log_position?: number;
  };
  const of: Published = { seq, duplicate };
  if (id !== undefined && id !== null) of.id = id;
  if (log_position !== undefined) of.logPosition = log_position;
  return of;
}

function stored(fields: Fields): Stored {
  const given = fields as {
    seq: number;
    published_at: string;
    headers?: Record<string, string>;
    headers_base64?: Record<string, string>;
    key_base64?: string;
    priority?: number;
    expires_at?: string;
    content_type?: string;
  };
  const binary = Object.entries(given.headers_base64 ?? {}).map(([name, text]) => [name, Buffer.from(text, "base64")]);
  const message: Fields = {
    seq: given.seq,
    publishedAt: new Date(given.published_at),
    body: bodyOf(fields),
    headers: given.headers ?? {},
    headersBytes: Object.fromEntries(binary) as Record<string, Buffer>,
    priority: given.priority ?? 0,
  };
  for (const name of ["id", "type", "key", "schema"]) {
    if (fields[name] !== undefined && fields[name] !== null) message[name] = fields[name];
  }
  if (given.key_base64 !== undefined) message.keyBytes = Buffer.from(given.key_base64, "base64");
  if (given.expires_at !== undefined) message.expiresAt = new Date(given.expires_at);
  if (given.content_type !== undefined) message.contentType = given.content_type;
  return message as unknown as Stored;
}

function parkedOf(fields: Fields): Parked {
  const { seq, message, attempts, reason, parked_at, consumer, history } = fields as {
    seq: number;
    message: Fields | null;
    attempts: number;
    reason?: string | null;
    parked_at: string;
    consumer?: string | null;
    history?: { at: string; attempt: number; reason: string; consumer?: string | null }[];
  };
  const failures = (history ?? []).map((one): Failure => {
    const failure = { at: new Date(one.at), attempt: one.attempt, reason: one.reason };
    return one.consumer ? { ...failure, consumer: one.consumer } : failure;
  });
  const parked: Parked = { seq, attempts, parkedAt: new Date(parked_at), history: failures };
  if (message !== null) parked.message = stored(message);
  if (reason !== undefined && reason !== null) parked.reason = reason;
  if (consumer) parked.consumer = consumer;
  return parked;
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
  for (const name of ["type", "schema", "priority"] as const) {
    if (message[name] !== undefined) fields[name] = message[name];
  }
  if (message.contentType !== undefined) fields.content_type = message.contentType;
  if (typeof message.key === "string") fields.key = message.key;
  else if (message.key !== undefined) fields.key_base64 = Buffer.from(message.key).toString("base64");
  const headers = Object.entries(message.headers ?? {});
  const text = headers.filter(([, value]) => typeof value === "string");
  const binary = headers.filter((one): one is [string, Uint8Array] => typeof one[1] !== "string");
  if (text.length) fields.headers = Object.fromEntries(text);
  if (binary.length) {
    const encoded = binary.map(([name, value]) => [name, Buffer.from(value).toString("base64")]);
    fields.headers_base64 = Object.fromEntries(encoded) as Record<string, string>;
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
