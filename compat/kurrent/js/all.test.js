// The official client of KurrentDB for Node.js: all streams.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, before, test } from "node:test";

import {
  BACKWARDS,
  END,
  KurrentDBClient,
  START,
  eventTypeFilter,
  jsonEvent,
  streamNameFilter,
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
const event = (n, type = "Tested") => jsonEvent({ type, data: { n } });

async function numbers(events) {
  const found = [];
  for await (const { event: one } of events) found.push(one.data.n);
  return found;
}

test("all streams are read in both directions", async () => {
  const stream = name();
  await client.appendToStream(stream, [event(0), event(1)]);
  await client.appendToStream(`${stream}-b`, event(2));
  const back = { direction: BACKWARDS, fromPosition: END };
  assert.deepEqual(await numbers(client.readAll({ ...back, maxCount: 3 })), [2, 1, 0]);
  assert.deepEqual(await numbers(client.readAll({ fromPosition: START, maxCount: 3 })), [0, 1, 2]);
});

test("a subscription is filtered by the names of streams", async () => {
  const stream = name();
  const filter = streamNameFilter({ prefixes: [stream] });
  await client.appendToStream(name(), event(7));
  await client.appendToStream(`${stream}-a`, event(0));
  const subscription = client.subscribeToAll({ fromPosition: START, filter });
  const found = [];
  for await (const { event: one } of subscription) {
    found.push(one.data.n);
    if (found.length === 1) await client.appendToStream(`${stream}-b`, event(1));
    if (found.length === 2) break;
  }
  assert.deepEqual(found, [0, 1]);
  await subscription.unsubscribe();
});

test("a subscription says how far it has looked", async () => {
  const type = `Type-${randomUUID()}`;
  const { position } = await client.appendToStream(name(), event(0, "Other"));
  const checkpoint = new Promise((resolve) => {
    const filter = eventTypeFilter({
      regex: `^${type}`,
      checkpointInterval: 1,
      maxSearchWindow: 1,
      checkpointReached: (_, at) => at.commit >= position.commit && resolve(at),
    });
    const subscription = client.subscribeToAll({ fromPosition: START, filter });
    subscription.on("data", () => {});
    after(() => subscription.unsubscribe());
  });
  assert.ok((await checkpoint).commit >= position.commit);
});
