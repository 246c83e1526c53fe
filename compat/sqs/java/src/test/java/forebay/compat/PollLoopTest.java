package forebay.compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import software.amazon.awssdk.services.sqs.model.Message;
import software.amazon.awssdk.services.sqs.model.MessageSystemAttributeName;
import software.amazon.awssdk.services.sqs.model.QueueAttributeName;
import software.amazon.awssdk.services.sqs.model.SendMessageResponse;

/** The loop that everybody writes: send, receive ten with a long wait, delete, and let failures time out. */
@Timeout(120)
class PollLoopTest {
    private static final int MESSAGES = 30;
    private static final int GROUPS = 3;

    private final Server server = new Server();

    @AfterEach
    void close() {
        server.close();
    }

    @Test
    void whatFailsIsDeadAndWhatDoesNotIsInOrder() {
        String dead = server.queue(Map.of(QueueAttributeName.FIFO_QUEUE, "true"));
        String policy = "{\"deadLetterTargetArn\":\"" + server.arn(dead) + "\",\"maxReceiveCount\":\"2\"}";
        String url = server.queue(Map.of(
                QueueAttributeName.FIFO_QUEUE, "true",
                QueueAttributeName.VISIBILITY_TIMEOUT, "2",
                QueueAttributeName.REDRIVE_POLICY, policy));

        for (int n = 0; n < MESSAGES; n++) {
            SendMessageResponse first = send(url, n);
            // A producer that is not sure sends again.
            assertEquals(first.messageId(), send(url, n).messageId());
        }

        Map<String, List<Integer>> done = new HashMap<>();
        int handled = 0;
        while (handled < MESSAGES - GROUPS) {
            List<Message> messages = server.receive(url, 20);
            assertTrue(!messages.isEmpty(), handled + " messages were handled, of " + MESSAGES);
            for (Message message : messages) {
                int n = Integer.parseInt(message.body());
                if (fails(n)) {
                    continue;
                }
                String group = message.attributes().get(MessageSystemAttributeName.MESSAGE_GROUP_ID);
                server.sqs.deleteMessage(it -> it.queueUrl(url).receiptHandle(message.receiptHandle()));
                done.computeIfAbsent(group, it -> new ArrayList<>()).add(n);
                handled++;
            }
        }

        for (int group = 0; group < GROUPS; group++) {
            List<Integer> expected = new ArrayList<>();
            for (int n = group; n < MESSAGES; n += GROUPS) {
                if (!fails(n)) {
                    expected.add(n);
                }
            }
            assertEquals(expected, done.get("g" + group));
        }
        TreeSet<Integer> buried = new TreeSet<>();
        long until = System.nanoTime() + Duration.ofSeconds(30).toNanos();
        while (buried.size() < GROUPS && System.nanoTime() < until) {
            for (Message message : server.receive(dead, 1)) {
                assertEquals(
                        server.arn(url),
                        message.attributes().get(MessageSystemAttributeName.DEAD_LETTER_QUEUE_SOURCE_ARN));
                buried.add(Integer.parseInt(message.body()));
                server.sqs.deleteMessage(it -> it.queueUrl(dead).receiptHandle(message.receiptHandle()));
            }
            // A message is moved when somebody asks for it.
            server.receive(url, 0);
        }
        assertEquals(new TreeSet<>(List.of(0, 1, 2)), buried);
        assertEquals("0", server.attribute(url, QueueAttributeName.APPROXIMATE_NUMBER_OF_MESSAGES));
    }

    /** The first message of each group. */
    private static boolean fails(int n) {
        return n < GROUPS;
    }

    private SendMessageResponse send(String url, int n) {
        return server.sqs.sendMessage(it -> it.queueUrl(url)
                .messageBody(Integer.toString(n))
                .messageGroupId("g" + n % GROUPS)
                .messageDeduplicationId("d" + n));
    }
}
