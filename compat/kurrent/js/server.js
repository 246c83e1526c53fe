// A server for the tests of one file. FOREBAY_BIN names the program.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

async function freePort() {
  const probe = createServer().listen(0, "127.0.0.1");
  await once(probe, "listening");
  const { port } = probe.address();
  probe.close();
  await once(probe, "close");
  return port;
}

export async function startServer() {
  const folder = await mkdtemp(join(tmpdir(), "forebay-kurrent-"));
  const port = await freePort();
  const words = ["serve", "--data", join(folder, "data"), "--listen", "127.0.0.1:0", "--sqs", "none"];
  words.push("--kurrent", `127.0.0.1:${port}`, "--drain-timeout", "1s");
  const program = spawn(process.env.FOREBAY_BIN, words, { stdio: "ignore" });
  const deadline = Date.now() + 60_000;
  for (;;) {
    try {
      await fetch(`http://127.0.0.1:${port}/health/live`);
      break;
    } catch (error) {
      if (program.exitCode !== null || Date.now() > deadline) throw error;
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }
  return {
    url: `kurrentdb://127.0.0.1:${port}?tls=false`,
    async stop() {
      program.kill("SIGTERM");
      await once(program, "exit");
      await rm(folder, { recursive: true });
    },
  };
}
