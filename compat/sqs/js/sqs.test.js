// The AWS SDK for JavaScript, version 3, against the server that FOREBAY_TEST_SQS names.
//
// The SDK looks at the digest of every body by itself, and throws if it is wrong.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, test } from "node:test";

import {
  BatchEntryIdsNotDistinct,
  ChangeMessageVisibilityBatchCommand,
  ChangeMessageVisibilityCommand,
  CreateQueueCommand,
  DeleteMessageBatchCommand,
  DeleteMessageCommand,
  DeleteQueueCommand,
  EmptyBatchRequest,
  GetQueueAttributesCommand,
  GetQueueUrlCommand,
  InvalidAttributeName,
  InvalidMessageContents,
  ListQueuesCommand,
  QueueDoesNotExist,
  QueueNameExists,
  ReceiptHandleIsInvalid,
  ReceiveMessageCommand,
  ResourceNotFoundException,
  SendMessageBatchCommand,
  SendMessageCommand,
  SQSClient,
  SQSServiceException,
  StartMessageMoveTaskCommand,
  TooManyEntriesInBatchRequest,
} from "@aws-sdk/client-sqs";

const endpoint = process.env.FOREBAY_TEST_SQS;
assert.ok(endpoint, "FOREBAY_TEST_SQS must name the server, as in http://127.0.0.1:9324");

const settings = {
  region: "us-east-1",
  credentials: { accessKeyId: "test", secretAccessKey: "test" },
  maxAttempts: 1,
};
const sqs = new SQSClient({ ...settings, endpoint });
const urls = [];

after(async () => {
  for (const QueueUrl of urls) {
    await sqs.send(new DeleteQueueCommand({ QueueUrl })).catch((error) => {
      if (!(error instanceof QueueDoesNotExist)) throw error;
    });
  }
  sqs.destroy();
});

async function queue(Attributes) {
  const QueueName = `compat-js-${randomUUID()}${Attributes?.FifoQueue ? ".fifo" : ""}`;
  const { QueueUrl } = await sqs.send(new CreateQueueCommand({ QueueName, Attributes }));
  urls.push(QueueUrl);
  return QueueUrl;
}

async function receive(QueueUrl, more = {}, client = sqs) {
  const command = new ReceiveMessageCommand({ QueueUrl, MaxNumberOfMessages: 10, WaitTimeSeconds: 1, ...more });
  return (await client.send(command)).Messages ?? [];
}

const nameOf = (url) => url.split("/").at(-1);

test("a message is sent, received and deleted", async () => {
  const QueueUrl = await queue();
  const body = 'a\r\nü€😀 <&> "quoted"';
  const sent = await sqs.send(new SendMessageCommand({ QueueUrl, MessageBody: body }));
  const [message] = await receive(QueueUrl);
  assert.equal(message.MessageId, sent.MessageId);
  assert.equal(message.Body, body);
  await sqs.send(new DeleteMessageCommand({ QueueUrl, ReceiptHandle: message.ReceiptHandle }));
  assert.deepEqual(await receive(QueueUrl), []);
});

test("attributes arrive as they were sent, with the known digests", async () => {
  const QueueUrl = await queue();
  const MessageAttributes = {
    General: { DataType: "String", StringValue: "Kenobi" },
    Hello: { DataType: "String", StringValue: "There" },
    "Help.Me": { DataType: "String", StringValue: "Me" },
  };
  const sent = await sqs.send(new SendMessageCommand({ QueueUrl, MessageBody: "b", MessageAttributes }));
  assert.equal(sent.MD5OfMessageAttributes, "4c360f3fdafd970e05fae2f149d997f5");
  const [message] = await receive(QueueUrl, {
    MessageAttributeNames: ["All"],
    MessageSystemAttributeNames: ["All"],
  });
  assert.deepEqual(message.MessageAttributes, MessageAttributes);
  assert.equal(message.MD5OfMessageAttributes, sent.MD5OfMessageAttributes);
  assert.equal(message.Attributes.ApproximateReceiveCount, "1");

  const bytes = { DataType: "Binary.png", BinaryValue: Uint8Array.of(0, 1, 254, 255) };
  const number = { DataType: "Number", StringValue: "-1.50" };
  const mixed = { bytes, number };
  await sqs.send(new SendMessageCommand({ QueueUrl, MessageBody: "b", MessageAttributes: mixed }));
  const [second] = await receive(QueueUrl, { MessageAttributeNames: [".*"] });
  assert.deepEqual(second.MessageAttributes, mixed);
});

test("batches tell of each entry", async () => {
  const QueueUrl = await queue();
  const Entries = Array.from({ length: 10 }, (_, n) => ({ Id: `e${n}`, MessageBody: `m${n}` }));
  Entries[3].MessageBody = "\u0001";
  const sent = await sqs.send(new SendMessageBatchCommand({ QueueUrl, Entries }));
  assert.equal(sent.Successful.length, 9);
  assert.deepEqual(
    sent.Failed.map(({ Id, Code, SenderFault }) => [Id, Code, SenderFault]),
    [["e3", "InvalidMessageContents", true]],
  );

  const messages = [];
  while (messages.length < 9) messages.push(...(await receive(QueueUrl)));
  const handles = messages.map(({ ReceiptHandle }, n) => ({ Id: `${n}`, ReceiptHandle }));
  const released = await sqs.send(
    new ChangeMessageVisibilityBatchCommand({
      QueueUrl,
      Entries: handles.slice(0, 2).map((entry) => ({ ...entry, VisibilityTimeout: 0 })),
    }),
  );
  assert.equal(released.Successful.length, 2);
  assert.equal(released.Failed, undefined);
  const deleted = await sqs.send(new DeleteMessageBatchCommand({ QueueUrl, Entries: handles.slice(2) }));
  assert.equal(deleted.Successful.length, 7);
  assert.equal((await receive(QueueUrl)).length, 2);
});

test("a group of a FIFO queue is in order, and waits while one of it is held", async () => {
  const QueueUrl = await queue({ FifoQueue: "true", ContentBasedDeduplication: "true" });
  const send = (MessageBody, MessageGroupId) =>
    sqs.send(new SendMessageCommand({ QueueUrl, MessageBody, MessageGroupId }));
  const first = await send("a1", "a");
  const again = await send("a1", "a");
  assert.equal(again.MessageId, first.MessageId);
  assert.equal(again.SequenceNumber, first.SequenceNumber);
  await send("a2", "a");
  await send("b1", "b");
  const one = { MaxNumberOfMessages: 1, MessageSystemAttributeNames: ["MessageGroupId"] };
  const [held] = await receive(QueueUrl, one);
  assert.deepEqual([held.Body, held.Attributes.MessageGroupId], ["a1", "a"]);
  assert.deepEqual((await receive(QueueUrl)).map(({ Body }) => Body), ["b1"]);
  await sqs.send(new DeleteMessageCommand({ QueueUrl, ReceiptHandle: held.ReceiptHandle }));
  assert.deepEqual((await receive(QueueUrl)).map(({ Body }) => Body), ["a2"]);
});

test("a message that is let go of is visible at once", async () => {
  const QueueUrl = await queue();
  await sqs.send(new SendMessageCommand({ QueueUrl, MessageBody: "b" }));
  const [{ ReceiptHandle }] = await receive(QueueUrl);
  await sqs.send(new ChangeMessageVisibilityCommand({ QueueUrl, ReceiptHandle, VisibilityTimeout: 0 }));
  const [again] = await receive(QueueUrl, { MessageSystemAttributeNames: ["ApproximateReceiveCount"] });
  assert.equal(again.Attributes.ApproximateReceiveCount, "2");
});

test("a wait ends when a message arrives", async () => {
  const QueueUrl = await queue();
  const since = Date.now();
  const waiting = receive(QueueUrl, { WaitTimeSeconds: 20 });
  await new Promise((resolve) => setTimeout(resolve, 300));
  await sqs.send(new SendMessageCommand({ QueueUrl, MessageBody: "b" }));
  assert.equal((await waiting).length, 1);
  assert.ok(Date.now() - since < 15_000);
});

test("a queue is found by its name, in lists and by its attributes", async () => {
  const QueueUrl = await queue({ VisibilityTimeout: "7" });
  const QueueName = nameOf(QueueUrl);
  assert.equal((await sqs.send(new GetQueueUrlCommand({ QueueName }))).QueueUrl, QueueUrl);
  const listed = await sqs.send(new ListQueuesCommand({ QueueNamePrefix: QueueName }));
  assert.deepEqual(listed.QueueUrls, [QueueUrl]);
  const command = new GetQueueAttributesCommand({ QueueUrl, AttributeNames: ["All"] });
  const { Attributes } = await sqs.send(command);
  assert.equal(Attributes.VisibilityTimeout, "7");
  assert.ok(Attributes.QueueArn.endsWith(`:${QueueName}`));
});

test("errors have the classes of the SDK", async () => {
  const QueueUrl = await queue();
  const fifo = await queue({ FifoQueue: "true" });
  const entries = (...ids) => ids.map((Id) => ({ Id, MessageBody: "b" }));
  const eleven = entries(...Array.from({ length: 11 }, (_, n) => `${n}`));
  const source = "arn:aws:sqs:us-east-1:000000000000:compat-js-nothing";
  const nowhere = `${QueueUrl}-nothing`;
  const cases = [
    [new GetQueueUrlCommand({ QueueName: nameOf(nowhere) }), QueueDoesNotExist, 400],
    [new SendMessageCommand({ QueueUrl: nowhere, MessageBody: "b" }), QueueDoesNotExist, 400],
    [
      new CreateQueueCommand({ QueueName: nameOf(QueueUrl), Attributes: { DelaySeconds: "5" } }),
      QueueNameExists,
      400,
    ],
    [new GetQueueAttributesCommand({ QueueUrl, AttributeNames: ["Nothing"] }), InvalidAttributeName, 400],
    [new SendMessageCommand({ QueueUrl, MessageBody: "\u0001" }), InvalidMessageContents, 400],
    [new SendMessageBatchCommand({ QueueUrl, Entries: [] }), EmptyBatchRequest, 400],
    [new SendMessageBatchCommand({ QueueUrl, Entries: eleven }), TooManyEntriesInBatchRequest, 400],
    [new SendMessageBatchCommand({ QueueUrl, Entries: entries("a", "a") }), BatchEntryIdsNotDistinct, 400],
    [new DeleteMessageCommand({ QueueUrl, ReceiptHandle: "nothing" }), ReceiptHandleIsInvalid, 400],
    [new StartMessageMoveTaskCommand({ SourceArn: source }), ResourceNotFoundException, 404],
  ];
  for (const [command, kind, status] of cases) {
    await assert.rejects(sqs.send(command), (error) => {
      assert.ok(error instanceof kind, `${error.name} is not ${kind.name}: ${error.message}`);
      assert.equal(error.name, kind.name);
      assert.equal(error.$metadata.httpStatusCode, status);
      assert.equal(error.$fault, "client");
      assert.ok(error.message && error.$metadata.requestId);
      return true;
    });
  }

  // Those that the model does not know go by the code of the older protocol.
  const others = [
    [new SendMessageCommand({ QueueUrl, MessageBody: "b", DelaySeconds: 901 }), "InvalidParameterValue"],
    [new SendMessageCommand({ QueueUrl: fifo, MessageBody: "b" }), "MissingParameter"],
  ];
  for (const [command, code] of others) {
    await assert.rejects(sqs.send(command), (error) => {
      assert.ok(error instanceof SQSServiceException);
      assert.equal(error.Code ?? error.Error?.Code ?? error.name, code);
      return true;
    });
  }
});

test("without an endpoint, calls go to the host of the queue's address", async () => {
  const QueueUrl = await queue();
  const warnings = [];
  const silent = () => {};
  const logger = { trace: silent, debug: silent, info: silent, error: silent, warn: (text) => warnings.push(text) };
  const client = new SQSClient({ ...settings, logger, useQueueUrlAsEndpoint: true });
  await client.send(new SendMessageCommand({ QueueUrl, MessageBody: "b" }));
  const [message] = await receive(QueueUrl, {}, client);
  assert.equal(message.Body, "b");
  await client.send(new DeleteMessageCommand({ QueueUrl, ReceiptHandle: message.ReceiptHandle }));
  client.destroy();
  assert.ok(warnings.every((text) => `${text}`.includes("using QueueUrl host as endpoint")));
});

test("many calls at once over few connections", async () => {
  const QueueUrl = await queue();
  const send = (n) => sqs.send(new SendMessageCommand({ QueueUrl, MessageBody: `m${n}` }));
  await Promise.all(Array.from({ length: 200 }, (_, n) => send(n)));
  const seen = new Set();
  while (seen.size < 200) {
    const batches = await Promise.all(Array.from({ length: 5 }, () => receive(QueueUrl)));
    const messages = batches.flat();
    assert.ok(messages.length > 0, `${seen.size} messages came, of 200`);
    for (const { Body } of messages) {
      assert.ok(!seen.has(Body), `${Body} came twice`);
      seen.add(Body);
    }
  }
});
