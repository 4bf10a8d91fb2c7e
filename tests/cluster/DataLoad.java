import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
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

/**
 * The roles producer, transactions and member of data_load.py with Kafka's own clients. The group is
 * one of KIP-848. Arguments: role, bootstrap servers, name, group.
 */
public final class DataLoad {
    private static final String EVENTS = "events";
    private static final String LEDGER = "ledger";
    private static final int PARTITIONS = 3;
    private static final long PAUSE_MS = 20;
    private static final int MAX_UNACKNOWLEDGED = 200;
    private static final double ABORTS = 0.25;
    private static final int FETCH_EVERY = 10;
    private static final Duration CALL_TIMEOUT = Duration.ofSeconds(20);
    private static final long END_TIMEOUT_MS = 45_000;
    private static final String FILLER = "x".repeat(400);

    private static volatile boolean stopping;

    private final String bootstrap;
    private final String name;
    private final String group;
    private final Random random = new Random();
    private final Map<String, Integer> sequences = new HashMap<>();
    private int epoch = -1;

    private DataLoad(String bootstrap, String name, String group) {
        this.bootstrap = bootstrap;
        this.name = name;
        this.group = group;
    }

    public static void main(String[] arguments) {
        Thread watch = new Thread(DataLoad::endWithInput);
        watch.setDaemon(true);
        watch.start();
        DataLoad load = new DataLoad(arguments[1], arguments[2], arguments[3]);
        switch (arguments[0]) {
            case "producer" -> load.produce();
            case "transactions" -> load.runTransactions();
            case "member" -> load.consume();
            default -> throw new IllegalArgumentException(arguments[0]);
        }
        Runtime.getRuntime().halt(0);
    }

    private static void endWithInput() {
        try {
            while (System.in.read() >= 0) {
                continue;
            }
        } catch (IOException error) {
            // the same as its end
        }
        stopping = true;
        pause(END_TIMEOUT_MS);
        say("ended by its time limit");
        Runtime.getRuntime().halt(1);
    }

    private static synchronized void say(String line) {
        System.out.println(line.replace('\n', ' '));
        System.out.flush();
    }

    private static long nowMs() {
        return System.nanoTime() / 1_000_000;
    }

    private static void pause(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    private Properties settings() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("reconnect.backoff.max.ms", "200");
        settings.put("request.timeout.ms", "5000");
        settings.put("default.api.timeout.ms", "20000");
        return settings;
    }

    private KafkaProducer<String, String> newProducer(Map<String, String> more) {
        epoch++;
        sequences.clear();
        Properties settings = settings();
        settings.put("delivery.timeout.ms", "120000");
        settings.put("max.block.ms", "20000");
        settings.put("key.serializer", StringSerializer.class.getName());
        settings.put("value.serializer", StringSerializer.class.getName());
        settings.putAll(more);
        return new KafkaProducer<>(settings);
    }

    /** Send a record to a partition and say its outcome; transaction: null outside of any. */
    private void send(
        KafkaProducer<String, String> producer,
        String topic,
        int partition,
        String transaction,
        AtomicInteger unacknowledged
    ) {
        int sequence = sequences.merge(topic + "-" + partition, 1, Integer::sum) - 1;
        String value = name + ":" + epoch + ":" + topic + ":" + partition + ":" + sequence;
        say("send " + value + (transaction == null ? "" : " " + transaction));
        String data = value + " " + FILLER.substring(0, sequence * 37 % 400);
        unacknowledged.incrementAndGet();
        producer.send(new ProducerRecord<>(topic, partition, null, data), (metadata, error) -> {
            unacknowledged.decrementAndGet();
            if (error == null) {
                say("stored " + value + " " + metadata.offset());
            } else {
                say("failed " + value + " " + error);
            }
        });
    }

    private void produce() {
        AtomicInteger unacknowledged = new AtomicInteger();
        while (!stopping) {
            try (KafkaProducer<String, String> producer = newProducer(Map.of("linger.ms", "5"))) {
                for (int number = 0; !stopping; number++) {
                    if (unacknowledged.get() < MAX_UNACKNOWLEDGED) {
                        send(producer, EVENTS, number % PARTITIONS, null, unacknowledged);
                    }
                    pause(PAUSE_MS);
                }
                producer.close(CALL_TIMEOUT);
            } catch (KafkaException error) {
                say("anew " + error);
            }
        }
    }

    private void runTransactions() {
        Map<String, String> settings = Map.of(
            "transactional.id", name, "transaction.timeout.ms", "15000", "linger.ms", "0");
        KafkaProducer<String, String> producer = null;
        try (KafkaConsumer<String, String> consumer = newConsumer(name, "classic")) {
            for (int count = 1; !stopping; count++) {
                pause(PAUSE_MS);
                try {
                    if (producer == null) {
                        producer = newProducer(settings);
                        producer.initTransactions();
                    }
                    transact(producer, count);
                } catch (KafkaException | IllegalStateException error) {
                    // the latter: a commit timed out, after which no abort is allowed
                    say("fresh " + error);
                    if (producer != null) {
                        producer.close(Duration.ZERO);
                    }
                    producer = null;
                }
                if (count % FETCH_EVERY == 0) {
                    sayCommitted(consumer, name, Set.of(new TopicPartition(LEDGER, 0)));
                }
            }
        }
    }

    /** One transaction; an exception is of an abort, so that a new producer is needed. */
    private void transact(KafkaProducer<String, String> producer, int count) {
        String transaction = name + "-" + count;
        boolean commit = random.nextDouble() >= ABORTS;
        say("begin " + transaction);
        try {
            producer.beginTransaction();
            List<Integer> partitions = new ArrayList<>();
            for (int partition = 0; partition < PARTITIONS; partition++) {
                partitions.add(partition);
            }
            Collections.shuffle(partitions, random);
            AtomicInteger unacknowledged = new AtomicInteger();
            for (int partition : partitions.subList(0, 1 + random.nextInt(PARTITIONS))) {
                send(producer, LEDGER, partition, transaction, unacknowledged);
            }
            if (count % 2 == 1) {
                say("committing " + name + " " + LEDGER + " 0 " + count + " " + nowMs() + " "
                    + transaction);
                producer.sendOffsetsToTransaction(
                    Map.of(new TopicPartition(LEDGER, 0), new OffsetAndMetadata(count)),
                    new ConsumerGroupMetadata(name));
            }
            if (commit) {
                producer.commitTransaction();
            } else {
                producer.abortTransaction();
            }
        } catch (KafkaException error) {
            say("broken " + transaction + " " + error);
            producer.abortTransaction();
            say("abort " + transaction + " " + nowMs());
            return;
        }
        say((commit ? "commit " : "abort ") + transaction + " " + nowMs());
    }

    private KafkaConsumer<String, String> newConsumer(String groupId, String protocol) {
        Properties settings = settings();
        settings.put("group.id", groupId);
        settings.put("group.protocol", protocol);
        settings.put("isolation.level", "read_committed");
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        return new KafkaConsumer<>(settings);
    }

    private static void sayCommitted(
        KafkaConsumer<String, String> consumer, String group, Set<TopicPartition> partitions
    ) {
        long began = nowMs();
        Map<TopicPartition, OffsetAndMetadata> found;
        try {
            found = consumer.committed(partitions);
        } catch (KafkaException error) {
            say("unfetched " + error);
            return;
        }
        long ended = nowMs();
        found.forEach((place, offset) -> say(
            "fetched " + group + " " + place.topic() + " " + place.partition() + " "
                + (offset == null ? -1 : offset.offset()) + " " + began + " " + ended));
    }

    private void consume() {
        AtomicInteger session = new AtomicInteger();
        try (KafkaConsumer<String, String> consumer = newConsumer(group, "consumer")) {
            consumer.subscribe(Set.of(EVENTS), new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
                    session.incrementAndGet();
                }

                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> assigned) {
                    session.incrementAndGet();
                    sayCommitted(consumer, group, Set.copyOf(assigned));
                }
            });
            while (!stopping) {
                try {
                    readAndCommit(consumer, session);
                } catch (KafkaException error) {
                    say("anew " + error);
                    pause(PAUSE_MS);
                }
            }
            consumer.close(CALL_TIMEOUT);
        }
    }

    private void readAndCommit(KafkaConsumer<String, String> consumer, AtomicInteger session) {
        ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
        Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
        for (ConsumerRecord<String, String> record : records) {
            String value = record.value().substring(0, record.value().indexOf(' '));
            say("read " + session.get() + " " + record.topic() + " " + record.partition() + " "
                + record.offset() + " " + value);
            ends.put(
                new TopicPartition(record.topic(), record.partition()),
                new OffsetAndMetadata(record.offset() + 1));
        }
        if (ends.isEmpty()) {
            return;
        }
        long began = nowMs();
        ends.forEach((place, offset) -> say(committed("committing", place, offset, began)));
        consumer.commitSync(ends);
        long ended = nowMs();
        ends.forEach((place, offset) -> say(committed("committed", place, offset, ended)));
    }

    private String committed(String word, TopicPartition place, OffsetAndMetadata offset, long at) {
        return word + " " + group + " " + place.topic() + " " + place.partition() + " "
            + offset.offset() + " " + at;
    }
}
