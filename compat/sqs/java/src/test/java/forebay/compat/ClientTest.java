package forebay.compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import software.amazon.awssdk.core.SdkBytes;
import software.amazon.awssdk.services.sqs.SqsAsyncClient;
import software.amazon.awssdk.services.sqs.batchmanager.SqsAsyncBatchManager;
import software.amazon.awssdk.services.sqs.model.EmptyBatchRequestException;
import software.amazon.awssdk.services.sqs.model.InvalidAttributeNameException;
import software.amazon.awssdk.services.sqs.model.InvalidMessageContentsException;
import software.amazon.awssdk.services.sqs.model.Message;
import software.amazon.awssdk.services.sqs.model.MessageAttributeValue;
import software.amazon.awssdk.services.sqs.model.QueueAttributeName;
import software.amazon.awssdk.services.sqs.model.QueueDoesNotExistException;
import software.amazon.awssdk.services.sqs.model.QueueNameExistsException;
import software.amazon.awssdk.services.sqs.model.ReceiptHandleIsInvalidException;
import software.amazon.awssdk.services.sqs.model.SendMessageBatchRequestEntry;
import software.amazon.awssdk.services.sqs.model.SendMessageResponse;
import software.amazon.awssdk.services.sqs.model.SqsException;

/** What the SDK makes of answers. It looks at the digests of bodies and attributes by itself, and throws. */
@Timeout(60)
class ClientTest {
    private final Server server = new Server();

    @AfterEach
    void close() {
        server.close();
    }

    @Test
    void aMessageArrivesAsItWasSent() {
        String url = server.queue();
        Map<String, MessageAttributeValue> attributes = Map.of(
                "text", MessageAttributeValue.builder().dataType("String.x").stringValue("ü€").build(),
                "number", MessageAttributeValue.builder().dataType("Number").stringValue("1.50").build(),
                "bytes", MessageAttributeValue.builder()
                        .dataType("Binary")
                        .binaryValue(SdkBytes.fromByteArray(new byte[] {0, 1, -2, -1}))
                        .build());
        String body = "a\r\nü€ <&> \"quoted\"";
        server.sqs.sendMessage(it -> it.queueUrl(url).messageBody(body).messageAttributes(attributes));
        List<Message> messages = server.receive(url, 1);
        assertEquals(1, messages.size());
        assertEquals(body, messages.get(0).body());
        assertEquals(attributes, messages.get(0).messageAttributes());
    }

    @Test
    void batchesTellOfEachEntry() {
        String url = server.queue();
        List<SendMessageBatchRequestEntry> entries = new ArrayList<>();
        for (int n = 0; n < 10; n++) {
            String body = n == 3 ? "\u0001" : "m" + n;
            entries.add(SendMessageBatchRequestEntry.builder().id("e" + n).messageBody(body).build());
        }
        var sent = server.sqs.sendMessageBatch(it -> it.queueUrl(url).entries(entries));
        assertEquals(9, sent.successful().size());
        assertEquals(1, sent.failed().size());
        assertEquals("InvalidMessageContents", sent.failed().get(0).code());
        assertTrue(sent.failed().get(0).senderFault());
    }

    @Test
    void errorsHaveTheClassesOfTheSdk() {
        String url = server.queue();
        String name = url.substring(url.lastIndexOf('/') + 1);
        assertThrows(
                QueueDoesNotExistException.class,
                () -> server.sqs.getQueueUrl(it -> it.queueName(name + "-nothing")));
        assertThrows(
                QueueNameExistsException.class,
                () -> server.sqs.createQueue(
                        it -> it.queueName(name).attributes(Map.of(QueueAttributeName.DELAY_SECONDS, "5"))));
        assertThrows(
                InvalidAttributeNameException.class,
                () -> server.sqs.getQueueAttributes(it -> it.queueUrl(url).attributeNamesWithStrings("Nothing")));
        assertThrows(
                InvalidMessageContentsException.class,
                () -> server.sqs.sendMessage(it -> it.queueUrl(url).messageBody("\u0001")));
        assertThrows(
                EmptyBatchRequestException.class,
                () -> server.sqs.deleteMessageBatch(it -> it.queueUrl(url).entries(List.of())));
        var invalid = assertThrows(
                ReceiptHandleIsInvalidException.class,
                () -> server.sqs.deleteMessage(it -> it.queueUrl(url).receiptHandle("nothing")));
        assertEquals(400, invalid.statusCode());
        assertFalse(invalid.requestId().isEmpty());
        // The model does not know this one, which goes by the code of the older protocol.
        var other = assertThrows(
                SqsException.class,
                () -> server.sqs.sendMessage(it -> it.queueUrl(url).messageBody("b").delaySeconds(901)));
        assertEquals("InvalidParameterValue", other.awsErrorDetails().errorCode());
    }

    @Test
    void theBatchManagerSendsReceivesAndDeletes() {
        String url = server.queue();
        try (SqsAsyncClient async = server.async();
                SqsAsyncBatchManager batches = async.batchManager()) {
            List<CompletableFuture<SendMessageResponse>> sent = new ArrayList<>();
            TreeSet<String> expected = new TreeSet<>();
            for (int n = 0; n < 50; n++) {
                String body = "m" + n;
                expected.add(body);
                sent.add(batches.sendMessage(it -> it.queueUrl(url).messageBody(body)));
            }
            TreeSet<String> ids = new TreeSet<>();
            sent.forEach(one -> ids.add(one.join().messageId()));
            assertEquals(50, ids.size());

            TreeSet<String> seen = new TreeSet<>();
            List<CompletableFuture<?>> deleted = new ArrayList<>();
            for (int round = 0; round < 200 && seen.size() < 50; round++) {
                for (Message message : batches.receiveMessage(it -> it.queueUrl(url)).join().messages()) {
                    seen.add(message.body());
                    deleted.add(batches.deleteMessage(
                            it -> it.queueUrl(url).receiptHandle(message.receiptHandle())));
                }
            }
            assertEquals(expected, seen);
            deleted.forEach(CompletableFuture::join);
            assertEquals("0", server.attribute(url, QueueAttributeName.APPROXIMATE_NUMBER_OF_MESSAGES));
            assertEquals("0", server.attribute(url, QueueAttributeName.APPROXIMATE_NUMBER_OF_MESSAGES_NOT_VISIBLE));
        }
    }
}
