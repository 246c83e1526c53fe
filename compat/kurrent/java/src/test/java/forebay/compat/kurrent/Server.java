package forebay.compat.kurrent;

import io.kurrent.dbclient.AppendToStreamOptions;
import io.kurrent.dbclient.EventData;
import io.kurrent.dbclient.KurrentDBClient;
import io.kurrent.dbclient.KurrentDBConnectionString;
import io.kurrent.dbclient.StreamState;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.ServerSocket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Comparator;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Predicate;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/** A server with a data folder, which keeps its addresses when it is started again. FOREBAY_BIN names the program. */
final class Server implements AutoCloseable {
    /** Longer than anything here takes. */
    static final long PATIENCE_SECONDS = 30;

    private static final String PROGRAM = System.getenv("FOREBAY_BIN");

    private static Server shared;

    private final Path folder;
    private final int nativePort;
    private final int port;
    private Process process;

    Server() {
        if (PROGRAM == null) {
            throw new IllegalStateException("FOREBAY_BIN names the server's program");
        }
        try {
            folder = Files.createTempDirectory(Path.of(System.getProperty("compat.build")), "server-");
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        nativePort = freePort();
        port = freePort();
        start();
    }

    /** The server of all tests that do not disturb it. */
    static synchronized Server shared() {
        if (shared == null) {
            shared = new Server();
            Runtime.getRuntime().addShutdownHook(new Thread(shared::close));
        }
        return shared;
    }

    KurrentDBClient client() {
        // By way of its gossip, as clients of a cluster do.
        String url = "kurrentdb+discover://127.0.0.1:" + port + "?tls=false&discoveryInterval=100";
        return KurrentDBClient.create(KurrentDBConnectionString.parseOrThrow(url));
    }

    void killAndStart() {
        kill();
        start();
    }

    @Override
    public void close() {
        kill();
        try (Stream<Path> paths = Files.walk(folder)) {
            paths.sorted(Comparator.reverseOrder()).forEach(path -> path.toFile().delete());
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private void kill() {
        process.destroyForcibly();
        try {
            process.waitFor();
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    private void start() {
        ProcessBuilder builder = new ProcessBuilder(List.of(
                PROGRAM, "serve", "--data", folder.resolve("data").toString(), "--sqs", "none",
                "--listen", "127.0.0.1:" + nativePort, "--kurrent", "127.0.0.1:" + port));
        builder.environment().keySet().removeIf(name -> name.startsWith("FOREBAY_"));
        builder.redirectOutput(ProcessBuilder.Redirect.DISCARD).redirectError(ProcessBuilder.Redirect.DISCARD);
        try {
            process = builder.start();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        eventually(this::isLive, live -> live);
    }

    private boolean isLive() {
        if (!process.isAlive()) {
            throw new IllegalStateException("the server ended with " + process.exitValue());
        }
        HttpRequest request = HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + port + "/health/live"))
                .timeout(Duration.ofSeconds(5))
                .build();
        try {
            int status = HttpClient.newHttpClient()
                    .send(request, HttpResponse.BodyHandlers.discarding())
                    .statusCode();
            return status / 100 == 2;
        } catch (IOException refused) {
            return false;
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    private static int freePort() {
        try (ServerSocket probe = new ServerSocket(0)) {
            return probe.getLocalPort();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    /** A name that no other test uses. */
    static String unique(String stem) {
        return stem + "-" + UUID.randomUUID();
    }

    static EventData[] events(String type, int count) {
        return IntStream.range(0, count)
                .mapToObj(n -> Integer.toString(n).getBytes(StandardCharsets.UTF_8))
                .map(data -> EventData.builderAsBinary(type, data).build())
                .toArray(EventData[]::new);
    }

    static void append(KurrentDBClient client, String stream, String type, int count) {
        get(client.appendToStream(stream, expecting(StreamState.any()), events(type, count)));
    }

    static AppendToStreamOptions expecting(StreamState state) {
        return AppendToStreamOptions.get().streamState(state);
    }

    /** The result, or the exception that the client gives as the cause. */
    static <T> T get(CompletableFuture<T> future) {
        try {
            return future.get(PATIENCE_SECONDS, TimeUnit.SECONDS);
        } catch (ExecutionException error) {
            if (error.getCause() instanceof RuntimeException cause) {
                throw cause;
            }
            throw new IllegalStateException(error.getCause());
        } catch (InterruptedException | TimeoutException error) {
            throw new IllegalStateException(error);
        }
    }

    interface Ask<T> {
        T ask();
    }

    /** Asks again and again until the answer fits. */
    static <T> T eventually(Ask<T> ask, Predicate<T> fits) {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_SECONDS);
        while (true) {
            T answer = ask.ask();
            if (fits.test(answer)) {
                return answer;
            }
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("it did not come about: " + answer);
            }
            try {
                Thread.sleep(20);
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        }
    }
}
