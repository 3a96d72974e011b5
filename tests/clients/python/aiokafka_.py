"""aiokafka."""

import asyncio
import logging

import aiokafka
from aiokafka import errors
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from verbs import STOPPED, Enough, Refused, main, say, say_record

logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


def must(code, text=""):
    if code:
        raise Refused(code, f"{errors.for_code(code).__name__} {text or ''}")


class Listener(aiokafka.ConsumerRebalanceListener):
    async def on_partitions_revoked(self, revoked):
        say(assigned=[])

    async def on_partitions_assigned(self, assigned):
        say(assigned=sorted(spot.partition for spot in assigned))


class Client:
    """Its methods are made of those of [`Verbs`], each in a loop of its own."""

    def __init__(self, address):
        self.address = address

    def __getattr__(self, verb):
        work = getattr(Verbs, verb)

        async def go(options):
            return await work(Verbs(self.address), options)

        return lambda options: asyncio.run(go(options))


class Verbs:
    def __init__(self, address):
        self.address = address

    async def with_admin(self, work):
        admin = AIOKafkaAdminClient(bootstrap_servers=self.address, request_timeout_ms=20000)
        await admin.start()
        try:
            return await work(admin)
        finally:
            await admin.close()

    async def create(self, a):
        new = NewTopic(a.topic, a.partitions, 1, topic_configs=a.settings)
        answer = await self.with_admin(lambda admin: admin.create_topics([new], timeout_ms=20000))
        for _, code, *text in answer.topic_errors:
            must(code, text[0] if text else "")

    async def produce(self, a):
        acks = a.text("acks", "all")
        codec = a.text("codec", "none")
        options = {} if a.flag("idempotent") else {"acks": "all" if acks == "all" else int(acks)}
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self.address,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=a.flag("idempotent"),
            max_batch_size=500 if a.flag("small") else 16384,
            linger_ms=0 if a.flag("small") else 5,
            max_request_size=2_000_000,
            **options,
        )
        await producer.start()
        sent = []

        async def answer(number, future):
            try:
                done = await asyncio.wait_for(future, 60)
                place = (done.partition, done.offset) if done else (number % a.partitions, -1)
                say(record=number, partition=place[0], offset=place[1])
            except (errors.KafkaError, TimeoutError) as error:
                say(record=number, failed=f"{type(error).__name__}: {error}")

        try:
            for number, partition, key, value, headers, when in a.records():
                future = await producer.send(
                    a.topic, value=value, key=key, partition=partition, timestamp_ms=when, headers=headers
                )
                sent.append(asyncio.ensure_future(answer(number, future)))
                if a.number("pace"):
                    await asyncio.sleep(a.number("pace") / 1000)
            await producer.flush()
            await asyncio.gather(*sent)
        finally:
            await producer.stop()

    def show(self, m):
        say_record(m.partition, m.offset, m.key, m.value, m.headers, m.timestamp)

    async def consume(self, a):
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self.address,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=300,
            max_partition_fetch_bytes=2_000_000,
        )
        await consumer.start()
        try:
            start = a.text("start", "earliest")
            spots = [aiokafka.TopicPartition(a.topic, p) for p in range(a.partitions)]
            consumer.assign(spots)
            if start == "earliest":
                await consumer.seek_to_beginning(*spots)
            elif start == "latest":
                await consumer.seek_to_end(*spots)
                for spot in spots:
                    await consumer.position(spot)
            elif start.startswith("@"):
                found = await consumer.offsets_for_times({spot: int(start[1:]) for spot in spots})
                for spot in spots:
                    if found[spot] is None:
                        await consumer.seek_to_end(spot)
                    else:
                        consumer.seek(spot, found[spot].offset)
            else:
                for spot in spots:
                    consumer.seek(spot, int(start))
            say(ready=True)
            enough = Enough(a)
            while not enough:
                for messages in (await consumer.getmany(timeout_ms=100)).values():
                    for message in messages:
                        self.show(message)
                        enough.one()
        finally:
            await consumer.stop()

    async def offsets(self, a):
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=self.address)
        await consumer.start()
        try:
            spots = [aiokafka.TopicPartition(a.topic, p) for p in range(a.partitions)]
            for at in a.times():
                if at == "earliest":
                    found = await consumer.beginning_offsets(spots)
                elif at == "latest":
                    found = await consumer.end_offsets(spots)
                else:
                    times = await consumer.offsets_for_times({spot: int(at) for spot in spots})
                    found = {spot: place.offset if place else -1 for spot, place in times.items()}
                for spot in spots:
                    say(at=at, partition=spot.partition, offset=found[spot])
        finally:
            await consumer.stop()

    async def member(self, a):
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self.address,
            group_id=a.group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=6000,
            heartbeat_interval_ms=500,
            fetch_max_wait_ms=300,
            max_poll_records=25,
        )
        consumer.subscribe([a.topic], listener=Listener())
        await consumer.start()
        limit, once, came, following = a.number("limit"), a.number("commit"), 0, {}

        async def commit():
            spots = {aiokafka.TopicPartition(a.topic, p): offset for p, offset in following.items()}
            try:
                await consumer.commit(spots)
                say(committed={str(p): offset for p, offset in following.items()})
            except errors.KafkaError as error:
                say(refused=f"{type(error).__name__}: {error}")
            following.clear()

        try:
            while not STOPPED.is_set() and not (limit and came >= limit):
                for messages in (await consumer.getmany(timeout_ms=100)).values():
                    for message in messages:
                        if limit and came >= limit:
                            break
                        came += 1
                        self.show(message)
                        following[message.partition] = message.offset + 1
                        if came == once:
                            await commit()
                if not once and following:
                    await commit()
        finally:
            await consumer.stop()

    async def committed(self, a):
        spots = [aiokafka.TopicPartition(a.topic, p) for p in range(a.partitions)]
        found = await self.with_admin(lambda admin: admin.list_consumer_group_offsets(a.group, partitions=spots))
        for spot in spots:
            say(partition=spot.partition, offset=found[spot].offset if spot in found else -1)

    async def topics(self, _):
        say(topics=sorted(await self.with_admin(lambda admin: admin.list_topics())))

    async def describe(self, a):
        (found,) = await self.with_admin(lambda admin: admin.describe_topics([a.topic]))
        must(found["error_code"])
        say(partitions=len(found["partitions"]))

    async def config(self, a):
        resource = ConfigResource(ConfigResourceType.TOPIC, a.topic)
        (answer,) = await self.with_admin(lambda admin: admin.describe_configs([resource]))
        for code, text, _, _, entries in answer.resources:
            must(code, text)
            found = {entry[0]: entry[1] for entry in entries}
        for name in a.text("names").split(","):
            say(name=name, value=found[name])

    async def alter(self, a):
        resource = ConfigResource(ConfigResourceType.TOPIC, a.topic, configs=a.settings)
        for answer in await self.with_admin(lambda admin: admin.alter_configs([resource])):
            for code, text, *_ in answer.resources:
                must(code, text)

    async def grow(self, a):
        more = {a.topic: NewPartitions(a.partitions)}
        await self.with_admin(lambda admin: admin.create_partitions(more, timeout_ms=20000))

    async def delete_records(self, a):
        spot = aiokafka.TopicPartition(a.topic, a.number("partition"))
        records = {spot: RecordsToDelete(a.number("before"))}
        await self.with_admin(lambda admin: admin.delete_records(records, timeout_ms=20000))

    async def delete(self, a):
        answer = await self.with_admin(lambda admin: admin.delete_topics([a.topic], timeout_ms=20000))
        for _, code in answer.topic_error_codes:
            must(code)

    async def groups(self, _):
        say(groups=[name for name, *_ in await self.with_admin(lambda admin: admin.list_consumer_groups())])

    async def group(self, a):
        (answer,) = await self.with_admin(lambda admin: admin.describe_consumer_groups([a.group]))
        for code, _, state, _, _, members, *_ in answer.groups:
            must(code)
            say(state=state, members=len(members))


main(Client)
