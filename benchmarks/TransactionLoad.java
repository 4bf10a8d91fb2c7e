import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Producers that commit transactions one after the other. Arguments: bootstrap, topic, partitions,
 * producers, transactions each, of these to warm up with, records per transaction, bytes per
 * record. Prints transactions per second and the percentiles (ms) of whole transactions and of
 * commitTransaction alone.
 */
public final class TransactionLoad {
    private static final int RETRIES_MS = 60_000;

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        String topic = arguments[1];
        int[] numbers = Arrays.stream(arguments).skip(2).mapToInt(Integer::parseInt).toArray();
        int producers = numbers[1];
        int transactions = numbers[2];
        int warmUp = numbers[3];
        long[][] whole = new long[producers][];
        long[][] commits = new long[producers][];
        long[] begins = new long[producers];
        long[] ends = new long[producers];
        List<Thread> threads = new ArrayList<>();
        for (int index = 0; index < producers; index++) {
            int producer = index;
            whole[producer] = new long[transactions];
            commits[producer] = new long[transactions];
            threads.add(new Thread(() -> run(
                bootstrap, topic, numbers, producer, whole[producer], commits[producer],
                begins, ends)));
        }
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
        long begin = Arrays.stream(begins).min().getAsLong();
        long end = Arrays.stream(ends).max().getAsLong();
        double rate = producers * (transactions - warmUp) * 1e9 / (end - begin);
        System.out.printf("rate %.2f%n", rate);
        print("whole", whole, warmUp);
        print("commit", commits, warmUp);
    }

    private static void run(
        String bootstrap, String topic, int[] numbers, int index, long[] whole, long[] commits,
        long[] begins, long[] ends
    ) {
        int partitions = numbers[0];
        int warmUp = numbers[3];
        int records = numbers[4];
        byte[] value = new byte[numbers[5]];
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("transactional.id", "load-" + topic + "-" + index);
        settings.put("key.serializer", ByteArraySerializer.class.getName());
        settings.put("value.serializer", ByteArraySerializer.class.getName());
        settings.put("max.block.ms", Integer.toString(RETRIES_MS));
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
            producer.initTransactions();
            for (int number = 0; number < whole.length; number++) {
                long start = System.nanoTime();
                if (number == warmUp) {
                    begins[index] = start;
                }
                producer.beginTransaction();
                for (int record = 0; record < records; record++) {
                    producer.send(new ProducerRecord<>(topic, record % partitions, null, value));
                }
                producer.flush();
                long flushed = System.nanoTime();
                producer.commitTransaction();
                long end = System.nanoTime();
                whole[number] = end - start;
                commits[number] = end - flushed;
                ends[index] = end;
            }
        }
    }

    private static void print(String name, long[][] times, int warmUp) {
        long[] sorted = Arrays.stream(times)
            .flatMapToLong(one -> Arrays.stream(one).skip(warmUp)).sorted().toArray();
        System.out.printf("%s %.2f %.2f%n", name,
            sorted[sorted.length / 2] / 1e6, sorted[sorted.length * 99 / 100] / 1e6);
    }
}
