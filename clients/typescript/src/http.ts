import fs from "node:fs";
import http from "node:http";
import https from "node:https";
import type tls from "node:tls";

import {
  CertificateRejected,
  ConnectionFailed,
  ForebayError,
  OutcomeUnknown,
  Problem,
  type ProblemDocument,
} from "./errors.js";

const PORT = 7070;
/** Beside the time that a call may take on purpose. */
const REPLY_WITHIN = 30_000;
const PAUSE_MIN = 50;
export const PAUSE_MAX = 2_000;
/** The codes of Node.js for a certificate of which no known authority is the issuer. */
const UNKNOWN_ISSUER = new Set([
  "DEPTH_ZERO_SELF_SIGNED_CERT",
  "SELF_SIGNED_CERT_IN_CHAIN",
  "UNABLE_TO_GET_ISSUER_CERT",
  "UNABLE_TO_GET_ISSUER_CERT_LOCALLY",
  "UNABLE_TO_VERIFY_LEAF_SIGNATURE",
]);

export interface Call {
  method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  path: string;
  body?: unknown;
  /** Sending it twice has the same effect as sending it once. */
  isSafe: boolean;
  /** For how many seconds the server may keep the reply back on purpose. */
  wait?: number;
  signal?: AbortSignal | undefined;
}

export interface ClientOptions {
  /** Sent as a bearer token; by default the variable `FOREBAY_TOKEN`. */
  token?: string;
  /** For how many seconds calls that are safe to repeat are repeated while the server is away or busy; 30 by default. */
  retryFor?: number;
  /**
   * Options of TLS for a URL of https, for example `ca`: the certificates that are trusted. By default these are the
   * certificates of the file that the variable `FOREBAY_CA` names, or those that Node.js trusts.
   */
  tls?: https.AgentOptions;
}

/** Carries out calls over connections that are kept. */
export class Http {
  readonly url: URL;
  readonly retryFor: number;
  private readonly agent: http.Agent;
  private readonly headers: Record<string, string>;

  constructor(server: string | undefined, options: ClientOptions) {
    const text = server ?? process.env.FOREBAY_SERVER ?? "http://127.0.0.1:7070";
    this.url = parse(text);
    this.retryFor = options.retryFor ?? 30;
    // The server closes a connection after 75 idle seconds.
    const kept = { keepAlive: true, timeout: 60_000, scheduling: "lifo" as const };
    const isSecure = this.url.protocol === "https:";
    this.agent = isSecure ? new https.Agent({ ...authorities(), ...options.tls, ...kept }) : new http.Agent(kept);
    this.headers = { "content-type": "application/json", "user-agent": "forebay-node" };
    const token = options.token ?? process.env.FOREBAY_TOKEN;
    if (token) this.headers.authorization = `Bearer ${token}`;
  }

  close(): void {
    this.agent.destroy();
  }

  async call<T>(call: Call, retryFor = this.retryFor): Promise<T> {
    const until = Date.now() + retryFor * 1000;
    for (let tries = 0; ; tries += 1) {
      try {
        return await this.once<T>(call);
      } catch (error) {
        const pause = pauseBeforeRetry(call, error, tries);
        if (pause === undefined || Date.now() + pause > until) throw error;
        await sleep(pause, call.signal);
      }
    }
  }

  private once<T>(call: Call): Promise<T> {
    const body = call.body === undefined ? undefined : JSON.stringify(call.body);
    const { promise, resolve, reject } = withResolvers<T>();
    let wasSent = false;
    const send = this.url.protocol === "https:" ? https.request : http.request;
    const request = send(new URL(this.url.pathname.replace(/\/$/, "") + call.path, this.url), {
      method: call.method,
      agent: this.agent,
      headers: { ...this.headers, "content-length": Buffer.byteLength(body ?? "") },
      signal: call.signal,
      timeout: (call.wait ?? 0) * 1000 + REPLY_WITHIN,
    });
    const isSecure = this.url.protocol === "https:";
    request.on("socket", (socket) => {
      if (request.reusedSocket || (!isSecure && !socket.connecting)) wasSent = true;
      else socket.once(isSecure ? "secureConnect" : "connect", () => (wasSent = true));
    });
    request.on("timeout", () => request.destroy(new Error("no reply in time")));
    request.on("error", (error) => {
      if (call.signal?.aborted) return reject(call.signal.reason);
      const rejected = (request.socket as tls.TLSSocket | null)?.authorizationError;
      if (rejected) return reject(certificateRejected(this.url.host, rejected, error));
      // A kept connection that the server had closed: the call is sent again if that is safe.
      const Kind = wasSent ? OutcomeUnknown : ConnectionFailed;
      reject(new Kind(`${wasSent ? "the connection broke" : "cannot reach the server"}: ${this.url.host}: ${error.message}`));
    });
    request.on("response", (reply) => {
      const pieces: Buffer[] = [];
      reply.on("data", (piece: Buffer) => pieces.push(piece));
      reply.on("error", (error) => reject(new OutcomeUnknown(`the reply broke off: ${error.message}`)));
      reply.on("end", () => {
        try {
          resolve(result<T>(this.url.host, reply.statusCode ?? 0, Buffer.concat(pieces).toString()));
        } catch (error) {
          reject(error);
        }
      });
    });
    request.end(body);
    return promise;
  }
}

function parse(text: string): URL {
  const url = URL.canParse(text.includes("://") ? text : `http://${text}`)
    ? new URL(text.includes("://") ? text : `http://${text}`)
    : undefined;
  if (!url || !["http:", "https:"].includes(url.protocol) || !url.hostname) {
    throw new TypeError(`a server is HOST, HOST:PORT or a URL of http or https. value=\`${text}\``);
  }
  if (!url.port && !/:(80|443)(\/|$)/.test(text)) url.port = String(PORT);
  return url;
}

/** The certificates that the variable `FOREBAY_CA` names. */
function authorities(): { ca?: Buffer } {
  const file = process.env.FOREBAY_CA;
  if (!file) return {};
  try {
    const ca = fs.readFileSync(file);
    if (ca.includes("-----BEGIN CERTIFICATE-----")) return { ca };
  } catch {
    // Told below.
  }
  throw new TypeError(`FOREBAY_CA must name a file with certificates in PEM. value=\`${file}\``);
}

function certificateRejected(host: string, code: Error | string, error: Error): CertificateRejected {
  const isUnknown = UNKNOWN_ISSUER.has(String(code));
  const advice = isUnknown ? ". FOREBAY_CA names a file with the certificates by which the server is recognised" : "";
  return new CertificateRejected(`cannot reach the server: ${host}: invalid certificate: ${error.message}${advice}`);
}

function result<T>(host: string, status: number, text: string): T {
  let document: unknown;
  let isJson = true;
  try {
    document = text ? JSON.parse(text) : undefined;
  } catch {
    isJson = false;
  }
  if (status >= 200 && status < 300 && isJson) return document as T;
  if (typeof document === "object" && document !== null && "type" in document) {
    throw new Problem(status, document as ProblemDocument);
  }
  const shown = text.slice(0, 200).trim();
  // Perhaps a proxy that does not reach the server.
  if (status >= 500 || status === 429) throw new Problem(status, { detail: `unexpected reply of ${host}: ${shown}` });
  throw new Problem(status, {
    detail:
      `the server at ${host} is not the HTTP API of Forebay, which is on port ${PORT} unless \`listen\` says otherwise. ` +
      `status=\`${status}\` answer=\`${shown}\``,
  });
}

/** For how many milliseconds to wait before a call is sent again; `undefined` if it must not be. */
export function pauseBeforeRetry(call: Call, error: unknown, tries: number): number | undefined {
  const backoff = Math.min(PAUSE_MAX, PAUSE_MIN * 2 ** Math.min(tries, 10)) * (0.5 + Math.random() / 2);
  if (error instanceof Problem) {
    if (error.document.retry === "later") return Math.max(backoff, (error.document.retry_after ?? 0) * 1000);
    return error.document.retry === "same_id" && call.isSafe ? backoff : undefined;
  }
  if (error instanceof CertificateRejected) return undefined;
  if (error instanceof ConnectionFailed) return backoff;
  return error instanceof ForebayError && call.isSafe ? backoff : undefined;
}

export function sleep(milliseconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, milliseconds);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

export function withResolvers<T>(): {
  promise: Promise<T>;
  resolve: (value: T) => void;
  reject: (reason: unknown) => void;
} {
  let resolve!: (value: T) => void;
  let reject!: (reason: unknown) => void;
  const promise = new Promise<T>((yes, no) => {
    resolve = yes;
    reject = no;
  });
  return { promise, resolve, reject };
}
