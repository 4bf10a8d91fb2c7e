import java.io.IOException;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.TopicExistsException;

/**
 * The loop of admin_load.py with Kafka's own AdminClient. Arguments: "servers" or "controllers",
 * addresses, name, replication factor. With bootstrap.controllers (KIP-919) the client refuses to
 * create topics, so there it sets the configurations of groups.
 */
public final class AdminLoad {
    private static final int PARTITIONS = 2;
    private static final long PAUSE_MS = 20;
    private static final long RESULT_TIMEOUT_S = 10;

    private AdminLoad() {
    }

    public static void main(String[] arguments) throws InterruptedException {
        Thread watch = new Thread(AdminLoad::endWithInput);
        watch.setDaemon(true);
        watch.start();
        boolean ofControllers = arguments[0].equals("controllers");
        String name = arguments[2];
        short replicationFactor = Short.parseShort(arguments[3]);
        Properties settings = new Properties();
        settings.put("bootstrap." + arguments[0], arguments[1]);
        settings.put("request.timeout.ms", "3000");
        settings.put("default.api.timeout.ms", "8000");
        settings.put("reconnect.backoff.max.ms", "200");
        // A controller that knows of no leader says so in DescribeCluster. With
        // bootstrap.controllers the client then waits for its metadata to expire (5 minutes)
        // instead of asking again: LeastLoadedBrokerOrActiveKController of 4.3.1.
        settings.put("metadata.max.age.ms", "1000");
        try (Admin admin = Admin.create(settings)) {
            for (int number = 0; true; number++) {
                String resource = name + "-" + number;
                if (!ofControllers) {
                    create(admin, resource, replicationFactor);
                }
                for (Map.Entry<String, Integer> each : values(ofControllers, number).entrySet()) {
                    set(admin, ofControllers, resource, each.getKey(), each.getValue().toString());
                }
            }
        }
    }

    private static Map<String, Integer> values(boolean ofGroup, int number) {
        Map<String, Integer> values = new LinkedHashMap<>();
        if (ofGroup) {
            values.put("consumer.session.timeout.ms", 45_000 + number % 15_000);
            values.put("consumer.heartbeat.interval.ms", 5_000 + number % 10_000);
        } else {
            values.put("retention.ms", 1_000_000 + number);
            values.put("max.message.bytes", 100_000 + number);
            values.put("flush.messages", 1_000 + number);
        }
        return values;
    }

    private static void create(Admin admin, String topic, short replicationFactor)
            throws InterruptedException {
        NewTopic made = new NewTopic(topic, PARTITIONS, replicationFactor);
        if (acknowledged(admin.createTopics(List.of(made)).all(), "create " + topic)) {
            say("created " + topic);
        }
    }

    private static void set(Admin admin, boolean ofGroup, String name, String key, String value)
            throws InterruptedException {
        ConfigResource.Type type = ofGroup ? ConfigResource.Type.GROUP : ConfigResource.Type.TOPIC;
        AlterConfigOp alteration =
            new AlterConfigOp(new ConfigEntry(key, value), AlterConfigOp.OpType.SET);
        KafkaFuture<Void> done = admin
            .incrementalAlterConfigs(Map.of(new ConfigResource(type, name), Set.of(alteration)))
            .all();
        if (acknowledged(done, "set " + name + " " + key)) {
            say("set " + (ofGroup ? "group " : "topic ") + name + " " + key + " " + value);
        }
    }

    private static boolean acknowledged(KafkaFuture<Void> done, String what)
            throws InterruptedException {
        Thread.sleep(PAUSE_MS);
        try {
            done.get(RESULT_TIMEOUT_S, TimeUnit.SECONDS);
            return true;
        } catch (ExecutionException error) {
            if (error.getCause() instanceof TopicExistsException) {
                return true;
            }
            say("failed " + what + " " + error.getCause());
        } catch (TimeoutException error) {
            say("failed " + what + " " + error);
        }
        return false;
    }

    private static synchronized void say(String line) {
        System.out.println(line.replace('\n', ' '));
    }

    private static void endWithInput() {
        try {
            while (System.in.read() >= 0) {
                continue;
            }
        } catch (IOException error) {
            // the same as its end
        }
        Runtime.getRuntime().halt(0);
    }
}
