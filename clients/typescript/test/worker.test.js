// The worker: what becomes of messages, leases, shutdown, kills.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

import { Client, Permanent, Problem, RetryAfter, Skip, Snooze, Throttled, Worker } from "../dist/index.js";
import { Server } from "../dist/testing.js";

const QUICK = { max_retries: 3, backoff: { min: "1ms", max: "10ms" } };
const JOBS = Number(process.env.FOREBAY_TEST_JOBS ?? 3000);
const KILLS = Number(process.env.FOREBAY_TEST_KILLS ?? 3);

let server, client;
let streams = 0;
const fresh = () => `jobs-${(streams += 1)}`;
const workerOf = (stream, more = {}) =>
  new Worker(stream, "g", { server: server.url, ensureGroup: QUICK, log: () => {}, ...more });
const run = (worker) => worker.run({ idle: 0.3, signals: false });

before(async () => {
  server = await Server.start();
  client = new Client(server.url);
});

after(async () => {
  client.close();
  await server.stop();
});

async function reasons(stream) {
  const found = [];
  for await (const one of client.parked(stream, "g")) found.push(one.reason);
  return found.sort();
}

test("handlers are found by type", async () => {
  const stream = fresh();
  const seen = [];
  for (const type of ["a", "b", undefined]) await client.publish(stream, type ?? "none", type ? { type } : {});
  const stats = await run(workerOf(stream).on("a", (job) => void seen.push(job.body)));
  assert.deepEqual(seen, ["a"]);
  assert.deepEqual([stats.acked, stats.parked], [1, 2]);
  assert.deepEqual(await reasons(stream), ["no handler for messages without a type", "no handler for the type `b`"]);
});

test("faults say what becomes of a message", async () => {
  const stream = fresh();
  const first = {
    permanent: new Permanent("bad address"),
    skip: new Skip("not ours"),
    retryAfter: new RetryAfter(0.05, "busy"),
    snooze: new Snooze(0.05),
    throttled: new Throttled(0.05),
    error: new Error("boom"),
  };
  const tries = {};
  const worker = workerOf(stream).onAny(async (job) => {
    tries[job.body] = (tries[job.body] ?? 0) + 1;
    if (tries[job.body] === 1) throw first[job.body];
    assert.equal(job.attempt, ["retryAfter", "error"].includes(job.body) ? 2 : 1);
  });
  for (const name of Object.keys(first)) await client.publish(stream, name);
  const stats = await run(worker);
  const counts = [stats.acked, stats.parked, stats.skipped, stats.retried, stats.returned];
  assert.deepEqual(counts, [4, 1, 1, 2, 2]);
  assert.deepEqual(await reasons(stream), ["bad address"]);
});

test("a message that always fails is parked with the error", async () => {
  const stream = fresh();
  await client.publish(stream, 1);
  const stats = await run(
    workerOf(stream).onAny(() => {
      throw new TypeError("ü".repeat(1000));
    }),
  );
  assert.deepEqual([stats.retried, stats.parked], [3, 1]);
  const [reason] = await reasons(stream);
  assert.ok(reason.startsWith("TypeError: üü") && Buffer.byteLength(reason) <= 512, reason);
});

test("leases are renewed while a handler runs", async () => {
  const stream = fresh();
  const attempts = [];
  await client.publish(stream, 1);
  const worker = workerOf(stream, { lease: 1 }).onAny(async (job) => {
    attempts.push(job.attempt);
    await sleep(2500);
    assert.equal(job.isCancelled, false);
  });
  const stats = await worker.run({ idle: 0.5, signals: false });
  assert.deepEqual([attempts, stats.acked, stats.late], [[1], 1, 0]);
});

test("as many jobs run as allowed", async () => {
  const stream = fresh();
  let now = 0;
  let most = 0;
  await client.publishBatch(stream, Array.from({ length: 12 }, (_, n) => ({ body: n })));
  const worker = workerOf(stream, { concurrency: 3 }).onAny(async () => {
    most = Math.max(most, (now += 1));
    await sleep(30);
    now -= 1;
  });
  assert.deepEqual([(await run(worker)).acked, most], [12, 3]);
});

test("a stop finishes running jobs and returns the others", async () => {
  const stream = fresh();
  const done = [];
  await client.publishBatch(stream, Array.from({ length: 4 }, (_, n) => ({ body: n })));
  const worker = workerOf(stream, { concurrency: 1, prefetch: 5 }).onAny(async (job) => {
    worker.stop();
    await sleep(300);
    done.push(job.message.seq);
  });
  const stats = await worker.run({ signals: false });
  assert.deepEqual([done, stats.acked, stats.returned], [[1], 1, 3]);
  const again = await client.receive(stream, "g", { max: 10, wait: 5 });
  assert.deepEqual(again.map((one) => [one.seq, one.attempt]), [[2, 1], [3, 1], [4, 1]]);
});

test("a job that does not end is returned", async () => {
  const stream = fresh();
  await client.publish(stream, 1);
  let wasTold = false;
  const worker = workerOf(stream, { shutdownWithin: 0.2 }).onAny(async (job) => {
    worker.stop();
    await new Promise((resolve) => job.signal.addEventListener("abort", resolve));
    wasTold = true;
  });
  assert.equal((await worker.run({ signals: false })).returned, 1);
  assert.equal(wasTold, true);
  assert.equal((await client.receive(stream, "g", { wait: 5 }))[0].attempt, 1);
});

test("mistakes are told at once", async () => {
  assert.throws(() => new Worker("s", "g", { concurrency: 0 }), /concurrency must be at least 1/);
  assert.throws(() => new Worker("s", "g", { lease: 0.5 }), /lease must be at least 1 second/);
  const none = new Worker(fresh(), "g", { server: server.url });
  await assert.rejects(none.run(), /no handler/);
  const isMissing = (error) => error instanceof Problem && error.isNotFound;
  await assert.rejects(none.onAny(() => {}).run({ signals: false }), isMissing);
  // A group that goes while the worker runs ends it.
  const stream = fresh();
  const working = workerOf(stream).onAny(() => {}).run({ signals: false });
  while (((await client.group(stream, "g").catch(() => ({}))).consumer_count ?? 0) === 0) await sleep(20);
  await Promise.all([assert.rejects(working, isMissing), client.deleteGroup(stream, "g")]);
});

test("every job is done whatever is killed", async () => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "forebay-killed-"));
  const notes = path.join(folder, "notes");
  const mortal = await Server.start(path.join(folder, "data"));
  const producer = new Client(mortal.url);
  const running = [];
  const killed = new Set();
  const start = () => {
    const program = fileURLToPath(new URL("killed-worker.js", import.meta.url));
    running.push(spawn(process.execPath, [program, mortal.url, notes], { stdio: "ignore" }));
  };
  try {
    await producer.createGroup("jobs", "g", { max_retries: 1000, acks: "durable" });
    start();
    start();
    const shares = 2 * KILLS + 1;
    for (let share = 0; share < shares; share += 1) {
      const from = Math.floor((share * JOBS) / shares);
      const to = Math.floor(((share + 1) * JOBS) / shares);
      await producer.publishBatch("jobs", Array.from({ length: to - from }, (_, n) => ({ body: from + n })));
      await sleep(Math.random() * 300);
      if (share === shares - 1) break;
      if (share % 2 === 0) {
        const worker = running.shift();
        worker.kill("SIGKILL");
        await once(worker, "exit");
        killed.add(worker.pid);
        start();
      } else {
        await mortal.kill();
        await mortal.start();
      }
    }
    const until = Date.now() + 60_000 + JOBS * 20;
    while ((await producer.group("jobs", "g")).lag > 0 && Date.now() < until) await sleep(100);
    const group = await producer.group("jobs", "g");
    assert.deepEqual([group.lag, group.in_flight, group.parked], [0, 0, 0]);
  } finally {
    for (const worker of running) worker.kill("SIGTERM");
    await Promise.all(running.map((worker) => worker.exitCode ?? worker.signalCode ?? once(worker, "exit")));
    producer.close();
    await mortal.stop();
  }
  const runs = new Map();
  for (const line of fs.readFileSync(notes, "utf8").trim().split("\n")) {
    const [job, pid] = line.split(" ").map(Number);
    runs.set(job, [...(runs.get(job) ?? []), pid]);
  }
  assert.equal(runs.size, JOBS, "jobs were not done");
  // Of the runs of a job, all but the last were by processes that were killed before they had acked it.
  const wrong = [...runs].filter(([, pids]) => !pids.slice(0, -1).every((pid) => killed.has(pid)));
  assert.deepEqual(wrong, []);
  fs.rmSync(folder, { recursive: true });
});

test("the log says what becomes of a failed message", async () => {
  const stream = fresh();
  const said = [];
  const worker = workerOf(stream, { ensureGroup: { ...QUICK, max_retries: 1 }, log: (text) => said.push(text) });
  worker.on("raises", () => {
    throw new Error("boom");
  });
  worker.on("asks", () => {
    throw new RetryAfter(0.01, "busy");
  });
  worker.on("refuses", () => {
    throw new Permanent("bad address");
  });
  for (const type of ["raises", "asks", "refuses", "unknown"]) await client.publish(stream, 1, { type });
  await run(worker);
  assert.deepEqual(said.sort(), [
    `message 1 of ${stream} failed: attempt 1 of 2, will be retried: Error: boom`,
    `message 1 of ${stream} failed: attempt 2 of 2, parked: Error: boom`,
    `message 2 of ${stream} failed: attempt 2 of 2, parked: RetryAfter: busy`,
    `message 4 of ${stream} failed: attempt 1 of 2, parked: no handler for the type \`unknown\``,
  ]);
});

test("a group that exists keeps its settings, and the worker says so", async () => {
  const stream = fresh();
  const said = [];
  await client.createGroup(stream, "g", { max_retries: 2 });
  const worker = (max_retries) => workerOf(stream, { ensureGroup: { max_retries }, log: (text) => said.push(text) });
  await run(worker(2).onAny(() => {}));
  assert.deepEqual(said, []);
  await run(worker(7).onAny(() => {}));
  const why = `max_retries of the existing group ${stream}/g has another value. value=\`2\` requested=\`7\``;
  assert.deepEqual(said, [`\`ensureGroup\` changes nothing, because the group exists: ${why}`]);
  assert.equal((await client.group(stream, "g")).settings.max_retries, 2);
});
