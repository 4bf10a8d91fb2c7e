import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** The loop of transaction_worker.py with Kafka's own clients; its group is one of KIP-848. */
public final class TransactionWorker {
    private static final int BATCH = 5;
    private static final double ABORTS = 0.25;
    private static final long PAUSE_MS = 20;

    private final String bootstrap;
    private final String name;
    private final int output;
    private final String run;
    private final Random random = new Random();
    private final KafkaConsumer<String, String> consumer;
    private KafkaProducer<String, String> producer;
    private int attempts;

    private TransactionWorker(String[] arguments) {
        bootstrap = arguments[0];
        name = arguments[1];
        output = Integer.parseInt(arguments[2]);
        run = arguments[3];
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", name);
        settings.put("group.protocol", "consumer");
        settings.put("isolation.level", "read_committed");
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        settings.put("max.poll.records", Integer.toString(BATCH));
        settings.put("reconnect.backoff.max.ms", "200");
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        consumer = new KafkaConsumer<>(settings);
        consumer.subscribe(Set.of("in-" + name));
    }

    public static void main(String[] arguments) {
        TransactionWorker worker = new TransactionWorker(arguments);
        Thread watch = new Thread(TransactionWorker::endWithInput);
        watch.setDaemon(true);
        watch.start();
        while (true) {
            try {
                worker.step();
            } catch (RuntimeException error) {
                say("anew " + error);
            }
        }
    }

    /** The test closes standard input when it wants no more. */
    private static void endWithInput() {
        try {
            while (System.in.read() >= 0) {
                continue;
            }
        } catch (java.io.IOException error) {
            say("surprise " + error);
        }
        Runtime.getRuntime().halt(0);
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private void start() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("transactional.id", name);
        settings.put("transaction.timeout.ms", "60000");
        settings.put("reconnect.backoff.max.ms", "200");
        settings.put("linger.ms", "0");
        settings.put("key.serializer", StringSerializer.class.getName());
        settings.put("value.serializer", StringSerializer.class.getName());
        producer = new KafkaProducer<>(settings);
        producer.initTransactions();
        rewind();
    }

    private void drop(KafkaException why) {
        say("fresh " + why);
        producer.close(Duration.ZERO);
        producer = null;
    }

    /** Back to what the group has committed. */
    private void rewind() {
        Map<TopicPartition, OffsetAndMetadata> committed =
            consumer.committed(consumer.assignment());
        committed.forEach((partition, offset) ->
            consumer.seek(partition, offset == null ? 0 : offset.offset()));
    }

    private void step() {
        if (producer == null) {
            start();
        }
        ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
        if (records.isEmpty()) {
            return;
        }
        pause();
        String attempt = name + "/" + run + "/" + attempts++;
        boolean commit = random.nextDouble() >= ABORTS;
        say("open " + attempt);
        try {
            transact(records, attempt, commit);
        } catch (KafkaException error) {
            giveUp(attempt, error);
            return;
        }
        if (commit) {
            say("commit " + attempt);
        } else {
            say("abort " + attempt);
            rewind();
        }
    }

    private static void pause() {
        try {
            Thread.sleep(PAUSE_MS);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    private void transact(
        ConsumerRecords<String, String> records, String attempt, boolean commit
    ) {
        producer.beginTransaction();
        TopicPartition source = null;
        long next = 0;
        for (ConsumerRecord<String, String> record : records) {
            String value = record.value() + " " + attempt;
            int partition = Integer.parseInt(record.key()) % 3;
            producer.send(new ProducerRecord<>(
                "by-key", partition, name + "/" + record.key(), value));
            producer.send(new ProducerRecord<>("all", output, name, value));
            source = new TopicPartition(record.topic(), record.partition());
            next = record.offset() + 1;
        }
        producer.sendOffsetsToTransaction(
            Map.of(source, new OffsetAndMetadata(next)), consumer.groupMetadata());
        if (commit) {
            producer.commitTransaction();
        } else {
            producer.abortTransaction();
        }
    }

    /** Abort; where that is impossible, a new producer finds out what became of it. */
    private void giveUp(String attempt, KafkaException why) {
        say("failed " + attempt + " " + why);
        try {
            producer.abortTransaction();
        } catch (KafkaException error) {
            drop(error);
            return;
        }
        say("abort " + attempt);
        rewind();
    }
}
