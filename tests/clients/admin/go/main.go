// Makes every call of franz-go's kadm.Client, and checks what came of it.
//
// Arguments: host:port of a broker with node id 1 and two log directories; a classic group whose one
// member has the instance id "instance"; a group of the consumer protocol with one member; the
// transactional id of an open transaction, and the topic that its one record lies in.
//
// Standard output, lines of words between tabs: "method" and a name for each method that the client
// has; "call", a name and an outcome for each that was made: "served", "local", the name of Kafka's
// error, or "failed" and why.
package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	served = "served"
	local  = "local"
)

var (
	ctx                                             = context.Background()
	admin                                           *kadm.Client
	client                                          *kgo.Client
	classicGroup, consumerGroup, transaction, inUse string
	names                                           int
	rows                                            []row
)

type row struct {
	method string
	check  func() string
}

// serves adds a call that does what its name says.
func serves(method string, check func()) {
	rows = append(rows, row{method, func() string { check(); return served }})
}

// refuses adds a call that Kafka answers with an error.
func refuses(method string, call func() error) {
	rows = append(rows, row{method, func() string { return nameOf(call()) }})
}

func outcome(each row) (found string) {
	defer func() {
		if failure := recover(); failure != nil {
			found = strings.NewReplacer("\n", " ", "\t", " ").Replace(fmt.Sprint("failed: ", failure))
		}
	}()
	return each.check()
}

// nameOf is the name of Kafka's error.
func nameOf(err error) string {
	var code *kerr.Error
	if errors.As(err, &code) {
		return code.Message
	}
	if err != nil && strings.HasPrefix(err.Error(), "broker is too old") {
		return "UNSUPPORTED_VERSION" // the client's own words for an API that is not announced
	}
	return fmt.Sprint("failed: ", err)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func got[T any](value T, err error) T {
	must(err)
	return value
}

// equal compares what is printed of two values.
func equal(expected, found any) {
	if fmt.Sprint(expected) != fmt.Sprint(found) {
		panic(fmt.Sprintf("%v instead of %v", found, expected))
	}
}

func until(condition func() bool) {
	for deadline := time.Now().Add(20 * time.Second); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			panic("not within 20 s")
		}
	}
}

func newName(stem string) string {
	names++
	return fmt.Sprintf("go-%s-%d", stem, names)
}

func text(value string) *string { return &value }

// topic creates a topic with records in its partition 0.
func topic(partitions int32, records int) string {
	name := newName("topic")
	got(admin.CreateTopic(ctx, partitions, 1, nil, name))
	until(func() bool { return partitionCount(name) == int(partitions) })
	for number := 0; number < records; number++ {
		record := &kgo.Record{Topic: name, Partition: 0, Value: []byte{1}}
		must(client.ProduceSync(ctx, record).FirstErr())
	}
	return name
}

func at(topic string, offset int64) kadm.Offsets {
	var offsets kadm.Offsets
	offsets.AddOffset(topic, 0, offset, -1)
	return offsets
}

// group commits an offset of partition 0.
func group(topic string, offset int64) string {
	name := newName("group")
	must(admin.CommitAllOffsets(ctx, name, at(topic, offset)))
	return name
}

func first(topic string) kadm.TopicsSet {
	var set kadm.TopicsSet
	set.Add(topic, 0)
	return set
}

func idOf(topic string) kadm.TopicID {
	return got(admin.ListTopics(ctx, topic))[topic].ID
}

func committed(group, topic string) int64 {
	found, exists := got(admin.FetchOffsets(ctx, group)).Lookup(topic, 0)
	if !exists {
		return -1
	}
	return found.At
}

func config(topic, key string) string {
	found := got(got(admin.DescribeTopicConfigs(ctx, topic)).On(topic, nil))
	must(found.Err)
	for _, each := range found.Configs {
		if each.Key == key {
			return each.MaybeValue()
		}
	}
	panic("no " + key)
}

func brokerConfig(key string) string {
	for _, each := range got(got(admin.DescribeBrokerConfigs(ctx, 1)).On("1", nil)).Configs {
		if each.Key == key {
			return each.MaybeValue()
		}
	}
	panic("no " + key)
}

func setting(op kadm.IncrementalOp, key, value string) []kadm.AlterConfig {
	return []kadm.AlterConfig{{Op: op, Name: key, Value: text(value)}}
}

func altered(responses kadm.AlterConfigsResponses, err error) error {
	must(err)
	equal(1, len(responses))
	return responses[0].Err
}

func partitionCount(topic string) int {
	return len(got(admin.ListTopics(ctx, topic))[topic].Partitions)
}

func topicRows() {
	serves("CreateTopic", func() {
		name := newName("created")
		done := got(admin.CreateTopic(ctx, 3, 1, map[string]*string{"retention.ms": text("60000")}, name))
		equal(3, done.NumPartitions)
		equal("60000", config(name, "retention.ms"))
		equal("TOPIC_ALREADY_EXISTS", nameOf(got(admin.CreateTopics(ctx, 1, 1, nil, name))[name].Err))
	})
	serves("CreateTopics", func() {
		one, two := newName("created"), newName("created")
		must(got(admin.CreateTopics(ctx, 2, -1, nil, one, two)).Error())
		equal("[2 2]", []int{partitionCount(one), partitionCount(two)})
	})
	serves("ValidateCreateTopics", func() {
		name := newName("created")
		must(got(admin.ValidateCreateTopics(ctx, 1, 1, nil, name)).Error())
		equal(false, got(admin.ListTopics(ctx)).Has(name))
		bad := got(admin.ValidateCreateTopics(ctx, 1, 7, nil, name))
		equal("INVALID_REPLICATION_FACTOR", nameOf(bad[name].Err))
	})
	serves("DeleteTopic", func() {
		name := topic(1, 0)
		got(admin.DeleteTopic(ctx, name))
		until(func() bool { return !got(admin.ListTopics(ctx)).Has(name) })
	})
	serves("DeleteTopics", func() {
		name, missing := topic(1, 0), newName("missing")
		done := got(admin.DeleteTopics(ctx, name, missing))
		must(done[name].Err)
		equal("UNKNOWN_TOPIC_OR_PARTITION", nameOf(done[missing].Err))
	})
	serves("ListTopics", func() {
		name := topic(2, 0)
		found := got(admin.ListTopics(ctx))
		equal(2, len(found[name].Partitions))
		equal("[1]", found[name].Partitions[1].ISR)
		equal(false, found.Has("__consumer_offsets"))
	})
	serves("ListTopicsWithInternal", func() {
		group(topic(1, 0), 0)
		equal(true, got(admin.ListTopicsWithInternal(ctx))["__consumer_offsets"].IsInternal)
	})
	serves("CreatePartitions", func() {
		name := topic(2, 0)
		must(got(admin.CreatePartitions(ctx, 3, name)).Error())
		until(func() bool { return partitionCount(name) == 5 })
	})
	serves("UpdatePartitions", func() {
		name := topic(2, 0)
		must(got(admin.UpdatePartitions(ctx, 5, name)).Error())
		until(func() bool { return partitionCount(name) == 5 })
		equal("INVALID_PARTITIONS", nameOf(got(admin.UpdatePartitions(ctx, 3, name)).Error()))
	})
	serves("ValidateCreatePartitions", func() {
		name := topic(2, 0)
		must(got(admin.ValidateCreatePartitions(ctx, 3, name)).Error())
		equal(2, partitionCount(name))
	})
	serves("ValidateUpdatePartitions", func() {
		name := topic(2, 0)
		must(got(admin.ValidateUpdatePartitions(ctx, 5, name)).Error())
		equal("INVALID_PARTITIONS", nameOf(got(admin.ValidateUpdatePartitions(ctx, 1, name)).Error()))
		equal(2, partitionCount(name))
	})
	serves("DeleteRecords", func() {
		name := topic(1, 5)
		equal(2, got(admin.DeleteRecords(ctx, at(name, 2)))[name][0].LowWatermark)
		equal("OFFSET_OUT_OF_RANGE", nameOf(got(admin.DeleteRecords(ctx, at(name, 9))).Error()))
	})
	for method, list := range map[string]func(context.Context, ...string) (kadm.ListedOffsets, error){
		"ListStartOffsets":         admin.ListStartOffsets,
		"ListLocalLogStartOffsets": admin.ListLocalLogStartOffsets,
		"ListEndOffsets":           admin.ListEndOffsets,
		"ListCommittedOffsets":     admin.ListCommittedOffsets,
		"ListLatestRemoteOffsets":  admin.ListLatestRemoteOffsets,
	} {
		serves(method, func() {
			// of none there are, as in tiers, the client gives the end
			expected := map[string]int64{"ListEndOffsets": 5, "ListCommittedOffsets": 5,
				"ListLatestRemoteOffsets": 5}[method]
			name := topic(1, 5)
			found, _ := got(list(ctx, name)).Lookup(name, 0)
			must(found.Err)
			equal(expected, found.Offset)
		})
	}
	serves("ListMaxTimestampOffsets", func() {
		name := topic(1, 5)
		found, _ := got(admin.ListMaxTimestampOffsets(ctx, name)).Lookup(name, 0)
		must(found.Err)
		equal(true, found.Timestamp > 0 && found.Offset < 5)
	})
	serves("ListOffsetsAfterMilli", func() {
		name := topic(1, 5)
		found, _ := got(admin.ListOffsetsAfterMilli(ctx, 0, name)).Lookup(name, 0)
		equal(0, found.Offset)
		later := time.Now().Add(time.Hour).UnixMilli()
		none, _ := got(admin.ListOffsetsAfterMilli(ctx, later, name)).Lookup(name, 0)
		equal(5, none.Offset)
	})
	for method, call := range map[string]func(context.Context, kadm.OffsetForLeaderEpochRequest) (kadm.OffsetsForLeaderEpochs, error){
		"OffsetForLeaderEpoch": admin.OffsetForLeaderEpoch,
		"OffetForLeaderEpoch":  admin.OffetForLeaderEpoch,
	} {
		serves(method, func() {
			name := topic(1, 5)
			var asked kadm.OffsetForLeaderEpochRequest
			asked.Add(name, 0, 0)
			found := got(call(ctx, asked))[name][0]
			must(found.Err)
			equal("0 5", fmt.Sprint(found.LeaderEpoch, " ", found.EndOffset))
		})
	}
	refuses("ElectLeaders", func() error {
		name := topic(1, 0)
		return got(admin.ElectLeaders(ctx, kadm.ElectPreferredReplica, first(name)))[name][0].Err
	})
	serves("AlterPartitionAssignments", func() {
		var here, nowhere, none kadm.AlterPartitionAssignmentsReq
		name := topic(1, 0)
		here.Assign(name, 0, []int32{1})
		must(got(admin.AlterPartitionAssignments(ctx, here)).Error())
		nowhere.Assign(name, 0, []int32{1, 77})
		equal("INVALID_REPLICA_ASSIGNMENT", nameOf(got(admin.AlterPartitionAssignments(ctx, nowhere)).Error()))
		none.CancelAssign(name, 0)
		equal("NO_REASSIGNMENT_IN_PROGRESS", nameOf(got(admin.AlterPartitionAssignments(ctx, none)).Error()))
	})
	serves("ListPartitionReassignments", func() {
		equal("map[]", got(admin.ListPartitionReassignments(ctx, nil)))
	})
}

func configRows() {
	serves("DescribeTopicConfigs", func() { equal("delete", config(topic(1, 0), "cleanup.policy")) })
	serves("DescribeBrokerConfigs", func() { equal("1", brokerConfig("node.id")) })
	serves("AlterTopicConfigs", func() {
		name := topic(1, 0)
		must(altered(admin.AlterTopicConfigs(ctx, setting(kadm.AppendConfig, "cleanup.policy", "compact"), name)))
		must(altered(admin.AlterTopicConfigs(ctx, setting(kadm.SetConfig, "retention.ms", "1000"), name)))
		equal("delete,compact 1000", config(name, "cleanup.policy")+" "+config(name, "retention.ms"))
		must(altered(admin.AlterTopicConfigs(ctx, setting(kadm.DeleteConfig, "retention.ms", ""), name)))
		equal("604800000", strings.Replace(config(name, "retention.ms"), "-1", "604800000", 1))
	})
	serves("AlterTopicConfigsState", func() {
		name := topic(1, 0)
		must(altered(admin.AlterTopicConfigsState(ctx, setting(kadm.SetConfig, "retention.ms", "1000"), name)))
		must(altered(admin.AlterTopicConfigsState(ctx, setting(kadm.SetConfig, "segment.bytes", "2000000"), name)))
		equal(false, config(name, "retention.ms") == "1000")
		equal("2000000", config(name, "segment.bytes"))
	})
	serves("ValidateAlterTopicConfigs", func() {
		name := topic(1, 0)
		must(altered(admin.ValidateAlterTopicConfigs(ctx, setting(kadm.SetConfig, "segment.bytes", "2000000"), name)))
		equal(false, config(name, "segment.bytes") == "2000000")
		bad := altered(admin.ValidateAlterTopicConfigs(ctx, setting(kadm.SetConfig, "segment.bytes", "x"), name))
		equal("INVALID_CONFIG", nameOf(bad))
	})
	serves("ValidateAlterTopicConfigsState", func() {
		name := topic(1, 0)
		must(altered(admin.ValidateAlterTopicConfigsState(ctx, setting(kadm.SetConfig, "segment.bytes", "2000000"), name)))
		equal(false, config(name, "segment.bytes") == "2000000")
	})
	const key, before, after = "message.max.bytes", "1048588", "2000000"
	serves("AlterBrokerConfigs", func() {
		must(altered(admin.AlterBrokerConfigs(ctx, setting(kadm.SetConfig, key, after), 1)))
		until(func() bool { return brokerConfig(key) == after })
		must(altered(admin.AlterBrokerConfigs(ctx, setting(kadm.DeleteConfig, key, ""), 1)))
		until(func() bool { return brokerConfig(key) == before })
	})
	serves("AlterBrokerConfigsState", func() {
		must(altered(admin.AlterBrokerConfigsState(ctx, setting(kadm.SetConfig, key, after), 1)))
		until(func() bool { return brokerConfig(key) == after })
		must(altered(admin.AlterBrokerConfigsState(ctx, nil, 1)))
		until(func() bool { return brokerConfig(key) == before })
	})
	serves("ValidateAlterBrokerConfigs", func() {
		must(altered(admin.ValidateAlterBrokerConfigs(ctx, setting(kadm.SetConfig, key, after), 1)))
		readOnly := altered(admin.ValidateAlterBrokerConfigs(ctx, setting(kadm.SetConfig, "node.id", "2"), 1))
		equal("INVALID_REQUEST", nameOf(readOnly))
		equal(before, brokerConfig(key))
	})
	serves("ValidateAlterBrokerConfigsState", func() {
		must(altered(admin.ValidateAlterBrokerConfigsState(ctx, setting(kadm.SetConfig, key, after), 1)))
		equal(before, brokerConfig(key))
	})
	serves("ListConfigResources", func() {
		name, found := topic(1, 0), false
		for _, each := range got(admin.ListConfigResources(ctx)).Resources {
			found = found || each.Type == kmsg.ConfigResourceTypeTopic && each.Name == name
		}
		equal(true, found)
		brokers := got(admin.ListConfigResources(ctx, kmsg.ConfigResourceTypeBroker)).Sorted()
		equal("1", brokers[0].Name)
	})
	entity := kadm.ClientQuotaEntity{{Type: "client-id", Name: text("go-client")}}
	exactly := []kadm.DescribeClientQuotaComponent{{Type: "client-id", MatchName: text("go-client")}}
	quota := func(remove bool) []kadm.AlterClientQuotaEntry {
		op := kadm.AlterClientQuotaOp{Key: "producer_byte_rate", Value: 1000, Remove: remove}
		return []kadm.AlterClientQuotaEntry{{Entity: entity, Ops: []kadm.AlterClientQuotaOp{op}}}
	}
	described := func() kadm.DescribedClientQuotas {
		return got(admin.DescribeClientQuotas(ctx, true, exactly))
	}
	alterQuota := func(remove bool) {
		must(got(admin.AlterClientQuotas(ctx, quota(remove)))[0].Err)
		until(func() bool { return (len(described()) == 0) == remove })
	}
	serves("AlterClientQuotas", func() {
		alterQuota(false)
		equal(1000, described()[0].Values[0].Value)
		alterQuota(true)
	})
	serves("ValidateAlterClientQuotas", func() {
		must(got(admin.ValidateAlterClientQuotas(ctx, quota(false)))[0].Err)
		equal(0, len(described()))
	})
	serves("DescribeClientQuotas", func() {
		alterQuota(false)
		equal(entity, got(admin.DescribeClientQuotas(ctx, false, nil))[0].Entity)
		alterQuota(true)
	})
}

func clusterRows() {
	serves("Metadata", func() {
		name := topic(1, 0)
		found := got(admin.Metadata(ctx, name))
		equal("1 [1]", fmt.Sprint(found.Controller, found.Brokers.NodeIDs()))
		equal(1, found.Topics[name].Partitions[0].Leader)
	})
	serves("BrokerMetadata", func() {
		found := got(admin.BrokerMetadata(ctx))
		equal(0, len(found.Topics))
		equal(false, found.Cluster == "")
	})
	serves("ListBrokers", func() { equal("[1]", got(admin.ListBrokers(ctx)).NodeIDs()) })
	serves("ApiVersions", func() {
		found := got(admin.ApiVersions(ctx))[1]
		must(found.Err)
		_, high, exists := found.KeyVersions(int16(kmsg.Metadata))
		equal("true 13", fmt.Sprint(exists, high))
	})
	serves("UpdateFeatures", func() {
		one := kadm.FeatureUpdate{Feature: "group.version", MaxVersionLevel: 1, UpgradeType: 1}
		must(got(admin.UpdateFeatures(ctx, true, one)).Error())
		one.MaxVersionLevel = 99
		equal("INVALID_UPDATE_VERSION", nameOf(got(admin.UpdateFeatures(ctx, false, one)).Error()))
	})
	serves("DescribeBrokerLogDirs", func() {
		name := topic(1, 5)
		found := got(admin.DescribeBrokerLogDirs(ctx, 1, first(name)))
		equal(2, len(found))
		partition, exists := found.LookupPartition(name, 0)
		equal(true, exists && partition.Size > 0)
	})
	serves("DescribeAllLogDirs", func() {
		equal(2, len(got(admin.DescribeAllLogDirs(ctx, nil))[1]))
	})
	place := func(name string, holding bool) string {
		for _, each := range got(admin.DescribeBrokerLogDirs(ctx, 1, first(name))) {
			_, exists := each.Topics.Lookup(name, 0)
			if exists == holding {
				return each.Dir
			}
		}
		panic("no such directory")
	}
	moves := func(alter func(kadm.AlterReplicaLogDirsReq) kadm.AlterReplicaLogDirsResponses) {
		name := topic(1, 5)
		other := place(name, false)
		var asked, nowhere kadm.AlterReplicaLogDirsReq
		asked.Add(other, first(name))
		must(alter(asked)[name][0].Err)
		until(func() bool { return place(name, true) == other })
		nowhere.Add(other+"-none", first(name))
		equal("LOG_DIR_NOT_FOUND", nameOf(alter(nowhere)[name][0].Err))
	}
	serves("AlterBrokerReplicaLogDirs", func() {
		moves(func(asked kadm.AlterReplicaLogDirsReq) kadm.AlterReplicaLogDirsResponses {
			return got(admin.AlterBrokerReplicaLogDirs(ctx, 1, asked))
		})
	})
	serves("AlterAllReplicaLogDirs", func() {
		moves(func(asked kadm.AlterReplicaLogDirsReq) kadm.AlterReplicaLogDirsResponses {
			return got(admin.AlterAllReplicaLogDirs(ctx, asked))[1]
		})
	})
}

func groupRows() {
	for method, find := range map[string]func(context.Context, ...string) kadm.FindCoordinatorResponses{
		"FindGroupCoordinators": admin.FindGroupCoordinators,
		"FindTxnCoordinators":   admin.FindTxnCoordinators,
	} {
		serves(method, func() {
			name := newName("key")
			until(func() bool { return find(ctx, name)[name].Err == nil })
			equal(1, find(ctx, name)[name].NodeID)
		})
	}
	serves("FindShareCoordinators", func() {
		id := idOf(topic(1, 0))
		key := newName("share") + ":" + base64.RawURLEncoding.EncodeToString(id[:]) + ":0"
		until(func() bool { return admin.FindShareCoordinators(ctx, key)[key].Err == nil })
		bad := newName("share") + ":gtb2stGYRk+vWZ2zAozmoA:0" // of plain base64
		equal("INVALID_REQUEST", nameOf(admin.FindShareCoordinators(ctx, bad)[bad].Err))
	})
	serves("ListGroups", func() {
		empty := group(topic(1, 0), 0)
		found := got(admin.ListGroups(ctx))
		equal("Empty Stable", found[empty].State+" "+found[classicGroup].State)
		stable := got(admin.ListGroups(ctx, "Stable"))
		_, exists := stable[empty]
		equal(false, exists)
	})
	serves("ListGroupsByType", func() {
		found := got(admin.ListGroupsByType(ctx, []string{"consumer"}))
		equal("["+consumerGroup+"]", found.Groups())
	})
	serves("DescribeGroups", func() {
		found := got(admin.DescribeGroups(ctx, classicGroup))[classicGroup]
		must(found.Err)
		equal("Stable range 1", fmt.Sprint(found.State, " ", found.Protocol, " ", len(found.Members)))
	})
	serves("DescribeConsumerGroups", func() {
		found := got(admin.DescribeConsumerGroups(ctx, consumerGroup))[consumerGroup]
		must(found.Err)
		equal("Stable 1", fmt.Sprint(found.State, " ", len(found.Members)))
	})
	serves("CommitOffsets", func() {
		name, of := newName("group"), topic(1, 5)
		must(got(admin.CommitOffsets(ctx, name, at(of, 3))).Error())
		equal(3, committed(name, of))
	})
	serves("CommitAllOffsets", func() {
		name, of := newName("group"), topic(1, 5)
		must(admin.CommitAllOffsets(ctx, name, at(of, 4)))
		equal(4, committed(name, of))
	})
	byID := func(id kadm.TopicID, offset int64) kadm.OffsetsByID {
		var offsets kadm.OffsetsByID
		offsets.Add(kadm.Offset{TopicID: id, Partition: 0, At: offset, LeaderEpoch: -1})
		return offsets
	}
	serves("CommitOffsetsByID", func() {
		name, of := newName("group"), topic(1, 5)
		must(got(admin.CommitOffsetsByID(ctx, name, byID(idOf(of), 3))).Error())
		equal(3, committed(name, of))
	})
	serves("CommitAllOffsetsByID", func() {
		name, of := newName("group"), topic(1, 5)
		must(admin.CommitAllOffsetsByID(ctx, name, byID(idOf(of), 4)))
		equal(4, committed(name, of))
	})
	serves("FetchOffsets", func() {
		of := topic(1, 5)
		equal(3, committed(group(of, 3), of))
	})
	serves("FetchOffsetsByID", func() {
		of := topic(1, 5)
		found, _ := got(admin.FetchOffsetsByID(ctx, group(of, 3))).Lookup(idOf(of), 0)
		equal(3, found.At)
	})
	serves("FetchOffsetsForTopics", func() {
		of, other := topic(1, 5), topic(1, 0)
		found := got(admin.FetchOffsetsForTopics(ctx, group(of, 3), of, other))
		equal("3 -1", fmt.Sprint(found[of][0].At, " ", found[other][0].At))
	})
	serves("FetchManyOffsets", func() {
		of := topic(1, 5)
		one, two := group(of, 3), group(of, 4)
		found := admin.FetchManyOffsets(ctx, one, two)
		must(found.Error())
		equal("3 4", fmt.Sprint(found[one].Fetched[of][0].At, " ", found[two].Fetched[of][0].At))
	})
	serves("Lag", func() {
		of := topic(1, 5)
		name := group(of, 3)
		found := got(admin.Lag(ctx, name))[name]
		must(found.Error())
		equal(2, found.Lag[of][0].Lag)
	})
	serves("DeleteOffsets", func() {
		of := topic(1, 5)
		name := group(of, 3)
		must(got(admin.DeleteOffsets(ctx, name, first(of))).Error())
		equal(-1, committed(name, of))
	})
	serves("DeleteGroup", func() {
		name := group(topic(1, 0), 0)
		got(admin.DeleteGroup(ctx, name))
		_, err := admin.DeleteGroup(ctx, name)
		equal("GROUP_ID_NOT_FOUND", nameOf(err))
	})
	serves("DeleteGroups", func() {
		name := group(topic(1, 0), 0)
		done := got(admin.DeleteGroups(ctx, name, classicGroup))
		must(done[name].Err)
		equal("NON_EMPTY_GROUP", nameOf(done[classicGroup].Err))
	})
	serves("LeaveGroup", func() {
		must(got(admin.LeaveGroup(ctx, kadm.LeaveGroup(classicGroup).InstanceIDs("instance"))).Error())
	})
}

func shareGroupRows() {
	share := func(of string) string {
		name := newName("share")
		must(got(admin.AlterShareGroupOffsets(ctx, name, at(of, 3))).Error())
		return name
	}
	startOf := func(name, of string) int64 {
		found := got(admin.DescribeShareGroupOffsets(ctx, name))[name]
		must(found.Err)
		return found.Offsets[of][0].StartOffset
	}
	serves("AlterShareGroupOffsets", func() { share(topic(1, 5)) })
	serves("DescribeShareGroupOffsets", func() {
		of := topic(1, 5)
		equal(3, startOf(share(of), of))
	})
	serves("DescribeShareGroups", func() {
		name := share(topic(1, 5))
		found := got(admin.DescribeShareGroups(ctx, name))[name]
		must(found.Err)
		equal("Empty", found.GroupState)
	})
	serves("DeleteShareGroupOffsets", func() {
		of := topic(1, 5)
		name := share(of)
		must(got(admin.DeleteShareGroupOffsets(ctx, name, of)).Error())
		_, exists := got(admin.DescribeShareGroupOffsets(ctx, name))[name].Offsets[of]
		equal(false, exists)
	})
}

func transactionRows() {
	producer := func() kadm.DescribedProducer {
		found := got(admin.DescribeProducers(ctx, first(inUse)))[inUse].Partitions[0]
		must(found.Err)
		equal(1, len(found.ActiveProducers))
		return found.ActiveProducers.Sorted()[0]
	}
	serves("DescribeProducers", func() { equal(0, producer().CurrentTxnStartOffset) })
	serves("DescribeTransactions", func() {
		found := got(admin.DescribeTransactions(ctx, transaction))[transaction]
		must(found.Err)
		equal("Ongoing", found.State)
		equal(first(inUse), found.Topics)
	})
	serves("ListTransactions", func() {
		_, exists := got(admin.ListTransactions(ctx, nil, []string{"Ongoing"}))[transaction]
		equal(true, exists)
		_, exists = got(admin.ListTransactions(ctx, nil, []string{"CompleteAbort"}))[transaction]
		equal(false, exists)
	})
	serves("ListTransactionsByTxPattern", func() {
		equal("["+transaction+"]", got(admin.ListTransactionsByTxPattern(ctx, nil, nil, transaction)).TransactionalIDs())
	})
	serves("WriteTxnMarkers", func() {
		found := producer()
		marker := kadm.TxnMarkers{ProducerID: found.ProducerID, ProducerEpoch: found.ProducerEpoch,
			CoordinatorEpoch: -1, Topics: first(inUse)}
		done := got(admin.WriteTxnMarkers(ctx, marker))
		must(done[found.ProducerID].Topics[inUse].Partitions[0].Err)
		equal(-1, producer().CurrentTxnStartOffset)
	})
}

func securityRows() {
	acl := func() *kadm.ACLBuilder {
		return kadm.NewACLs().Topics("t").ResourcePatternType(kadm.ACLPatternLiteral).
			Allow("User:bob").AllowHosts("*").Operations(kadm.OpRead)
	}
	refuses("CreateACLs", func() error { return got(admin.CreateACLs(ctx, acl()))[0].Err })
	refuses("DescribeACLs", func() error { return got(admin.DescribeACLs(ctx, acl()))[0].Err })
	refuses("DeleteACLs", func() error { return got(admin.DeleteACLs(ctx, acl()))[0].Err })
	refuses("CreateDelegationToken", func() error {
		_, err := admin.CreateDelegationToken(ctx, kadm.CreateDelegationToken{MaxLifetime: -1})
		return err
	})
	refuses("RenewDelegationToken", func() error {
		_, err := admin.RenewDelegationToken(ctx, []byte{1}, time.Hour)
		return err
	})
	refuses("ExpireDelegationToken", func() error {
		_, err := admin.ExpireDelegationToken(ctx, []byte{1}, time.Hour)
		return err
	})
	refuses("DescribeDelegationTokens", func() error {
		_, err := admin.DescribeDelegationTokens(ctx)
		return err
	})
	upsert := func(user string) []kadm.UpsertSCRAM {
		return []kadm.UpsertSCRAM{{User: user, Mechanism: kadm.ScramSha256, Iterations: 8192, Password: "secret"}}
	}
	serves("AlterUserSCRAMs", func() {
		user := newName("user")
		must(got(admin.AlterUserSCRAMs(ctx, nil, upsert(user))).Error())
		deletion := []kadm.DeleteSCRAM{{User: user, Mechanism: kadm.ScramSha256}}
		must(got(admin.AlterUserSCRAMs(ctx, deletion, nil)).Error())
		equal("RESOURCE_NOT_FOUND", nameOf(got(admin.AlterUserSCRAMs(ctx, deletion, nil)).Error()))
	})
	serves("DescribeUserSCRAMs", func() {
		user := newName("user")
		must(got(admin.AlterUserSCRAMs(ctx, nil, upsert(user))).Error())
		equal(8192, got(admin.DescribeUserSCRAMs(ctx))[user].CredInfos[0].Iterations)
		missing := newName("user")
		equal("RESOURCE_NOT_FOUND", nameOf(got(admin.DescribeUserSCRAMs(ctx, missing))[missing].Err))
	})
}

func main() {
	arguments := os.Args[1:]
	classicGroup, consumerGroup = arguments[1], arguments[2]
	transaction, inUse = arguments[3], arguments[4]
	connect := func() *kgo.Client {
		return got(kgo.NewClient(
			kgo.SeedBrokers(arguments[0]),
			kgo.RecordPartitioner(kgo.ManualPartitioner()),
			kgo.MetadataMinAge(10*time.Millisecond), // or kadm answers from its cache for seconds
		))
	}
	client = connect()
	admin = kadm.NewClient(client)
	kind := reflect.TypeOf(admin)
	for index := 0; index < kind.NumMethod(); index++ {
		fmt.Printf("method\t%s\n", kind.Method(index).Name)
	}
	topicRows()
	configRows()
	clusterRows()
	groupRows()
	shareGroupRows()
	transactionRows()
	securityRows()
	rows = append(rows, row{"SetTimeoutMillis", func() string { admin.SetTimeoutMillis(20_000); return local }})
	rows = append(rows, row{"Close", func() string {
		other := kadm.NewClient(connect())
		got(other.ListBrokers(ctx))
		other.Close()
		_, err := other.DescribeClientQuotas(ctx, false, nil)
		equal(false, err == nil)
		return local
	}})
	for _, each := range rows {
		fmt.Printf("call\t%s\t%s\n", each.method, outcome(each))
	}
	admin.Close()
}
