package forebay.compat;

import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.sqs.SqsAsyncClient;
import software.amazon.awssdk.services.sqs.SqsClient;
import software.amazon.awssdk.services.sqs.model.Message;
import software.amazon.awssdk.services.sqs.model.QueueAttributeName;
import software.amazon.awssdk.services.sqs.model.QueueDoesNotExistException;

/** The server that FOREBAY_TEST_SQS names, and the queues that a test makes there. */
final class Server implements AutoCloseable {
    private static final StaticCredentialsProvider ANYBODY =
            StaticCredentialsProvider.create(AwsBasicCredentials.create("test", "test"));

    final SqsClient sqs = SqsClient.builder()
            .endpointOverride(endpoint())
            .region(Region.US_EAST_1)
            .credentialsProvider(ANYBODY)
            .build();

    private final List<String> urls = new ArrayList<>();

    SqsAsyncClient async() {
        return SqsAsyncClient.builder()
                .endpointOverride(endpoint())
                .region(Region.US_EAST_1)
                .credentialsProvider(ANYBODY)
                .build();
    }

    String queue(Map<QueueAttributeName, String> attributes) {
        String suffix = attributes.containsKey(QueueAttributeName.FIFO_QUEUE) ? ".fifo" : "";
        String name = "compat-java-" + UUID.randomUUID() + suffix;
        String url = sqs.createQueue(it -> it.queueName(name).attributes(attributes)).queueUrl();
        urls.add(url);
        return url;
    }

    String queue() {
        return queue(Map.of());
    }

    String attribute(String url, QueueAttributeName name) {
        return sqs.getQueueAttributes(it -> it.queueUrl(url).attributeNames(name)).attributes().get(name);
    }

    String arn(String url) {
        return attribute(url, QueueAttributeName.QUEUE_ARN);
    }

    List<Message> receive(String url, int waitSeconds) {
        return sqs.receiveMessage(it -> it.queueUrl(url)
                        .maxNumberOfMessages(10)
                        .waitTimeSeconds(waitSeconds)
                        .messageAttributeNames("All")
                        .messageSystemAttributeNamesWithStrings("All"))
                .messages();
    }

    @Override
    public void close() {
        for (String url : urls) {
            try {
                sqs.deleteQueue(it -> it.queueUrl(url));
            } catch (QueueDoesNotExistException gone) {
                // The test did it.
            }
        }
        sqs.close();
    }

    private static URI endpoint() {
        String endpoint = System.getenv("FOREBAY_TEST_SQS");
        if (endpoint == null || endpoint.isEmpty()) {
            throw new IllegalStateException("FOREBAY_TEST_SQS must name the server, as in http://127.0.0.1:9324");
        }
        return URI.create(endpoint);
    }
}
