package forebay.compat.kurrent;

import static forebay.compat.kurrent.Server.append;
import static forebay.compat.kurrent.Server.events;
import static forebay.compat.kurrent.Server.eventually;
import static forebay.compat.kurrent.Server.expecting;
import static forebay.compat.kurrent.Server.get;
import static forebay.compat.kurrent.Server.unique;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.kurrent.dbclient.EventData;
import io.kurrent.dbclient.KurrentDBClient;
import io.kurrent.dbclient.Position;
import io.kurrent.dbclient.ReadResult;
import io.kurrent.dbclient.ReadStreamOptions;
import io.kurrent.dbclient.RecordedEvent;
import io.kurrent.dbclient.ResolvedEvent;
import io.kurrent.dbclient.StreamDeletedException;
import io.kurrent.dbclient.StreamMetadata;
import io.kurrent.dbclient.StreamNotFoundException;
import io.kurrent.dbclient.StreamState;
import io.kurrent.dbclient.SubscribeToAllOptions;
import io.kurrent.dbclient.SubscribeToStreamOptions;
import io.kurrent.dbclient.Subscription;
import io.kurrent.dbclient.SubscriptionFilter;
import io.kurrent.dbclient.SubscriptionListener;
import io.kurrent.dbclient.WriteResult;
import io.kurrent.dbclient.WrongExpectedVersionException;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** Appending, reading, catch-up subscriptions, deletion and metadata. */
final class StreamsTest {
    private final KurrentDBClient client = Server.shared().client();
    private final String stream = unique("orders");

    @AfterEach
    void close() {
        get(client.shutdown());
    }

    private static List<Long> revisions(ReadResult read) {
        return read.getEvents().stream().map(event -> event.getOriginalEvent().getRevision()).toList();
    }

    private List<Long> read(ReadStreamOptions options) {
        return revisions(get(client.readStream(stream, options)));
    }

    @Test
    void anEventComesBackAsItWasAppended() {
        UUID id = UUID.randomUUID();
        byte[] json = "{\"n\":7}".getBytes(StandardCharsets.UTF_8);
        byte[] metadata = "{\"by\":\"me\"}".getBytes(StandardCharsets.UTF_8);
        EventData first = EventData.builderAsJson(id, "Placed", json).metadataAsBytes(metadata).build();
        EventData second = EventData.builderAsBinary("Raw", new byte[] {0, -1, 1}).build();
        WriteResult written = get(client.appendToStream(stream, first, second));
        assertEquals(StreamState.streamRevision(1), written.getNextExpectedRevision());

        List<ResolvedEvent> found = get(client.readStream(stream, ReadStreamOptions.get())).getEvents();
        assertEquals(2, found.size());
        RecordedEvent event = found.get(0).getEvent();
        assertEquals(id, event.getEventId());
        assertEquals("Placed", event.getEventType());
        assertEquals("application/json", event.getContentType());
        assertEquals(stream, event.getStreamId());
        assertArrayEquals(json, event.getEventData());
        assertArrayEquals(metadata, event.getUserMetadata());
        assertTrue(event.getCreated().isAfter(Instant.ofEpochSecond(1_700_000_000)));
        assertArrayEquals(new byte[] {0, -1, 1}, found.get(1).getEvent().getEventData());
        assertEquals("application/octet-stream", found.get(1).getEvent().getContentType());
        assertEquals(written.getLogPosition(), found.get(1).getEvent().getPosition());
    }

    private StreamState attempt(StreamState state) {
        return get(client.appendToStream(stream, expecting(state), events("T", 1))).getNextExpectedRevision();
    }

    private StreamState conflict(StreamState state) {
        WrongExpectedVersionException error =
                assertThrows(WrongExpectedVersionException.class, () -> attempt(state), state.toString());
        assertEquals(stream, error.getStreamName());
        // This client shows an expected `no stream` as revision 0.
        StreamState shown = state.equals(StreamState.noStream()) ? StreamState.streamRevision(0) : state;
        assertEquals(shown, error.getExpectedState());
        return error.getActualState();
    }

    @Test
    void everyExpectedRevisionIsChecked() {
        assertEquals(StreamState.noStream(), conflict(StreamState.streamExists()));
        assertEquals(StreamState.noStream(), conflict(StreamState.streamRevision(0)));
        assertEquals(StreamState.streamRevision(0), attempt(StreamState.noStream()));
        assertEquals(StreamState.streamRevision(0), conflict(StreamState.noStream()));
        assertEquals(StreamState.streamRevision(0), conflict(StreamState.streamRevision(5)));
        assertEquals(StreamState.streamRevision(1), attempt(StreamState.streamRevision(0)));
        assertEquals(StreamState.streamRevision(2), attempt(StreamState.streamExists()));
        assertEquals(StreamState.streamRevision(3), attempt(StreamState.any()));
    }

    @Test
    void aRepeatedWriteIsAnsweredAsTheFirstTime() {
        EventData[] sent = events("T", 3);
        WriteResult first = get(client.appendToStream(stream, expecting(StreamState.noStream()), sent));
        WriteResult again = get(client.appendToStream(stream, expecting(StreamState.noStream()), sent));
        assertEquals(StreamState.streamRevision(2), again.getNextExpectedRevision());
        assertEquals(first.getLogPosition(), again.getLogPosition());
        assertEquals(List.of(0L, 1L, 2L), read(ReadStreamOptions.get()));
    }

    @Test
    void aStreamIsReadInBothDirections() {
        append(client, stream, "T", 5);
        assertEquals(List.of(0L, 1L), read(ReadStreamOptions.get().maxCount(2)));
        assertEquals(List.of(3L, 4L), read(ReadStreamOptions.get().fromRevision(3)));
        assertEquals(List.of(4L, 3L, 2L, 1L, 0L), read(ReadStreamOptions.get().backwards().fromEnd()));
        assertEquals(List.of(2L, 1L), read(ReadStreamOptions.get().backwards().fromRevision(2).maxCount(2)));
        assertEquals(4, get(client.readStream(stream, ReadStreamOptions.get())).getLastStreamPosition());
    }

    @Test
    void missingAndDeletedStreamsAreToldApart() {
        assertThrows(StreamNotFoundException.class, () -> read(ReadStreamOptions.get()));
        append(client, stream, "T", 2);
        get(client.deleteStream(stream));
        assertThrows(StreamNotFoundException.class, () -> read(ReadStreamOptions.get()));
        append(client, stream, "T", 1);
        assertEquals(List.of(2L), read(ReadStreamOptions.get()));
        get(client.tombstoneStream(stream));
        assertThrows(StreamDeletedException.class, () -> append(client, stream, "T", 1));
        // A read passes the status on.
        StatusRuntimeException gone =
                assertThrows(StatusRuntimeException.class, () -> read(ReadStreamOptions.get()));
        assertEquals(Status.Code.FAILED_PRECONDITION, gone.getStatus().getCode());
    }

    @Test
    void metadataLimitsAStream() {
        append(client, stream, "T", 5);
        StreamMetadata metadata = new StreamMetadata();
        metadata.setMaxCount(2L);
        get(client.setStreamMetadata(stream, metadata));
        assertEquals(2L, get(client.getStreamMetadata(stream)).getMaxCount());
        assertEquals(List.of(3L, 4L), read(ReadStreamOptions.get()));
    }

    /** A subscription whose events and notices are kept in order. */
    private static final class Following extends SubscriptionListener {
        final BlockingQueue<Object> said = new LinkedBlockingQueue<>();

        @Override
        public void onEvent(Subscription subscription, ResolvedEvent event) {
            said.add(event.getOriginalEvent().getRevision());
        }

        @Override
        public void onCaughtUp(Subscription subscription, Instant at, Long revision, Position position) {
            said.add("caught up");
        }

        Object next() throws InterruptedException {
            return said.poll(Server.PATIENCE_SECONDS, TimeUnit.SECONDS);
        }
    }

    @Test
    void aSubscriptionGetsOldAndNewEventsAndSaysWhenItHasCaughtUp() throws InterruptedException {
        append(client, stream, "T", 2);
        Following following = new Following();
        Subscription subscription =
                get(client.subscribeToStream(stream, following, SubscribeToStreamOptions.get().fromStart()));
        assertEquals(List.of(0L, 1L, "caught up"), List.of(following.next(), following.next(), following.next()));
        append(client, stream, "T", 1);
        assertEquals(2L, following.next());
        subscription.stop();
    }

    @Test
    void allStreamsAreFollowedWithAFilter() throws InterruptedException {
        String other = unique("others");
        append(client, stream, "T", 1);
        append(client, other, "T", 1);
        Following following = new Following();
        BlockingQueue<Position> checkpoints = new LinkedBlockingQueue<>();
        SubscriptionFilter filter = SubscriptionFilter.newBuilder()
                .addStreamNamePrefix(stream)
                .withCheckpointer((subscription, at) -> {
                    checkpoints.add(at);
                    return CompletableFuture.completedFuture(null);
                })
                .build();
        Subscription subscription =
                get(client.subscribeToAll(following, SubscribeToAllOptions.get().fromStart().filter(filter)));
        assertEquals(0L, following.next());
        assertEquals("caught up", following.next());
        assertTrue(checkpoints.poll(Server.PATIENCE_SECONDS, TimeUnit.SECONDS) != null, "a checkpoint");
        append(client, other, "T", 1);
        append(client, stream, "T", 1);
        assertEquals(1L, following.next());
        subscription.stop();
    }

    @Test
    void theClientConnectsAgainAfterAKill() {
        try (Server server = new Server()) {
            KurrentDBClient own = server.client();
            append(own, stream, "T", 2);
            server.killAndStart();
            // The call that shows the client that the connection is gone may fail.
            eventually(
                    () -> {
                        try {
                            append(own, stream, "T", 1);
                            return true;
                        } catch (RuntimeException lost) {
                            return false;
                        }
                    },
                    done -> done);
            List<Long> found = revisions(get(own.readStream(stream, ReadStreamOptions.get())));
            assertEquals(List.of(0L, 1L, 2L), found.subList(0, 3));
            get(own.shutdown());
        }
    }
}
