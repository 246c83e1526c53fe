// The official client of KurrentDB for Node.js: streams. Its reads go through a module in Rust, the client for Rust.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, before, test } from "node:test";

import {
  ANY,
  BACKWARDS,
  END,
  KurrentDBClient,
  MaxAppendSizeExceededError,
  NO_STREAM,
  STREAM_EXISTS,
  START,
  StreamDeletedError,
  StreamNotFoundError,
  WrongExpectedVersionError,
  binaryEvent,
  jsonEvent,
} from "@kurrent/kurrentdb-client";

import { startServer } from "./server.js";

let server;
let client;

before(async () => {
  server = await startServer();
  client = KurrentDBClient.connectionString(server.url);
});

after(async () => {
  await client.dispose();
  await server.stop();
});

const name = () => `stream-${randomUUID()}`;
const event = (n = 0) => jsonEvent({ type: "Tested", data: { n }, metadata: { m: n } });
const events = (count) => Array.from({ length: count }, (_, n) => event(n));

async function read(stream, options) {
  const found = [];
  for await (const resolved of client.readStream(stream, options)) found.push(resolved);
  return found;
}

const numbers = (found) => found.map(({ event }) => event.data.n);

test("events come back as they were appended", async () => {
  const stream = name();
  const binary = binaryEvent({ type: "Binary", data: Buffer.from([0, 255]) });
  const sent = [event(1), binary];
  const result = await client.appendToStream(stream, sent, { streamState: NO_STREAM });
  assert.equal(result.nextExpectedRevision, 1n);
  assert.equal(result.success, true);
  const found = await read(stream, { direction: "forwards", fromRevision: START });
  assert.deepEqual(found.map(({ event }) => event.id), sent.map(({ id }) => id));
  assert.deepEqual(found[0].event.data, { n: 1 });
  assert.deepEqual(found[0].event.metadata, { m: 1 });
  assert.deepEqual([...found[1].event.data], [0, 255]);
  assert.deepEqual(found.map(({ event }) => event.revision), [0n, 1n]);
});

test("every expected revision is checked", async () => {
  const stream = name();
  const append = (streamState) => client.appendToStream(stream, event(), { streamState });
  await assert.rejects(append(0n), WrongExpectedVersionError);
  await assert.rejects(append(STREAM_EXISTS), WrongExpectedVersionError);
  await append(NO_STREAM);
  await assert.rejects(append(NO_STREAM), WrongExpectedVersionError);
  await append(0n);
  await assert.rejects(append(0n), (error) => {
    assert.ok(error instanceof WrongExpectedVersionError);
    assert.equal(error.actualState, 1n);
    return true;
  });
  await append(STREAM_EXISTS);
  assert.equal((await append(ANY)).nextExpectedRevision, 3n);
});

test("a repeated write is answered as the first time", async () => {
  const stream = name();
  const sent = events(3);
  for (const streamState of [NO_STREAM, NO_STREAM]) {
    const { nextExpectedRevision } = await client.appendToStream(stream, sent, { streamState });
    assert.equal(nextExpectedRevision, 2n);
  }
  assert.equal((await read(stream)).length, 3);
});

test("appends that are too large are refused by name", async () => {
  const large = binaryEvent({ type: "Large", data: Buffer.alloc(10 << 20) });
  await assert.rejects(client.appendToStream(name(), large), MaxAppendSizeExceededError);
});

test("a stream is read in both directions", async () => {
  const stream = name();
  await client.appendToStream(stream, events(10));
  assert.deepEqual(numbers(await read(stream, { fromRevision: 7n })), [7, 8, 9]);
  assert.deepEqual(numbers(await read(stream, { fromRevision: 7n, maxCount: 2 })), [7, 8]);
  const back = { direction: BACKWARDS, fromRevision: END };
  assert.deepEqual(numbers(await read(stream, { ...back, maxCount: 2 })), [9, 8]);
  assert.deepEqual(numbers(await read(stream, { ...back, fromRevision: 1n })), [1, 0]);
  await assert.rejects(read(name()), StreamNotFoundError);
});

test("a subscription gets old and new events, and says when it has caught up", async () => {
  const stream = name();
  await client.appendToStream(stream, events(2));
  const subscription = client.subscribeToStream(stream, { fromRevision: START });
  const caughtUp = new Promise((resolve) => subscription.once("caughtUp", resolve));
  const found = [];
  for await (const { event: one } of subscription) {
    found.push(one.data.n);
    if (found.length === 2) {
      await caughtUp;
      await client.appendToStream(stream, event(2));
    }
    if (found.length === 3) break;
  }
  assert.deepEqual(found, [0, 1, 2]);
  await subscription.unsubscribe();
});

test("deleted streams can be written again, and tombstones cannot", async () => {
  const stream = name();
  await client.appendToStream(stream, events(2));
  await assert.rejects(client.deleteStream(stream, { expectedRevision: 7n }), WrongExpectedVersionError);
  await client.deleteStream(stream, { expectedRevision: 1n });
  await assert.rejects(read(stream), StreamNotFoundError);
  const { nextExpectedRevision } = await client.appendToStream(stream, event(2), { streamState: NO_STREAM });
  assert.equal(nextExpectedRevision, 2n);
  await client.tombstoneStream(stream);
  await assert.rejects(read(stream), StreamDeletedError);
  await assert.rejects(client.appendToStream(stream, event()), StreamDeletedError);
});

test("metadata limits a stream", async () => {
  const stream = name();
  await client.setStreamMetadata(stream, { maxCount: 2, acl: { readRoles: ["a"] }, own: 1 });
  await client.appendToStream(stream, events(5));
  assert.deepEqual(numbers(await read(stream)), [3, 4]);
  const { metadata } = await client.getStreamMetadata(stream);
  assert.equal(metadata.maxCount, 2);
  assert.equal(metadata.own, 1);
});
