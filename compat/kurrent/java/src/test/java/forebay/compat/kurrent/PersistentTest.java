package forebay.compat.kurrent;

import static forebay.compat.kurrent.Server.append;
import static forebay.compat.kurrent.Server.eventually;
import static forebay.compat.kurrent.Server.get;
import static forebay.compat.kurrent.Server.unique;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.kurrent.dbclient.CreatePersistentSubscriptionToAllOptions;
import io.kurrent.dbclient.CreatePersistentSubscriptionToStreamOptions;
import io.kurrent.dbclient.KurrentDBClient;
import io.kurrent.dbclient.KurrentDBPersistentSubscriptionsClient;
import io.kurrent.dbclient.NackAction;
import io.kurrent.dbclient.NamedConsumerStrategy;
import io.kurrent.dbclient.PersistentSubscription;
import io.kurrent.dbclient.PersistentSubscriptionInfo;
import io.kurrent.dbclient.PersistentSubscriptionListener;
import io.kurrent.dbclient.PersistentSubscriptionToStreamInfo;
import io.kurrent.dbclient.PersistentSubscriptionToStreamSettings;
import io.kurrent.dbclient.ReplayParkedMessagesOptions;
import io.kurrent.dbclient.ResolvedEvent;
import io.kurrent.dbclient.SubscribePersistentSubscriptionOptions;
import io.kurrent.dbclient.SubscriptionFilter;
import io.kurrent.dbclient.UpdatePersistentSubscriptionToStreamOptions;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** Persistent subscriptions: settings, consuming, each answer, parking, and each error by its type. */
final class PersistentTest {
    private static final String GROUP = "workers";
    /** How long a test looks for an event that must not come. */
    private static final long A_WHILE_MILLIS = 400;

    private final KurrentDBClient client = Server.shared().client();
    private final KurrentDBPersistentSubscriptionsClient groups = KurrentDBPersistentSubscriptionsClient.from(client);
    private final String stream = unique("orders");

    /** Consumers of this test. A client that has open calls takes five seconds to shut down. */
    private final List<Reading> opened = new ArrayList<>();

    @AfterEach
    void close() {
        opened.forEach(reading -> reading.call.stop());
        get(client.shutdown());
    }

    private Reading open(int buffer) {
        return open(groups, buffer);
    }

    private Reading open(KurrentDBPersistentSubscriptionsClient groups, int buffer) {
        Reading reading = new Reading();
        SubscribePersistentSubscriptionOptions options =
                SubscribePersistentSubscriptionOptions.get().bufferSize(buffer);
        reading.call = get(groups.subscribeToStream(stream, GROUP, options, reading));
        assertEquals(stream + "::" + GROUP, reading.call.getSubscriptionId());
        opened.add(reading);
        return reading;
    }

    private static CreatePersistentSubscriptionToStreamOptions fromStart() {
        return CreatePersistentSubscriptionToStreamOptions.get().fromStart();
    }

    /** The calls that the client declares without a type. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private static void done(CompletableFuture call) {
        get((CompletableFuture<Object>) call);
    }

    private PersistentSubscriptionToStreamInfo info() {
        return get(groups.getInfoToStream(stream, GROUP)).orElseThrow();
    }

    private void parked(long count) {
        eventually(() -> info().getStats().getParkedMessageCount(), parked -> parked == count);
    }

    private record Delivery(ResolvedEvent event, int retries) {
        long revision() {
            return event.getEvent().getRevision();
        }
    }

    /** A consumer whose events are kept in order. */
    private static final class Reading extends PersistentSubscriptionListener {
        private final BlockingQueue<Delivery> events = new LinkedBlockingQueue<>();
        private final BlockingQueue<Throwable> ends = new LinkedBlockingQueue<>();
        private PersistentSubscription call;

        @Override
        public void onEvent(PersistentSubscription subscription, int retries, ResolvedEvent event) {
            events.add(new Delivery(event, retries));
        }

        @Override
        public void onCancelled(PersistentSubscription subscription, Throwable error) {
            ends.add(error == null ? new IllegalStateException("without an error") : error);
        }

        Delivery next() throws InterruptedException {
            Delivery next = events.poll(Server.PATIENCE_SECONDS, TimeUnit.SECONDS);
            assertTrue(next != null, "an event");
            return next;
        }

        List<Delivery> take(int count) throws InterruptedException {
            List<Delivery> taken = new ArrayList<>();
            for (int n = 0; n < count; n++) {
                taken.add(next());
            }
            return taken;
        }

        void hasNothing() throws InterruptedException {
            assertNull(events.poll(A_WHILE_MILLIS, TimeUnit.MILLISECONDS));
        }

        Throwable end() throws InterruptedException {
            Throwable end = ends.poll(Server.PATIENCE_SECONDS, TimeUnit.SECONDS);
            assertTrue(end != null, "an end");
            return end;
        }
    }

    private static List<Long> revisions(List<Delivery> taken) {
        return taken.stream().map(Delivery::revision).toList();
    }

    @Test
    void settingsAreKeptAndUpdated() {
        done(groups.createToStream(stream, GROUP, fromStart().namedConsumerStrategy(NamedConsumerStrategy.PINNED)
                .messageTimeoutInMs(7500).maxRetryCount(3).liveBufferSize(300).readBatchSize(30).historyBufferSize(400)
                .checkpointAfterInMs(1500).checkpointLowerBound(5).checkpointUpperBound(50).maxSubscriberCount(2)
                .enableExtraStatistics().resolveLinkTos()));
        PersistentSubscriptionToStreamSettings settings = info().getSettings();
        assertTrue(settings.getStartFrom().isStart());
        assertTrue(settings.isExtraStatistics() && settings.shouldResolveLinkTos());
        assertEquals(7500, settings.getMessageTimeoutMs());
        assertEquals(3, settings.getMaxRetryCount());
        assertEquals(List.of(300, 30, 400), List.of(settings.getLiveBufferSize(), settings.getReadBatchSize(),
                settings.getHistoryBufferSize()));
        assertEquals(List.of(1500, 5, 50), List.of(settings.getCheckpointAfterInMs(),
                settings.getCheckpointLowerBound(), settings.getCheckpointUpperBound()));
        assertEquals(2, settings.getMaxSubscriberCount());
        assertTrue(settings.getNamedConsumerStrategy().isPinned());
        done(groups.updateToStream(stream, GROUP,
                UpdatePersistentSubscriptionToStreamOptions.from(settings).maxRetryCount(6)));
        assertEquals(6, info().getSettings().getMaxRetryCount());
        assertEquals(7500, info().getSettings().getMessageTimeoutMs());
    }

    @Test
    void twoConsumersHoldNoMoreThanTheirBuffers() throws InterruptedException {
        done(groups.createToStream(stream, GROUP, fromStart()));
        Reading first = open(2);
        Reading second = open(3);
        append(client, stream, "T", 7);
        List<Delivery> held = first.take(2);
        Stream<Delivery> both = Stream.concat(held.stream(), second.take(3).stream());
        List<Long> all = both.map(Delivery::revision).sorted().toList();
        assertEquals(List.of(0L, 1L, 2L, 3L, 4L), all);
        first.hasNothing();
        second.hasNothing();
        first.call.ack(held.get(0).event());
        assertEquals(5L, first.next().revision());
        second.hasNothing();
        assertEquals(2, info().getConnections().size());
    }

    @Test
    void anAckedEventDoesNotComeAgain() throws InterruptedException {
        done(groups.createToStream(stream, GROUP, fromStart()));
        append(client, stream, "T", 4);
        Reading reading = open(10);
        List<Delivery> held = reading.take(4);
        reading.call.ack(held.get(0).event(), held.get(2).event());
        eventually(() -> info().getStats().getTotalInFlightMessages(), count -> count == 2);
        reading.call.stop();
        Reading again = open(10);
        assertEquals(List.of(1L, 3L), revisions(again.take(2)));
        again.hasNothing();
    }

    @Test
    void eachNackDoesAsItSays() throws InterruptedException {
        done(groups.createToStream(stream, GROUP, fromStart()));
        append(client, stream, "T", 5);
        Reading reading = open(10);
        List<Delivery> held = reading.take(5);
        reading.call.nack(NackAction.Skip, "no", held.get(0).event());
        reading.call.nack(NackAction.Stop, "no", held.get(1).event());
        reading.call.nack(NackAction.Park, "no", held.get(2).event());
        parked(1);
        int index = 3;
        for (NackAction action : List.of(NackAction.Retry, NackAction.Unknown)) {
            reading.call.nack(action, "no", held.get(index).event());
            Delivery again = reading.next();
            assertEquals(index, again.revision());
            assertEquals(1, again.retries());
            reading.call.ack(again.event());
            index++;
        }
        reading.hasNothing();
        eventually(() -> info().getStats().getTotalInFlightMessages(), count -> count == 0);
    }

    @Test
    void anEventWithoutAnAnswerComesAgainAndIsParkedAfterItsRetries() throws InterruptedException {
        done(groups.createToStream(stream, GROUP, fromStart().messageTimeoutInMs(300).maxRetryCount(1)));
        append(client, stream, "T", 1);
        Reading reading = open(10);
        assertEquals(List.of(0, 1), reading.take(2).stream().map(Delivery::retries).toList());
        parked(1);
        reading.hasNothing();
    }

    @Test
    void parkedEventsAreReplayed() throws InterruptedException {
        done(groups.createToStream(stream, GROUP, fromStart()));
        append(client, stream, "T", 3);
        Reading reading = open(10);
        for (Delivery delivery : reading.take(3)) {
            reading.call.nack(NackAction.Park, "no", delivery.event());
        }
        parked(3);
        done(groups.replayParkedMessagesToStream(stream, GROUP, ReplayParkedMessagesOptions.get().stopAt(2)));
        for (Delivery delivery : reading.take(2)) {
            reading.call.ack(delivery.event());
        }
        reading.hasNothing();
        parked(1);
        done(groups.replayParkedMessagesToStream(stream, GROUP));
        Delivery last = reading.next();
        assertEquals(2L, last.revision());
        reading.call.ack(last.event());
        parked(0);
    }

    @Test
    void anUpdateAndADeletionDropConsumers() throws InterruptedException {
        done(groups.createToStream(stream, GROUP, fromStart()));
        Reading reading = open(10);
        done(groups.updateToStream(stream, GROUP, UpdatePersistentSubscriptionToStreamOptions.get().fromStart()));
        reading.end();
        append(client, stream, "T", 1);
        Reading again = open(10);
        assertEquals(0L, again.next().revision());
        done(groups.deleteToStream(stream, GROUP));
        again.end();
        assertTrue(get(groups.getInfoToStream(stream, GROUP)).isEmpty());
    }

    @Test
    void infoAndListsTellTheProgress() throws InterruptedException {
        done(groups.createToStream(stream, GROUP, fromStart().checkpointLowerBound(1).checkpointUpperBound(1)));
        done(groups.createToStream(stream, "others", fromStart()));
        append(client, stream, "T", 3);
        Reading reading = open(10);
        List<Delivery> held = reading.take(3);
        reading.call.ack(held.get(0).event(), held.get(1).event());
        eventually(() -> info().getStats().getLastCheckpointedEventRevision().orElse(-1L), at -> at == 1);
        PersistentSubscriptionToStreamInfo told = info();
        assertEquals(stream, told.getEventSource());
        assertEquals(3, told.getStats().getTotalItems());
        assertEquals(2L, told.getStats().getLastKnownEventRevision().orElseThrow());
        assertEquals(9, told.getConnections().get(0).getAvailableSlots());
        List<String> names = get(groups.listToStream(stream)).stream()
                .map(PersistentSubscriptionInfo::getGroupName)
                .sorted()
                .toList();
        assertEquals(List.of("others", GROUP), names);
        long listed = get(groups.listAll()).stream().filter(one -> one.getEventSource().equals(stream)).count();
        assertEquals(2, listed);
    }

    private static Status.Code code(Runnable call) {
        return assertThrows(StatusRuntimeException.class, call::run).getStatus().getCode();
    }

    @Test
    void eachErrorHasItsType() {
        // The client has no exceptions of its own for these, and passes the status on.
        assertEquals(Status.Code.NOT_FOUND, code(() -> done(groups.deleteToStream(stream, GROUP))));
        assertEquals(Status.Code.NOT_FOUND, code(() -> done(groups.updateToStream(stream, GROUP))));
        assertEquals(Status.Code.NOT_FOUND, code(() -> done(groups.replayParkedMessagesToStream(stream, GROUP))));
        assertEquals(Status.Code.NOT_FOUND, code(() -> open(10)));
        assertEquals(Status.Code.INTERNAL, code(() -> done(groups.createToStream(stream, GROUP,
                fromStart().readBatchSize(20).historyBufferSize(20)))));
        done(groups.createToStream(stream, GROUP, fromStart().maxSubscriberCount(1)));
        assertEquals(Status.Code.ALREADY_EXISTS, code(() -> done(groups.createToStream(stream, GROUP))));
        open(10);
        assertEquals(Status.Code.FAILED_PRECONDITION, code(() -> open(10)));
    }

    @Test
    void aSubscriptionToAllStreamsHasAFilter() throws InterruptedException {
        String group = unique("group");
        append(client, stream, "T", 1);
        SubscriptionFilter filter = SubscriptionFilter.newBuilder().addStreamNamePrefix(stream).build();
        done(groups.createToAll(group, CreatePersistentSubscriptionToAllOptions.get().fromStart().filter(filter)));
        append(client, unique("others"), "T", 1);
        append(client, stream, "T", 1);
        Reading reading = new Reading();
        PersistentSubscription call = get(groups.subscribeToAll(group, reading));
        assertEquals("$all::" + group, call.getSubscriptionId());
        for (long revision : List.of(0L, 1L)) {
            Delivery next = reading.next();
            assertEquals(revision, next.revision());
            assertEquals(stream, next.event().getEvent().getStreamId());
            call.ack(next.event());
        }
        reading.hasNothing();
        assertEquals("$all", get(groups.getInfoToAll(group)).orElseThrow().getEventSource());
        done(groups.deleteToAll(group));
        reading.end();
    }

    @Test
    void nothingAckedComesAgainAfterAKill() throws InterruptedException {
        try (Server server = new Server()) {
            KurrentDBClient own = server.client();
            KurrentDBPersistentSubscriptionsClient ownGroups = KurrentDBPersistentSubscriptionsClient.from(own);
            done(ownGroups.createToStream(stream, GROUP, fromStart()));
            append(own, stream, "T", 6);
            Reading reading = open(ownGroups, 10);
            List<Delivery> held = reading.take(6);
            reading.call.ack(held.get(0).event(), held.get(2).event(), held.get(4).event());
            eventually(
                    () -> get(ownGroups.getInfoToStream(stream, GROUP)).orElseThrow().getStats()
                            .getTotalInFlightMessages(),
                    count -> count == 3);
            // An ack is in the log with the next write, and this is one.
            append(own, stream, "T", 1);
            server.killAndStart();
            reading.end();
            Reading again = eventually(
                    () -> {
                        try {
                            return open(ownGroups, 10);
                        } catch (RuntimeException lost) {
                            return null;
                        }
                    },
                    opened -> opened != null);
            List<Delivery> rest = again.take(3);
            assertEquals(List.of(1L, 3L, 5L), revisions(rest));
            assertEquals(List.of(1, 1, 1), rest.stream().map(Delivery::retries).toList());
            assertEquals(6L, again.next().revision());
            again.hasNothing();
            get(own.shutdown());
        }
    }
}
