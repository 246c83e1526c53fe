import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import net from "node:net";
import readline from "node:readline";

const STARTS_WITHIN = 30_000;

/**
 * A real server for tests: a process on a free port of this machine, with a data folder or in memory. The program is the
 * one that `FOREBAY_BIN` names, or `forebay` of the PATH.
 */
export class Server {
  private process: ChildProcess | undefined;

  private constructor(
    readonly port: number,
    private readonly folder: string | undefined,
    private readonly options: readonly string[],
  ) {}

  /** `options` are further flags of `forebay serve`. */
  static async start(folder?: string, options: readonly string[] = []): Promise<Server> {
    const server = new Server(await freePort(), folder, options);
    await server.start();
    return server;
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  /** Starts the server again, on the same port. */
  async start(): Promise<void> {
    const where = this.folder === undefined ? ["--memory"] : ["--data", this.folder];
    const words = ["serve", ...where, "--listen", `127.0.0.1:${this.port}`, "--sqs", "none", "--kurrent", "none", "--log", "json", ...this.options];
    const child = spawn(process.env.FOREBAY_BIN ?? "forebay", words, { stdio: ["ignore", "ignore", "pipe"] });
    this.process = child;
    const said: string[] = [];
    await new Promise<void>((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`the server did not start:\n${said.join("\n")}`)), STARTS_WITHIN);
      const end = (error?: Error) => {
        clearTimeout(timer);
        if (error) reject(error);
        else resolve();
      };
      child.once("error", end);
      child.once("exit", () => end(new Error(`the server did not start:\n${said.join("\n")}`)));
      // Read to the end, so that the server never waits for us.
      readline.createInterface({ input: child.stderr as NodeJS.ReadableStream }).on("line", (line) => {
        if (said.length < 100) said.push(line);
        if (line.includes('"listening on')) end();
      });
    });
  }

  /** Stops the server with SIGTERM. */
  stop(): Promise<void> {
    return this.end("SIGTERM");
  }

  /** Kills the server with SIGKILL, as a crash would. */
  kill(): Promise<void> {
    return this.end("SIGKILL");
  }

  private async end(signal: NodeJS.Signals): Promise<void> {
    const child = this.process;
    this.process = undefined;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    const exited = once(child, "exit");
    child.kill(signal);
    await exited;
  }
}

async function freePort(): Promise<number> {
  const probe = net.createServer().listen(0, "127.0.0.1");
  await once(probe, "listening");
  const { port } = probe.address() as net.AddressInfo;
  probe.close();
  await once(probe, "close");
  return port;
}
