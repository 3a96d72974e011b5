// @platformatic/kafka.
'use strict'
const { randomUUID } = require('node:crypto')
const { Admin, Producer, Consumer, ConfigResourceTypes } = require('@platformatic/kafka')
const { state, sleep, say, inLots, show, enough, reason, main } = require('./verbs.js')

const SET = 0

class Client {
  constructor (address) {
    this.base = {
      clientId: 'camus-tests',
      bootstrapBrokers: [address],
      retries: 60,
      retryDelay: 200,
      metadataMaxAge: 500,
      autocreateTopics: false
    }
    this.admin = new Admin({ ...this.base, retries: 5 })
  }

  async create (a) {
    await this.admin.createTopics({ topics: [a.topic], partitions: a.partitions, replicas: 1, configs: a.settings })
    // Until each partition is led: where one refuses, the producer sends the records of all of them again.
    await this.list(a, -1n)
  }

  async produce (a) {
    const producer = new Producer({ ...this.base, idempotent: a.flag('idempotent') })
    const acks = a.text('acks', 'all') === 'all' ? -1 : a.number('acks')
    await inLots(a, async lot => {
      const messages = lot.map(({ key, value, partition, headers, time }) => ({
        topic: a.topic,
        partition,
        key: key === null ? undefined : Buffer.from(key),
        value: value === null ? undefined : Buffer.from(value),
        headers: new Map(headers.map(([name, content]) => [Buffer.from(name), Buffer.from(content)])),
        ...(time === undefined ? {} : { timestamp: BigInt(time) })
      }))
      const answer = await producer.send({ messages, acks, compression: a.text('codec', 'none') })
      return new Map((answer.offsets || []).map(part => [part.partition, Number(part.offset)]))
    })
    await producer.close(true)
  }

  consumer (groupId, more) {
    const classic = { sessionTimeout: 6000, heartbeatInterval: 500, rebalanceTimeout: 10000 }
    const common = { ...this.base, groupId, autocommit: false, maxWaitTime: 300, minBytes: 1 }
    return new Consumer({ ...common, ...(more || classic) })
  }

  show (m) {
    show(m.partition, m.offset, m.key, m.value, m.headers, m.timestamp)
  }

  // There is no consumer without a group: each of these has one of its own.
  async consume (a) {
    const consumer = this.consumer(`nobody-${randomUUID()}`)
    const came = { count: 0 }
    const start = a.text('start', 'earliest')
    let place = { mode: start }
    if (start.startsWith('@')) {
      const found = await this.list(a, BigInt(start.slice(1)))
      place = { mode: 'manual', offsets: found.map(part => this.spot(a, part.partitionIndex, part.offset)) }
    } else if (!['earliest', 'latest'].includes(start)) {
      place = { mode: 'manual', offsets: a.all.map(partition => this.spot(a, partition, BigInt(start))) }
    }
    const stream = await consumer.consume({ topics: [a.topic], ...place })
    stream.on('error', error => { came.error = error })
    stream.on('data', message => {
      this.show(message)
      came.count++
    })
    // It does not say when it knows where the end is.
    if (start === 'latest') await sleep(1500)
    say({ ready: true })
    await enough(a, came)
    await stream.close()
    await consumer.close(true)
  }

  spot (a, partition, offset) {
    return { topic: a.topic, partition, offset }
  }

  async list (a, timestamp) {
    await this.admin.metadata({ topics: [a.topic], forceUpdate: true })
    const partitions = a.all.map(partitionIndex => ({ partitionIndex, timestamp }))
    const [topic] = await this.admin.listOffsets({ topics: [{ name: a.topic, partitions }] })
    return topic.partitions
  }

  async offsets (a) {
    for (const at of a.times) {
      const found = await this.list(a, { earliest: -2n, latest: -1n }[at] ?? BigInt(at))
      for (const partition of a.all) {
        say({ at, partition, offset: Number(found.find(part => part.partitionIndex === partition).offset) })
      }
    }
  }

  async member (a) {
    const protocol = a.text('protocol', 'classic') === 'consumer' ? { groupProtocol: 'consumer' } : undefined
    const consumer = this.consumer(a.group, protocol)
    const [limit, once] = [a.number('limit'), a.number('commit')]
    let [came, last] = [0, '']
    const tell = assignments => {
      const mine = (assignments || []).filter(part => part.topic === a.topic).flatMap(part => part.partitions)
      const now = JSON.stringify(mine)
      if (now !== last) say({ assigned: mine })
      last = now
    }
    consumer.on('consumer:group:rebalance', () => tell([]))
    const stream = await consumer.consume({ topics: [a.topic], mode: 'committed', fallbackMode: 'earliest' })
    tell(consumer.assignments)
    stream.on('error', error => say({ trouble: reason(error) }))
    let work = Promise.resolve()
    const over = () => state.stopped || (limit && came >= limit)
    stream.on('data', message => {
      work = work.then(async () => {
        if (over()) return
        came++
        this.show(message)
        if (once && came !== once) return
        const offset = message.offset + 1n
        try {
          await consumer.commit({ offsets: [{ ...this.spot(a, message.partition, offset), leaderEpoch: -1 }] })
          say({ committed: { [message.partition]: Number(offset) } })
        } catch (error) {
          say({ refused: reason(error) })
        }
      })
    })
    while (!over()) {
      await sleep(20)
      tell(consumer.assignments)
    }
    await work
    await stream.close()
    await consumer.close(true)
  }

  async committed (a) {
    const topics = [{ name: a.topic, partitionIndexes: a.all }]
    const [group] = await this.admin.listConsumerGroupOffsets({ groups: [{ groupId: a.group, topics }] })
    const found = group.topics.find(topic => topic.name === a.topic)?.partitions || []
    for (const partition of a.all) {
      const part = found.find(part => part.partitionIndex === partition)
      say({ partition, offset: Number(part?.committedOffset ?? -1) })
    }
  }

  async topics () { say({ topics: await this.admin.listTopics() }) }
  async describe (a) {
    const { topics } = await this.admin.metadata({ topics: [a.topic], forceUpdate: true })
    say({ partitions: topics.get(a.topic).partitions.length })
  }

  resource (a, more) {
    return { resourceType: ConfigResourceTypes.TOPIC, resourceName: a.topic, ...more }
  }

  async config (a) {
    const names = a.text('names').split(',')
    const [found] = await this.admin.describeConfigs({ resources: [this.resource(a, { configurationKeys: names })] })
    for (const name of names) say({ name, value: found.configs.find(entry => entry.name === name)?.value ?? null })
  }

  async alter (a) {
    const configs = a.settings.map(setting => ({ ...setting, configOperation: SET }))
    await this.admin.incrementalAlterConfigs({ resources: [this.resource(a, { configs })] })
  }

  async grow (a) {
    await this.admin.createPartitions({ topics: [{ name: a.topic, count: a.partitions, assignments: null }] })
  }

  async delete_records (a) {
    const partitions = [{ partition: a.partition, offset: BigInt(a.text('before')) }]
    await this.admin.deleteRecords({ topics: [{ name: a.topic, partitions }] })
  }

  async delete (a) { await this.admin.deleteTopics({ topics: [a.topic] }) }
  async groups () { say({ groups: [...(await this.admin.listGroups()).keys()] }) }
  async group (a) {
    const group = (await this.admin.describeGroups({ groups: [a.group] })).get(a.group)
    say({ state: group.state, members: group.members.size ?? group.members.length })
  }

  async delete_offsets (a) {
    const topics = [{ name: a.topic, partitionIndexes: [a.partition] }]
    await this.admin.deleteConsumerGroupOffsets({ groupId: a.group, topics })
  }

  async delete_group (a) { await this.admin.deleteGroups({ groups: [a.group] }) }
}

main(async address => new Client(address))
