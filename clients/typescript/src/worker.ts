import os from "node:os";

import { Client, type Received, type Settings, outcomes, received, receiveCall, settleCall } from "./client.js";
import { CertificateRejected, Fault, Permanent, Problem, Transient } from "./errors.js";
import { type Call, type ClientOptions, PAUSE_MAX, pauseBeforeRetry, sleep, withResolvers } from "./http.js";

/** How many seconds one receive waits for messages. */
const LONG_POLL = 20;
/** How many leases one call settles or extends. */
const LEASES_MAX = 1000;
/** How many bytes of a reason the server keeps. */
const REASON_MAX = 512;
/** How many milliseconds the last settlements may take after everything else has ended. */
const FLUSH_WITHIN = 5_000;

export interface WorkerOptions extends ClientOptions {
  server?: string;
  /** How many handlers run at a time; 8 by default. */
  concurrency?: number;
  /** How many messages wait beside those that run; by default as many as run. */
  prefetch?: number;
  /** For how many seconds a message stays with this worker without a sign of life; 30 by default. */
  lease?: number;
  /**
   * Creates the group, and its stream, with these settings. An existing group keeps its own; if one has another value,
   * the worker logs that. `Client.changeGroup` changes them.
   */
  ensureGroup?: Settings;
  /** The name of this consumer. */
  name?: string;
  /** How many seconds running jobs get to finish after a stop; 25 by default. */
  shutdownWithin?: number;
  /** Told of failures and of lost connections; by default they go to the standard error. */
  log?: (text: string) => void;
}

/** What becomes of a message that was not processed, by the outcome of its lease. */
const BECOMES: Record<string, string> = {
  retrying: "will be retried",
  returned: "will be delivered again",
  moving: "moved to another stream",
  not_yours: "its lease had ended, so it will be delivered again",
  unsent: "will be delivered again",
};

/** A job that was not processed, until it is known what becomes of its message. */
interface Failure {
  job: Job;
  fault: Fault;
  text: string;
  /** The handler did not choose this end, so it is logged in any case. */
  isError: boolean;
}

export type Handler = (job: Job) => void | Promise<void>;

/** What became of messages since the worker began. */
export class Stats {
  acked = 0;
  retried = 0;
  parked = 0;
  skipped = 0;
  returned = 0;
  /** The lease had ended before the result arrived, so the result changed nothing. */
  late = 0;

  /** @internal */
  count(outcome: string): void {
    const name = { retrying: "retried", not_yours: "late" }[outcome] ?? outcome;
    if (name in this) this[name as "acked"] += 1;
  }
}

/** A message that this worker holds. */
export class Job {
  private readonly aborting = new AbortController();

  /** @internal */
  constructor(
    readonly message: Received,
    private heldUntil: number,
  ) {}

  get body(): any {
    return this.message.body;
  }

  get seq(): number {
    return this.message.seq;
  }

  get id(): string | undefined {
    return this.message.id;
  }

  get key(): string | undefined {
    return this.message.key;
  }

  get type(): string | undefined {
    return this.message.type;
  }

  /** The number of this delivery, 1 for the first. */
  get attempt(): number {
    return this.message.attempt;
  }

  /** The message was delivered before in this group, so its work may have been begun, or done. */
  get isRedelivered(): boolean {
    return this.message.redelivered;
  }

  /** Aborted when the lease is lost, or when the worker stops and the job has not ended in time. */
  get signal(): AbortSignal {
    return this.aborting.signal;
  }

  /** The lease has ended, so another worker may have the message. The result of the handler changes nothing. */
  get isCancelled(): boolean {
    return this.aborting.signal.aborted || Date.now() > this.heldUntil;
  }

  /** @internal */
  renew(heldUntil: number): void {
    this.heldUntil = heldUntil;
  }

  /** @internal */
  cancel(reason: string): void {
    this.aborting.abort(new Error(reason));
  }
}

/**
 * Runs handlers for the messages of one group. Start as many processes as you like; the group shares the work.
 *
 * A handler that returns acks its message. An error is a failure: a `Fault` says of which kind, any other is retried by
 * the group's backoff.
 */
export class Worker {
  readonly stats = new Stats();
  private readonly client: Client;
  private readonly handlers = new Map<string, Handler>();
  private fallback: Handler | undefined;
  private readonly concurrency: number;
  private readonly capacity: number;
  private readonly lease: number;
  private readonly log: (text: string) => void;
  private readonly stopping = new AbortController();
  private readonly ended = new AbortController();
  /** Jobs that are waiting or running. Their leases are renewed. */
  private readonly held = new Map<string, Job>();
  private readonly waiting: Job[] = [];
  private running = 0;
  /** Leases to settle, by the fields of the call; acks have none. */
  private results = new Map<string, string[]>();
  private unsettled = 0;
  private isSettling = false;
  /** Failures whose results have not been answered yet, by lease. They are logged with what became of the message. */
  private readonly failures = new Map<string, Failure>();
  /** How often a message is delivered at most; `undefined` if that is not limited. */
  private attemptsMax: number | undefined;
  private hasJoined = false;
  private isConnected = true;
  private failure: unknown;
  /** Resolved whenever a job ends or a result is answered. */
  private changed = withResolvers<void>();

  constructor(
    readonly stream: string,
    readonly group: string,
    private readonly options: WorkerOptions = {},
  ) {
    this.concurrency = options.concurrency ?? 8;
    this.lease = options.lease ?? 30;
    if (!(this.concurrency >= 1)) {
      throw new RangeError(`concurrency must be at least 1. value=\`${this.concurrency}\``);
    }
    if (!(this.lease >= 1)) throw new RangeError(`lease must be at least 1 second. value=\`${this.lease}\``);
    this.capacity = this.concurrency + (options.prefetch ?? this.concurrency);
    this.client = new Client(options.server, { ...options, retryFor: 0 });
    this.log = options.log ?? ((text) => process.stderr.write(`forebay: ${text}\n`));
  }

  /** The handler of messages with this type. */
  on(type: string, handler: Handler): this {
    if (this.handlers.has(type)) throw new Error(`a type has one handler. type=\`${type}\``);
    this.handlers.set(type, handler);
    return this;
  }

  /** The handler of messages without a type, or with one that has no handler of its own. */
  onAny(handler: Handler): this {
    if (this.fallback) throw new Error("`onAny` is given twice");
    this.fallback = handler;
    return this;
  }

  /** Receives nothing more, lets running jobs finish, and returns messages that have not begun. */
  stop(): void {
    this.stopping.abort(new Error("the worker stops"));
  }

  /** Works until SIGINT, SIGTERM or `stop`, or until there has been nothing to do for `idle` seconds. */
  async run(options: { idle?: number; signals?: boolean } = {}): Promise<Stats> {
    if (!this.handlers.size && !this.fallback) throw new Error("the worker has no handler; use `on` or `onAny`");
    if (this.ended.signal.aborted) throw new Error("a worker runs once; make another one");
    const stop = () => this.stop();
    if (options.signals ?? true) for (const name of ["SIGINT", "SIGTERM"] as const) process.once(name, stop);
    const renewing = setInterval(() => void this.renew().catch((error) => this.fail(error)), (this.lease * 1000) / 3);
    try {
      await this.join();
      await this.receive(options.idle);
      await this.finish();
    } finally {
      clearInterval(renewing);
      this.ended.abort(new Error("the worker has ended"));
      for (const name of ["SIGINT", "SIGTERM"] as const) process.off(name, stop);
      this.client.close();
    }
    if (this.failure !== undefined) throw this.failure;
    return this.stats;
  }

  private async join(): Promise<void> {
    const settings = this.options.ensureGroup;
    const path = `/subscriptions/${encodeURIComponent(this.stream)}/${encodeURIComponent(this.group)}`;
    const signal = this.stopping.signal;
    type Group = { settings: { max_retries: number | "unlimited" } };
    const get = () => this.call<Group>({ method: "GET", path, isSafe: true, signal });
    const put = () => this.call<Group>({ method: "PUT", path, body: settings, isSafe: true, signal });
    try {
      const group = await (settings ? put() : get()).catch((error: unknown) => {
        if (!(error instanceof Problem && error.kind === "settings-differ")) throw error;
        this.log(`\`ensureGroup\` changes nothing, because the group exists: ${error.document.detail ?? ""}`);
        return get();
      });
      const retries = group.settings.max_retries;
      this.attemptsMax = typeof retries === "number" ? retries + 1 : undefined;
      this.hasJoined = true;
    } catch (error) {
      if (!signal.aborted) throw error;
    }
  }

  /** Carries out a call, however long the server is away. Throws what trying again cannot mend. */
  private async call<T>(call: Call): Promise<T> {
    for (let tries = 0; ; tries += 1) {
      try {
        const done = await this.client.http.call<T>(call, 0);
        if (!this.isConnected) this.log("the server answers again");
        this.isConnected = true;
        return done;
      } catch (error) {
        if (call.signal?.aborted) throw call.signal.reason;
        let pause = pauseBeforeRetry(call, error, tries);
        // The server had a good certificate before. A worker waits until it has one again.
        if (this.hasJoined && error instanceof CertificateRejected) pause = PAUSE_MAX;
        if (pause === undefined) throw error;
        if (this.isConnected) this.log(`trying again until the server answers: ${(error as Error).message}`);
        this.isConnected = false;
        await sleep(pause, call.signal);
      }
    }
  }

  private async receive(idle: number | undefined): Promise<void> {
    const signal = this.stopping.signal;
    const stopped = new Promise<void>((resolve) => signal.addEventListener("abort", () => resolve(), { once: true }));
    let quietSince = Date.now();
    while (!signal.aborted) {
      const room = this.capacity - this.held.size;
      if (room <= 0) {
        await Promise.race([this.changed.promise, stopped]);
        continue;
      }
      const wait = idle === undefined ? LONG_POLL : Math.min(LONG_POLL, idle);
      const max = Math.min(room, LEASES_MAX);
      const consumer = this.options.name ?? `${os.hostname()}-${process.pid}`;
      const call = receiveCall(this.stream, this.group, { max, wait, timeout: this.lease, consumer, signal });
      let messages: Record<string, unknown>[];
      try {
        ({ messages } = await this.call<{ messages: Record<string, unknown>[] }>(call));
      } catch (error) {
        if (signal.aborted) return;
        return this.fail(error);
      }
      const now = Date.now();
      for (const message of messages.map(received)) {
        // A lease begins before its message arrives, so a part of it is over.
        const job = new Job(message, now + this.lease * 900);
        this.held.set(message.lease, job);
        this.waiting.push(job);
      }
      this.begin();
      if (messages.length || this.held.size) quietSince = now;
      else if (idle !== undefined && now - quietSince >= idle * 1000) this.stop();
    }
  }

  private begin(): void {
    while (this.running < this.concurrency) {
      const job = this.waiting.shift();
      if (!job) return;
      if (job.isCancelled) {
        this.forget(job);
        continue;
      }
      this.running += 1;
      void this.outcome(job).then((failure) => {
        this.running -= 1;
        if (failure) this.failures.set(job.message.lease, failure);
        this.done(job, failure?.fault.nack());
        this.begin();
      });
    }
  }

  private async outcome(job: Job): Promise<Failure | undefined> {
    const handler = this.handlers.get(job.message.type ?? "") ?? this.fallback;
    if (!handler) {
      const which = job.type === undefined ? "messages without a type" : `the type \`${job.type}\``;
      const text = `no handler for ${which}`;
      return { job, fault: new Permanent(text), text, isError: true };
    }
    try {
      await handler(job);
      return undefined;
    } catch (error) {
      const text = error instanceof Error ? `${error.name}: ${error.message}` : String(error);
      if (error instanceof Fault) return { job, fault: error, text, isError: false };
      return { job, fault: new Transient(text), text, isError: true };
    }
  }

  private logFailure(lease: string, outcome: string): void {
    const failure = this.failures.get(lease);
    if (!failure) return;
    this.failures.delete(lease);
    const { job, fault, text } = failure;
    // A retry was asked for, and none was left.
    const isLast = fault.nack().action === "retry" && !["retrying", "not_yours", "unsent"].includes(outcome);
    if (!failure.isError && !isLast) return;
    // The setting may have been raised since the worker began.
    const of = this.attemptsMax === undefined || job.attempt > this.attemptsMax ? "" : ` of ${this.attemptsMax}`;
    const becomes = BECOMES[outcome] ?? outcome;
    this.log(`message ${job.seq} of ${this.stream} failed: attempt ${job.attempt}${of}, ${becomes}: ${text}`);
  }

  private done(job: Job, nack: Record<string, unknown> | undefined): void {
    // A job that was given up at a stop has been returned already.
    if (!this.held.has(job.message.lease)) return this.logFailure(job.message.lease, "returned");
    this.forget(job);
    if (job.isCancelled) {
      this.stats.late += 1;
      this.logFailure(job.message.lease, "not_yours");
      return;
    }
    this.settle(job, nack);
  }

  private settle(job: Job, nack: Record<string, unknown> | undefined): void {
    if (typeof nack?.reason === "string") nack.reason = shortened(nack.reason);
    const fields = nack ? JSON.stringify(nack) : "";
    const leases = this.results.get(fields);
    if (leases) leases.push(job.message.lease);
    else this.results.set(fields, [job.message.lease]);
    this.unsettled += 1;
    if (!this.isSettling) void this.send().catch((error) => this.fail(error));
  }

  private async send(): Promise<void> {
    this.isSettling = true;
    // Results of jobs that end in the same moment go together.
    await Promise.resolve();
    try {
      while (this.results.size) {
        const results = this.results;
        this.results = new Map();
        for (const [fields, leases] of results) {
          for (let begin = 0; begin < leases.length; begin += LEASES_MAX) {
            const some = leases.slice(begin, begin + LEASES_MAX);
            const body = { leases: some, ...(fields ? (JSON.parse(fields) as object) : {}) };
            const verb = fields ? "nack" : "ack";
            const call = { ...settleCall(this.stream, this.group, verb, body), signal: this.ended.signal };
            outcomes(await this.call(call)).forEach((outcome, index) => {
              this.stats.count(outcome);
              this.logFailure(some[index] as string, outcome);
            });
            this.unsettled -= some.length;
          }
        }
      }
    } finally {
      this.isSettling = false;
      this.tell();
    }
  }

  private async renew(): Promise<void> {
    const leases = [...this.held].filter(([, job]) => !job.isCancelled).map(([lease]) => lease);
    for (let begin = 0; begin < leases.length; begin += LEASES_MAX) {
      const some = leases.slice(begin, begin + LEASES_MAX);
      const asked = Date.now();
      const body = { leases: some, by: `${this.lease * 1000}ms` };
      const call = { ...settleCall(this.stream, this.group, "extend", body), signal: this.ended.signal };
      const told = outcomes(await this.call(call));
      some.forEach((lease, index) => {
        const job = this.held.get(lease);
        if (!job) return;
        if (told[index] === "extended") return job.renew(asked + this.lease * 900);
        this.log(`the lease of message ${job.message.seq} of ${this.stream} is lost`);
        job.cancel("the lease is lost");
      });
    }
  }

  private async finish(): Promise<void> {
    for (const job of this.waiting.splice(0)) this.done(job, { action: "return" });
    await this.until(() => this.running === 0, (this.options.shutdownWithin ?? 25) * 1000);
    for (const job of this.held.values()) {
      this.forget(job);
      this.settle(job, { action: "return" });
      job.cancel("the worker stops");
    }
    if (!(await this.until(() => this.unsettled === 0, FLUSH_WITHIN)) && this.failure === undefined) {
      this.log(`${this.unsettled} results could not be sent; their messages will be delivered again`);
    }
    for (const lease of [...this.failures.keys()]) this.logFailure(lease, "unsent");
  }

  /** Waits for a condition, and says whether it came about in time. */
  private async until(condition: () => boolean, milliseconds: number): Promise<boolean> {
    const end = sleep(milliseconds, this.ended.signal).then(
      () => true,
      () => true,
    );
    while (!condition()) {
      if ((await Promise.race([this.changed.promise, end])) === true) return condition();
    }
    return true;
  }

  private forget(job: Job): void {
    this.held.delete(job.message.lease);
    this.tell();
  }

  private tell(): void {
    this.changed.resolve();
    this.changed = withResolvers<void>();
  }

  private fail(error: unknown): void {
    if (this.ended.signal.aborted) return;
    this.failure ??= error;
    this.stop();
  }
}

function shortened(reason: string): string {
  const bytes = Buffer.from(reason);
  // A character that is cut in the middle is left out.
  return bytes.length <= REASON_MAX ? reason : bytes.subarray(0, REASON_MAX).toString().replace(/\uFFFD+$/, "");
}
