import java.io.PrintStream;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.ShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.quota.ClientQuotaFilterComponent;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Makes every call of Kafka's Admin once or more, and checks what came of it.
 *
 * Arguments: host:port of a broker with node id 1 and two log directories; a streams group without
 * members; a topic that it read, with five records in partition 0.
 *
 * Standard output, lines of words between tabs: `method` and a name for each method that Admin has;
 * `call`, a name and an outcome for each that was made: `served`, `local`, the name of Kafka's error,
 * or `failed` and why.
 */
@SuppressWarnings({"deprecation", "removal"})
public final class AdminCalls {
    private static final String SERVED = "served";
    private static final String LOCAL = "local";

    private final Map<String, Callable<String>> rows = new LinkedHashMap<>();
    private final String bootstrap;
    private final String streamsGroup;
    private final String streamsTopic;
    private final Admin admin;
    private int names = 0;

    private interface Action {
        void run() throws Exception;
    }

    private AdminCalls(String[] arguments) {
        bootstrap = arguments[0];
        streamsGroup = arguments[1];
        streamsTopic = arguments[2];
        admin = Admin.create(settings("enable.metrics.push", "true"));
        topicRows();
        configRows();
        clusterRows();
        directoryRows();
        groupRows();
        shareGroupRows();
        streamsGroupRows();
        transactionRows();
        securityRows();
        clientRows();
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream report = System.out;
        System.setOut(System.err);  // where loggers write
        Set<String> methods = new TreeSet<>();
        for (Method method : Admin.class.getMethods()) {
            if (!Modifier.isStatic(method.getModifiers())) {
                methods.add(method.getName());
            }
        }
        methods.forEach(name -> report.println("method\t" + name));
        AdminCalls calls = new AdminCalls(arguments);
        calls.rows.forEach((name, row) -> report.println("call\t" + name + "\t" + outcome(row)));
        calls.admin.close(Duration.ofSeconds(5));
    }

    private static String outcome(Callable<String> row) {
        try {
            return row.call();
        } catch (Throwable error) {
            StringBuilder place = new StringBuilder();
            for (StackTraceElement frame : error.getStackTrace()) {
                if (frame.getClassName().startsWith("AdminCalls")) {
                    place.append(" line ").append(frame.getLineNumber());
                }
            }
            return ("failed: " + error + place).replace('\n', ' ').replace('\t', ' ');
        }
    }

    private void served(String method, Action check) {
        rows.put(method, () -> {
            check.run();
            return SERVED;
        });
    }

    private void local(String method, Action check) {
        rows.put(method, () -> {
            check.run();
            return LOCAL;
        });
    }

    /** A call that Kafka refuses. */
    private void refused(String method, Callable<KafkaFuture<?>> call) {
        rows.put(method, () -> errorOf(call.call()));
    }

    private static void check(boolean holds, Object found) {
        if (!holds) {
            throw new AssertionError(String.valueOf(found));
        }
    }

    private static void equal(Object expected, Object found) {
        check(expected.equals(found), found + " instead of " + expected);
    }

    private static <T> T get(KafkaFuture<T> future) throws Exception {
        return future.get(30, TimeUnit.SECONDS);
    }

    private static String errorOf(KafkaFuture<?> future) throws Exception {
        try {
            get(future);
        } catch (ExecutionException error) {
            return Errors.forException(error.getCause()).name();
        }
        throw new AssertionError("it succeeded");
    }

    private static void until(Callable<Boolean> condition) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(20);
        while (!condition.call()) {
            check(System.nanoTime() < deadline, "not within 20 s");
            Thread.sleep(20);
        }
    }

    private String newName(String stem) {
        return "java-" + stem + "-" + names++;
    }

    private Properties settings(String... pairs) {
        Properties found = new Properties();
        found.put("bootstrap.servers", bootstrap);
        for (int index = 0; index < pairs.length; index += 2) {
            found.put(pairs[index], pairs[index + 1]);
        }
        return found;
    }

    private String topic(int partitions, int records) throws Exception {
        String name = newName("topic");
        get(admin.createTopics(List.of(new NewTopic(name, partitions, (short) 1))).all());
        try (Producer<byte[], byte[]> producer = producer()) {
            for (int number = 0; number < records; number++) {
                producer.send(new ProducerRecord<>(name, 0, null, new byte[] {1})).get();
            }
        }
        return name;
    }

    private Producer<byte[], byte[]> producer(String... pairs) {
        return new KafkaProducer<>(
            settings(pairs), new ByteArraySerializer(), new ByteArraySerializer());
    }

    /** A group that committed an offset of partition 0 and has no members. */
    private String group(String topic, long offset) {
        String name = newName("group");
        try (Consumer<byte[], byte[]> consumer = consumer(name)) {
            consumer.commitSync(Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(offset)));
        }
        return name;
    }

    private Consumer<byte[], byte[]> consumer(String group, String... pairs) {
        Properties properties = settings(pairs);
        properties.put("group.id", group);
        return new KafkaConsumer<>(
            properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    /** A member that owns the whole topic. */
    private Consumer<byte[], byte[]> member(String group, String topic, String... pairs)
            throws Exception {
        Consumer<byte[], byte[]> consumer = consumer(group, pairs);
        consumer.subscribe(List.of(topic));
        until(() -> {
            consumer.poll(Duration.ofMillis(100));
            return !consumer.assignment().isEmpty();
        });
        return consumer;
    }

    private String value(ConfigResource resource, String key) throws Exception {
        return get(admin.describeConfigs(List.of(resource)).all()).get(resource).get(key).value();
    }

    private static ConfigResource configs(String topic) {
        return new ConfigResource(ConfigResource.Type.TOPIC, topic);
    }

    private static TopicPartition first(String topic) {
        return new TopicPartition(topic, 0);
    }

    private void topicRows() {
        served("createTopics", () -> {
            String name = newName("created");
            List<NewTopic> topics = List.of(
                new NewTopic(name, Optional.of(3), Optional.empty())
                    .configs(Map.of("retention.ms", "60000")));
            get(admin.createTopics(topics, new CreateTopicsOptions().validateOnly(true)).all());
            check(!get(admin.listTopics().names()).contains(name), "validated only");
            CreateTopicsResult created = admin.createTopics(topics);
            equal(3, get(created.numPartitions(name)));
            equal("60000", get(created.config(name)).get("retention.ms").value());
            equal("TOPIC_ALREADY_EXISTS", errorOf(admin.createTopics(topics).all()));
        });
        served("deleteTopics", () -> {
            String byName = topic(1, 0);
            String byId = topic(1, 0);
            Uuid id = get(admin.describeTopics(List.of(byId)).allTopicNames()).get(byId).topicId();
            get(admin.deleteTopics(List.of(byName)).all());
            get(admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all());
            Set<String> left = get(admin.listTopics().names());
            check(!left.contains(byName) && !left.contains(byId), left);
            equal("UNKNOWN_TOPIC_OR_PARTITION", errorOf(admin.deleteTopics(List.of(byName)).all()));
        });
        served("listTopics", () -> {
            String name = topic(1, 0);
            get(admin.describeConsumerGroups(List.of(group(name, 0))).all());
            check(!get(admin.listTopics().names()).contains("__consumer_offsets"), "internal");
            ListTopicsOptions all = new ListTopicsOptions().listInternal(true);
            Map<String, TopicListing> listed = get(admin.listTopics(all).namesToListings());
            check(listed.get("__consumer_offsets").isInternal(), listed);
            check(!listed.get(name).isInternal(), listed);
        });
        served("describeTopics", () -> {
            String name = topic(3, 0);
            DescribeTopicsOptions paged = new DescribeTopicsOptions().partitionSizeLimitPerResponse(2);
            TopicDescription found = get(
                admin.describeTopics(List.of(name), paged).allTopicNames()).get(name);
            equal(3, found.partitions().size());
            found.partitions().forEach(each -> {
                equal(1, each.leader().id());
                equal(1, each.isr().size());
                equal(List.of(), each.elr());
            });
        });
        served("createPartitions", () -> {
            String name = topic(2, 0);
            get(admin.createPartitions(Map.of(name, NewPartitions.increaseTo(5))).all());
            until(() -> get(admin.describeTopics(List.of(name)).allTopicNames())
                .get(name).partitions().size() == 5);
            equal("INVALID_PARTITIONS",
                errorOf(admin.createPartitions(Map.of(name, NewPartitions.increaseTo(3))).all()));
        });
        served("deleteRecords", () -> {
            TopicPartition partition = first(topic(1, 5));
            DeleteRecordsResult done =
                admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(2)));
            equal(2L, get(done.lowWatermarks().get(partition)).lowWatermark());
            equal("OFFSET_OUT_OF_RANGE", errorOf(
                admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(9))).all()));
        });
        served("listOffsets", () -> {
            TopicPartition partition = first(topic(1, 5));
            Map<OffsetSpec, Long> expected = Map.of(
                OffsetSpec.earliest(), 0L, OffsetSpec.latest(), 5L, OffsetSpec.forTimestamp(0), 0L,
                OffsetSpec.earliestLocal(), 0L, OffsetSpec.latestTiered(), -1L);
            for (Map.Entry<OffsetSpec, Long> each : expected.entrySet()) {
                ListOffsetsResult listed = admin.listOffsets(Map.of(partition, each.getKey()));
                equal(each.getValue(), get(listed.partitionResult(partition)).offset());
            }
            ListOffsetsResult newest = admin.listOffsets(Map.of(partition, OffsetSpec.maxTimestamp()));
            check(get(newest.partitionResult(partition)).timestamp() > 0, "no time");
        });
        rows.put("electLeaders", () -> {
            TopicPartition partition = first(topic(1, 0));
            Optional<Throwable> error = get(
                admin.electLeaders(ElectionType.PREFERRED, Set.of(partition)).partitions())
                .get(partition);
            return Errors.forException(error.get()).name();
        });
        served("alterPartitionReassignments", () -> {
            TopicPartition partition = first(topic(1, 0));
            NewPartitionReassignment here = new NewPartitionReassignment(List.of(1));
            get(admin.alterPartitionReassignments(Map.of(partition, Optional.of(here))).all());
            NewPartitionReassignment nowhere = new NewPartitionReassignment(List.of(1, 77));
            equal("INVALID_REPLICA_ASSIGNMENT", errorOf(
                admin.alterPartitionReassignments(Map.of(partition, Optional.of(nowhere))).all()));
            equal("NO_REASSIGNMENT_IN_PROGRESS", errorOf(
                admin.alterPartitionReassignments(Map.of(partition, Optional.empty())).all()));
        });
        served("listPartitionReassignments", () -> {
            equal(Map.of(), get(admin.listPartitionReassignments().reassignments()));
            Set<TopicPartition> one = Set.of(first(topic(1, 0)));
            equal(Map.of(), get(admin.listPartitionReassignments(one).reassignments()));
        });
    }

    private void configRows() {
        served("describeConfigs", () -> {
            ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, "1");
            DescribeConfigsOptions all =
                new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
            Config found = get(admin.describeConfigs(List.of(broker), all).all()).get(broker);
            check(found.get("node.id").isReadOnly(), found.get("node.id"));
            equal(ConfigEntry.ConfigType.INT, found.get("node.id").type());
            check(!found.get("log.dirs").synonyms().isEmpty(), "no synonyms");
            equal("delete", value(configs(topic(1, 0)), "cleanup.policy"));
        });
        served("incrementalAlterConfigs", () -> {
            ConfigResource topic = configs(topic(1, 0));
            alter(topic, "cleanup.policy", "compact", AlterConfigOp.OpType.APPEND);
            equal("delete,compact", value(topic, "cleanup.policy"));
            alter(topic, "cleanup.policy", "delete", AlterConfigOp.OpType.SUBTRACT);
            alter(topic, "retention.ms", "1000", AlterConfigOp.OpType.SET);
            equal("compact", value(topic, "cleanup.policy"));
            alter(topic, "cleanup.policy", null, AlterConfigOp.OpType.DELETE);
            equal("delete", value(topic, "cleanup.policy"));
            equal("1000", value(topic, "retention.ms"));
            Map<ConfigResource, Collection<AlterConfigOp>> unknown =
                Map.of(topic, List.of(operation("no.such.key", "1", AlterConfigOp.OpType.SET)));
            equal("INVALID_CONFIG", errorOf(admin.incrementalAlterConfigs(unknown).all()));
        });
        served("listConfigResources", () -> {
            ConfigResource topic = configs(topic(1, 0));
            ConfigResource metrics =
                new ConfigResource(ConfigResource.Type.CLIENT_METRICS, newName("subscription"));
            alter(metrics, "interval.ms", "60000", AlterConfigOp.OpType.SET);
            Collection<ConfigResource> all = get(admin.listConfigResources().all());
            check(all.containsAll(List.of(topic, metrics)), all);
            Set<ConfigResource.Type> brokers = Set.of(ConfigResource.Type.BROKER);
            Collection<ConfigResource> found =
                get(admin.listConfigResources(brokers, new ListConfigResourcesOptions()).all());
            equal(Set.of(new ConfigResource(ConfigResource.Type.BROKER, "1")), Set.copyOf(found));
        });
        served("listClientMetricsResources", () -> {
            String name = newName("subscription");
            alter(new ConfigResource(ConfigResource.Type.CLIENT_METRICS, name), "interval.ms",
                "60000", AlterConfigOp.OpType.SET);
            check(get(admin.listClientMetricsResources().all()).stream()
                .anyMatch(each -> each.name().equals(name)), "not listed");
        });
        ClientQuotaEntity client =
            new ClientQuotaEntity(Map.of(ClientQuotaEntity.CLIENT_ID, newName("client")));
        ClientQuotaFilter filter = ClientQuotaFilter.containsOnly(List.of(
            ClientQuotaFilterComponent.ofEntity(
                ClientQuotaEntity.CLIENT_ID, client.entries().get(ClientQuotaEntity.CLIENT_ID))));
        served("alterClientQuotas", () -> {
            alterQuota(client, 1000.0);
            equal(Map.of(client, Map.of("producer_byte_rate", 1000.0)),
                get(admin.describeClientQuotas(filter).entities()));
            alterQuota(client, null);
            equal(Map.of(), get(admin.describeClientQuotas(filter).entities()));
        });
        served("describeClientQuotas", () -> {
            alterQuota(client, 7.0);
            check(get(admin.describeClientQuotas(ClientQuotaFilter.all()).entities())
                .containsKey(client), "not described");
            alterQuota(client, null);
        });
    }

    private static AlterConfigOp operation(String key, String value, AlterConfigOp.OpType type) {
        return new AlterConfigOp(new ConfigEntry(key, value), type);
    }

    private void alter(
            ConfigResource resource, String key, String value, AlterConfigOp.OpType type)
            throws Exception {
        get(admin.incrementalAlterConfigs(
            Map.of(resource, List.of(operation(key, value, type)))).all());
    }

    private void alterQuota(ClientQuotaEntity entity, Double value) throws Exception {
        ClientQuotaAlteration.Op change =
            new ClientQuotaAlteration.Op("producer_byte_rate", value);
        get(admin.alterClientQuotas(
            List.of(new ClientQuotaAlteration(entity, List.of(change)))).all());
    }

    private void clusterRows() {
        served("describeCluster", () -> {
            DescribeClusterResult found = admin.describeCluster(
                new DescribeClusterOptions().includeAuthorizedOperations(true));
            equal(1, get(found.nodes()).size());
            equal(1, get(found.controller()).id());
            check(!get(found.clusterId()).isEmpty(), "no cluster id");
            check(get(found.authorizedOperations()).contains(AclOperation.ALTER), "operations");
        });
        served("describeFeatures", () -> {
            FeatureMetadata found = get(admin.describeFeatures().featureMetadata());
            SupportedVersionRange range = found.supportedFeatures().get("metadata.version");
            short level = found.finalizedFeatures().get("metadata.version").maxVersionLevel();
            check(range.minVersion() <= level && level <= range.maxVersion(), level);
            check(found.finalizedFeaturesEpoch().isPresent(), "no epoch");
        });
        served("updateFeatures", () -> {
            FeatureMetadata found = get(admin.describeFeatures().featureMetadata());
            short level = found.finalizedFeatures().get("group.version").maxVersionLevel();
            UpdateFeaturesOptions only = new UpdateFeaturesOptions().validateOnly(true);
            FeatureUpdate same = new FeatureUpdate(level, FeatureUpdate.UpgradeType.UPGRADE);
            get(admin.updateFeatures(Map.of("group.version", same), only).all());
            FeatureUpdate far = new FeatureUpdate((short) 99, FeatureUpdate.UpgradeType.UPGRADE);
            equal("INVALID_UPDATE_VERSION", errorOf(admin.updateFeatures(
                Map.of("group.version", far), new UpdateFeaturesOptions()).all()));
        });
        served("describeMetadataQuorum", () -> {
            QuorumInfo found = get(admin.describeMetadataQuorum().quorumInfo());
            equal(1, found.leaderId());
            check(found.highWatermark() > 0, found);
            equal(List.of(1), found.voters().stream().map(QuorumInfo.ReplicaState::replicaId)
                .collect(Collectors.toList()));
        });
        refused("unregisterBroker", () -> admin.unregisterBroker(77).all());
        Set<RaftVoterEndpoint> endpoints =
            Set.of(new RaftVoterEndpoint("CONTROLLER", "localhost", 9));
        refused("addRaftVoter", () -> admin.addRaftVoter(1, Uuid.randomUuid(), endpoints).all());
        refused("removeRaftVoter", () -> admin.removeRaftVoter(2, Uuid.randomUuid()).all());
    }

    private void directoryRows() {
        served("describeLogDirs", () -> {
            TopicPartition partition = first(topic(1, 5));
            Map<String, LogDirDescription> found =
                get(admin.describeLogDirs(List.of(1)).allDescriptions()).get(1);
            equal(2, found.size());
            List<Long> sizes = new ArrayList<>();
            found.values().forEach(each -> {
                check(each.error() == null && each.totalBytes().isPresent(), each);
                if (each.replicaInfos().containsKey(partition)) {
                    sizes.add(each.replicaInfos().get(partition).size());
                }
            });
            check(sizes.size() == 1 && sizes.get(0) > 0, sizes);
        });
        served("describeReplicaLogDirs", () -> {
            TopicPartitionReplica replica = new TopicPartitionReplica(topic(1, 0), 0, 1);
            DescribeReplicaLogDirsResult.ReplicaLogDirInfo found =
                get(admin.describeReplicaLogDirs(List.of(replica)).all()).get(replica);
            check(directories().contains(found.getCurrentReplicaLogDir()), found);
            check(found.getFutureReplicaLogDir() == null, found);
        });
        served("alterReplicaLogDirs", () -> {
            TopicPartitionReplica replica = new TopicPartitionReplica(topic(1, 5), 0, 1);
            Callable<String> place = () -> get(
                admin.describeReplicaLogDirs(List.of(replica)).all())
                .get(replica).getCurrentReplicaLogDir();
            Set<String> others = new TreeSet<>(directories());
            others.remove(place.call());
            String other = others.iterator().next();
            get(admin.alterReplicaLogDirs(Map.of(replica, other)).all());
            until(() -> place.call().equals(other));
            equal("LOG_DIR_NOT_FOUND",
                errorOf(admin.alterReplicaLogDirs(Map.of(replica, other + "-none")).all()));
        });
    }

    private Set<String> directories() throws Exception {
        return get(admin.describeLogDirs(List.of(1)).allDescriptions()).get(1).keySet();
    }

    private void groupRows() {
        served("listGroups", () -> {
            String empty = group(topic(1, 0), 0);
            Map<String, GroupListing> found = get(admin.listGroups().all()).stream()
                .collect(Collectors.toMap(GroupListing::groupId, each -> each));
            equal(Optional.of(GroupState.EMPTY), found.get(empty).groupState());
            check(found.get(empty).isSimpleConsumerGroup(), found.get(empty));
            equal(Optional.of(GroupType.STREAMS), found.get(streamsGroup).type());
        });
        served("listConsumerGroups", () -> {
            String empty = group(topic(1, 0), 0);
            String stable = newName("members");
            try (Consumer<byte[], byte[]> member = member(stable, topic(1, 0))) {
                ListConsumerGroupsOptions which =
                    new ListConsumerGroupsOptions().inGroupStates(Set.of(GroupState.STABLE));
                Set<String> found = get(admin.listConsumerGroups(which).all()).stream()
                    .map(ConsumerGroupListing::groupId).collect(Collectors.toSet());
                check(found.contains(stable) && !found.contains(empty), found);
            }
        });
        served("describeConsumerGroups", () -> {
            for (String protocol : List.of("classic", "consumer")) {
                String name = newName("members");
                String topic = topic(2, 0);
                try (Consumer<byte[], byte[]> member =
                        member(name, topic, "group.protocol", protocol)) {
                    ConsumerGroupDescription found =
                        get(admin.describeConsumerGroups(List.of(name)).all()).get(name);
                    equal(GroupState.STABLE, found.groupState());
                    equal(GroupType.parse(protocol), found.type());
                    equal(1, found.members().size());
                    equal(Set.of(first(topic), new TopicPartition(topic, 1)),
                        found.members().iterator().next().assignment().topicPartitions());
                }
            }
            equal("GROUP_ID_NOT_FOUND",
                errorOf(admin.describeConsumerGroups(List.of(newName("group"))).all()));
        });
        served("describeClassicGroups", () -> {
            String name = newName("members");
            try (Consumer<byte[], byte[]> member = member(name, topic(1, 0))) {
                ClassicGroupDescription found =
                    get(admin.describeClassicGroups(List.of(name)).all()).get(name);
                equal("consumer", found.protocol());
                equal("range", found.protocolData());
            }
        });
        served("deleteConsumerGroups", () -> {
            List<String> name = List.of(group(topic(1, 0), 0));
            get(admin.deleteConsumerGroups(name).all());
            equal("GROUP_ID_NOT_FOUND", errorOf(admin.deleteConsumerGroups(name).all()));
            List<String> used = List.of(newName("members"));
            try (Consumer<byte[], byte[]> member = member(used.get(0), topic(1, 0))) {
                equal("NON_EMPTY_GROUP", errorOf(admin.deleteConsumerGroups(used).all()));
            }
        });
        served("listConsumerGroupOffsets", () -> {
            TopicPartition partition = first(topic(1, 5));
            List<String> both = List.of(group(partition.topic(), 3), group(partition.topic(), 4));
            Map<String, ListConsumerGroupOffsetsSpec> asked = new HashMap<>();
            both.forEach(name -> asked.put(name, new ListConsumerGroupOffsetsSpec()));
            Map<String, Map<TopicPartition, OffsetAndMetadata>> found =
                get(admin.listConsumerGroupOffsets(asked).all());
            equal(3L, found.get(both.get(0)).get(partition).offset());
            equal(4L, found.get(both.get(1)).get(partition).offset());
        });
        served("alterConsumerGroupOffsets", () -> {
            TopicPartition partition = first(topic(1, 5));
            String name = group(partition.topic(), 3);
            get(admin.alterConsumerGroupOffsets(
                name, Map.of(partition, new OffsetAndMetadata(1))).all());
            equal(1L, get(admin.listConsumerGroupOffsets(name).partitionsToOffsetAndMetadata())
                .get(partition).offset());
        });
        served("deleteConsumerGroupOffsets", () -> {
            TopicPartition partition = first(topic(1, 5));
            String name = group(partition.topic(), 3);
            get(admin.deleteConsumerGroupOffsets(name, Set.of(partition)).all());
            equal(Map.of(),
                get(admin.listConsumerGroupOffsets(name).partitionsToOffsetAndMetadata()));
        });
        served("removeMembersFromConsumerGroup", () -> {
            String name = newName("members");
            try (Consumer<byte[], byte[]> member =
                    member(name, topic(1, 0), "group.instance.id", "instance")) {
                get(admin.removeMembersFromConsumerGroup(name,
                    new RemoveMembersFromConsumerGroupOptions(
                        Set.of(new MemberToRemove("instance")))).all());
                equal(0, get(admin.describeConsumerGroups(List.of(name)).all())
                    .get(name).members().size());
            }
        });
    }

    private void shareGroupRows() {
        served("describeShareGroups", () -> {
            String name = newName("share");
            String topic = topic(1, 0);
            Properties properties = settings("group.id", name);
            try (ShareConsumer<byte[], byte[]> consumer = new KafkaShareConsumer<>(
                    properties, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
                consumer.subscribe(List.of(topic));
                until(() -> {
                    consumer.poll(Duration.ofMillis(100));
                    if (get(admin.listGroups().all()).stream()
                            .noneMatch(each -> each.groupId().equals(name))) {
                        return false;
                    }
                    Collection<ShareMemberDescription> members =
                        get(admin.describeShareGroups(List.of(name)).all()).get(name).members();
                    return members.size() == 1 && members.iterator().next().assignment()
                        .topicPartitions().equals(Set.of(first(topic)));
                });
            }
        });
        served("alterShareGroupOffsets", () -> shareGroup(first(topic(1, 5)), 3));
        served("listShareGroupOffsets", () -> {
            TopicPartition partition = first(topic(1, 5));
            String name = shareGroup(partition, 3);
            SharePartitionOffsetInfo found = get(admin.listShareGroupOffsets(
                Map.of(name, new ListShareGroupOffsetsSpec())).partitionsToOffsetInfo(name))
                .get(partition);
            equal(3L, found.startOffset());
            equal(Optional.of(2L), found.lag());
        });
        served("deleteShareGroupOffsets", () -> {
            TopicPartition partition = first(topic(1, 5));
            String name = shareGroup(partition, 3);
            get(admin.deleteShareGroupOffsets(name, Set.of(partition.topic())).all());
            equal(Map.of(), get(admin.listShareGroupOffsets(
                Map.of(name, new ListShareGroupOffsetsSpec())).partitionsToOffsetInfo(name)));
        });
        served("deleteShareGroups", () -> {
            List<String> name = List.of(shareGroup(first(topic(1, 5)), 3));
            get(admin.deleteShareGroups(name).all());
            equal("GROUP_ID_NOT_FOUND", errorOf(admin.deleteShareGroups(name).all()));
        });
    }

    /** A share group without members whose start offset is set. */
    private String shareGroup(TopicPartition partition, long offset) throws Exception {
        String name = newName("share");
        get(admin.alterShareGroupOffsets(name, Map.of(partition, offset)).all());
        equal(GroupState.EMPTY,
            get(admin.describeShareGroups(List.of(name)).all()).get(name).groupState());
        return name;
    }

    private void streamsGroupRows() {
        TopicPartition partition = first(streamsTopic);
        served("describeStreamsGroups", () -> {
            StreamsGroupDescription found =
                get(admin.describeStreamsGroups(List.of(streamsGroup)).all()).get(streamsGroup);
            equal(GroupState.EMPTY, found.groupState());
            equal(List.of(List.of(streamsTopic)), found.subtopologies().stream()
                .map(StreamsGroupSubtopologyDescription::sourceTopics).collect(Collectors.toList()));
        });
        served("alterStreamsGroupOffsets", () -> {
            get(admin.alterStreamsGroupOffsets(
                streamsGroup, Map.of(partition, new OffsetAndMetadata(3))).all());
            equal(3L, streamsOffsets().get(partition).offset());
        });
        served("listStreamsGroupOffsets", () -> equal(Set.of(partition), streamsOffsets().keySet()));
        served("deleteStreamsGroupOffsets", () -> {
            get(admin.deleteStreamsGroupOffsets(streamsGroup, Set.of(partition)).all());
            equal(Map.of(), streamsOffsets());
        });
        served("deleteStreamsGroups", () -> {
            String name = group(topic(1, 0), 0);
            get(admin.deleteStreamsGroups(List.of(name)).all());
            equal("GROUP_ID_NOT_FOUND", errorOf(admin.deleteStreamsGroups(List.of(name)).all()));
        });
    }

    private Map<TopicPartition, OffsetAndMetadata> streamsOffsets() throws Exception {
        return get(admin.listStreamsGroupOffsets(
            Map.of(streamsGroup, new ListStreamsGroupOffsetsSpec()))
            .partitionsToOffsetAndMetadata(streamsGroup));
    }

    /** A check of a transaction that has a record in a partition and stays open meanwhile. */
    private interface InTransaction {
        void run(String id, TopicPartition partition, Producer<byte[], byte[]> producer)
            throws Exception;
    }

    private Action inTransaction(InTransaction check) {
        return () -> {
            String id = newName("transaction");
            TopicPartition partition = first(topic(1, 0));
            try (Producer<byte[], byte[]> producer = producer("transactional.id", id)) {
                producer.initTransactions();
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(partition.topic(), 0, null, new byte[] {1})).get();
                check.run(id, partition, producer);
            }
        };
    }

    private ProducerState producerOf(TopicPartition partition) throws Exception {
        List<ProducerState> found = get(
            admin.describeProducers(List.of(partition)).partitionResult(partition)).activeProducers();
        equal(1, found.size());
        return found.get(0);
    }

    private TransactionState stateOf(String id) throws Exception {
        return get(admin.describeTransactions(List.of(id)).description(id)).state();
    }

    private void transactionRows() {
        served("describeProducers", inTransaction((id, partition, producer) -> {
            equal(0L, producerOf(partition).currentTransactionStartOffset().getAsLong());
        }));
        served("describeTransactions", inTransaction((id, partition, producer) -> {
            TransactionDescription found =
                get(admin.describeTransactions(List.of(id)).description(id));
            equal(TransactionState.ONGOING, found.state());
            equal(Set.of(partition), found.topicPartitions());
            String missing = newName("transaction");
            equal("TRANSACTIONAL_ID_NOT_FOUND",
                errorOf(admin.describeTransactions(List.of(missing)).all()));
        }));
        served("listTransactions", inTransaction((id, partition, producer) -> {
            ListTransactionsOptions which = new ListTransactionsOptions()
                .filterStates(Set.of(TransactionState.ONGOING)).filterOnTransactionalIdPattern(id);
            equal(List.of(id), get(admin.listTransactions(which).all()).stream()
                .map(TransactionListing::transactionalId).collect(Collectors.toList()));
            ListTransactionsOptions longer = new ListTransactionsOptions().filterOnDuration(3600_000);
            equal(0, get(admin.listTransactions(longer).all()).size());
        }));
        served("abortTransaction", inTransaction((id, partition, producer) -> {
            ProducerState found = producerOf(partition);
            get(admin.abortTransaction(new AbortTransactionSpec(partition, found.producerId(),
                (short) found.producerEpoch(), found.coordinatorEpoch().orElse(-1))).all());
            check(producerOf(partition).currentTransactionStartOffset().isEmpty(), "still open");
        }));
        served("fenceProducers", inTransaction((id, partition, producer) -> {
            short before = (short) producerOf(partition).producerEpoch();
            FenceProducersResult fenced = admin.fenceProducers(List.of(id));
            check(get(fenced.epochId(id)) > before, get(fenced.epochId(id)));
            refusesCommit(producer);
        }));
        served("forceTerminateTransaction", inTransaction((id, partition, producer) -> {
            get(admin.forceTerminateTransaction(id).result());
            until(() -> stateOf(id) == TransactionState.EMPTY);
            refusesCommit(producer);
        }));
    }

    private static void refusesCommit(Producer<byte[], byte[]> producer) {
        try {
            producer.commitTransaction();
        } catch (KafkaException fenced) {
            return;
        }
        throw new AssertionError("the fenced producer committed");
    }

    private void securityRows() {
        AclBinding acl = new AclBinding(
            new ResourcePattern(ResourceType.TOPIC, "t", PatternType.LITERAL),
            new AccessControlEntry("User:bob", "*", AclOperation.READ, AclPermissionType.ALLOW));
        refused("createAcls", () -> admin.createAcls(List.of(acl)).all());
        refused("describeAcls", () -> admin.describeAcls(AclBindingFilter.ANY).values());
        refused("deleteAcls", () -> admin.deleteAcls(List.of(acl.toFilter())).all());
        refused("createDelegationToken", () -> admin.createDelegationToken().delegationToken());
        refused("renewDelegationToken",
            () -> admin.renewDelegationToken(new byte[] {1}).expiryTimestamp());
        refused("expireDelegationToken",
            () -> admin.expireDelegationToken(new byte[] {1}).expiryTimestamp());
        refused("describeDelegationToken", () -> admin.describeDelegationToken().delegationTokens());
        served("alterUserScramCredentials", () -> {
            String user = newName("user");
            ScramCredentialInfo info = new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8192);
            get(admin.alterUserScramCredentials(
                List.of(new UserScramCredentialUpsertion(user, info, "secret"))).all());
            equal(List.of(info), get(admin.describeUserScramCredentials(List.of(user)).all())
                .get(user).credentialInfos());
            List<UserScramCredentialAlteration> deletion =
                List.of(new UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_256));
            get(admin.alterUserScramCredentials(deletion).all());
            equal("RESOURCE_NOT_FOUND", errorOf(admin.alterUserScramCredentials(deletion).all()));
        });
        served("describeUserScramCredentials", () -> {
            String user = newName("user");
            ScramCredentialInfo info = new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096);
            get(admin.alterUserScramCredentials(
                List.of(new UserScramCredentialUpsertion(user, info, "secret"))).all());
            check(get(admin.describeUserScramCredentials().users()).contains(user), "not listed");
            String missing = newName("user");
            equal("RESOURCE_NOT_FOUND", errorOf(
                admin.describeUserScramCredentials(List.of(missing)).description(missing)));
        });
    }

    private void clientRows() {
        served("clientInstanceId", () -> {
            Uuid id = admin.clientInstanceId(Duration.ofSeconds(20));
            check(!id.equals(Uuid.ZERO_UUID), id);
        });
        local("metrics", () -> check(!admin.metrics().isEmpty(), "no metrics"));
        KafkaMetric metric;
        try (Metrics metrics = new Metrics()) {
            MetricName name = metrics.metricName("name", "group");
            metrics.addMetric(name, (config, nowMs) -> 1.0);
            metric = metrics.metric(name);
        }
        local("registerMetricForSubscription", () -> admin.registerMetricForSubscription(metric));
        local("unregisterMetricFromSubscription",
            () -> admin.unregisterMetricFromSubscription(metric));
        local("close", () -> {
            Admin other = Admin.create(settings());
            get(other.listTopics().names());
            other.close(Duration.ofSeconds(5));
            try {
                get(other.listTopics().names());
            } catch (ExecutionException closed) {
                check(closed.getCause() instanceof IllegalStateException, closed);
                return;
            }
            throw new AssertionError("a closed Admin sends");
        });
    }
}
