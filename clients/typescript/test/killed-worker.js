// A worker that the test kills. It notes each job that it has done in a file, before the job is acked.

import fs from "node:fs";

import { Worker } from "../dist/index.js";

const [url, notes] = process.argv.slice(2);
const file = fs.openSync(notes, "a");
const worker = new Worker("jobs", "g", { server: url, concurrency: 16, lease: 5 });
worker.onAny((job) => void fs.writeSync(file, `${job.body} ${process.pid}\n`));
await worker.run();
