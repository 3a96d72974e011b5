// What the Node programs share: their arguments, the rule that makes records, and how they say what came.
// See ../README.md for the convention. A program hands `main` a function that makes an object whose methods are verbs.
'use strict'
const { crc32 } = require('node:zlib')

const state = { stopped: false }
process.on('SIGTERM', () => { state.stopped = true })

const sleep = ms => new Promise(resolve => setTimeout(resolve, ms))

function say (event) {
  process.stdout.write(JSON.stringify(event) + '\n')
}

// What stands before and behind the first `mark`.
const cut = (text, mark) => [text.slice(0, text.indexOf(mark)), text.slice(text.indexOf(mark) + 1)]

// The arguments of one verb.
class Options {
  constructor (words) {
    this.words = Object.fromEntries(words.map(word => cut(word, '=')))
  }

  text (name, otherwise) { return this.words[name] ?? otherwise }
  number (name, otherwise = 0) { return Number(this.words[name] ?? otherwise) }
  flag (name) { return this.words[name] === '1' }
  get topic () { return this.words.topic }
  get group () { return this.words.group }
  get partitions () { return this.number('partitions', 1) }
  get partition () { return this.number('partition') }
  get all () { return Array.from({ length: this.partitions }, (_, p) => p) }
  get times () { return this.text('at', 'latest').split(',') }

  // `set=a:b,c:d`
  get settings () {
    const pairs = this.text('set', '').split(',').filter(Boolean)
    return pairs.map(pair => cut(pair, ':')).map(([name, value]) => ({ name, value }))
  }

  // Those to send, by the rule of README.md: headers are pairs, what is not there is null.
  get records () {
    const first = this.number('from')
    const mixed = this.text('shape') === 'mixed'
    return Array.from({ length: this.number('count') }, (_, n) => {
      const i = first + n
      return {
        number: i,
        partition: i % this.partitions,
        key: mixed && i % 5 !== 0 ? `key-${i}` : null,
        value: mixed && i % 5 === 3 ? null : String(i).padEnd(this.number('size'), '.'),
        headers: mixed && i % 2 === 1 ? [['n', String(i)], ['mark', 'ü']] : [],
        time: this.words.time === undefined ? undefined : this.number('time') + 1000 * i
      }
    })
  }
}

// Sends in lots, one after the other: as many in one go as the batches are to have. `send(lot)` gives partition -> the
// offset of the lot's first record in it, or nothing where nobody answers.
async function inLots (options, send) {
  const size = options.number('pace') ? 1 : options.flag('small') ? 10 : 100
  const records = options.records
  for (let at = 0; at < records.length; at += size) {
    const lot = records.slice(at, at + size)
    try {
      const next = await send(lot)
      for (const { number, partition } of lot) {
        const offset = next.get(partition)
        if (offset !== undefined) next.set(partition, offset + 1)
        say({ record: number, partition, offset: offset ?? -1 })
      }
    } catch (error) {
      for (const { number } of lot) say({ record: number, failed: reason(error) })
    }
    await sleep(options.number('pace'))
  }
}

const text = bytes => (bytes === null || bytes === undefined ? null : bytes.toString())

function show (partition, offset, key, value, headers, time) {
  const bytes = value === null || value === undefined ? null : Buffer.from(value)
  say({
    partition,
    offset: Number(offset),
    key: text(key),
    value: bytes && bytes.subarray(0, 64).toString(),
    size: bytes && bytes.length,
    crc: bytes && crc32(bytes),
    headers: Object.fromEntries([...headers].map(([name, content]) => [text(name), text(content)])),
    time: Number(time)
  })
}

// What a reader waits for: as many records, some time more, and no longer than its seconds.
async function enough (options, came) {
  const deadline = Date.now() + options.number('seconds', 30) * 1000
  let seen = came.count
  let since = Date.now()
  while (came.count < options.number('count') || Date.now() - since < options.number('quiet')) {
    if (came.count !== seen) [seen, since] = [came.count, Date.now()]
    if (came.error) throw came.error
    if (Date.now() > deadline) throw new Error(`${came.count} of ${options.number('count')} records came in time`)
    await sleep(10)
  }
}

// An error with all that it was made of.
function chain (error, found = []) {
  if (error && !found.includes(error)) {
    found.push(error)
    const more = (error.partitions || []).map(part => part.error)
    for (const inner of [...(error.errors || []), ...more, error.cause, error.originalError]) chain(inner, found)
  }
  return found
}

function reason (error) {
  return chain(error).map(e => [e.apiId || e.type, e.message].filter(Boolean).join(' ')).join(': ')
}

function code (error) {
  return chain(error).map(e => e.apiCode ?? e.code).find(value => typeof value === 'number') ?? null
}

async function main (make) {
  const [address, ...words] = process.argv.slice(2)
  const client = await make(address)
  let rest = words
  while (rest.length) {
    const end = rest.includes('then') ? rest.indexOf('then') : rest.length
    const [verb, ...pairs] = rest.slice(0, end)
    rest = rest.slice(end + 1)
    const options = new Options(pairs)
    try {
      await client[verb](options)
    } catch (error) {
      say({ error: reason(error), code: code(error), verb })
      if (options.text('may') !== 'fail') return leave(1)
    }
    say({ end: verb })
  }
  leave(0)
}

// Clients keep sockets and timers; what was said must be out before the end.
function leave (status) {
  process.stdout.write('', () => process.exit(status))
}

module.exports = { state, sleep, say, inLots, show, enough, reason, main }
