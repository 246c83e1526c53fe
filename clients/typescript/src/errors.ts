/** The base of every error that a call throws. */
export class ForebayError extends Error {
  constructor(message: string) {
    super(message);
    this.name = new.target.name;
  }
}

/** The server could not be reached. Nothing was done. */
export class ConnectionFailed extends ForebayError {}

/** The certificate of the server is not trusted, or is not one for its name. Thrown at once, without retries. */
export class CertificateRejected extends ConnectionFailed {}

/** The connection broke after the request was sent. The server may have carried it out or not. */
export class OutcomeUnknown extends ForebayError {}

/** The document that the server sends with a refusal (RFC 9457). */
export interface ProblemDocument {
  type?: string;
  title?: string;
  detail?: string;
  retry?: "never" | "later" | "same_id";
  field?: string;
  retry_after?: number;
  last_seq?: number;
}

/** The server refused the call. */
export class Problem extends ForebayError {
  /** The kind of the problem, as in `no-such-stream`; docs/reference/problems.md lists them. */
  readonly kind: string;

  constructor(
    readonly status: number,
    readonly document: ProblemDocument,
  ) {
    const kind = (document.type ?? "").split("/").pop() ?? "";
    const where = document.field && !document.detail?.includes(document.field) ? ` field=\`${document.field}\`` : "";
    super(`${document.detail || document.title || "unexpected reply"}${where} (${kind || "status"}, ${status})`);
    this.kind = kind;
  }

  get isNotFound(): boolean {
    return this.status === 404 && this.kind !== "";
  }
}

/** Thrown by a handler to say what becomes of its message. Any other error counts as `Transient`. */
export abstract class Fault extends Error {
  /** @param reason stored with the message; use the same text for the same problem, since reasons are counted by text */
  constructor(readonly reason = "") {
    super(reason);
    this.name = new.target.name;
  }

  /** The fields of the nack, beside the leases. */
  abstract nack(): Record<string, unknown>;
}

function withReason(action: string, reason: string): Record<string, unknown> {
  return reason ? { action, reason } : { action };
}

/** The message is retried, by the group's backoff. Costs an attempt. */
export class Transient extends Fault {
  nack(): Record<string, unknown> {
    return withReason("retry", this.reason);
  }
}

/** The message is retried after so many seconds. Costs an attempt. */
export class RetryAfter extends Fault {
  constructor(
    readonly seconds: number,
    reason = "",
  ) {
    super(reason);
  }

  nack(): Record<string, unknown> {
    return { ...withReason("retry", this.reason), delay: duration(this.seconds) };
  }
}

/** The message is parked as a dead letter, where it waits for a person. */
export class Permanent extends Fault {
  nack(): Record<string, unknown> {
    return withReason("park", this.reason);
  }
}

/** The message is settled without being processed. */
export class Skip extends Fault {
  nack(): Record<string, unknown> {
    return withReason("skip", this.reason);
  }
}

/** The message is offered again after so many seconds. Costs no attempt. */
export class Snooze extends Fault {
  constructor(readonly seconds: number) {
    super();
  }

  nack(): Record<string, unknown> {
    return { action: "return", delay: duration(this.seconds) };
  }
}

/** A service asks for a rest: the whole group delivers nothing for so many seconds, at most 300. Costs no attempt. */
export class Throttled extends Snooze {
  constructor(seconds = 1) {
    super(seconds);
  }

  override nack(): Record<string, unknown> {
    return { ...super.nack(), rest: duration(Math.min(this.seconds, 300)) };
  }
}

/** The server's form of a time. */
export function duration(seconds: number): string {
  if (!(seconds >= 0 && seconds < 1e10)) {
    throw new RangeError(`a duration must be between 0 and 10^10 seconds. value=\`${seconds}\``);
  }
  return `${Math.round(seconds * 1000)}ms`;
}
