export {
  Client,
  type Body,
  type Failure,
  type Message,
  type NackOptions,
  type Outcome,
  type Parked,
  type Published,
  type ReceiveOptions,
  type Received,
  type Selection,
  type Settings,
  type Stored,
} from "./client.js";
export {
  CertificateRejected,
  ConnectionFailed,
  Fault,
  ForebayError,
  OutcomeUnknown,
  Permanent,
  Problem,
  type ProblemDocument,
  RetryAfter,
  Skip,
  Snooze,
  Throttled,
  Transient,
} from "./errors.js";
export type { ClientOptions } from "./http.js";
export { type Handler, Job, Stats, Worker, type WorkerOptions } from "./worker.js";
