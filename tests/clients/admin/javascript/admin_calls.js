// Makes every call of kafkajs's Admin, and checks what came of it.
//
// Arguments: host:port of a broker with node id 1; a group whose one member owns a topic; that topic.
// Run in a folder with node_modules.
//
// Standard output, lines of words between tabs: "method" and a name for each method that Admin has;
// "call", a name and an outcome for each that was made: "served", "local", the name of Kafka's error,
// or "failed" and why.
'use strict'

const assert = require('node:assert/strict')
const { createRequire } = require('node:module')
const requireHere = createRequire(process.cwd() + '/')
const {
  AclOperationTypes, AclPermissionTypes, AclResourceTypes, ConfigResourceTypes, Kafka, logLevel,
  ResourcePatternTypes,
} = requireHere('kafkajs')

const [bootstrap, usedGroup, usedTopic] = process.argv.slice(2)
const kafka = new Kafka({ brokers: [bootstrap], logLevel: logLevel.NOTHING, retry: { retries: 3 } })
const admin = kafka.admin()
const rows = []
let names = 0

const newName = stem => `js-${stem}-${names++}`

const serves = (method, check) => rows.push([method, async () => { await check(); return 'served' }])
const isLocal = (method, check) => rows.push([method, async () => { await check(); return 'local' }])
const refuses = (method, call) => rows.push([method, () => errorOf(call)])

// The name of Kafka's error, which lies somewhere in what is thrown.
const nameOf = error =>
  error.type || [error.cause, ...(error.errors || []), ...(error.groups || []).map(each => each.error),
    ...(error.partitions || []).map(each => each.error)]
    .filter(inner => inner).map(nameOf)[0] || String(error)

const errorOf = async call => {
  try {
    await call()
  } catch (error) {
    return nameOf(error)
  }
  throw new Error('it succeeded')
}

const until = async condition => {
  const deadline = Date.now() + 20_000
  while (!(await condition())) {
    assert(Date.now() < deadline, 'not within 20 s')
    await new Promise(resolve => setTimeout(resolve, 20))
  }
}

const topic = async (numPartitions = 1, records = 0) => {
  const name = newName('topic')
  await admin.createTopics({ waitForLeaders: true, topics: [{ topic: name, numPartitions }] })
  if (records) {
    const producer = kafka.producer()
    await producer.connect()
    const messages = Array.from({ length: records }, () => ({ value: 'v', partition: 0 }))
    await producer.send({ topic: name, messages })
    await producer.disconnect()
  }
  return name
}

const group = async (name, offset) => {
  const groupId = newName('group')
  await admin.setOffsets({ groupId, topic: name, partitions: [{ partition: 0, offset }] })
  return groupId
}

const committed = async (groupId, name) => {
  const [found] = await admin.fetchOffsets({ groupId, topics: [name] })
  return found.partitions.find(each => each.partition === 0).offset
}

const partitionCount = async name => {
  const found = await admin.fetchTopicMetadata({ topics: [name] })
  return found.topics[0].partitions.length
}

const config = async (name, key) => {
  const found = await admin.describeConfigs({
    includeSynonyms: true,
    resources: [{ type: ConfigResourceTypes.TOPIC, name, configNames: [key] }],
  })
  return found.resources[0].configEntries[0].configValue
}

serves('connect', async () => {
  const other = kafka.admin()
  await other.connect()
  assert.equal((await other.describeCluster()).brokers.length, 1)
  await other.disconnect()
})

isLocal('disconnect', async () => {
  const other = kafka.admin()
  await other.connect()
  let ended = false
  other.on(other.events.DISCONNECT, () => { ended = true })
  await other.disconnect()
  assert(ended)
})

isLocal('on', async () => {
  let requests = 0
  const remove = admin.on(admin.events.REQUEST, () => requests++)
  await admin.listTopics()
  remove()
  assert(requests > 0)
})

isLocal('logger', () => assert.equal(typeof admin.logger().info, 'function'))

serves('createTopics', async () => {
  const name = newName('created')
  const one = { topic: name, numPartitions: 3, configEntries: [{ name: 'retention.ms', value: '60000' }] }
  await admin.createTopics({ validateOnly: true, waitForLeaders: false, topics: [one] })
  assert(!(await admin.listTopics()).includes(name))
  assert.equal(await admin.createTopics({ waitForLeaders: true, topics: [one] }), true)
  assert.equal(await partitionCount(name), 3)
  assert.equal(await config(name, 'retention.ms'), '60000')
  assert.equal(await admin.createTopics({ topics: [one] }), false, 'it exists')
})

serves('deleteTopics', async () => {
  const name = await topic()
  await admin.deleteTopics({ topics: [name] })
  assert(!(await admin.listTopics()).includes(name))
})

serves('listTopics', async () => {
  const name = await topic()
  assert((await admin.listTopics()).includes(name))
})

serves('fetchTopicMetadata', async () => {
  const name = await topic(2)
  const { topics: [found] } = await admin.fetchTopicMetadata({ topics: [name] })
  assert.deepEqual(found.partitions.map(each => each.partitionId).sort(), [0, 1])
  assert(found.partitions.every(each => each.leader === 1 && each.isr.length === 1))
})

serves('createPartitions', async () => {
  const name = await topic(2)
  await admin.createPartitions({ topicPartitions: [{ topic: name, count: 5 }] })
  await until(async () => (await partitionCount(name)) === 5)
  const fewer = { topicPartitions: [{ topic: name, count: 3 }] }
  assert.equal(await errorOf(() => admin.createPartitions(fewer)), 'INVALID_PARTITIONS')
})

serves('deleteTopicRecords', async () => {
  const name = await topic(1, 5)
  await admin.fetchTopicOffsets(name) // kafkajs looks for the leader before it asks for it
  await admin.deleteTopicRecords({ topic: name, partitions: [{ partition: 0, offset: '2' }] })
  const [found] = await admin.fetchTopicOffsets(name)
  assert.deepEqual([found.low, found.high], ['2', '5'])
})

serves('fetchTopicOffsets', async () => {
  const [found] = await admin.fetchTopicOffsets(await topic(1, 5))
  assert.deepEqual([found.low, found.high, found.offset], ['0', '5', '5'])
})

serves('fetchTopicOffsetsByTimestamp', async () => {
  const name = await topic(1, 5)
  const [first] = await admin.fetchTopicOffsetsByTimestamp(name, 1)
  assert.equal(first.offset, '0')
  const [none] = await admin.fetchTopicOffsetsByTimestamp(name, Date.now() + 3600_000)
  assert.equal(none.offset, '5')
})

serves('describeCluster', async () => {
  const found = await admin.describeCluster()
  assert.deepEqual([found.controller, found.brokers.map(each => each.nodeId)], [1, [1]])
  assert(found.clusterId)
})

serves('describeConfigs', async () => assert.equal(await config(await topic(), 'cleanup.policy'), 'delete'))

serves('alterConfigs', async () => {
  const name = await topic()
  const alter = (key, value, validateOnly = false) => admin.alterConfigs({
    validateOnly,
    resources: [{ type: ConfigResourceTypes.TOPIC, name, configEntries: [{ name: key, value }] }],
  })
  await alter('retention.ms', '1000')
  await alter('retention.ms', '2000', true)
  assert.equal(await config(name, 'retention.ms'), '1000')
  await alter('segment.bytes', '2000000')
  assert.equal(await config(name, 'segment.bytes'), '2000000')
  assert.notEqual(await config(name, 'retention.ms'), '1000', 'the rest is removed')
  assert.equal(await errorOf(() => alter('segment.bytes', 'x')), 'INVALID_CONFIG')
})

serves('fetchOffsets', async () => {
  const name = await topic(1, 5)
  assert.equal(await committed(await group(name, '3'), name), '3')
})

serves('setOffsets', async () => {
  const name = await topic(1, 5)
  const groupId = await group(name, '3')
  await admin.setOffsets({ groupId, topic: name, partitions: [{ partition: 0, offset: '1' }] })
  assert.equal(await committed(groupId, name), '1')
  const used = { groupId: usedGroup, topic: usedTopic, partitions: [{ partition: 0, offset: '1' }] }
  assert.match(await errorOf(() => admin.setOffsets(used)), /must have no running instances/)
})

serves('resetOffsets', async () => {
  const name = await topic(1, 5)
  const groupId = await group(name, '3')
  await admin.resetOffsets({ groupId, topic: name, earliest: true })
  const [found] = await admin.fetchOffsets({ groupId, topics: [name], resolveOffsets: true })
  assert.equal(found.partitions[0].offset, '0')
})

serves('listGroups', async () => {
  const { groups } = await admin.listGroups()
  assert(groups.some(each => each.groupId === usedGroup && each.protocolType === 'consumer'))
})

serves('describeGroups', async () => {
  const { groups: [found] } = await admin.describeGroups([usedGroup])
  assert.deepEqual([found.state, found.protocol, found.members.length], ['Stable', 'range', 1])
})

serves('deleteGroups', async () => {
  const groupId = await group(await topic(1, 5), '3')
  const [done] = await admin.deleteGroups([groupId])
  assert.equal(done.errorCode, 0)
  assert.equal(await errorOf(() => admin.deleteGroups([usedGroup])), 'NON_EMPTY_GROUP')
})

serves('alterPartitionReassignments', async () => {
  const name = await topic()
  const alter = replicas => admin.alterPartitionReassignments({
    topics: [{ topic: name, partitionAssignment: [{ partition: 0, replicas }] }],
  })
  await alter([1])
  assert.equal(await errorOf(() => alter([1, 77])), 'INVALID_REPLICA_ASSIGNMENT')
})

serves('listPartitionReassignments', async () => {
  assert.deepEqual((await admin.listPartitionReassignments({})).topics, [])
})

const acl = {
  resourceType: AclResourceTypes.TOPIC,
  resourceName: 't',
  resourcePatternType: ResourcePatternTypes.LITERAL,
  principal: 'User:bob',
  host: '*',
  operation: AclOperationTypes.READ,
  permissionType: AclPermissionTypes.ALLOW,
}

refuses('createAcls', () => admin.createAcls({ acl: [acl] }))
refuses('describeAcls', () => admin.describeAcls(acl))
refuses('deleteAcls', () => admin.deleteAcls({ filters: [acl] }))

const main = async () => {
  for (const [name, value] of Object.entries(admin)) {
    if (typeof value === 'function') {
      console.log(`method\t${name}`)
    }
  }
  await admin.connect()
  for (const [method, check] of rows) {
    let outcome
    try {
      outcome = await check()
    } catch (error) {
      outcome = `failed: ${error.stack}`.replace(/[\n\t]+/g, ' ')
    }
    console.log(`call\t${method}\t${outcome}`)
  }
  await admin.disconnect()
}

main().catch(error => {
  console.error(error)
  process.exitCode = 1
})
