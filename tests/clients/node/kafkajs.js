// kafkajs.
'use strict'
const { randomUUID } = require('node:crypto')
const { Kafka, logLevel, CompressionTypes, CompressionCodecs, ConfigResourceTypes } = require('kafkajs')
const { state, sleep, say, inLots, show, enough, reason, main } = require('./verbs.js')

CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy')
CompressionCodecs[CompressionTypes.LZ4] = new (require('kafkajs-lz4'))().codec

const CODECS = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4
}

class Client {
  constructor (address) {
    const retry = { retries: 60, initialRetryTime: 100, maxRetryTime: 1000 }
    this.kafka = new Kafka({ clientId: 'camus-tests', brokers: [address], logLevel: logLevel.NOTHING, retry })
  }

  async admin () {
    if (!this.made) {
      this.made = this.kafka.admin({ retry: { retries: 5 } })
      await this.made.connect()
    }
    return this.made
  }

  async create (a) {
    const configEntries = a.settings
    const topic = { topic: a.topic, numPartitions: a.partitions, replicationFactor: 1, configEntries }
    const made = await (await this.admin()).createTopics({ topics: [topic], waitForLeaders: true })
    if (!made) throw Object.assign(new Error('the topic exists already'), { code: 36 })
  }

  async produce (a) {
    const producer = this.kafka.producer({ idempotent: a.flag('idempotent'), allowAutoTopicCreation: false })
    await producer.connect()
    const acks = a.text('acks', 'all') === 'all' ? -1 : a.number('acks')
    await inLots(a, async lot => {
      const messages = lot.map(({ key, value, partition, headers, time }) => {
        const when = time === undefined ? {} : { timestamp: String(time) }
        return { key, value, partition, headers: Object.fromEntries(headers), ...when }
      })
      const compression = CODECS[a.text('codec', 'none')]
      const answer = await producer.send({ topic: a.topic, messages, acks, compression })
      return new Map((answer || []).map(part => [part.partition, Number(part.baseOffset)]))
    })
    await producer.disconnect()
  }

  consumer (more) {
    const common = { maxWaitTimeInMs: 300, allowAutoTopicCreation: false, maxBytesPerPartition: 2000000 }
    return this.kafka.consumer({ ...common, ...more })
  }

  show (partition, message) {
    const { offset, key, value, headers, timestamp } = message
    show(partition, offset, key, value, Object.entries(headers || {}), timestamp)
  }

  // There is no consumer without a group: each of these has one of its own.
  async consume (a) {
    const groupId = `nobody-${randomUUID()}`
    const consumer = this.consumer({ groupId, sessionTimeout: 10000, heartbeatInterval: 1000 })
    const came = { count: 0 }
    const start = a.text('start', 'earliest')
    let spots = []
    if (start.startsWith('@')) {
      spots = await (await this.admin()).fetchTopicOffsetsByTimestamp(a.topic, Number(start.slice(1)))
    } else if (!['earliest', 'latest'].includes(start)) {
      spots = a.all.map(partition => ({ partition, offset: start }))
    }
    const joined = new Promise(resolve => consumer.on(consumer.events.GROUP_JOIN, resolve))
    consumer.on(consumer.events.CRASH, event => { came.error = event.payload.error })
    await consumer.connect()
    await consumer.subscribe({ topics: [a.topic], fromBeginning: start === 'earliest' })
    await consumer.run({
      autoCommit: false,
      eachBatch: async ({ batch, resolveOffset, isStale }) => {
        for (const message of batch.messages) {
          if (isStale()) return
          this.show(batch.partition, message)
          resolveOffset(message.offset)
          came.count++
        }
      }
    })
    await joined
    for (const { partition, offset } of spots) consumer.seek({ topic: a.topic, partition, offset })
    // It looks up where the end is with its first fetch, and does not say when.
    if (start === 'latest') await sleep(1500)
    say({ ready: true })
    await enough(a, came)
    await consumer.disconnect()
  }

  async offsets (a) {
    const admin = await this.admin()
    for (const at of a.times) {
      const known = { earliest: 'low', latest: 'high' }[at]
      const found = known
        ? await admin.fetchTopicOffsets(a.topic)
        : await admin.fetchTopicOffsetsByTimestamp(a.topic, Number(at))
      for (const partition of a.all) {
        const place = found.find(part => part.partition === partition)
        say({ at, partition, offset: Number(place[known || 'offset']) })
      }
    }
  }

  async member (a) {
    const times = { sessionTimeout: 6000, heartbeatInterval: 500, rebalanceTimeout: 10000 }
    const consumer = this.consumer({ groupId: a.group, ...times })
    const [limit, once] = [a.number('limit'), a.number('commit')]
    let came = 0
    consumer.on(consumer.events.GROUP_JOIN, event => say({ assigned: event.payload.memberAssignment[a.topic] || [] }))
    consumer.on(consumer.events.REBALANCING, () => say({ assigned: [] }))
    const commit = async (partition, offset) => {
      try {
        await consumer.commitOffsets([{ topic: a.topic, partition, offset: String(offset) }])
        say({ committed: { [partition]: offset } })
      } catch (error) {
        say({ refused: reason(error) })
      }
    }
    await consumer.connect()
    await consumer.subscribe({ topics: [a.topic], fromBeginning: true })
    await consumer.run({
      autoCommit: false,
      eachBatch: async ({ batch, resolveOffset, heartbeat, isStale, isRunning }) => {
        let next = null
        for (const message of batch.messages) {
          if (isStale() || !isRunning() || state.stopped || (limit && came >= limit)) break
          came++
          this.show(batch.partition, message)
          resolveOffset(message.offset)
          next = Number(message.offset) + 1
          if (came === once) await commit(batch.partition, next)
        }
        if (!once && next !== null) await commit(batch.partition, next)
        await heartbeat()
      }
    })
    while (!state.stopped && !(limit && came >= limit)) await sleep(20)
    // Ends after the batch in hand, and leaves the group.
    await consumer.disconnect()
  }

  async committed (a) {
    const [found] = await (await this.admin()).fetchOffsets({ groupId: a.group, topics: [a.topic] })
    for (const partition of a.all) {
      say({ partition, offset: Number(found.partitions.find(part => part.partition === partition)?.offset ?? -1) })
    }
  }

  async topics () { say({ topics: await (await this.admin()).listTopics() }) }
  async describe (a) {
    const { topics: [topic] } = await (await this.admin()).fetchTopicMetadata({ topics: [a.topic] })
    say({ partitions: topic.partitions.length })
  }

  async config (a) {
    const resources = [{ type: ConfigResourceTypes.TOPIC, name: a.topic }]
    const answer = await (await this.admin()).describeConfigs({ includeSynonyms: false, resources })
    const found = answer.resources[0].configEntries
    for (const name of a.text('names').split(',')) {
      say({ name, value: found.find(entry => entry.configName === name)?.configValue ?? null })
    }
  }

  async alter (a) {
    const resources = [{ type: ConfigResourceTypes.TOPIC, name: a.topic, configEntries: a.settings }]
    await (await this.admin()).alterConfigs({ validateOnly: false, resources })
  }

  async grow (a) {
    await (await this.admin()).createPartitions({ topicPartitions: [{ topic: a.topic, count: a.partitions }] })
  }

  async delete_records (a) {
    const partitions = [{ partition: a.partition, offset: a.text('before') }]
    const admin = await this.admin()
    // It looks for the leader only among the topics that it has asked for before.
    await admin.fetchTopicOffsets(a.topic)
    await admin.deleteTopicRecords({ topic: a.topic, partitions })
  }

  async delete (a) { await (await this.admin()).deleteTopics({ topics: [a.topic] }) }
  async groups () { say({ groups: (await (await this.admin()).listGroups()).groups.map(group => group.groupId) }) }
  async group (a) {
    const { groups: [group] } = await (await this.admin()).describeGroups([a.group])
    say({ state: group.state, members: group.members.length })
  }

  async delete_group (a) { await (await this.admin()).deleteGroups([a.group]) }
}

main(async address => new Client(address))
